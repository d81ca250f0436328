// JSON files of a profile: helpers of all of them, then each file's parser and writer.

#include "common/profile/profile.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/profile/profile_file.h"
#include "nlohmann/json.hpp"

namespace sluice {

// JSON form of the profile's files: reading with limits, a root with format and key, DATA_LOSS for damage,
// and one canonical spelling.
//
// Thread safety: pure functions.

inline constexpr uint64_t kMaxProfileCount = 1ull << 53;  // exact in every JSON reader

// Turns a parser's INVALID_ARGUMENT into DATA_LOSS: a malformed stored file is damaged.
absl::Status ToDataLoss(const absl::Status& status);

// Returns the root object of a profile's text after checking its format (1) and its key: UNIMPLEMENTED for
// another format, CheckProfileKey()'s errors for another key. `*found` is the key in the file.
absl::StatusOr<JsonObject> CheckProfileRoot(const nlohmann::json& root, const std::string& subject,
                                            const char* key_name, const std::string& key, std::string* found);

// Parses text to a value by `convert`(json); damage becomes DATA_LOSS.
template <typename Value, typename Convert>
absl::StatusOr<Value> ParseProfileText(std::string_view text, const std::string& subject, uint64_t max_values,
                                       const Convert& convert) {
  const absl::StatusOr<nlohmann::json> root = ParseJson(text, subject, {.max_values = max_values});
  if (!root.ok()) return ToDataLoss(root.status());
  absl::StatusOr<Value> value = convert(*root);
  if (!value.ok()) return ToDataLoss(value.status());
  return value;
}

// Writes a profile's text: the format's number and the members of `body`, with sorted keys, one per line.
std::string FormatProfile(nlohmann::json body);

namespace {

constexpr uint64_t kFormat = 1;

}  // namespace

absl::Status ToDataLoss(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? absl::DataLossError(status.message()) : status;
}

absl::StatusOr<JsonObject> CheckProfileRoot(const nlohmann::json& root, const std::string& subject,
                                            const char* key_name, const std::string& key,
                                            std::string* found) {
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, subject));
  ASSIGN_OR_RETURN(const uint64_t format, object.Uint("format", 0, kMaxProfileCount));
  if (format != kFormat) {
    return absl::UnimplementedError(
        absl::StrCat(subject, ": format ", format, " is not supported (this build reads ", kFormat, ")"));
  }
  ASSIGN_OR_RETURN(*found, object.String(key_name));
  RETURN_IF_ERROR(CheckProfileKey(subject, key_name, *found, key));
  return object;
}

std::string FormatProfile(nlohmann::json body) {
  body["format"] = kFormat;
  return body.dump(1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
}

namespace {

using nlohmann::json;

constexpr uint64_t kMaxTextBytes = 128u << 20;  // kMaxExpertsTotal counts of 20 digits, and room
constexpr uint64_t kMaxValues = 6'000'000;      // the same, in JSON values
constexpr double kMaxValue = 1e300;
constexpr size_t kMaxCutoffs = 1024;
constexpr const char* kLeadNames[kLeadCount] = {"up", "gate", "product"};

absl::StatusOr<const json*> LayersOf(const JsonObject& object, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const json* layers, object.Array("layers"));
  if (layers->size() != ModelLayers(config)) {
    return object.Error("layers",
                        absl::StrCat("are ", layers->size(), ", but the model has ", ModelLayers(config)));
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
  if (layers.size() != ModelLayers(config)) return false;
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
  for (uint32_t layer = 0; layer < ModelLayers(config); ++layer) {
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
  for (uint32_t layer = 0; layer < ModelLayers(config); ++layer) {
    ASSIGN_OR_RETURN(const JsonObject values,
                     JsonObject::Of((*layers)[layer], absl::StrCat(subject, ": layer ", layer)));
    LayerSensitivity s;
    // A single expert may happen to lower the loss on a small sample, so signs are kept.
    ASSIGN_OR_RETURN(s.measured, values.Double("measured", -kMaxValue, kMaxValue));
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
    layers.push_back({{"measured", s.measured}, {"loss_rise", s.loss_rise}, {"mean_square", s.mean_square}});
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

namespace {

using nlohmann::json;

constexpr uint64_t kMaxCacheText = 64u << 20;

absl::Status TakeDistances(const JsonObject& object, uint32_t experts, LayerCacheProfile* layer) {
  ASSIGN_OR_RETURN(const json* distances, object.Array("distances"));
  if (distances->size() != experts) {
    return object.Error("distances", absl::StrCat("are ", distances->size(), ", must be ", experts));
  }
  uint64_t sum = 0;
  for (const json& entry : *distances) {
    if (!entry.is_number_unsigned() || entry.get<uint64_t>() > layer->accesses) {
      return object.Error("distances", absl::StrCat(JsonExcerpt(entry), " is no count of accesses"));
    }
    layer->distances.push_back(entry.get<uint64_t>());
    sum += layer->distances.back();
  }
  return sum <= layer->accesses ? absl::OkStatus() : object.Error("distances", "are more than accesses");
}

// Reads `count` numbers in 0..1, in ascending order if `ascending` is set.
absl::StatusOr<std::vector<double>> Shares(const JsonObject& object, const char* name, size_t count,
                                           bool ascending) {
  ASSIGN_OR_RETURN(const json* entries, object.Array(name));
  if (entries->size() != count) {
    return object.Error(name, absl::StrCat("are ", entries->size(), ", must be ", count));
  }
  std::vector<double> shares;
  for (const json& entry : *entries) {
    const double least = ascending && !shares.empty() ? shares.back() : 0;
    if (!entry.is_number() || !(entry.get<double>() >= least) || !(entry.get<double>() <= 1)) {
      return object.Error(name, absl::StrCat(JsonExcerpt(entry), " is not in ", least, "..1"));
    }
    shares.push_back(entry.get<double>());
  }
  return shares;
}

absl::StatusOr<LayerCacheProfile> LayerOf(const json& value, const std::string& subject, uint32_t experts) {
  LayerCacheProfile layer;
  if (experts == 0) return layer;
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, subject));
  ASSIGN_OR_RETURN(layer.accesses, object.Uint("accesses", 0, kMaxProfileCount));
  RETURN_IF_ERROR(TakeDistances(object, experts, &layer));
  ASSIGN_OR_RETURN(layer.squares, Shares(object, "squares", LayerCacheProfile::kPoints, true));
  ASSIGN_OR_RETURN(const std::vector<double> accuracy, Shares(object, "accuracy", kCacheDepths, false));
  std::copy(accuracy.begin(), accuracy.end(), layer.accuracy.begin());
  return layer;
}

absl::StatusOr<CacheProfile> ProfileOf(const json& root, const std::string& subject,
                                       const ModelConfig& config, const std::string& source_digest) {
  CacheProfile profile;
  ASSIGN_OR_RETURN(const JsonObject object,
                   CheckProfileRoot(root, subject, "source_digest", source_digest, &profile.source_digest));
  ASSIGN_OR_RETURN(profile.tokens, object.Uint("tokens", 1, kMaxProfileCount));
  ASSIGN_OR_RETURN(const json* layers, object.Array("layers"));
  if (layers->size() != ModelLayers(config)) {
    return object.Error("layers", absl::StrCat("are ", layers->size(), ", must be ", ModelLayers(config)));
  }
  for (size_t i = 0; i < layers->size(); ++i) {
    ASSIGN_OR_RETURN(LayerCacheProfile layer, LayerOf((*layers)[i], absl::StrCat(subject, ": layer ", i),
                                                      config.layers[i].moe.experts));
    profile.layers.push_back(std::move(layer));
  }
  return profile;
}

}  // namespace

double LayerCacheProfile::SingleExpertShare(double limit) const {
  const auto above = std::upper_bound(squares.begin(), squares.end(), limit);
  if (above == squares.begin()) return 0;
  if (above == squares.end()) return 1;
  const size_t left = static_cast<size_t>(above - squares.begin()) - 1;
  const double part = (limit - squares[left]) / (squares[left + 1] - squares[left]);
  return (static_cast<double>(left) + part) / (kPoints - 1);
}

// LRU holds the last `slots` distinct experts, so accesses with a stack distance up to that number are its
// hits: one pass over a sequence gives the misses of every cache size.
std::vector<double> LayerCacheProfile::MissCurve(uint64_t tokens) const {
  std::vector<double> curve;
  uint64_t missed = accesses;
  for (size_t slots = 0; slots <= distances.size(); ++slots) {
    curve.push_back(tokens == 0 ? 0 : static_cast<double>(missed) / static_cast<double>(tokens));
    missed -= slots < distances.size() ? distances[slots] : 0;
  }
  return curve;
}

absl::StatusOr<CacheProfile> ParseCacheProfile(std::string_view text, const std::string& subject,
                                               const ModelConfig& config, const std::string& source_digest) {
  return ParseProfileText<CacheProfile>(text, subject, 4'000'000, [&](const json& root) {
    return ProfileOf(root, subject, config, source_digest);
  });
}

std::string SerializeCacheProfile(const CacheProfile& profile) {
  json layers = json::array();
  for (const LayerCacheProfile& layer : profile.layers) {
    layers.push_back(layer.distances.empty() ? json::object()
                                             : json({{"accesses", layer.accesses},
                                                     {"distances", layer.distances},
                                                     {"squares", layer.squares},
                                                     {"accuracy", layer.accuracy}}));
  }
  return FormatProfile(
      {{"source_digest", profile.source_digest}, {"tokens", profile.tokens}, {"layers", std::move(layers)}});
}

absl::StatusOr<CacheProfile> ReadCacheProfile(const std::string& folder, const ModelConfig& config,
                                              const std::string& source_digest) {
  const std::string path = folder + "/" + kCacheName;
  ASSIGN_OR_RETURN(const std::string text, ReadProfileFile(path, kMaxCacheText));
  return ParseCacheProfile(text, path, config, source_digest);
}

namespace {

using nlohmann::json;

constexpr uint64_t kMaxGatingText = 1u << 20;
constexpr size_t kMaxRises = 1000;
constexpr double kMaxRise = 1e300;
// Profiles of version 0.1 have tables of other kinds too.
constexpr char kMeasuredName[] = "measured";

absl::StatusOr<GatingTable> TableOf(const json& value, const std::string& subject) {
  GatingTable table;
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, subject));
  ASSIGN_OR_RETURN(const json* thresholds, object.Array("thresholds"));
  if (thresholds->size() != GatingTable::kPoints) {
    return object.Error("thresholds",
                        absl::StrCat("are ", thresholds->size(), ", must be ", GatingTable::kPoints));
  }
  for (const json& entry : *thresholds) {
    if (!entry.is_number() || (!table.thresholds.empty() && entry.get<double>() < table.thresholds.back())) {
      return object.Error("thresholds", absl::StrCat(JsonExcerpt(entry), " does not ascend"));
    }
    table.thresholds.push_back(entry.get<double>());
  }
  ASSIGN_OR_RETURN(const json* rises, object.Array("rises"));
  if (rises->size() > kMaxRises) return object.Error("rises", absl::StrCat("are more than ", kMaxRises));
  for (const json& entry : *rises) {
    ASSIGN_OR_RETURN(const JsonObject of, JsonObject::Of(entry, subject + ": rises"));
    GatingTable::Rise rise;
    ASSIGN_OR_RETURN(rise.share, of.Double("share", table.rises.empty() ? 0 : table.rises.back().share, 1));
    ASSIGN_OR_RETURN(rise.rise, of.Double("rise", -1, kMaxRise));
    table.rises.push_back(rise);
  }
  return table;
}

absl::StatusOr<GatingProfile> GatingOf(const json& root, const std::string& subject,
                                       const std::string& source_digest) {
  GatingProfile profile;
  ASSIGN_OR_RETURN(const JsonObject object,
                   CheckProfileRoot(root, subject, "source_digest", source_digest, &profile.source_digest));
  ASSIGN_OR_RETURN(profile.tokens, object.Uint("tokens", 1, kMaxProfileCount));
  ASSIGN_OR_RETURN(profile.held_out, object.Uint("held_out", 0, kMaxProfileCount));
  ASSIGN_OR_RETURN(const JsonObject kinds, object.Object("kinds"));
  const json* table = kinds.Find(kMeasuredName);
  if (table == nullptr) return kinds.Error(kMeasuredName, "is missing");
  ASSIGN_OR_RETURN(profile.table, TableOf(*table, absl::StrCat(subject, ": ", kMeasuredName)));
  return profile;
}

}  // namespace

// Returns the quantile of the calibration values at `share`, interpolated linearly. For a share of 0 the
// threshold lies below every value, equal ones included.
double GatingTable::Threshold(double share) const {
  if (!(share > 0)) return -std::numeric_limits<double>::infinity();
  const double place = std::min(share, 1.0) * (kPoints - 1);
  const size_t left = std::min(static_cast<size_t>(place), kPoints - 2);
  const double part = place - static_cast<double>(left);
  return thresholds[left] + (thresholds[left + 1] - thresholds[left]) * part;
}

double GatingTable::ShareWithin(double bound) const {
  // Walks from point to point as long as the rise is within the bound; the result is the share at which the
  // line to the first point outside crosses it. A measured rise may fall again later; larger shares beyond
  // that crossing are not searched.
  double share = 0;
  Rise before;
  for (const Rise& rise : rises) {
    if (rise.rise <= bound) {
      share = rise.share;
    } else if (before.rise <= bound) {
      share = before.share + (rise.share - before.share) * (bound - before.rise) / (rise.rise - before.rise);
      break;
    }
    before = rise;
  }
  return share;
}

absl::StatusOr<GatingProfile> ParseGating(std::string_view text, const std::string& subject,
                                          const std::string& source_digest) {
  return ParseProfileText<GatingProfile>(
      text, subject, 10000, [&](const json& root) { return GatingOf(root, subject, source_digest); });
}

std::string SerializeGating(const GatingProfile& gating) {
  json rises = json::array();
  for (const GatingTable::Rise& rise : gating.table.rises) {
    rises.push_back({{"share", rise.share}, {"rise", rise.rise}});
  }
  const json table = {{"thresholds", gating.table.thresholds}, {"rises", std::move(rises)}};
  return FormatProfile({{"source_digest", gating.source_digest},
                        {"tokens", gating.tokens},
                        {"held_out", gating.held_out},
                        {"kinds", {{kMeasuredName, table}}}});
}

absl::StatusOr<GatingProfile> ReadGating(const std::string& folder, const std::string& source_digest) {
  const std::string path = folder + "/" + kGatingName;
  ASSIGN_OR_RETURN(const std::string text, ReadProfileFile(path, kMaxGatingText));
  return ParseGating(text, path, source_digest);
}

}  // namespace sluice
