#include "common/profile/gating.h"

#include <algorithm>
#include <limits>

#include "common/profile/profile_file.h"
#include "common/profile/profile_json.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxGatingText = 1u << 20;
constexpr size_t kMaxRises = 1000;
constexpr double kMaxRise = 1e300;
constexpr const char* kNames[kGatingKinds] = {"fisher", "quadratic", "measured", "score"};

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
  for (int kind = 0; kind < kGatingKinds; ++kind) {
    const json* table = kinds.Find(kNames[kind]);
    if (table == nullptr) return kinds.Error(kNames[kind], "is missing");
    ASSIGN_OR_RETURN(profile.tables[static_cast<size_t>(kind)],
                     TableOf(*table, absl::StrCat(subject, ": ", kNames[kind])));
  }
  return profile;
}

}  // namespace

double GatingSensitivity(const LayerSensitivity& layer, GatingKind kind) {
  switch (kind) {
    case GatingKind::kFisher:
      return layer.fisher;
    case GatingKind::kQuadratic:
      return layer.quadratic;
    case GatingKind::kMeasured:
      return layer.measured;
    case GatingKind::kScore:
      break;
  }
  return 1;
}

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
  json kinds = json::object();
  for (int kind = 0; kind < kGatingKinds; ++kind) {
    const GatingTable& table = gating.tables[static_cast<size_t>(kind)];
    json rises = json::array();
    for (const GatingTable::Rise& rise : table.rises) {
      rises.push_back({{"share", rise.share}, {"rise", rise.rise}});
    }
    kinds[kNames[kind]] = {{"thresholds", table.thresholds}, {"rises", std::move(rises)}};
  }
  return FormatProfile({{"source_digest", gating.source_digest},
                        {"tokens", gating.tokens},
                        {"held_out", gating.held_out},
                        {"kinds", std::move(kinds)}});
}

absl::StatusOr<GatingProfile> ReadGating(const std::string& folder, const std::string& source_digest) {
  const std::string path = folder + "/" + kGatingName;
  ASSIGN_OR_RETURN(const std::string text, ReadProfileFile(path, kMaxGatingText));
  return ParseGating(text, path, source_digest);
}

}  // namespace sluice
