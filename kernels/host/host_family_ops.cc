// The small operations that only some families need.
#include "kernels/host/host_backend.h"
#include "kernels/host/simd/row_kind.h"

namespace sluice {

void HostBackend::Run(const SigmoidGateCall& call) {
  RunTiles(call.tokens, uint64_t{call.tokens} * call.cols * 8,
           [&](uint32_t t, uint32_t) { kernels_.sigmoid_mul(call.gate.Row(t), call.cols, call.x.Row(t)); });
}

void HostBackend::Run(const ScaleRowsCall& call) {
  const uint32_t rows = call.tokens * call.ranks;
  RunTiles(rows, uint64_t{rows} * call.cols * 2, [&](uint32_t i, uint32_t) {
    const float* x = call.x.Row(i / call.ranks);
    kernels_.decode[static_cast<int>(host::RowKind::kF32)](reinterpret_cast<const uint8_t*>(x), call.cols,
                                                           call.weights[i], call.y.Row(i));
  });
}

}  // namespace sluice
