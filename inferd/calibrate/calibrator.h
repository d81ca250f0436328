// A calibration from its text to the profile: the stages in order, progress, the journal, the files.
//
// Thread safety: Calibrate() runs on a thread of its own and calls the sink there; the model is reached
// through `on_engine`, which runs a function on the engine thread between two steps and waits for it.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "inferd/api/calibration_api.h"
#include "inferd/engine/parts/model_parts.h"
#include "pack/pack.h"

namespace sluice::inferd {

using OnEngine = std::function<absl::Status(EngineWork work)>;

struct CalibratorOptions {
  // Minimum interval between writes of a stage's state; writes use at most a twentieth of the time.
  absl::Duration save_interval = absl::Seconds(10);
  // Maximum disk space of the predictors' training data.
  uint64_t feature_bytes = 4ull << 30;
  uint32_t threads = 1;  // threads of training
};

// Errors: INVALID_ARGUMENT (a text too short, a window too long), CANCELLED (by the sink; finished work is
// kept), those of the engine, of the file system, and UNAVAILABLE if another calibration of the pack runs.
absl::StatusOr<CalibrationSummary> Calibrate(const CalibrationSpec& spec, const CalibratorOptions& options,
                                             const Pack& pack, const OnEngine& on_engine,
                                             CalibrationSink* sink);

}  // namespace sluice::inferd
