// Interfaces of a calibration: stages run one after the other, each in counted units, and can be saved after
// any unit; and their access to the model.
//
// Thread safety: a stage belongs to the calibration's thread; hooks that it passes to a WindowHost are called
// on the engine thread while the calibration's thread waits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/model_config.h"
#include "common/profile/profile_file.h"
#include "inferd/calibrate/window_runner.h"

namespace sluice::inferd {

// Runs windows for a stage; every call pauses the engine once between two steps.
class WindowHost {
 public:
  virtual ~WindowHost() = default;
  virtual absl::StatusOr<double> Run(const CalibrationWindow& window, const WindowRunner::Hooks& hooks) = 0;
  // Sets the sparsity of the following windows, with thresholds from `profile_folder`. Errors: those of
  // SparsityPolicy::Create.
  virtual absl::Status UseSparsity(const SparsityConfig& config, const std::string& profile_folder) = 0;
  // The runner that hooks may use while they are called.
  virtual const WindowRunner& runner() const = 0;
};

// Number of experts over all layers.
inline uint64_t TotalExperts(const ModelConfig& config) {
  uint64_t total = 0;
  for (const LayerConfig& layer : config.layers) total += layer.moe.experts;
  return total;
}

class CalibrationStage {
 public:
  virtual ~CalibrationStage() = default;
  virtual std::string name() const = 0;
  virtual uint64_t units() const = 0;
  // Runs the next unit, in order; after an error the stage is not used again.
  virtual absl::Status RunUnit(uint64_t unit) = 0;
  // Makes data written by units outside of the state durable; called before a state is saved.
  virtual absl::Status Sync() const { return absl::OkStatus(); }
  // Saves the results of the finished units; Load() into a new stage with the same arguments continues from
  // there, to the same bits.
  virtual void Save(std::string* out) const = 0;
  virtual absl::Status Load(ByteReader* reader) = 0;
  // Returns the profile's files by name, after the last unit.
  virtual absl::StatusOr<std::map<std::string, std::string>> Finish() = 0;
};

// Cuts a text into windows like `sluice perplexity`: window k holds tokens [k W, k W + W), its input is BOS
// and those tokens without the last. Without BOS the first token is input only; a window of one token is then
// left out.
std::vector<CalibrationWindow> MakeWindows(const std::vector<int32_t>& tokens, uint32_t window,
                                           const std::vector<int32_t>& bos_ids);

// Number of first windows that hold about `tokens` input positions: at least one, at most all.
uint64_t WindowsFor(const std::vector<CalibrationWindow>& windows, uint64_t tokens);

// Number of input positions in the first `count` windows.
uint64_t PositionsOf(const std::vector<CalibrationWindow>& windows, uint64_t count);

// The distribution of a stage's measurements in the form stored in profiles.
//
// Thread safety: a pure function.

// Returns the values at `points` evenly spaced shares of `sorted` (101 points: 0, 1, .. 100 %): the smallest
// value that at least this share of the values does not exceed. Zeros if there are no values. REQUIRES:
// `sorted` ascends; `points` > 1.
template <typename T>
std::vector<double> Percentiles(const std::vector<T>& sorted, size_t points) {
  std::vector<double> values(points, 0.0);
  for (size_t i = 0; i < points && !sorted.empty(); ++i) {
    const double rank = std::ceil(static_cast<double>(i * sorted.size()) / static_cast<double>(points - 1));
    values[i] = sorted[std::max<size_t>(static_cast<size_t>(rank), 1) - 1];
  }
  return values;
}

// The remaining work of a calibration, in multiply-adds, for the estimate of its remaining time.
//
// The estimate is rough: attention counts as four square matrices, and kernel efficiency is ignored. Only the
// ratio between stages matters; the time of a multiply-add is measured from finished work.
//
// Thread safety: thread-compatible; a const object may be read from any thread.

// Multiply-adds of one position, by the part of the model that runs.
class PositionWork {
 public:
  explicit PositionWork(const ModelConfig& config);

  // Work of the layers from `first_layer` to the last one, and of the head if `loss`.
  double From(uint32_t first_layer, bool loss) const { return layers_[first_layer] + (loss ? head_ : 0); }
  double Whole(bool loss) const { return From(0, loss); }
  // Work of RoutingStage's passes.
  double SingleExperts() const;
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
