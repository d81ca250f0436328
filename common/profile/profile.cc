#include "common/profile/profile.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/file_io.h"
#include "common/profile/profile_file.h"
#include "common/profile/profile_json.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxTextBytes = 128u << 20;  // kMaxExpertsTotal counts of 20 digits, and room
constexpr uint64_t kMaxValues = 6'000'000;      // the same, in JSON values
constexpr double kMaxValue = 1e300;
constexpr size_t kMaxCutoffs = 1024;
constexpr const char* kLeadNames[kLeadCount] = {"up", "gate", "product"};

absl::StatusOr<const json*> LayersOf(const JsonObject& object, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const json* layers, object.Array("layers"));
  if (layers->size() != config.layers.size()) {
    return object.Error("layers",
                        absl::StrCat("are ", layers->size(), ", but the model has ", config.layers.size()));
  }
  return layers;
}

absl::StatusOr<std::vector<uint64_t>> ParseCounts(const json& list, const std::string& subject,
                                                  uint32_t layer, uint32_t experts, uint64_t tokens) {
  const auto bad = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(subject, ": layer ", layer, ": ", what));
  };
  if (!list.is_array() || list.size() != experts) {
    return bad(absl::StrCat("is not a list of ", experts, " counts"));
  }
  std::vector<uint64_t> counts;
  counts.reserve(experts);
  for (const json& value : list) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > tokens) {
      return bad(absl::StrCat(JsonExcerpt(value), " is not a count of ", tokens, " tokens"));
    }
    counts.push_back(value.get<uint64_t>());
  }
  return counts;
}

// True if the lists match the model in number and length; their content is not checked.
bool HasShapeOf(const json& layers, const ModelConfig& config) {
  if (layers.size() != config.layers.size()) return false;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].is_array() && layers[layer].size() != config.layers[layer].moe.experts) return false;
  }
  return true;
}

absl::StatusOr<UsageProfile> UsageOf(const json& root, const std::string& subject, const ModelConfig& config,
                                     const std::string& source_digest) {
  UsageProfile usage;
  ASSIGN_OR_RETURN(const JsonObject object,
                   CheckProfileRoot(root, subject, "source_digest", source_digest, &usage.source_digest));
  ASSIGN_OR_RETURN(usage.tokens, object.Uint("tokens", 1, kMaxProfileCount));
  ASSIGN_OR_RETURN(const json* any_layers, object.Array("layers"));
  if (source_digest.empty() && !HasShapeOf(*any_layers, config)) {
    // The caller does not know the source's digest yet, and would later find by it that the profile belongs
    // to another model: the same error, earlier.
    return absl::FailedPreconditionError(absl::StrCat(
        subject, ": made for another model, with other layers or experts; `sluice calibrate` of a pack of ",
        "this one makes one for it"));
  }
  ASSIGN_OR_RETURN(const json* layers, LayersOf(object, config));
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    ASSIGN_OR_RETURN(
        std::vector<uint64_t> counts,
        ParseCounts((*layers)[layer], subject, layer, config.layers[layer].moe.experts, usage.tokens));
    usage.experts.push_back(std::move(counts));
  }
  return usage;
}

absl::StatusOr<SensitivityProfile> SensitivityOf(const json& root, const std::string& subject,
                                                 const ModelConfig& config,
                                                 const std::string& source_digest) {
  SensitivityProfile profile;
  ASSIGN_OR_RETURN(const JsonObject object,
                   CheckProfileRoot(root, subject, "source_digest", source_digest, &profile.source_digest));
  ASSIGN_OR_RETURN(profile.tokens, object.Uint("tokens", 1, kMaxProfileCount));
  ASSIGN_OR_RETURN(const json* layers, LayersOf(object, config));
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    ASSIGN_OR_RETURN(const JsonObject values,
                     JsonObject::Of((*layers)[layer], absl::StrCat(subject, ": layer ", layer)));
    LayerSensitivity s;
    // A single expert may happen to lower the loss on a small sample, so signs are kept.
    ASSIGN_OR_RETURN(s.measured, values.Double("measured", -kMaxValue, kMaxValue));
    ASSIGN_OR_RETURN(s.fisher, values.Double("fisher", 0, kMaxValue));
    ASSIGN_OR_RETURN(s.quadratic, values.Double("quadratic", 0, kMaxValue));
    ASSIGN_OR_RETURN(s.loss_rise, values.Double("loss_rise", -kMaxValue, kMaxValue));
    ASSIGN_OR_RETURN(s.mean_square, values.Double("mean_square", 0, 1));
    profile.layers.push_back(s);
  }
  return profile;
}

absl::StatusOr<CutoffProfile> CutoffsOf(const json& root, const std::string& subject,
                                        const std::string& model_id) {
  CutoffProfile profile;
  ASSIGN_OR_RETURN(const JsonObject object,
                   CheckProfileRoot(root, subject, "model_id", model_id, &profile.model_id));
  ASSIGN_OR_RETURN(profile.tokens, object.Uint("tokens", 1, kMaxProfileCount));
  ASSIGN_OR_RETURN(const json* list, object.Array("cutoffs"));
  if (list->size() > kMaxCutoffs) return object.Error("cutoffs", absl::StrCat("are more than ", kMaxCutoffs));
  for (const json& value : *list) {
    ASSIGN_OR_RETURN(const JsonObject entry, JsonObject::Of(value, subject + ": cutoffs"));
    SparsityCutoff cutoff;
    ASSIGN_OR_RETURN(const std::string lead, entry.String("lead"));
    ASSIGN_OR_RETURN(cutoff.lead, LeadFromName(lead));
    ASSIGN_OR_RETURN(cutoff.bound, entry.Double("bound", 0, kMaxValue));
    ASSIGN_OR_RETURN(cutoff.sparsity, entry.Double("sparsity", 0, 1));
    ASSIGN_OR_RETURN(cutoff.rise, entry.Double("rise", -1, kMaxValue));
    profile.cutoffs.push_back(cutoff);
  }
  return profile;
}

}  // namespace

std::vector<uint32_t> RoutedExperts(const ModelConfig& config) {
  std::vector<uint32_t> experts;
  experts.reserve(config.layers.size());
  for (const LayerConfig& layer : config.layers) experts.push_back(layer.moe.experts);
  return experts;
}

std::vector<uint32_t> UsageProfile::Ranked(uint32_t layer) const {
  const std::vector<uint64_t>& counts = experts[layer];
  std::vector<uint32_t> ranked(counts.size());
  std::iota(ranked.begin(), ranked.end(), 0u);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&counts](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  return ranked;
}

const char* LeadName(Lead lead) { return kLeadNames[static_cast<size_t>(lead)]; }

absl::StatusOr<Lead> LeadFromName(std::string_view name) {
  for (int i = 0; i < kLeadCount; ++i) {
    if (name == kLeadNames[i]) return static_cast<Lead>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", std::string(name.substr(0, 60)), "\" is no lead (up, gate or product)"));
}

// The user may name the pack or the profile folder itself.
std::string ProfileFolder(const std::string& path) {
  if (FileExists(path + "/" + kUsageName)) return path;
  return path + "/profile";
}

absl::StatusOr<UsageProfile> ParseUsage(std::string_view text, const std::string& subject,
                                        const ModelConfig& config, const std::string& source_digest) {
  return ParseProfileText<UsageProfile>(text, subject, kMaxValues, [&](const json& root) {
    return UsageOf(root, subject, config, source_digest);
  });
}

absl::StatusOr<SensitivityProfile> ParseSensitivity(std::string_view text, const std::string& subject,
                                                    const ModelConfig& config,
                                                    const std::string& source_digest) {
  return ParseProfileText<SensitivityProfile>(text, subject, kMaxValues, [&](const json& root) {
    return SensitivityOf(root, subject, config, source_digest);
  });
}

absl::StatusOr<CutoffProfile> ParseCutoffs(std::string_view text, const std::string& subject,
                                           const std::string& model_id) {
  return ParseProfileText<CutoffProfile>(
      text, subject, kMaxValues, [&](const json& root) { return CutoffsOf(root, subject, model_id); });
}

std::string SerializeUsage(const UsageProfile& usage) {
  return FormatProfile(
      {{"source_digest", usage.source_digest}, {"tokens", usage.tokens}, {"layers", usage.experts}});
}

std::string SerializeSensitivity(const SensitivityProfile& sensitivity) {
  json layers = json::array();
  for (const LayerSensitivity& s : sensitivity.layers) {
    layers.push_back({{"measured", s.measured},
                      {"fisher", s.fisher},
                      {"quadratic", s.quadratic},
                      {"loss_rise", s.loss_rise},
                      {"mean_square", s.mean_square}});
  }
  return FormatProfile({{"source_digest", sensitivity.source_digest},
                        {"tokens", sensitivity.tokens},
                        {"layers", std::move(layers)}});
}

std::string SerializeCutoffs(const CutoffProfile& cutoffs) {
  json list = json::array();
  for (const SparsityCutoff& c : cutoffs.cutoffs) {
    list.push_back(
        {{"lead", LeadName(c.lead)}, {"bound", c.bound}, {"sparsity", c.sparsity}, {"rise", c.rise}});
  }
  return FormatProfile(
      {{"model_id", cutoffs.model_id}, {"tokens", cutoffs.tokens}, {"cutoffs", std::move(list)}});
}

absl::StatusOr<UsageProfile> ReadUsage(const std::string& folder, const ModelConfig& config,
                                       const std::string& source_digest) {
  const std::string path = folder + "/" + kUsageName;
  ASSIGN_OR_RETURN(const std::string text, ReadProfileFile(path, kMaxTextBytes));
  return ParseUsage(text, path, config, source_digest);
}

absl::StatusOr<SensitivityProfile> ReadSensitivity(const std::string& folder, const ModelConfig& config,
                                                   const std::string& source_digest) {
  const std::string path = folder + "/" + kSensitivityName;
  ASSIGN_OR_RETURN(const std::string text, ReadProfileFile(path, kMaxTextBytes));
  return ParseSensitivity(text, path, config, source_digest);
}

absl::StatusOr<CutoffProfile> ReadCutoffs(const std::string& folder, const std::string& model_id) {
  const std::string path = folder + "/" + kCutoffName;
  ASSIGN_OR_RETURN(const std::string text, ReadProfileFile(path, kMaxTextBytes));
  return ParseCutoffs(text, path, model_id);
}

}  // namespace sluice
