// Calibration request, progress and sink types between the engine and its clients (`sluice calibrate`).
// gRPC-free.
//
// Thread safety: plain values. The calibration's own thread calls a CalibrationSink, one call at a time; a
// sink must not block. Cancelled() may be called from several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sluice::inferd {

struct CalibrationSpec {
  std::vector<int32_t> tokens;  // the sequence to measure, without BOS; at least two
  // Positions of a window, BOS included.
  uint32_t window = 512;
  // Number of tokens (whole windows, from the start) to measure sensitivities on; 0: not measured.
  uint64_t sensitivity_tokens = 16384;
  // Number of random directions per window and layer for the estimate of the Fisher sums.
  uint32_t fisher_draws = 2;
  // Relative rises of perplexity; calibration finds the largest sparsity within each. Empty: none.
  std::vector<double> quality_bounds = {0.01};
  // Number of tokens (whole windows) for that search.
  uint64_t sparsity_tokens = 16384;
  // True to train expert predictors.
  bool predictors = true;
  // Number of passes over the training tokens.
  uint32_t epochs = 6;
  uint64_t seed = 1;
};

struct CalibrationProgress {
  std::string stage;          // display name: "activations"
  uint32_t stage_number = 0;  // from 1
  uint32_t stages = 0;
  uint64_t done = 0;  // units of the stage
  uint64_t total = 0;
  std::optional<double> seconds_left;  // estimate for all stages; absent before the first unit
};

struct CalibrationSummary {
  std::string folder;              // profile folder
  uint64_t tokens = 0;             // number of input positions measured
  std::vector<std::string> files;  // names of the files written
  double seconds = 0;
  bool resumed = false;  // true if an interrupted run was resumed
};

class CalibrationSink {
 public:
  virtual ~CalibrationSink() = default;
  virtual void OnProgress(const CalibrationProgress& progress) = 0;
  // True once nobody wants the result; finished stages are kept for the next call.
  virtual bool Cancelled() = 0;
  // Exactly one of the two ends the calibration.
  virtual void OnFinished(const CalibrationSummary& summary) = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

}  // namespace sluice::inferd
