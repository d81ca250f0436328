// The recurrent states of gated delta attention: two slots of every layer's state per running sequence, one
// that holds the state after the last step that counted, one that the running step writes. A step that is run
// again starts from the same state; a sequence at position 0 starts from zero whatever its slots hold, so
// nothing is cleared when a sequence leaves or is preempted.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "kernels/backend.h"

namespace sluice {

// The two slots of a sequence's state, by their roles in the running step.
struct StateSlots {
  uint32_t from = 0;  // before the step
  uint32_t to = 0;    // after it
};

// Bytes of the states of one sequence over all layers, both slots; 0 for models without recurrent layers.
uint64_t StateBytesPerSequence(const ModelConfig& config);

class DeltaStates {
 public:
  // States for `sequences` running sequences, named by the scheduler's slots 0..sequences-1.
  static absl::StatusOr<std::unique_ptr<DeltaStates>> Create(const ModelConfig& config, uint32_t sequences,
                                                             Backend* backend);

  // The states of a layer. REQUIRES: the layer has gated delta attention.
  const DeltaStateView& view(uint32_t layer) const { return views_[layer]; }

  StateSlots slots(uint32_t sequence) const {
    return {2 * sequence + current_[sequence], 2 * sequence + 1u - current_[sequence]};
  }
  // The step that wrote slots(sequence).to counts: what it wrote is what the next step begins with.
  void Commit(uint32_t sequence) { current_[sequence] ^= 1; }

 private:
  explicit DeltaStates(uint32_t sequences) : current_(sequences, 0) {}

  std::vector<uint8_t> current_;       // by sequence: 0 or 1
  std::vector<DeltaStateView> views_;  // by layer; empty ones of layers without
};

}  // namespace sluice
