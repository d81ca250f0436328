#include "pack/writer/synth_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "common/base/json_reader.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

// GPT-2's printable stand-in for a byte, in UTF-8: printable Latin-1 stands for itself, the others are
// U+0100 and up in order.
std::string ByteSymbol(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code_point = byte;
  if (!printable(byte)) {
    code_point = 0x100;
    for (int b = 0; b < byte; ++b) code_point += printable(b) ? 0 : 1;
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

json SpecialToken(int32_t id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

// Bytes as tokens and no merges: any text has a length and comes back unchanged, which suffices for a random
// model.
std::map<std::string, std::string> SynthTokenizerFiles() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteSymbol(byte)] = byte;
  vocab["<s>"] = kSynthBosId;
  vocab["</s>"] = kSynthEosId;
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {SpecialToken(kSynthBosId, "<s>"), SpecialToken(kSynthEosId, "</s>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"vocab", std::move(vocab)},
        {"merges", json::array()}}}};
  const json config = {{"bos_token", "<s>"},
                       {"eos_token", "</s>"},
                       {"add_bos_token", false},
                       {"add_eos_token", false},
                       {"clean_up_tokenization_spaces", false},
                       {"tokenizer_class", "PreTrainedTokenizerFast"}};
  return {{"tokenizer.json", tokenizer.dump(1)}, {"tokenizer_config.json", config.dump(1)}};
}

namespace {

constexpr double kMaxZipf = 4;
// Length of the direction that all tokens share, relative to 1 for the token's own part of a hidden state.
constexpr double kPreferenceShare = 0.5;
// Standard deviation of a Gumbel variable, pi / sqrt(6): with router noise of that size, logits that differ
// by log(p) are chosen about as often as p (the Gumbel-max rule).
constexpr double kGumbelDeviation = 1.2825498301618641;

enum WeightUse : uint64_t { kRouterRows = 100, kRouterOrder = 101, kDirection = 102, kTokens = 103 };

void Normalize(absl::Span<float> row, double length) {
  double sum = 0;
  for (const float value : row) sum += static_cast<double>(value) * value;
  const double factor = length / std::sqrt(sum);
  for (float& value : row) value = static_cast<float>(value * factor);
}

// Moves a share of `1 - similarity` of the experts to new ranks.
void Reorder(double similarity, NormalStream* random, std::vector<uint32_t>* order) {
  std::vector<uint32_t> moved;
  for (uint32_t i = 0; i < order->size(); ++i) {
    const double draw = static_cast<double>(random->Next() >> 11) * 0x1p-53;
    if (draw >= similarity) moved.push_back(i);
  }
  for (size_t i = moved.size(); i > 1; --i) {
    std::swap((*order)[moved[i - 1]], (*order)[moved[random->Next() % i]]);
  }
}

// Adds a vector to each row that makes its expert's logit log(rank^-zipf) for a hidden state that carries the
// direction.
void AddPreference(const ModelConfig& config, absl::Span<const float> direction, double zipf,
                   const std::vector<uint32_t>& order, std::vector<float>* rows) {
  const double norm = std::sqrt(1 + kPreferenceShare * kPreferenceShare);
  const double length2 = kPreferenceShare * kPreferenceShare * config.hidden;
  for (uint32_t rank = 0; rank < order.size(); ++rank) {
    const double bias = -zipf * std::log(rank + 1.0);
    float* row = rows->data() + static_cast<size_t>(order[rank]) * config.hidden;
    for (uint32_t i = 0; i < config.hidden; ++i) {
      row[i] = static_cast<float>(row[i] * norm + bias * norm / length2 * direction[i]);
    }
  }
}

// Share of the top `top_k` of one set of logits that is also in the other's, averaged over random pairs of
// the given correlation.
double SharedTop(uint32_t experts, uint32_t top_k, double correlation) {
  constexpr int kPairs = 2000;
  const float fresh = static_cast<float>(std::sqrt(1 - correlation * correlation));
  NormalStream random(1);  // the same pairs for every correlation: the search below sees a monotone function
  std::vector<float> before(experts), after(experts), noise(experts);
  std::vector<uint32_t> order(experts);
  std::vector<bool> taken(experts);
  const auto top = [&](const std::vector<float>& logits) {
    std::iota(order.begin(), order.end(), 0u);
    std::nth_element(order.begin(), order.begin() + top_k - 1, order.end(),
                     [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  };
  uint64_t shared = 0;
  for (int pair = 0; pair < kPairs; ++pair) {
    random.Fill(1, absl::MakeSpan(before));
    random.Fill(fresh, absl::MakeSpan(noise));
    for (uint32_t e = 0; e < experts; ++e) after[e] = static_cast<float>(correlation) * before[e] + noise[e];
    top(before);
    taken.assign(experts, false);
    for (uint32_t k = 0; k < top_k; ++k) taken[order[k]] = true;
    top(after);
    for (uint32_t k = 0; k < top_k; ++k) shared += taken[order[k]] ? 1 : 0;
  }
  return static_cast<double>(shared) / (static_cast<double>(kPairs) * top_k);
}

}  // namespace

uint64_t NormalStream::Next() {  // splitmix64
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void NormalStream::Fill(float scale, absl::Span<float> out) {
  // Four 16-bit numbers: mean 4 * 32767.5, variance 4 * (2^32 - 1) / 12.
  constexpr float kMean = 131070.0f;
  const float factor = scale / 37837.2f;
  for (float& value : out) {
    const uint64_t bits = Next();
    const uint32_t sum = static_cast<uint32_t>(bits & 0xffff) + static_cast<uint32_t>(bits >> 16 & 0xffff) +
                         static_cast<uint32_t>(bits >> 32 & 0xffff) + static_cast<uint32_t>(bits >> 48);
    value = (static_cast<float>(sum) - kMean) * factor;
  }
}

uint64_t SynthSeed(uint64_t seed, uint64_t what, uint64_t a, uint64_t b) {
  uint64_t state = seed;
  for (const uint64_t word : {what, a, b})
    state = NormalStream(state ^ (word * 0xd6e8feb86659fd93ull)).Next();
  return state;
}

absl::StatusOr<double> ParseRouting(const std::string& routing) {
  if (routing == "uniform") return 0.0;
  if (routing.starts_with("zipf:")) {
    char* end = nullptr;
    const double exponent = std::strtod(routing.c_str() + 5, &end);
    if (end != routing.c_str() + 5 && *end == '\0' && exponent > 0 && exponent <= kMaxZipf) return exponent;
  }
  return absl::InvalidArgumentError(absl::StrCat("routing is \"", routing.substr(0, 40),
                                                 "\"; uniform or zipf:S with 0 < S <= ", kMaxZipf,
                                                 " is expected"));
}

TokenChain::TokenChain(uint32_t hidden, double correlation, uint64_t seed)
    : correlation_(static_cast<float>(correlation)),
      fresh_(static_cast<float>(std::sqrt(1 - correlation * correlation))),
      random_(SynthSeed(seed, kTokens, 0, 0)),
      last_(hidden),
      row_(hidden) {}

void TokenChain::Next(absl::Span<float> embedding, absl::Span<float> head) {
  const uint32_t id = id_++;
  const bool special = id == kSynthBosId || id == kSynthEosId;
  const float head_scale = 1.0f / std::sqrt(static_cast<float>(row_.size()));
  random_.Fill(1, absl::MakeSpan(row_));
  if (!head.empty()) {
    // The head's row of a token is the embedding of the token before it in the chain, so greedy decoding
    // walks along the chain, whose neighbours are correlated: that is the reuse.
    const std::vector<float>& from = special || id == 0 ? row_ : last_;
    for (size_t i = 0; i < from.size(); ++i) head[i] = from[i] * head_scale;
    // A row outside the chain points away from its own embedding: no token leads there.
    if (special || id == 0) {
      for (float& value : head) value = -value;
    }
  }
  if (!special) {
    if (id != 0) {
      for (size_t i = 0; i < row_.size(); ++i) row_[i] = correlation_ * last_[i] + fresh_ * row_[i];
    }
    last_ = row_;
  }
  if (!embedding.empty()) std::copy(row_.begin(), row_.end(), embedding.begin());
}

double CorrelationForReuse(uint32_t experts, uint32_t top_k, double reuse) {
  // The share grows with the correlation, so bisection finds the one that gives the wanted reuse; twelve
  // steps are finer than 2000 pairs can resolve.
  double low = 0;
  double high = 1;
  if (experts <= top_k || SharedTop(experts, top_k, 0) >= reuse) return 0;
  for (int step = 0; step < 12; ++step) {
    const double middle = (low + high) / 2;
    (SharedTop(experts, top_k, middle) < reuse ? low : high) = middle;
  }
  return low;
}

std::vector<float> PreferenceDirection(uint32_t hidden, uint64_t seed) {
  std::vector<float> direction(hidden);
  NormalStream(SynthSeed(seed, kDirection, 0, 0)).Fill(1, absl::MakeSpan(direction));
  Normalize(absl::MakeSpan(direction), kPreferenceShare * std::sqrt(static_cast<double>(hidden)));
  return direction;
}

std::vector<std::vector<float>> SynthRouters(const ModelConfig& config, double zipf, double similarity,
                                             uint64_t seed) {
  const std::vector<float> direction = PreferenceDirection(config.hidden, seed);
  const double fresh = std::sqrt(1 - similarity * similarity);
  std::vector<std::vector<float>> routers(config.layers.size());
  std::vector<float> rows;  // of the layer before, without preference
  std::vector<uint32_t> order;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const uint32_t experts = config.layers[layer].moe.experts;
    if (experts == 0) continue;
    const bool first = rows.size() != static_cast<size_t>(experts) * config.hidden;
    std::vector<float> next(static_cast<size_t>(experts) * config.hidden);
    NormalStream(SynthSeed(seed, kRouterRows, layer, 0)).Fill(1, absl::MakeSpan(next));
    if (first) {
      order.resize(experts);
      std::iota(order.begin(), order.end(), 0u);
    } else {
      for (size_t i = 0; i < next.size(); ++i) {
        next[i] = static_cast<float>(similarity * rows[i] + fresh * next[i]);
      }
    }
    NormalStream shuffle(SynthSeed(seed, kRouterOrder, layer, 0));
    Reorder(first ? 0 : similarity, &shuffle, &order);
    rows = next;
    for (uint32_t e = 0; e < experts; ++e) {
      Normalize(absl::MakeSpan(next).subspan(static_cast<size_t>(e) * config.hidden, config.hidden),
                kGumbelDeviation);
    }
    if (zipf > 0) AddPreference(config, direction, zipf, order, &next);
    routers[layer] = std::move(next);
  }
  return routers;
}

}  // namespace sluice
