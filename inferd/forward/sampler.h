// Sampler from a row of logits to a token: grammar mask, penalties, temperature, top-k, top-p, min-p, a keyed
// draw.
//
// Order: the mask removes tokens; penalties, biases and bans change the logits; temperature divides them;
// top-k keeps the k largest (ties to the lower index); top-p keeps the shortest prefix, best first, that
// holds a share >= p of the remaining probability; min-p drops tokens less likely than min_p times the most
// likely; at least one token stays. The draw uses one uniform number keyed by (seed, position), so it depends
// only on the row and the request.
//
// Greedy decoding without penalties and biases needs no Sampler: Queue::TopLogits gives the best id.
//
// Thread safety: thread-compatible; a Sampler has scratch memory and belongs to the engine thread. Nothing
// allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "inferd/api/engine_api.h"

namespace sluice::inferd {

// Temperatures below are greedy decoding: dividing by them would overflow.
inline constexpr float kGreedyTemperature = 1e-5f;

// Uniform in [0, 1), a function of its arguments alone.
double UniformAt(uint64_t seed, uint64_t position);

// exp(x) for x <= 0: relative error below 2^-21, 0 below -87. The same bits on every CPU (no fma, no libm).
float SamplerExp(float x);

// Number of occurrences of each token in a sequence, for penalties. Sized once; adding does not allocate.
class TokenCounts {
 public:
  struct Item {
    int32_t token = 0;
    uint32_t in_prompt = 0;
    uint32_t generated = 0;
  };

  // Reserves room for `tokens` distinct tokens; 0: counts nothing.
  void Reserve(uint32_t tokens);
  void AddPrompt(int32_t token) { Find(token)->in_prompt++; }
  void AddGenerated(int32_t token) { Find(token)->generated++; }
  bool enabled() const { return !slots_.empty(); }
  // Every token seen, in order of first appearance.
  absl::Span<const Item> items() const { return items_; }

 private:
  Item* Find(int32_t token);
  std::vector<uint32_t> slots_;  // open addressing: index into items_ + 1, 0: empty; a power of two
  std::vector<Item> items_;
};

// Repetition penalties count prompt and answer, frequency and presence the answer alone.
inline bool HasPenalties(const SamplingParams& p) {
  return p.repetition_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f;
}

struct SampleInput {
  absl::Span<const float> logits;          // [vocab], finite
  const SamplingParams* params = nullptr;  // validated
  uint64_t seed = 0;
  uint64_t position = 0;                // position of the token to draw, in its sequence
  const TokenCounts* counts = nullptr;  // null: no penalties
  absl::Span<const int32_t> banned;     // never drawn; fewer than vocab
  // Tokens that may be drawn, bit id % 32 of word id / 32, at least one of them not banned; empty: all.
  absl::Span<const uint32_t> allowed;
};

inline bool IsAllowed(absl::Span<const uint32_t> allowed, int32_t id) {
  return allowed.empty() ||
         (allowed[static_cast<uint32_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

class Sampler {
 public:
  explicit Sampler(uint32_t vocab);

  int32_t Sample(const SampleInput& input);

 private:
  static constexpr size_t kBlock = 512;

  struct Candidate {
    float logit;
    int32_t id;
  };
  static bool Better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }

  absl::Span<const float> Adjust(const SampleInput& input);
  void SelectBest(absl::Span<const float> logits, uint32_t k);
  double SelectAbove(absl::Span<const float> logits, float lowest);
  int32_t DrawFromAll(absl::Span<const float> logits, float best, float inverse_temperature, double u);
  double MassOf(absl::Span<const float> logits, float best, float inverse_temperature);
  int32_t DrawFromBest(const SamplingParams& params, float best, float inverse_temperature, double mass,
                       double u);

  std::vector<float> adjusted_;        // [vocab]
  std::vector<float> weights_;         // [vocab]
  std::vector<double> block_mass_;     // sums of kBlock weights each
  std::vector<Candidate> candidates_;  // at most vocab
};

}  // namespace sluice::inferd
