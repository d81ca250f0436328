// What clients of the engine say and hear of a calibration (`sluice calibrate`). gRPC-free.
//
// Thread safety: plain values. A CalibrationSink is called by the calibration's own thread, one call at a
// time, and must not block; Cancelled() may be asked from several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

struct CalibrationSpec {
  std::vector<int32_t> tokens;  // the text, without BOS; at least two
  // Positions of a window, BOS counted.
  uint32_t window = 512;
  // Tokens (whole windows, from the text's start) that sensitivities are measured on; 0: not measured.
  uint64_t sensitivity_tokens = 16384;
  // Random directions per window and layer that the Fisher sums are estimated from.
  uint32_t fisher_draws = 2;
  // Relative rises of perplexity for each of which the largest sparsity is sought; empty: not sought.
  std::vector<double> quality_bounds = {0.01};
  // Tokens (whole windows) that it is sought on.
  uint64_t sparsity_tokens = 16384;
  // Train expert predictors.
  bool predictors = true;
  // Passes over the training tokens.
  uint32_t epochs = 6;
  uint64_t seed = 1;
};

struct CalibrationProgress {
  std::string stage;          // for people: "activations"
  uint32_t stage_number = 0;  // from 1
  uint32_t stages = 0;
  uint64_t done = 0;  // units of the stage
  uint64_t total = 0;
  std::optional<double> seconds_left;  // of all stages, estimated; nothing before the first unit
};

struct CalibrationSummary {
  std::string folder;              // of the profile
  uint64_t tokens = 0;             // input positions counted
  std::vector<std::string> files;  // written, by name
  double seconds = 0;
  bool resumed = false;  // an interrupted run was gone on with
};

class CalibrationSink {
 public:
  virtual ~CalibrationSink() = default;
  virtual void OnProgress(const CalibrationProgress& progress) = 0;
  // True once nobody wants the result any more; finished work is kept for the next call.
  virtual bool Cancelled() = 0;
  // Exactly one of the two ends it.
  virtual void OnFinished(const CalibrationSummary& summary) = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

}  // namespace sluice
