// One block of 64 neurons of an expert: its coefficients and its sums. A block's mask is 64 bits per token.
// The lead part is read for all neurons that are there; its factors make the masks, the masks become lists of
// rows, and the other parts are read by these lists: by one list for all tokens (the union of their masks),
// or by a list for each token, whichever brings fewer rows through the core, or all of them when few are left
// out. What is read changes no bit of the result: a coefficient that is masked is 0 either way.
//
// Thread safety: every worker may call for blocks of its own at the same time.
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

namespace sluice::host {

// A block, as one worker computes it.
struct ExpertBlock {
  const MoeExpertsCall* call = nullptr;
  absl::Span<const ExpertJob> jobs;
  const ExpertJob* job = nullptr;  // one of them
  uint32_t first = 0;              // neuron
  uint32_t neurons = 0;
  uint32_t tokens = 0;
  bool packed = false;  // token panels begin at job->memory
  uint32_t worker = 0;
  RowFetch* fetch = nullptr;  // what its rows were fetched by before they are read; nullptr: not fetched
  bool whole = false;         // it does not wait: all of its rows are expected to be read
  bool in_halves = false;     // all rows are fetched and read in turn from both halves of the block
  const ExpertBlock* waiting = nullptr;  // whose kept rows are read after this one's first parts
  uint64_t* keep = nullptr;              // [tokens]: masks
  uint32_t* kept = nullptr;   // [tokens]: where kept coefficients are counted; nullptr: call->active
  float* const* c = nullptr;  // [tokens][64]: coefficients
};

// Which rows of a block are read: all; those that any token keeps, for all tokens; each token's own.
enum class Reading : uint8_t { kAll, kUnion, kTokens };

// Rows of a block that are kept, in order.
struct KeptRows {
  uint32_t index[kNeuronBlock];  // in the block
  const uint8_t* rows[kNeuronBlock + kMostRowsAhead];
  uint32_t count = 0;
  uint32_t listed = 0;  // with the first rows of the part that comes next
};

// Whether masks are made of the lead part alone, before the second one is read.
bool LeadDecides(const ExpertCall& expert);
// The neurons whose rows are all there.
uint64_t PresentNeurons(const ExpertBlock& b);
// The neurons that any token keeps, and how many all tokens keep together.
uint64_t AnyKept(const ExpertBlock& b);
uint32_t KeptInAll(const ExpertBlock& b);
// `passes`: how often a row comes through the core when one list serves all tokens.
Reading HowToRead(const ExpertBlock& b, uint32_t passes);

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

  // Everything that is read before the masks of a block are known: the lead part, without masks by it the
  // second part, too. Sets b.keep and, to what is known of the coefficients, b.c ([token][64]).
  void FirstParts(const ExpertBlock& b);
  // The coefficients (0 where the mask is) of a block after FirstParts(). Returns how many are kept.
  uint32_t Coefficients(const ExpertBlock& b);
  // sums[i] = (sums[i] if `add`, else 0) + the block sum of token i (all columns), from the block's
  // coefficients and masks.
  void Sums(const ExpertBlock& b, bool add, float* const* sums);

  // The rows of a mask, and behind them the first ones of the part that is read next by the same mask
  // (nullptr: none).
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

}  // namespace sluice::host
