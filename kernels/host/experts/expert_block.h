#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/host/experts/expert_job.h"
#include "kernels/host/rows/row_lists.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/simd/row_fetch.h"
#include "kernels/host/work/workspace.h"

namespace sluice::cpu {

// A block, as one worker computes it.
struct ExpertBlock {
  const MoeExpertsCall* call = nullptr;
  absl::Span<const ExpertJob> jobs;
  const ExpertJob* job = nullptr;  // index of its job
  uint32_t first = 0;              // neuron
  uint32_t neurons = 0;
  uint32_t tokens = 0;
  bool packed = false;  // token panels begin at job->memory
  uint32_t worker = 0;
  RowFetch* fetch = nullptr;  // fetched its rows before they are read; nullptr: not fetched
  bool whole = false;         // does not wait: all of its rows are expected to be read
  bool in_halves = false;     // all rows are fetched and read in turn from both halves of the block
  const ExpertBlock* waiting = nullptr;  // the block whose kept rows are read after this one's first parts
  uint64_t* keep = nullptr;              // [tokens]: masks
  uint32_t* kept = nullptr;              // [tokens]: counts of kept coefficients; nullptr: call->active
  float* const* c = nullptr;             // [tokens][64]: coefficients
};

// The rows of a block that are read: all; those that any token keeps, for all tokens; each token's own.
enum class Reading : uint8_t { kAll, kUnion, kTokens };

// Rows of a block that are kept, in order.
struct KeptRows {
  uint32_t index[kNeuronBlock];  // in the block
  const uint8_t* rows[kNeuronBlock + kMaxRowsAhead];
  uint32_t count = 0;
  uint32_t listed = 0;  // including the first rows of the next part
};

// True if masks are made from the lead part alone, before the second one is read.
bool LeadDecides(const ExpertCall& expert);
// The neurons whose rows are all present.
uint64_t PresentNeurons(const ExpertBlock& b);
// The neurons that any token keeps; counts the kept coefficients of all tokens.
uint64_t AnyKept(const ExpertBlock& b);
uint32_t KeptInAll(const ExpertBlock& b);
// Returns the cheaper way to read the block. `passes`: passes over a row when one list serves all tokens.
Reading ChooseReading(const ExpertBlock& b, uint32_t passes);

class ExpertBlocks {
 public:
  // All outlive it.
  ExpertBlocks(const KernelTable& kernels, Workspace& space, RowLists& lists)
      : kernels_(kernels), space_(space), lists_(lists) {}
  // Errors: Scratch's.
  absl::Status Reserve(const BackendLimits& limits, uint32_t workers, Scratch* scratch);

  // Block `number` of a job, with the worker's own masks and coefficients (WorkerSpace::rows[0]).
  ExpertBlock BlockOf(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs, uint32_t job,
                      uint32_t number, bool packed, uint32_t worker) const;

  // Reads the parts that do not depend on the masks: the lead part, and the second part too where the lead
  // does not decide. Sets b.keep, and b.c ([token][64]) to the coefficients' known factors.
  void FirstParts(const ExpertBlock& b);
  // Computes the coefficients (0 where masked) of a block after FirstParts(). Returns the number kept.
  uint32_t Coefficients(const ExpertBlock& b);
  // sums[i] = (sums[i] if `add`, else 0) + the block sum of token i (all columns), from the block's
  // coefficients and masks.
  void Sums(const ExpertBlock& b, bool add, float* const* sums);

  // Lists the rows of a mask, then the first ones of the part that is read next by the same mask (nullptr:
  // none).
  void ListKept(const CallWeights& weights, const CallWeights* next, uint32_t first, uint64_t mask,
                KeptRows* out) const;

 private:
  uint32_t FetchLines(const ExpertBlock& b, const CallWeights& weights, uint32_t fetched, uint32_t rows);
  void DotKept(const ExpertBlock& b, const CallWeights& weights, const CallWeights* next, float* const* y);
  void DotAll(const ExpertBlock& b, const CallWeights& weights, const CallWeights* next, float* const* y);
  void DotByLists(const ExpertBlock& b, const CallWeights& weights, const CallWeights* next, bool for_all,
                  float* const* y);
  void DotForAll(const ExpertBlock& b, const RowList& list, float* const* y);
  void MakeFactors(const ExpertBlock& b, bool up, float* const* y) const;
  void SecondPart(const ExpertBlock& b);
  void SumKept(const ExpertBlock& b, uint64_t mask, uint32_t begin, uint32_t end, bool add,
               float* const* sums);

  const KernelTable& kernels_;
  Workspace& space_;
  RowLists& lists_;
  std::vector<uint64_t*> keep_;  // [workers][max_tokens]
};

}  // namespace sluice::cpu
