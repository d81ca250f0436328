// The importance-driven exchange of low-score experts, which the routing policy (routing.h) applies to a
// router's result.
//
// Thread safety: ExpertExchange is thread-compatible and does not allocate after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace sluice::inferd {

// A batch of tokens at one layer's router.
struct ExchangeBatch {
  uint32_t tokens = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  const float* scores = nullptr;  // p [tokens, experts]
  int32_t* ids = nullptr;         // [tokens, top_k], distinct, best first
};

// importance-driven Algorithm 1, read with its text. With beta the (K+1)-th highest p of a token, experts
// above (1 + alpha) beta are needed; experts needed by one token of the batch become resident for all of
// them. The other experts of a token's top K, neither resident nor needed, are exchanged, the weakest first,
// for the best resident or needed experts outside of its top K with p in [(1 - alpha) beta, beta]. With equal
// p, the expert used by more tokens of the batch goes first, then the lower id.
class ExpertExchange {
 public:
  ExpertExchange(uint32_t most_tokens, uint32_t most_experts);

  // Exchanges ids in place, best first again; returns the number of exchanges. `resident`: predicate over the
  // layer's experts.
  uint32_t Choose(const ExchangeBatch& batch, double alpha, absl::FunctionRef<bool(uint32_t)> resident);

  // Number of pairs (token, rank) with p <= (1 + alpha) beta in the last call.
  uint32_t low_scores() const { return low_scores_; }

 private:
  uint32_t ChooseToken(const ExchangeBatch& batch, uint32_t token, double alpha);
  double Beta(const float* scores, const ExchangeBatch& batch);

  std::vector<float> sorted_;      // [experts]
  std::vector<double> beta_;       // [tokens]
  std::vector<uint32_t> users_;    // [experts]: number of tokens whose top K holds it
  std::vector<bool> there_;        // [experts]: resident or needed by the batch
  std::vector<uint32_t> leaving_;  // ranks of a token, weakest first
  std::vector<uint32_t> joining_;  // experts, best first
  uint32_t low_scores_ = 0;
};

}  // namespace sluice::inferd
