// What a predicted lead value must reach for its neuron to be fetched, by layer and expert; and what the true
// one must reach.
//
// A predicted value is the lead's product with another layer's input, whose scale may be another: where it
// is, the sparsity's own threshold takes far too many neurons or too few. `calibrate` stores the quantiles of
// the predicted values beside those of the true ones (neuron_hidden.bin, neuron_normed.bin; tables as in
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

namespace sluice {

// The share of an expert's values below `threshold`, interpolated between a table's `shares`: what
// ThresholdTables::Threshold() gives that threshold for. 0 at the first point or below, 1 above the last.
double ShareBelow(absl::Span<const double> shares, absl::Span<const float> table, float threshold);

class NeuronThresholds {
 public:
  // The sparsity's own for both. `sparsity` lives as long as they do.
  explicit NeuronThresholds(const SparsityPolicy* sparsity) : sparsity_(sparsity) {}

  // Calibrated ones. Errors as ReadThresholds' and ReadNeuronThresholds'.
  static absl::StatusOr<NeuronThresholds> Calibrated(const SparsityPolicy* sparsity, NeuronInput input,
                                                     const ModelConfig& model, const std::string& profile_dir,
                                                     const std::string& model_id);
  // The same from tables at hand.
  static NeuronThresholds Matching(const SparsityPolicy* sparsity, const ThresholdTables& true_values,
                                   const ThresholdTables& predicted_values);

  float predicted(uint32_t layer, uint32_t expert) const {
    return calibrated_.empty() ? actual(layer, expert) : calibrated_[first_[layer] + expert];
  }
  float actual(uint32_t layer, uint32_t expert) const { return sparsity_->threshold(layer, expert); }

 private:
  const SparsityPolicy* sparsity_;
  std::vector<uint64_t> first_;    // by layer: place of its first expert
  std::vector<float> calibrated_;  // empty: not calibrated
};

}  // namespace sluice
