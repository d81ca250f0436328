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

namespace sluice {

using OnEngine = std::function<absl::Status(EngineWork work)>;

struct CalibratorOptions {
  // A stage's state is written at most this often, and never for more than a twentieth of the time.
  absl::Duration save_interval = absl::Seconds(10);
  // Disk space of what predictors are trained on.
  uint64_t feature_bytes = 4ull << 30;
  uint32_t threads = 1;  // of training
};

// Errors: INVALID_ARGUMENT (a text too short, a window too long), CANCELLED (the sink wants no more; what is
// finished is kept), those of the engine, of the file system, and UNAVAILABLE when another calibration of the
// pack runs.
absl::StatusOr<CalibrationSummary> Calibrate(const CalibrationSpec& spec, const CalibratorOptions& options,
                                             const Pack& pack, const OnEngine& on_engine,
                                             CalibrationSink* sink);

}  // namespace sluice
