// The recurrent states of gated delta attention, Mamba-2 and short convolutions: slots of every layer's
// state, two per running sequence and some to keep states in. Of a sequence's two one holds the state after
// the last step that counted, and the running step writes the other: a step that is run again starts from the
// same state, and a sequence at position 0 starts from zero whatever its slots hold, so nothing is cleared
// when a sequence leaves or is preempted.
//
// A state is kept by keeping its slot: nobody writes it until it is dropped, and any number of sequences may
// go on from it. Nothing is copied.
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

namespace sluice {

// The two slots of a sequence's state, by their roles in the running step.
struct StateSlots {
  uint32_t from = 0;  // before the step
  uint32_t to = 0;    // after it
};

// Bytes of the states of one sequence over all layers, both slots; 0 for models without recurrent layers.
uint64_t StateBytesPerSequence(const ModelConfig& config);

// Bytes of one kept state over all layers.
uint64_t StateBytes(const ModelConfig& config);

class DeltaStates {
 public:
  // States for `sequences` running sequences, named by the scheduler's slots 0..sequences-1, and room for
  // `kept` others.
  static absl::StatusOr<std::unique_ptr<DeltaStates>> Create(const ModelConfig& config, uint32_t sequences,
                                                             uint32_t kept, Backend* backend);

  // The states of a layer. REQUIRES: its attention is recurrent (IsRecurrent).
  const DeltaStateView& view(uint32_t layer) const { return views_[layer]; }

  StateSlots slots(uint32_t sequence) const { return running_[sequence]; }
  // The step that wrote slots(sequence).to counts: what it wrote is what the next step begins with.
  void Commit(uint32_t sequence);

  // Keeps what the sequence's next step begins with, under the number returned. REQUIRES: fewer than `kept`
  // states are kept.
  uint32_t Keep(uint32_t sequence);
  // Keeps a state that is to be written (Write), under the number returned. REQUIRES: as Keep().
  uint32_t KeepNew() { return Take(); }
  // A kept state is of no use any more; sequences that go on from it still may.
  void Drop(uint32_t state) { Release(state); }
  // The sequence's next step begins with a kept state.
  void Adopt(uint32_t sequence, uint32_t state);

  // Bytes of a state of all layers.
  uint64_t state_bytes() const;
  // Enqueues that a kept state is read into, or written from, `state_bytes` bytes of host memory, which the
  // caller keeps until the queue has got there: layer by layer.
  absl::Status Read(uint32_t state, absl::Span<std::byte> to, Queue* queue) const;
  absl::Status Write(uint32_t state, absl::Span<const std::byte> from, Queue* queue) const;

 private:
  DeltaStates(uint32_t sequences, uint32_t kept);
  uint32_t Take();
  void Release(uint32_t slot);

  std::vector<StateSlots> running_;    // by sequence
  std::vector<uint32_t> holders_;      // by slot: sequences whose it is, and one more while it is kept
  std::vector<uint32_t> free_;         // slots without holders
  std::vector<DeltaStateView> views_;  // by layer; empty ones of layers without
};

}  // namespace sluice
