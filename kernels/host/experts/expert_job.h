// One block of 64 neurons of an expert: its coefficients and its sums. A block's mask is 64 bits per token.
// The lead part is read for all present neurons; its factors make the masks, the masks become lists of rows,
// and the other parts are read by these lists: by one list for all tokens (the union of their masks), or by a
// list for each token, whichever reads fewer rows, or by all rows when few are left out. The choice changes
// no bit of the result: a masked coefficient is 0 either way.
//
// Thread safety: every worker may call for its own blocks at the same time.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/calls/expert_calls.h"

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

}  // namespace sluice::cpu
