// The recurrent states of gated delta attention, Mamba-2 and short convolutions, also that of n-grams, and
// the rows of positions that are not compressed to an entry yet: slots of every layer's state, two per
// running sequence and some for kept states. One slot of a sequence holds the state after the last committed
// step, and the running step writes the other: a repeated step starts from the same state, and a sequence at
// position 0 starts from zero whatever its slots hold, so nothing is cleared when a sequence ends or is
// preempted.
//
// A state is kept by keeping its slot: it is not written until dropped, and any number of sequences may
// continue from it. Nothing is copied.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// The two slots of a sequence's state, by role in the running step.
struct StateSlots {
  uint32_t from = 0;  // before the step
  uint32_t to = 0;    // after it
};

// Floats of the state of a layer's attention; that of its n-grams' convolution follows.
uint64_t AttentionStateFloats(const AttentionConfig& attention);

// Bytes of the states of one sequence over all layers, both slots; 0 for models without recurrent layers.
uint64_t StateBytesPerSequence(const ModelConfig& config);

// Bytes of one kept state over all layers.
uint64_t StateBytes(const ModelConfig& config);

class RecurrentStates {
 public:
  // Creates states for `sequences` running sequences, named by the scheduler's slots 0..sequences-1, and
  // `kept` others.
  static absl::StatusOr<std::unique_ptr<RecurrentStates>> Create(const ModelConfig& config,
                                                                 uint32_t sequences, uint32_t kept,
                                                                 Backend* backend);

  // States of a layer; without slots if it has none.
  const DeltaStateView& view(uint32_t layer) const { return views_[layer]; }

  StateSlots slots(uint32_t sequence) const { return running_[sequence]; }
  // Commits the step that wrote slots(sequence).to: the next step begins with that state.
  void Commit(uint32_t sequence);

  // Keeps the state from which the sequence's next step begins, under the number returned. REQUIRES: fewer
  // than `kept` states are kept.
  uint32_t Keep(uint32_t sequence);
  // Keeps a state for a later Write(), under the number returned. REQUIRES: as Keep().
  uint32_t KeepNew() { return Take(); }
  // Drops a kept state; sequences that continue from it keep their slot.
  void Drop(uint32_t state) { Release(state); }
  // Lets the sequence's next step begin with a kept state.
  void Adopt(uint32_t sequence, uint32_t state);

  // Number of states, kept or not; all numbers are below it.
  uint32_t total() const { return static_cast<uint32_t>(holders_.size()); }
  // Bytes of a state over all layers.
  uint64_t state_bytes() const;
  // Enqueues a read or write of a kept state, layer by layer, from or to `state_bytes` bytes of host memory,
  // which the caller keeps until the queue has run the copy.
  absl::Status Read(uint32_t state, absl::Span<std::byte> to, Queue* queue) const;
  absl::Status Write(uint32_t state, absl::Span<const std::byte> from, Queue* queue) const;

 private:
  RecurrentStates(uint32_t sequences, uint32_t kept);
  uint32_t Take();
  void Release(uint32_t slot);

  std::vector<StateSlots> running_;    // by sequence
  std::vector<uint32_t> holders_;      // by slot: number of its sequences, plus one while it is kept
  std::vector<uint32_t> free_;         // free slots
  std::vector<DeltaStateView> views_;  // by layer; empty if the layer is not recurrent
};

}  // namespace sluice::inferd
