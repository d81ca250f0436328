#include "inferd/policy/sparsity/neuron_thresholds.h"

#include <algorithm>

#include "common/status.h"

namespace sluice::inferd {

double ShareBelow(absl::Span<const double> shares, absl::Span<const float> table, float threshold) {
  if (threshold <= table.front()) return 0;
  if (threshold > table.back()) return 1;
  const auto above = std::lower_bound(table.begin(), table.end(), threshold);
  const auto below = above - 1;  // table.front() < threshold
  const double place = (threshold - double{*below}) / (double{*above} - double{*below});
  const size_t i = static_cast<size_t>(below - table.begin());
  return shares[i] + place * (shares[i + 1] - shares[i]);
}

absl::StatusOr<NeuronThresholds> NeuronThresholds::Calibrated(const SparsityPolicy* sparsity,
                                                              NeuronInput input, const ModelConfig& model,
                                                              const std::string& profile_dir,
                                                              const std::string& model_id) {
  ASSIGN_OR_RETURN(const ThresholdTables true_values, ReadThresholds(profile_dir, model, model_id));
  const char* name = input == NeuronInput::kNormed ? kNeuronNormedName : kNeuronHiddenName;
  ASSIGN_OR_RETURN(const ThresholdTables predicted_values,
                   ReadThresholds(profile_dir, model, model_id, name));
  return Matching(sparsity, true_values, predicted_values);
}

NeuronThresholds NeuronThresholds::Matching(const SparsityPolicy* sparsity,
                                            const ThresholdTables& true_values,
                                            const ThresholdTables& predicted_values) {
  NeuronThresholds made(sparsity);
  const Lead lead = sparsity->order() == SparsityOrder::kUp ? Lead::kUp : Lead::kGate;
  for (uint32_t layer = 0; layer < true_values.experts().size(); ++layer) {
    made.first_.push_back(made.calibrated_.size());
    for (uint32_t expert = 0; expert < true_values.experts()[layer]; ++expert) {
      const double share = ShareBelow(true_values.shares(), true_values.table(lead, layer, expert),
                                      sparsity->threshold(layer, expert));
      made.calibrated_.push_back(predicted_values.Threshold(lead, layer, expert, share));
    }
  }
  return made;
}

}  // namespace sluice::inferd
