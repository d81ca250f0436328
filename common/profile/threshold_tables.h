// ThresholdTables: quantiles of the activations |a| that decide sparsity masks: a = up factor, gate factor or
// their product (Lead), of every layer and expert and pooled over the model. For a target share k of neurons
// to leave out, the threshold is the ceil(k * n)-th smallest |a| of calibration; a neuron is kept if |a| >=
// threshold. Shapes: a quantile for each k of `shares`, which ascend from 0 to 1.
//
// Thread safety: thread-compatible; a const object may be read from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/profile/profile.h"

namespace sluice {

inline constexpr char kThresholdsName[] = "thresholds.bin";
// Points of evenly spaced tables: every half percent. Thresholds between two points are interpolated.
inline constexpr uint32_t kThresholdPoints = 201;

// Returns i / (points - 1).
std::vector<double> EvenShares(uint32_t points);
// Shares that `calibrate` stores: every half percent, and within 2 % of either end steps that shrink with the
// distance from it, down to 1e-6. A target of 0.9999 keeps a tenth of the neurons of 0.999, and thresholds
// there lie far apart: steps of a constant ratio resolve them to within a percent of the kept neurons.
std::vector<double> FineShares();

class ThresholdTables {
 public:
  // Sets all values to zero. `experts`: RoutedExperts() of the model. REQUIRES: `shares` ascend from 0 to 1.
  ThresholdTables(std::string model_id, uint64_t tokens, std::vector<uint32_t> experts,
                  std::vector<double> shares = EvenShares(kThresholdPoints));

  // Returns the threshold for leaving out a share `target` of an expert's neurons; 0 for target 0. REQUIRES:
  // layer has the expert, 0 <= target <= 1.
  float Threshold(Lead lead, uint32_t layer, uint32_t expert, double target) const;
  // Returns the single threshold for all layers and experts.
  float PooledThreshold(Lead lead, double target) const;

  // True if `target` is 1 or at most the last point before 1. Above that point only the largest value of
  // calibration is known, and an interpolated threshold would keep another share than requested.
  bool Resolves(double target) const;

  const std::string& model_id() const { return model_id_; }
  uint64_t tokens() const { return tokens_; }  // input positions of calibration
  const std::vector<double>& shares() const { return shares_; }
  size_t points() const { return shares_.size(); }
  const std::vector<uint32_t>& experts() const { return experts_; }

  // Returns the stored points of one table, ascending.
  absl::Span<float> table(Lead lead, uint32_t layer, uint32_t expert);
  absl::Span<const float> table(Lead lead, uint32_t layer, uint32_t expert) const;
  absl::Span<float> pooled(Lead lead);
  absl::Span<const float> pooled(Lead lead) const;

  bool operator==(const ThresholdTables&) const = default;

 private:
  friend absl::StatusOr<ThresholdTables> ParseThresholds(std::string_view, const std::string&,
                                                         const std::vector<uint32_t>&, const std::string&);
  friend std::string SerializeThresholds(const ThresholdTables&);
  float Lookup(absl::Span<const float> table, double target) const;
  size_t Offset(Lead lead, uint32_t layer, uint32_t expert) const;

  std::string model_id_;
  uint64_t tokens_;
  std::vector<uint32_t> experts_;       // by layer
  std::vector<uint64_t> first_expert_;  // by layer, and the total at its end
  std::vector<double> shares_;          // [points]
  std::vector<float> values_;           // pooled [lead][points], then [lead][expert of all layers][points]
};

// Parses untrusted bytes, errors as in profile.h. An empty `model_id` accepts any. Pure function.
absl::StatusOr<ThresholdTables> ParseThresholds(std::string_view bytes, const std::string& subject,
                                                const std::vector<uint32_t>& experts,
                                                const std::string& model_id);
std::string SerializeThresholds(const ThresholdTables& tables);

absl::StatusOr<ThresholdTables> ReadThresholds(const std::string& folder, const ModelConfig& config,
                                               const std::string& model_id,
                                               const std::string& name = kThresholdsName);

}  // namespace sluice
