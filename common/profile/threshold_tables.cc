#include "common/profile/threshold_tables.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/profile/profile_file.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr std::string_view kMagic = "SLTHRESH";
constexpr uint32_t kVersion = 1;
constexpr size_t kIdDigits = 32;
constexpr uint32_t kMaxPoints = 1u << 16;
constexpr uint64_t kMaxBytes = 8ull << 30;
// A target this close to a stored point is that point: 0.7 * 200 is not 140 in binary.
constexpr double kPointSlack = 1e-6;

}  // namespace

ThresholdTables::ThresholdTables(std::string model_id, uint64_t tokens, std::vector<uint32_t> experts,
                                 uint32_t points)
    : model_id_(std::move(model_id)), tokens_(tokens), experts_(std::move(experts)), points_(points) {
  uint64_t total = 0;
  for (const uint32_t count : experts_) {
    first_expert_.push_back(total);
    total += count;
  }
  first_expert_.push_back(total);
  values_.resize(kLeadCount * (total + 1) * points_);
}

size_t ThresholdTables::Offset(Lead lead, uint32_t layer, uint32_t expert) const {
  const uint64_t row = static_cast<uint64_t>(lead) * first_expert_.back() + first_expert_[layer] + expert;
  return (kLeadCount + row) * points_;
}

absl::Span<float> ThresholdTables::table(Lead lead, uint32_t layer, uint32_t expert) {
  return absl::MakeSpan(values_).subspan(Offset(lead, layer, expert), points_);
}

absl::Span<const float> ThresholdTables::table(Lead lead, uint32_t layer, uint32_t expert) const {
  return absl::MakeConstSpan(values_).subspan(Offset(lead, layer, expert), points_);
}

absl::Span<float> ThresholdTables::pooled(Lead lead) {
  return absl::MakeSpan(values_).subspan(static_cast<size_t>(lead) * points_, points_);
}

absl::Span<const float> ThresholdTables::pooled(Lead lead) const {
  return absl::MakeConstSpan(values_).subspan(static_cast<size_t>(lead) * points_, points_);
}

float ThresholdTables::Threshold(Lead lead, uint32_t layer, uint32_t expert, double target) const {
  return Lookup(table(lead, layer, expert), target);
}

float ThresholdTables::PooledThreshold(Lead lead, double target) const {
  return Lookup(pooled(lead), target);
}

float ThresholdTables::Lookup(absl::Span<const float> table, double target) const {
  const double place = std::clamp(target, 0.0, 1.0) * (points_ - 1);
  const double nearest = std::round(place);
  if (std::abs(place - nearest) < kPointSlack) return table[static_cast<size_t>(nearest)];
  const size_t below = static_cast<size_t>(place);
  const double share = place - static_cast<double>(below);
  return static_cast<float>(table[below] + share * (double{table[below + 1]} - table[below]));
}

absl::StatusOr<ThresholdTables> ParseThresholds(std::string_view bytes, const std::string& subject,
                                                const std::vector<uint32_t>& experts,
                                                const std::string& model_id) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(bytes, kMagic, subject));
  ByteReader reader(body, subject);
  uint32_t version = 0;
  RETURN_IF_ERROR(reader.Take(&version));
  if (version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat(subject, ": version ", version, " is not supported (this build reads ", kVersion, ")"));
  }
  uint32_t points = 0;
  std::string id;
  uint64_t tokens = 0;
  uint64_t layers = 0;
  RETURN_IF_ERROR(reader.Take(&points));
  RETURN_IF_ERROR(reader.TakeText(kIdDigits, &id));
  RETURN_IF_ERROR(CheckProfileKey(subject, "model_id", id, model_id));
  RETURN_IF_ERROR(reader.Take(&tokens));
  RETURN_IF_ERROR(reader.Take(&layers));
  std::vector<uint32_t> found;
  RETURN_IF_ERROR(reader.TakeMany(layers, &found));
  if (found != experts) return reader.Damaged("layers and experts are not the model's");
  if (points < 2 || points > kMaxPoints) return reader.Damaged(absl::StrCat(points, " points"));
  uint64_t total = 0;
  for (const uint32_t count : experts) total += count;
  std::vector<float> values;
  RETURN_IF_ERROR(reader.TakeFinite(kLeadCount * (total + 1) * points, "thresholds", &values));
  RETURN_IF_ERROR(reader.Finish());
  for (size_t first = 0; first < values.size(); first += points) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(first);
    if (*begin < 0 || !std::is_sorted(begin, begin + points)) {
      return reader.Damaged(absl::StrCat("table ", first / points, " does not ascend from 0"));
    }
  }
  ThresholdTables tables(id, tokens, experts, points);
  tables.values_ = std::move(values);
  return tables;
}

std::string SerializeThresholds(const ThresholdTables& tables) {
  std::string out(kMagic);
  AppendValue(kVersion, &out);
  AppendValue(tables.points_, &out);
  out += tables.model_id_;
  AppendValue(tables.tokens_, &out);
  AppendValue(uint64_t{tables.experts_.size()}, &out);
  AppendValues(tables.experts_, &out);
  AppendValues(tables.values_, &out);
  Seal(&out);
  return out;
}

absl::StatusOr<ThresholdTables> ReadThresholds(const std::string& folder, const ModelConfig& config,
                                               const std::string& model_id, const std::string& name) {
  const std::string path = absl::StrCat(folder, "/", name);
  ASSIGN_OR_RETURN(const std::string bytes, ReadProfileFile(path, kMaxBytes));
  return ParseThresholds(bytes, path, RoutedExperts(config), model_id);
}

}  // namespace sluice
