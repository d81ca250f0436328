// Thresholds by layer and expert: the minimum predicted lead value of a neuron that is fetched, and the
// minimum true value of one that counts.
//
// A predicted value is the lead's product with another layer's input, whose scale may differ: then the
// sparsity's own threshold selects far too many neurons or too few. `calibrate` stores the quantiles of the
// predicted values besides those of the true ones (neuron_hidden.bin, neuron_normed.bin; tables as in
// thresholds.bin); the calibrated threshold leaves out the same share of predicted values as the sparsity's
// own leaves out of true ones.
//
// Thread safety: immutable after construction; may be read from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/threshold_tables.h"
#include "inferd/policy/preset/preset.h"
#include "inferd/policy/sparsity/sparsity.h"

namespace sluice::inferd {

// Share of an expert's values below `threshold`, interpolated between a table's `shares`: the inverse of
// ThresholdTables::Threshold(). 0 at the first point or below, 1 above the last.
double ShareBelow(absl::Span<const double> shares, absl::Span<const float> table, float threshold);

class NeuronThresholds {
 public:
  // The sparsity's own threshold for both. `sparsity` outlives this object.
  explicit NeuronThresholds(const SparsityPolicy* sparsity) : sparsity_(sparsity) {}

  // Calibrated thresholds. Errors of ReadThresholds and ReadNeuronThresholds.
  static absl::StatusOr<NeuronThresholds> Calibrated(const SparsityPolicy* sparsity, NeuronInput input,
                                                     const ModelConfig& model, const std::string& profile_dir,
                                                     const std::string& model_id);
  // Calibrated thresholds from given tables.
  static NeuronThresholds Matching(const SparsityPolicy* sparsity, const ThresholdTables& true_values,
                                   const ThresholdTables& predicted_values);

  float predicted(uint32_t layer, uint32_t expert) const {
    return calibrated_.empty() ? actual(layer, expert) : calibrated_[first_[layer] + expert];
  }
  float actual(uint32_t layer, uint32_t expert) const { return sparsity_->threshold(layer, expert); }

 private:
  const SparsityPolicy* sparsity_;
  std::vector<uint64_t> first_;    // by layer: index of its first expert
  std::vector<float> calibrated_;  // empty: not calibrated
};

}  // namespace sluice::inferd
