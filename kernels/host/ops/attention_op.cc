// Runs Attention with the part of that name.
#include "kernels/host/ops/device.h"

namespace sluice::cpu {

void Run(Device& d, const AttentionCall& call) { d.attention.Run(call); }

}  // namespace sluice::cpu
