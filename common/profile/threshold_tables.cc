#include "common/profile/threshold_tables.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/profile/profile_file.h"

namespace sluice {
namespace {

constexpr std::string_view kThresholdMagic = "SLTHRESH";
constexpr uint32_t kThresholdVersion = 2;
constexpr uint32_t kEvenVersion = 1;  // without shares: i / (points - 1)
constexpr size_t kThresholdIdDigits = 32;
constexpr uint32_t kMaxPoints = 1u << 16;
constexpr uint64_t kMaxThresholdBytes = 8ull << 30;
// A target this close to a stored point counts as that point: 28 / 20 * 0.5 is not 0.7 in binary.
constexpr double kPointSlack = 5e-9;

// Distances from either end: below the first one the points are denser than the half percents, each at this
// ratio of the previous distance, down to the minimum.
constexpr double kEndShare = 0.02;
constexpr double kEndRatio = 0.8;
constexpr double kEndLeast = 1e-6;

bool AscendFrom0To1(const std::vector<double>& shares) {
  for (size_t i = 1; i < shares.size(); ++i) {
    if (!(shares[i] > shares[i - 1])) return false;
  }
  return shares.front() == 0 && shares.back() == 1;
}

}  // namespace

std::vector<double> EvenShares(uint32_t points) {
  std::vector<double> shares;
  for (uint32_t i = 0; i < points; ++i) shares.push_back(static_cast<double>(i) / (points - 1));
  return shares;
}

// Half percents in the middle and a geometric series towards both ends: at a sparsity of 99.9 % a step of
// half a percent would be several times the neurons that are kept.
std::vector<double> FineShares() {
  std::vector<double> shares = EvenShares(kThresholdPoints);
  for (double distance = kEndShare; distance > kEndLeast; distance *= kEndRatio) {
    shares.push_back(distance);
    shares.push_back(1 - distance);
  }
  shares.push_back(kEndLeast);
  shares.push_back(1 - kEndLeast);
  std::sort(shares.begin(), shares.end());
  const auto same = [](double a, double b) { return b - a < kPointSlack; };
  shares.erase(std::unique(shares.begin(), shares.end(), same), shares.end());
  return shares;
}

ThresholdTables::ThresholdTables(std::string model_id, uint64_t tokens, std::vector<uint32_t> experts,
                                 std::vector<double> shares)
    : model_id_(std::move(model_id)),
      tokens_(tokens),
      experts_(std::move(experts)),
      shares_(std::move(shares)) {
  uint64_t total = 0;
  for (const uint32_t count : experts_) {
    first_expert_.push_back(total);
    total += count;
  }
  first_expert_.push_back(total);
  values_.resize(kLeadCount * (total + 1) * points());
}

size_t ThresholdTables::Offset(Lead lead, uint32_t layer, uint32_t expert) const {
  const uint64_t row = static_cast<uint64_t>(lead) * first_expert_.back() + first_expert_[layer] + expert;
  // Pooled tables of the leads come first, then each lead's by layer and expert.
  return (kLeadCount + row) * points();
}

absl::Span<float> ThresholdTables::table(Lead lead, uint32_t layer, uint32_t expert) {
  return absl::MakeSpan(values_).subspan(Offset(lead, layer, expert), points());
}

absl::Span<const float> ThresholdTables::table(Lead lead, uint32_t layer, uint32_t expert) const {
  return absl::MakeConstSpan(values_).subspan(Offset(lead, layer, expert), points());
}

absl::Span<float> ThresholdTables::pooled(Lead lead) {
  return absl::MakeSpan(values_).subspan(static_cast<size_t>(lead) * points(), points());
}

absl::Span<const float> ThresholdTables::pooled(Lead lead) const {
  return absl::MakeConstSpan(values_).subspan(static_cast<size_t>(lead) * points(), points());
}

float ThresholdTables::Threshold(Lead lead, uint32_t layer, uint32_t expert, double target) const {
  return Lookup(table(lead, layer, expert), target);
}

float ThresholdTables::PooledThreshold(Lead lead, double target) const {
  return Lookup(pooled(lead), target);
}

bool ThresholdTables::Resolves(double target) const {
  return target < shares_[points() - 2] + kPointSlack || target > 1 - kPointSlack;
}

float ThresholdTables::Lookup(absl::Span<const float> table, double target) const {
  const auto after = std::upper_bound(shares_.begin(), shares_.end(), target + kPointSlack);
  if (after == shares_.begin()) return table.front();
  const size_t below = static_cast<size_t>(after - shares_.begin()) - 1;
  if (after == shares_.end() || target - shares_[below] < kPointSlack) return table[below];
  const double place = (target - shares_[below]) / (*after - shares_[below]);
  return static_cast<float>(table[below] + place * (double{table[below + 1]} - table[below]));
}

absl::StatusOr<ThresholdTables> ParseThresholds(std::string_view bytes, const std::string& subject,
                                                const std::vector<uint32_t>& experts,
                                                const std::string& model_id) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(bytes, kThresholdMagic, subject));
  ByteReader reader(body, subject);
  uint32_t version = 0;
  RETURN_IF_ERROR(reader.Take(&version));
  if (version != kThresholdVersion && version != kEvenVersion) {
    return absl::UnimplementedError(absl::StrCat(subject, ": version ", version,
                                                 " is not supported (this build reads ", kEvenVersion,
                                                 " and ", kThresholdVersion, ")"));
  }
  uint32_t points = 0;
  std::string id;
  uint64_t tokens = 0;
  uint64_t layers = 0;
  RETURN_IF_ERROR(reader.Take(&points));
  RETURN_IF_ERROR(reader.TakeText(kThresholdIdDigits, &id));
  RETURN_IF_ERROR(CheckProfileKey(subject, "model_id", id, model_id));
  RETURN_IF_ERROR(reader.Take(&tokens));
  RETURN_IF_ERROR(reader.Take(&layers));
  std::vector<uint32_t> found;
  RETURN_IF_ERROR(reader.TakeMany(layers, &found));
  if (found != experts) return reader.Damaged("layers and experts are not the model's");
  if (points < 2 || points > kMaxPoints) return reader.Damaged(absl::StrCat(points, " points"));
  std::vector<double> shares;
  if (version == kEvenVersion) {
    shares = EvenShares(points);
  } else {
    RETURN_IF_ERROR(reader.TakeMany(points, &shares));
    if (!AscendFrom0To1(shares)) return reader.Damaged("shares do not ascend from 0 to 1");
  }
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
  ThresholdTables tables(id, tokens, experts, std::move(shares));
  tables.values_ = std::move(values);
  return tables;
}

std::string SerializeThresholds(const ThresholdTables& tables) {
  std::string out(kThresholdMagic);
  AppendValue(kThresholdVersion, &out);
  AppendValue(static_cast<uint32_t>(tables.points()), &out);
  out += tables.model_id_;
  AppendValue(tables.tokens_, &out);
  AppendValue(uint64_t{tables.experts_.size()}, &out);
  AppendValues(tables.experts_, &out);
  AppendValues(tables.shares_, &out);
  AppendValues(tables.values_, &out);
  Seal(&out);
  return out;
}

absl::StatusOr<ThresholdTables> ReadThresholds(const std::string& folder, const ModelConfig& config,
                                               const std::string& model_id, const std::string& name) {
  const std::string path = absl::StrCat(folder, "/", name);
  ASSIGN_OR_RETURN(const std::string bytes, ReadProfileFile(path, kMaxThresholdBytes));
  return ParseThresholds(bytes, path, RoutedExperts(config), model_id);
}

}  // namespace sluice
