#include "inferd/model/recurrent_states.h"

#include "common/base/status.h"
#include "inferd/model/model_shapes.h"

namespace sluice::inferd {
namespace {

constexpr uint64_t kSlotAlignment = 64;

}  // namespace

// The convolution's last inputs and each head's state matrix, if any.
uint64_t AttentionStateFloats(const AttentionConfig& attention) {
  switch (attention.kind) {
    case AttentionKind::kGatedDelta: {
      const DeltaConfig& d = attention.delta;
      return uint64_t{d.conv_kernel - 1} * ConvCols(d) + uint64_t{d.value_heads} * d.key_dim * d.value_dim;
    }
    case AttentionKind::kMamba: {
      const MambaConfig& m = attention.mamba;
      return uint64_t{m.conv_kernel - 1} * ConvCols(m) + uint64_t{m.heads} * m.state * m.head_dim;
    }
    case AttentionKind::kShortConv:
      return uint64_t{attention.conv.kernel - 1} * attention.conv.width;
    case AttentionKind::kSelective: {
      const SelectiveConfig& s = attention.selective;
      return uint64_t{s.conv_kernel - 1 + s.state} * s.channels;
    }
    case AttentionKind::kGrouped:
    case AttentionKind::kLatent:
    case AttentionKind::kCompressed:
      return EntryStateFloats(attention) + PooledStateFloats(attention);
    case AttentionKind::kNone:
      break;
  }
  return 0;
}

namespace {

// Bytes of one slot of one layer, in float32, because the recurrence accumulates rounding errors over the
// whole sequence.
uint64_t SlotBytes(const ModelConfig& config, const LayerConfig& layer) {
  const uint64_t floats = AttentionStateFloats(layer.attention) +
                          uint64_t{NgramReach(layer.ngrams)} * config.streams.count * config.hidden;
  return (floats * sizeof(float) + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

}  // namespace

uint64_t StateBytes(const ModelConfig& config) {
  uint64_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    bytes += SlotBytes(config, layer);
  }
  return bytes;
}

uint64_t StateBytesPerSequence(const ModelConfig& config) { return 2 * StateBytes(config); }

absl::StatusOr<std::unique_ptr<RecurrentStates>> RecurrentStates::Create(const ModelConfig& config,
                                                                         uint32_t sequences, uint32_t kept,
                                                                         Backend* backend) {
  std::unique_ptr<RecurrentStates> states(new RecurrentStates(sequences, kept));
  const uint32_t slots = 2 * sequences + kept;
  const uint64_t bytes = StateBytes(config) * slots;
  BufferId buffer = kNoBuffer;
  if (bytes > 0) {
    ASSIGN_OR_RETURN(buffer, backend->Allocate(bytes, BufferKind::kKvCache));
  }
  uint64_t offset = 0;
  for (const LayerConfig& layer : config.layers) {
    const uint64_t stride = SlotBytes(config, layer);
    const BufferRef base = stride > 0 ? BufferRef{buffer, offset} : BufferRef{};
    states->views_.push_back({base, stride, stride > 0 ? slots : 0});
    offset += slots * stride;
  }
  return states;
}

RecurrentStates::RecurrentStates(uint32_t sequences, uint32_t kept)
    : running_(sequences), holders_(2 * sequences + kept, 0) {
  free_.reserve(holders_.size());
  for (uint32_t slot = static_cast<uint32_t>(holders_.size()); slot > 0; --slot) {
    free_.push_back(slot - 1);
  }
  for (StateSlots& slots : running_) {
    slots.from = Take();
    slots.to = Take();
  }
}

// A free slot always exists: a sequence holds at most two, kept or not, and releases one before it takes
// another.
uint32_t RecurrentStates::Take() {
  const uint32_t slot = free_.back();
  free_.pop_back();
  holders_[slot] = 1;
  return slot;
}

void RecurrentStates::Release(uint32_t slot) {
  if (--holders_[slot] == 0) {
    free_.push_back(slot);
  }
}

void RecurrentStates::Commit(uint32_t sequence) {
  StateSlots& slots = running_[sequence];
  Release(slots.from);
  slots.from = slots.to;
  slots.to = Take();
}

uint32_t RecurrentStates::Keep(uint32_t sequence) {
  const uint32_t slot = running_[sequence].from;
  holders_[slot]++;
  return slot;
}

void RecurrentStates::Adopt(uint32_t sequence, uint32_t state) {
  StateSlots& slots = running_[sequence];
  holders_[state]++;
  Release(slots.from);
  slots.from = state;
}

uint64_t RecurrentStates::state_bytes() const {
  uint64_t bytes = 0;
  for (const DeltaStateView& view : views_) {
    bytes += view.slot_stride;
  }
  return bytes;
}

absl::Status RecurrentStates::Read(uint32_t state, absl::Span<std::byte> to, Queue* queue) const {
  std::byte* at = to.data();
  for (const DeltaStateView& view : views_) {
    if (view.slot_stride > 0) {
      RETURN_IF_ERROR(queue->Download(view.base + state * view.slot_stride, view.slot_stride, at));
      at += view.slot_stride;
    }
  }
  return absl::OkStatus();
}

absl::Status RecurrentStates::Write(uint32_t state, absl::Span<const std::byte> from, Queue* queue) const {
  const std::byte* at = from.data();
  for (const DeltaStateView& view : views_) {
    if (view.slot_stride > 0) {
      RETURN_IF_ERROR(queue->Upload(at, view.slot_stride, view.base + state * view.slot_stride));
      at += view.slot_stride;
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
