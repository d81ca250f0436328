#include "inferd/model/delta_states.h"

#include "common/status.h"
#include "inferd/model/model_shapes.h"

namespace sluice {
namespace {

constexpr uint64_t kSlotAlignment = 64;

// Bytes of one slot of one layer: the convolution's last inputs and the state matrix of each head, in
// float32, because the recurrence adds up rounding errors over the whole text.
uint64_t SlotBytes(const AttentionConfig& attention) {
  if (attention.kind != AttentionKind::kGatedDelta) {
    return 0;
  }
  const DeltaConfig& d = attention.delta;
  const uint64_t conv = uint64_t{d.conv_kernel - 1} * ConvCols(d);
  const uint64_t state = uint64_t{d.value_heads} * d.key_dim * d.value_dim;
  return ((conv + state) * sizeof(float) + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

}  // namespace

uint64_t StateBytesPerSequence(const ModelConfig& config) {
  uint64_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    bytes += 2 * SlotBytes(layer.attention);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<DeltaStates>> DeltaStates::Create(const ModelConfig& config,
                                                                 uint32_t sequences, Backend* backend) {
  std::unique_ptr<DeltaStates> states(new DeltaStates(sequences));
  const uint64_t bytes = StateBytesPerSequence(config) * sequences;
  BufferId buffer = kNoBuffer;
  if (bytes > 0) {
    ASSIGN_OR_RETURN(buffer, backend->Allocate(bytes, BufferKind::kKvCache));
  }
  uint64_t offset = 0;
  for (const LayerConfig& layer : config.layers) {
    const uint64_t stride = SlotBytes(layer.attention);
    const BufferRef base = stride > 0 ? BufferRef{buffer, offset} : BufferRef{};
    states->views_.push_back({base, stride, stride > 0 ? 2 * sequences : 0});
    offset += 2 * sequences * stride;
  }
  return states;
}

}  // namespace sluice
