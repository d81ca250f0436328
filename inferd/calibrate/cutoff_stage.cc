#include "inferd/calibrate/cutoff_stage.h"

#include <cmath>
#include <limits>
#include <utility>

#include "common/profile/threshold_tables.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr uint32_t kPercents = 100;  // sparsities 0..99 are tried
constexpr uint64_t kHalvings = 7;    // of an interval of 100
constexpr double kUnknown = -std::numeric_limits<double>::infinity();

}  // namespace

CutoffStage::CutoffStage(const ProfileKeys& keys, const std::vector<CalibrationWindow>& windows,
                         uint64_t count, std::vector<double> bounds, std::string folder,
                         CalibrationStage* thresholds, WindowHost* host)
    : keys_(keys),
      windows_(windows),
      first_(windows.size() - count),
      bounds_(std::move(bounds)),
      folder_(std::move(folder)),
      thresholds_(thresholds),
      host_(host),
      rises_(kPercents, kUnknown),
      within_(bounds_.size(), 0),
      beyond_(bounds_.size(), kPercents) {}

uint64_t CutoffStage::units() const { return 1 + kHalvings * bounds_.size(); }

absl::Status CutoffStage::RunUnit(uint64_t unit) {
  if (unit == 0) {
    ASSIGN_OR_RETURN(base_loss_, LossWith({}));
    rises_[0] = 0;
    return absl::OkStatus();
  }
  const size_t bound = (unit - 1) / kHalvings;
  if (beyond_[bound] - within_[bound] <= 1) return absl::OkStatus();
  const uint32_t middle = (within_[bound] + beyond_[bound]) / 2;
  ASSIGN_OR_RETURN(const double rise, RiseAt(middle));
  (rise <= bounds_[bound] ? within_ : beyond_)[bound] = middle;
  return absl::OkStatus();
}

absl::StatusOr<double> CutoffStage::RiseAt(uint32_t percent) {
  if (rises_[percent] != kUnknown) return rises_[percent];
  SparsityConfig config;
  config.order = SparsityOrder::kGate;
  config.target = percent / 100.0;
  config.scope = ThresholdScope::kModel;
  const absl::StatusOr<double> loss = LossWith(config);
  if (absl::IsInvalidArgument(loss.status())) {
    // The routed experts cannot leave out as much as the dense shared expert would ask of them.
    return rises_[percent] = std::numeric_limits<double>::infinity();
  }
  RETURN_IF_ERROR(loss.status());
  uint64_t targets = 0;
  for (uint64_t i = first_; i < windows_.size(); ++i) targets += windows_[i].targets.size();
  return rises_[percent] = std::expm1((*loss - base_loss_) / static_cast<double>(targets));
}

absl::StatusOr<double> CutoffStage::LossWith(const SparsityConfig& config) {
  if (!table_written_) {
    ASSIGN_OR_RETURN(const auto files, thresholds_->Finish());
    RETURN_IF_ERROR(WriteProfileFile(folder_, kThresholdsName, files.at(kThresholdsName)));
    table_written_ = true;
  }
  RETURN_IF_ERROR(host_->UseSparsity(config, folder_));
  double loss = 0;
  for (uint64_t i = first_; i < windows_.size(); ++i) {
    ASSIGN_OR_RETURN(const double window, host_->Run(windows_[i], {}));
    loss += window;
  }
  return loss;
}

void CutoffStage::Save(std::string* out) const {
  AppendValue(base_loss_, out);
  AppendValues(rises_, out);
  AppendValues(within_, out);
  AppendValues(beyond_, out);
}

absl::Status CutoffStage::Load(ByteReader* reader) {
  RETURN_IF_ERROR(reader->Take(&base_loss_));
  RETURN_IF_ERROR(reader->TakeMany(kPercents, &rises_));
  RETURN_IF_ERROR(reader->TakeMany(bounds_.size(), &within_));
  RETURN_IF_ERROR(reader->TakeMany(bounds_.size(), &beyond_));
  for (const std::vector<uint32_t>* percents : {&within_, &beyond_}) {
    for (const uint32_t percent : *percents) {
      if (percent > kPercents) return reader->Damaged(absl::StrCat("a sparsity of ", percent, " %"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> CutoffStage::Finish() {
  CutoffProfile profile{
      keys_.model_id, PositionsOf(windows_, windows_.size()) - PositionsOf(windows_, first_), {}};
  for (size_t i = 0; i < bounds_.size(); ++i) {
    profile.cutoffs.push_back(
        {Lead::kGate, bounds_[i], within_[i] / 100.0, within_[i] == 0 ? 0 : rises_[within_[i]]});
  }
  return std::map<std::string, std::string>{{kCutoffName, SerializeCutoffs(profile)}};
}

}  // namespace sluice
