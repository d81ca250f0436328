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

// AdapMoE's S_l, in three definitions; alpha is the best expert's weight, normalized over the top K.
struct LayerSensitivity {
  double measured = 0;   // loss_rise / mean_square: the default
  double fisher = 0;     // sum diag(F_l), F over the output of the layer's MoE block before the residual add
  double quadratic = 0;  // mean of (f1 - f2)^T diag(F_l) (f1 - f2), f1 and f2 the two best experts' outputs
  double loss_rise = 0;  // nats per token when only this layer uses its best expert alone
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

}  // namespace sluice
