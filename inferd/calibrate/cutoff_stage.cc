#include "inferd/calibrate/cutoff_stage.h"

#include <cmath>
#include <limits>
#include <utility>

#include "common/base/status.h"
#include "common/profile/threshold_tables.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kPercents = 100;  // sparsities 0..99 are tried
constexpr uint64_t kHalvings = 7;    // halvings of an interval of 100
constexpr double kUnknown = -std::numeric_limits<double>::infinity();

}  // namespace

CutoffStage::CutoffStage(const ProfileKeys& keys, const std::vector<CalibrationWindow>& windows,
                         uint64_t count, std::vector<double> bounds, std::string folder,
                         CalibrationStage* thresholds, WindowHost* host)
    : keys_(keys),
      windows_(windows),
      count_(count),
      bounds_(std::move(bounds)),
      folder_(std::move(folder)),
      thresholds_(thresholds),
      host_(host),
      rises_(kPercents, kUnknown),
      within_(bounds_.size(), 0),
      beyond_(bounds_.size(), kPercents) {}

uint64_t CutoffStage::units() const { return (1 + kHalvings * bounds_.size()) * count_; }

absl::Status CutoffStage::RunUnit(uint64_t unit) {
  // A run covers all held-out windows at one sparsity. The first run is the base; then each bound is bisected
  // between a sparsity within it and one beyond it. Sparsities measured for one bound are not measured again
  // for another.
  const uint64_t run = unit / count_;  // 0: no sparsity
  const uint64_t place = unit % count_;
  const size_t bound = run == 0 ? 0 : (run - 1) / kHalvings;
  if (run > 0 && beyond_[bound] - within_[bound] <= 1) return absl::OkStatus();
  const uint32_t percent = run == 0 ? 0 : (within_[bound] + beyond_[bound]) / 2;
  if (rises_[percent] == kUnknown) {
    RETURN_IF_ERROR(AddWindow(run, percent, windows_[windows_.size() - count_ + place]));
  }
  if (place + 1 < count_) return absl::OkStatus();
  if (rises_[percent] == kUnknown) rises_[percent] = RiseOf(run_loss_);
  if (run == 0) {
    base_loss_ = run_loss_;
    rises_[0] = 0;
  } else {
    (rises_[percent] <= bounds_[bound] ? within_ : beyond_)[bound] = percent;
  }
  run_loss_ = 0;
  return absl::OkStatus();
}

absl::Status CutoffStage::AddWindow(uint64_t run, uint32_t percent, const CalibrationWindow& window) {
  if (run_set_up_ != run) {
    const absl::Status set_up = SetUp(percent);
    if (absl::IsInvalidArgument(set_up)) {
      // The whole model has one threshold, and a shared expert stays dense: the routed experts cannot reach
      // such a target.
      rises_[percent] = std::numeric_limits<double>::infinity();
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(set_up);
    run_set_up_ = run;
  }
  ASSIGN_OR_RETURN(const double loss, host_->Run(window, {}));
  run_loss_ += loss;
  return absl::OkStatus();
}

absl::Status CutoffStage::SetUp(uint32_t percent) {
  if (!table_written_) {
    ASSIGN_OR_RETURN(const auto files, thresholds_->Finish());
    RETURN_IF_ERROR(WriteProfileFile(folder_, kThresholdsName, files.at(kThresholdsName)));
    table_written_ = true;
  }
  SparsityConfig config;
  if (percent > 0) {
    config.order = SparsityOrder::kGate;
    config.target = percent / 100.0;
    config.scope = ThresholdScope::kModel;
  }
  return host_->UseSparsity(config, folder_);
}

double CutoffStage::RiseOf(double loss) const {
  uint64_t targets = 0;
  for (uint64_t i = windows_.size() - count_; i < windows_.size(); ++i) targets += windows_[i].targets.size();
  return std::expm1((loss - base_loss_) / static_cast<double>(targets));
}

void CutoffStage::Save(std::string* out) const {
  AppendValue(base_loss_, out);
  AppendValue(run_loss_, out);
  AppendValues(rises_, out);
  AppendValues(within_, out);
  AppendValues(beyond_, out);
}

absl::Status CutoffStage::Load(ByteReader* reader) {
  RETURN_IF_ERROR(reader->Take(&base_loss_));
  RETURN_IF_ERROR(reader->Take(&run_loss_));
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
      keys_.model_id,
      PositionsOf(windows_, windows_.size()) - PositionsOf(windows_, windows_.size() - count_),
      {}};
  for (size_t i = 0; i < bounds_.size(); ++i) {
    profile.cutoffs.push_back(
        {Lead::kGate, bounds_[i], within_[i] / 100.0, within_[i] == 0 ? 0 : rises_[within_[i]]});
  }
  return std::map<std::string, std::string>{{kCutoffName, SerializeCutoffs(profile)}};
}

}  // namespace sluice::inferd
