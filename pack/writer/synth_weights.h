// Contents of synthetic packs: tokenizer, routers, embeddings and random rows.
//
// Thread safety: pure functions; a NormalStream is used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"

namespace sluice {

// The tokenizer of synthetic packs: one token a byte, BOS and EOS, so that any text is a prompt.
//
// Thread safety: pure functions.

// Ids 0..255 are the bytes, in order.
inline constexpr int32_t kSynthBosId = 256;
inline constexpr int32_t kSynthEosId = 257;
inline constexpr uint32_t kSynthTokenizerIds = 258;

// tokenizer.json (byte-level BPE without merges) and tokenizer_config.json.
std::map<std::string, std::string> SynthTokenizerFiles();

// Random weights with the statistics of a network at rest: rows of variance 1/columns, so that activations
// keep their size; inputs of the residual scaled down by the depth, so that the hidden state changes slowly
// from layer to layer, as in trained models; router rows of equal length, so that no expert is preferred.
//
// Thread safety: pure functions; a NormalStream is used by one thread.

// Numbers of mean 0 and variance 1, close to normal (a sum of four uniform numbers), about one nanosecond
// each.
class NormalStream {
 public:
  explicit NormalStream(uint64_t seed) : state_(seed) {}
  void Fill(float scale, absl::Span<float> out);
  uint64_t Next();  // 64 random bits

 private:
  uint64_t state_;
};

// A seed of its own for each use.
uint64_t SynthSeed(uint64_t seed, uint64_t what, uint64_t a, uint64_t b);

// Parses the routing: exponent 0 for uniform routing, S for zipf:S. InvalidArgument naming the word.
absl::StatusOr<double> ParseRouting(const std::string& routing);

// All routers of a model: [layer][experts * hidden]; empty for layers without experts. With a zipf exponent
// above 0 the preference lies along `PreferenceDirection`, which every embedding row carries.
std::vector<std::vector<float>> SynthRouters(const ModelConfig& config, double zipf, double similarity,
                                             uint64_t seed);

// The rows of embedding and head by token id, in order. Embeddings are a chain: each row is correlated with
// the one before it, and the head row of a token is the embedding of the token before. So greedy decoding
// walks up through the ids instead of falling into a loop, and neighbouring tokens route alike to the
// requested degree. The first row and the tokenizer's special tokens are outside the chain: no token leads to
// them.
class TokenChain {
 public:
  // `correlation` of neighbouring rows, [0, 1).
  TokenChain(uint32_t hidden, double correlation, uint64_t seed);

  // Embedding and head row of the next id: variance 1, and 1/hidden. An empty span skips that row.
  void Next(absl::Span<float> embedding, absl::Span<float> head);

 private:
  const float correlation_;
  const float fresh_;
  NormalStream random_;
  uint32_t id_ = 0;
  std::vector<float> last_;  // the chain's last embedding
  std::vector<float> row_;
};

// The correlation at which a token's top `top_k` of `experts` hold a share `reuse` of the previous token's,
// by simulation. 0 if even independent tokens share that many.
double CorrelationForReuse(uint32_t experts, uint32_t top_k, double reuse);

// A vector of length sqrt(hidden) / 2, added to every embedding row if routing is skewed.
std::vector<float> PreferenceDirection(uint32_t hidden, uint64_t seed);

}  // namespace sluice
