#include "common/profile/cache_profile.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/profile/profile_file.h"
#include "common/profile/profile_json.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
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
  if (layers->size() != config.layers.size()) {
    return object.Error("layers", absl::StrCat("are ", layers->size(), ", must be ", config.layers.size()));
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

}  // namespace sluice
