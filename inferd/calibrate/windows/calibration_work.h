// What a calibration still has to do, in multiply-adds: the measure that its time left is estimated by.
//
// A rough one: attention as four square matrices, and no account of how well each kernel does. What counts is
// how the stages compare with each other; how long a multiply-add takes is seen from those that are done.
//
// Thread safety: thread-compatible; a const object may be read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/model/model_config.h"

namespace sluice {

// The multiply-adds of one position, by what is run of the model.
class PositionWork {
 public:
  explicit PositionWork(const ModelConfig& config);

  // Of running the layers from `first_layer` to the last one, and the head if the loss is wanted.
  double From(uint32_t first_layer, bool loss) const { return layers_[first_layer] + (loss ? head_ : 0); }
  double Whole(bool loss) const { return From(0, loss); }
  // RoutingStage's and FisherStage's passes.
  double SingleExperts() const;
  double Fisher(uint32_t draws) const;
  // Training of the expert predictors on one position.
  double Predictors() const;

 private:
  const ModelConfig& config_;
  std::vector<double> layers_;  // by layer: of it and all after it; 0 behind the last
  double head_;
};

// Time left over all stages, whose work is known, from what has been done in this run.
class TimeLeft {
 public:
  // `total`: of all stages together.
  explicit TimeLeft(double total) : left_(total) {}

  void Skip(double work) { left_ -= work; }  // an earlier run did it
  void Add(double work, absl::Duration took) {
    left_ -= work;
    done_ += work;
    took_ += took;
  }
  // Nothing before something is done.
  std::optional<absl::Duration> Estimate() const {
    if (done_ <= 0) return std::nullopt;
    return left_ <= 0 ? absl::ZeroDuration() : took_ * (left_ / done_);
  }

 private:
  double left_;
  double done_ = 0;
  absl::Duration took_;
};

}  // namespace sluice
