// Profile: the small tables of PACK/profile/ that `sluice calibrate` measures and the other programs read
// (usage, sensitivities, maximum sparsities). threshold_tables.h and predictor_weights.h have the large ones;
// FORMAT.md specifies all files.
//
// Usage and sensitivities belong to the source model: any pack made from it may use them. Thresholds,
// predictors and sparsities belong to one pack. A file of another model is FAILED_PRECONDITION naming both
// ids; a missing file is NOT_FOUND naming the command that makes it; a damaged one is DATA_LOSS naming the
// file and the damage.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace sluice {

inline constexpr char kUsageName[] = "usage.json";
inline constexpr char kSensitivityName[] = "sensitivity.json";
inline constexpr char kCutoffName[] = "sparsity.json";

// Keys that bind a profile to its model: two strings of 32 hex digits.
struct ProfileKeys {
  std::string source_digest;  // manifest().provenance.source_digest
  std::string model_id;       // of the pack
};

// Returns the number of routed experts of each layer, 0 for a layer with a dense FFN: the expected shape of
// the tables.
std::vector<uint32_t> RoutedExperts(const ModelConfig& config);

// Number of uses of each expert.
struct UsageProfile {
  std::string source_digest;
  uint64_t tokens = 0;                         // input positions counted
  std::vector<std::vector<uint64_t>> experts;  // [layer][expert]: tokens whose top-K holds the expert

  // Returns the experts of `layer`, most used first, ties by the lower id. REQUIRES: layer < experts.size().
  std::vector<uint32_t> Ranked(uint32_t layer) const;
};

// AdapMoE's S_l; alpha is the best expert's weight, normalized over the top K.
struct LayerSensitivity {
  double measured = 0;     // S_l: loss_rise / mean_square
  double loss_rise = 0;    // nats per token when only this layer uses its best expert alone
  double mean_square = 0;  // E[(1 - alpha)^2]
};

struct SensitivityProfile {
  std::string source_digest;
  uint64_t tokens = 0;                   // number of input positions measured
  std::vector<LayerSensitivity> layers;  // zero for a layer with a dense FFN
};

// Value that decides a sparsity mask.
enum class Lead : uint8_t { kUp = 0, kGate = 1, kProduct = 2 };
inline constexpr int kLeadCount = 3;
const char* LeadName(Lead lead);                           // "up", "gate", "product"
absl::StatusOr<Lead> LeadFromName(std::string_view name);  // INVALID_ARGUMENT naming the three

// Cut-off of the intra-expert policy: the largest sparsity whose quality loss stays within a bound, with one
// threshold for the whole model.
struct SparsityCutoff {
  Lead lead = Lead::kGate;
  double bound = 0;     // maximum relative rise of perplexity, 0.01 is 1 %
  double sparsity = 0;  // the sparsity to request, [0, 1)
  double rise = 0;      // relative rise of perplexity measured there
};

struct CutoffProfile {
  std::string model_id;
  uint64_t tokens = 0;  // number of tokens scored
  std::vector<SparsityCutoff> cutoffs;
};

// Returns `path` if it holds a profile's files itself, else its sub-folder "profile" (a pack's).
std::string ProfileFolder(const std::string& path);

// Pure parsers of untrusted bytes; `subject` opens messages. The shape must be that of `config`. An empty key
// accepts any and leaves the comparison to the caller; in a usage file another shape is then
// FAILED_PRECONDITION.
absl::StatusOr<UsageProfile> ParseUsage(std::string_view text, const std::string& subject,
                                        const ModelConfig& config, const std::string& source_digest);
absl::StatusOr<SensitivityProfile> ParseSensitivity(std::string_view text, const std::string& subject,
                                                    const ModelConfig& config,
                                                    const std::string& source_digest);
absl::StatusOr<CutoffProfile> ParseCutoffs(std::string_view text, const std::string& subject,
                                           const std::string& model_id);

std::string SerializeUsage(const UsageProfile& usage);
std::string SerializeSensitivity(const SensitivityProfile& sensitivity);
std::string SerializeCutoffs(const CutoffProfile& cutoffs);

// Reads and parses the files of `folder` (ProfileFolder()).
absl::StatusOr<UsageProfile> ReadUsage(const std::string& folder, const ModelConfig& config,
                                       const std::string& source_digest);
absl::StatusOr<SensitivityProfile> ReadSensitivity(const std::string& folder, const ModelConfig& config,
                                                   const std::string& source_digest);
absl::StatusOr<CutoffProfile> ReadCutoffs(const std::string& folder, const std::string& model_id);

// CacheProfile: expert usage statistics of each layer, for dividing a cache among the layers:
// PACK/profile/cache.json (FORMAT.md). Measured in one pass over calibration text, token by token, as in
// decoding.
//
// Thread safety: plain values and free functions, safe to call from any thread.

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

// Parsing, writing and reading, with the errors of the corresponding functions above.
absl::StatusOr<CacheProfile> ParseCacheProfile(std::string_view text, const std::string& subject,
                                               const ModelConfig& config, const std::string& source_digest);
std::string SerializeCacheProfile(const CacheProfile& profile);
absl::StatusOr<CacheProfile> ReadCacheProfile(const std::string& folder, const ModelConfig& config,
                                              const std::string& source_digest);

// GatingProfile: thresholds of AdapMoE's adaptive gating from `sluice calibrate`: PACK/profile/gating.json
// (FORMAT.md). A token uses fewer experts if (1 - alpha)^2 S_l <= T; T is one value for all layers.
//
// Thread safety: plain values and free functions, safe to call from any thread.

inline constexpr char kGatingName[] = "gating.json";

struct GatingTable {
  static constexpr size_t kPoints = 101;

  struct Rise {
    double share = 0;  // of (token, layer) pairs that used one expert
    double rise = 0;   // relative, of perplexity on held-out text
  };
  // Entry i: quantile of (1 - alpha)^2 S_l over the (token, layer) pairs at i %. Ascends.
  std::vector<double> thresholds;  // [kPoints]
  std::vector<Rise> rises;         // by ascending share

  // Returns T at which `share` of the pairs use one expert; below every value for a share of 0.
  double Threshold(double share) const;
  // Returns the largest share whose rise is within `bound`, interpolated between measured points; at most the
  // largest measured share.
  double ShareWithin(double bound) const;
};

struct GatingProfile {
  std::string source_digest;
  uint64_t tokens = 0;    // number of tokens behind the thresholds
  uint64_t held_out = 0;  // number of tokens behind the rises
  GatingTable table;
};

// Parsing, writing and reading, with the errors of the corresponding functions above.
absl::StatusOr<GatingProfile> ParseGating(std::string_view text, const std::string& subject,
                                          const std::string& source_digest);
std::string SerializeGating(const GatingProfile& gating);
absl::StatusOr<GatingProfile> ReadGating(const std::string& folder, const std::string& source_digest);

}  // namespace sluice
