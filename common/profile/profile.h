// What `sluice calibrate` measured and the other programs read: the small tables of PACK/profile/ (usage,
// sensitivities, largest sparsities). threshold_tables.h and predictor_weights.h are the large ones;
// FORMAT.md specifies all files.
//
// Usage and sensitivities belong to the source model: any pack made from it may use them. Thresholds,
// predictors and sparsities belong to one pack. A file of another model is FAILED_PRECONDITION naming both
// ids; a file that is not there is NOT_FOUND naming the command that makes it; a damaged one is DATA_LOSS
// naming the file and what is wrong.
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

// Whose profile it is: two strings of 32 hex digits.
struct ProfileKeys {
  std::string source_digest;  // manifest().provenance.source_digest
  std::string model_id;       // of the pack
};

// Routed experts by layer, 0 for a layer with a dense FFN: what the tables' shapes must be.
std::vector<uint32_t> RoutedExperts(const ModelConfig& config);

// How often experts were chosen.
struct UsageProfile {
  std::string source_digest;
  uint64_t tokens = 0;                         // input positions counted
  std::vector<std::vector<uint64_t>> experts;  // [layer][expert]: tokens whose top-K holds the expert

  // The experts of `layer`, most used first, ties to the lower id. REQUIRES: layer < experts.size().
  std::vector<uint32_t> Ranked(uint32_t layer) const;
};

// AdapMoE's S_l, in three definitions; alpha is the best expert's weight after normalising over the top K.
struct LayerSensitivity {
  double measured = 0;     // loss_rise / mean_square: the default
  double fisher = 0;       // sum diag(F_l), F over the output of the layer's mixture before the residual add
  double quadratic = 0;    // mean of (f1 - f2)^T diag(F_l) (f1 - f2), f1 and f2 the two best experts' outputs
  double loss_rise = 0;    // nats per token when only this layer uses its best expert alone
  double mean_square = 0;  // E[(1 - alpha)^2]
};

struct SensitivityProfile {
  std::string source_digest;
  uint64_t tokens = 0;                   // input positions they were measured on
  std::vector<LayerSensitivity> layers;  // zero for a layer with a dense FFN
};

// The value that a sparsity mask is decided by.
enum class Lead : uint8_t { kUp = 0, kGate = 1, kProduct = 2 };
inline constexpr int kLeadCount = 3;
const char* LeadName(Lead lead);                           // "up", "gate", "product"
absl::StatusOr<Lead> LeadFromName(std::string_view name);  // INVALID_ARGUMENT naming the three

// Intra-expert's cut-off: the largest sparsity whose loss of quality stays within a bound, with one threshold
// for the whole model.
struct SparsityCutoff {
  Lead lead = Lead::kGate;
  double bound = 0;     // allowed relative rise of perplexity, 0.01 is 1 %
  double sparsity = 0;  // the target to ask for, [0, 1)
  double rise = 0;      // relative rise of perplexity measured there
};

struct CutoffProfile {
  std::string model_id;
  uint64_t tokens = 0;  // scored to measure them
  std::vector<SparsityCutoff> cutoffs;
};

// `path` if it holds a profile's files itself, else its sub-folder "profile" (a pack's).
std::string ProfileFolder(const std::string& path);

// Pure parsers over untrusted bytes; `subject` opens messages. The shape must be that of `config`. An empty
// key accepts any and leaves the comparison to the caller; another shape is then FAILED_PRECONDITION in a
// usage.
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

// The same from the files of `folder` (ProfileFolder()).
absl::StatusOr<UsageProfile> ReadUsage(const std::string& folder, const ModelConfig& config,
                                       const std::string& source_digest);
absl::StatusOr<SensitivityProfile> ReadSensitivity(const std::string& folder, const ModelConfig& config,
                                                   const std::string& source_digest);
absl::StatusOr<CutoffProfile> ReadCutoffs(const std::string& folder, const std::string& model_id);

}  // namespace sluice
