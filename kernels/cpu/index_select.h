// The choice of an indexer (ARITHMETIC.md 6): scores of the index heads with all cached index keys of a row,
// then the best blocks. A task scores a span of positions for some rows, so that one long context in decode
// keeps all threads busy, and a second region chooses. Neither depends on how the work is shared.
//
// Thread safety: as Backend; tiles write disjoint memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention_calls.h"
#include "kernels/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"

namespace sluice::cpu {

class IndexSelect {
 public:
  // All arguments must outlive it.
  IndexSelect(const KernelTable& kernels, Workspace& space, Tiles& tiles)
      : kernels_(kernels), space_(space), tiles_(tiles) {}
  // Errors: as Scratch.
  absl::Status Reserve(const BackendLimits& limits, Scratch* scratch);

  void Run(const IndexSelectCall& call);

 private:
  struct alignas(64) Worker {
    float* span = nullptr;     // kSpanScratchFloats
    uint64_t* keys = nullptr;  // [max_context]
  };
  // Rows [first, first + rows) of a sequence, whose scores are kept at once.
  struct Batch {
    const SequenceRows* sequence = nullptr;
    uint32_t first = 0;
    uint32_t rows = 0;
  };

  void RunBatch(const IndexSelectCall& call, const Batch& batch);
  void ScoreSpan(const IndexSelectCall& call, const Batch& batch, uint32_t first_row, uint32_t rows,
                 uint32_t span, uint32_t worker);
  void Choose(const IndexSelectCall& call, const Batch& batch, uint32_t row, uint32_t list, uint32_t worker);
  float* ScoresOf(const IndexSelectCall& call, uint32_t row, uint32_t list) const {
    return scores_ + (uint64_t{row} * call.chosen.lists + list) * stride_;
  }

  const KernelTable& kernels_;
  Workspace& space_;
  Tiles& tiles_;
  std::vector<Worker> workers_;
  uint64_t score_floats_ = 0;
  uint64_t stride_ = 0;      // whole spans of a context
  float* scores_ = nullptr;  // [rows of a batch][lists][stride]
};

}  // namespace sluice::cpu
