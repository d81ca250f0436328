// One block of 64 neurons of an expert: its coefficients and its sums. A block's mask is 64 bits per token.
// The lead part is read for all present neurons; its factors make the masks, the masks become lists of rows,
// and the other parts are read by these lists: by one list for all tokens (the union of their masks), or by a
// list for each token, whichever reads fewer rows, or by all rows when few are left out. The choice changes
// no bit of the result: a masked coefficient is 0 either way.
//
// Thread safety: every worker may call for its own blocks at the same time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_fetch.h"
#include "kernels/cpu/row_lists.h"
#include "kernels/cpu/workspace.h"
#include "kernels/expert_calls.h"

namespace sluice::cpu {

// An expert of a MoeExperts call, cut into blocks of 64 neurons, which are the tiles of a region.

// Up to this many tokens the weights of an expert are the bottleneck, not the arithmetic.
inline constexpr uint32_t kFusedTokens = 4;

struct ExpertJob {
  const ExpertCall* call = nullptr;
  uint32_t blocks = 0;
  uint32_t first_tile = 0;  // in the current region
  uint64_t memory =
      0;  // fused: floats into Workspace::partials; else the first row of coefficients and panels
  // All rows are read where masks keep this share of the coefficients or more.
  float dense_above = 1;
  bool down_by_lists = false;  // two phases: down rows are read by each token's mask
};

inline uint32_t BlocksOf(const ExpertCall& call) {
  return (call.neuron_end - call.neuron_begin + kNeuronBlock - 1) / kNeuronBlock;
}

// Multiply-adds of an expert without masks.
inline uint64_t WorkOf(const MoeExpertsCall& call, const ExpertCall& expert) {
  return uint64_t{3} * (expert.neuron_end - expert.neuron_begin) * call.hidden * expert.rows.size();
}

// Returns the index of a tile's job.
inline uint32_t FindJobOfTile(absl::Span<const ExpertJob> jobs, uint32_t tile) {
  uint32_t e = static_cast<uint32_t>(jobs.size()) - 1;
  while (jobs[e].first_tile > tile) {
    --e;
  }
  return e;
}

// Maximum number of blocks of all experts of a call together.
inline uint32_t MaxBlocks(const BackendLimits& limits) {
  return (limits.experts + 8) * ((limits.expert_width + kNeuronBlock - 1) / kNeuronBlock);
}

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
