// The remaining work of a calibration, in multiply-adds, for the estimate of its remaining time.
//
// The estimate is rough: attention counts as four square matrices, and kernel efficiency is ignored. Only the
// ratio between stages matters; the time of a multiply-add is measured from finished work.
//
// Thread safety: thread-compatible; a const object may be read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/model/model_config.h"

namespace sluice::inferd {

// Multiply-adds of one position, by the part of the model that runs.
class PositionWork {
 public:
  explicit PositionWork(const ModelConfig& config);

  // Work of the layers from `first_layer` to the last one, and of the head if `loss`.
  double From(uint32_t first_layer, bool loss) const { return layers_[first_layer] + (loss ? head_ : 0); }
  double Whole(bool loss) const { return From(0, loss); }
  // Work of RoutingStage's and FisherStage's passes.
  double SingleExperts() const;
  double Fisher(uint32_t draws) const;
  // Work of training the expert predictors on one position.
  double Predictors() const;

 private:
  const ModelConfig& config_;
  std::vector<double> layers_;  // by layer: work of it and all later ones; 0 after the last
  double head_;
};

// Remaining time over all stages, from their known work and the work done in this run.
class TimeLeft {
 public:
  // `total`: work of all stages together.
  explicit TimeLeft(double total) : left_(total) {}

  void Skip(double work) { left_ -= work; }  // done by an earlier run
  void Add(double work, absl::Duration took) {
    left_ -= work;
    done_ += work;
    took_ += took;
  }
  // Empty before any work is done.
  std::optional<absl::Duration> Estimate() const {
    if (done_ <= 0) return std::nullopt;
    return left_ <= 0 ? absl::ZeroDuration() : took_ * (left_ / done_);
  }

 private:
  double left_;
  double done_ = 0;
  absl::Duration took_;
};

}  // namespace sluice::inferd
