// StreamMix, StreamWrite, StreamMean, StreamAdd, StreamMatch.

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device/streams.h"

namespace sluice::cuda {

static_assert(kMaxDeviceStreams == kMaxStreams);

absl::Status Run(Device& device, const StreamMixCall& call) {
  StreamMixLaunch launch{call};
  Workspace workspace(device);
  ASSIGN_OR_RETURN(uint8_t* const pre,
                   workspace.Take(uint64_t{4} * call.tokens * call.streams, "factors of streams"));
  launch.pre = reinterpret_cast<float*>(pre);
  return StatusOf(EnqueueStreamMix(launch, device.launcher), "StreamMix");
}

absl::Status Run(Device& device, const StreamWriteCall& call) {
  return StatusOf(EnqueueStreamWrite(call, device.launcher), "StreamWrite");
}

absl::Status Run(Device& device, const StreamMeanCall& call) {
  return StatusOf(EnqueueStreamMean(call, device.launcher), "StreamMean");
}

absl::Status Run(Device& device, const StreamAddCall& call) {
  return StatusOf(EnqueueStreamAdd(call, device.launcher), "StreamAdd");
}

absl::Status Run(Device& device, const StreamMatchCall& call) {
  return StatusOf(EnqueueStreamMatch(call, device.launcher), "StreamMatch");
}

}  // namespace sluice::cuda
