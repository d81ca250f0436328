// CacheProfile: expert usage statistics of each layer, for dividing a cache among the layers:
// PACK/profile/cache.json (FORMAT.md). Measured in one pass over calibration text, token by token, as in
// decoding.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/profile.h"

namespace sluice {

inline constexpr char kCacheName[] = "cache.json";
inline constexpr uint32_t kCacheDepths = 3;

// Statistics of one layer; empty for a layer without routed experts.
struct LayerCacheProfile {
  static constexpr size_t kPoints = 101;

  uint64_t accesses = 0;  // (token, expert) pairs
  // [experts]: accesses to an expert since whose last use this many others had been used: an LRU cache of
  // more slots than that has it (Mattson's stack distance).
  std::vector<uint64_t> distances;
  // Entry i: quantile of (1 - alpha)^2 over the tokens at i %, alpha being the best expert's share of the
  // weight of the top K. Ascends. All 0 for K = 1.
  std::vector<double> squares;  // [kPoints]
  // Share of the chosen experts that the layer's gate predicted from the residual of 1, 2, 3 routed layers
  // before; 0 if there is no such layer.
  std::array<double, kCacheDepths> accuracy = {};

  // Returns the share of tokens whose (1 - alpha)^2 is at most `limit` (AdapMoE's a for limit = T / S_l).
  double SingleExpertShare(double limit) const;
  // Returns the misses per token at 0, 1, .., experts slots of an LRU cache.
  std::vector<double> MissCurve(uint64_t tokens) const;
};

struct CacheProfile {
  std::string source_digest;
  uint64_t tokens = 0;
  std::vector<LayerCacheProfile> layers;
};

// Parsing, writing and reading, with the errors of the corresponding functions in profile.h.
absl::StatusOr<CacheProfile> ParseCacheProfile(std::string_view text, const std::string& subject,
                                               const ModelConfig& config, const std::string& source_digest);
std::string SerializeCacheProfile(const CacheProfile& profile);
absl::StatusOr<CacheProfile> ReadCacheProfile(const std::string& folder, const ModelConfig& config,
                                              const std::string& source_digest);

}  // namespace sluice
