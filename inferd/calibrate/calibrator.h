// A calibration from its text to the profile: the stages in order, progress, the journal, the files.
//
// Thread safety: Calibrate() runs on a thread of its own and calls the sink there; the model is reached
// through `on_engine`, which runs a function on the engine thread between two steps and waits for it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "inferd/api/control_api.h"
#include "inferd/forward/engine_parts.h"
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

// A calibration on its own thread, owned by the engine.
//
// Thread safety: thread-safe; destroyed by one thread.

class CalibrationTask {
 public:
  // Starts the calibration. `pack` outlives the task.
  CalibrationTask(CalibrationSpec spec, const CalibratorOptions& options, const Pack& pack,
                  OnEngine on_engine, std::shared_ptr<CalibrationSink> sink);
  // Cancels the calibration and waits for it; by then the sink has been notified.
  ~CalibrationTask();

  bool done() const { return done_.load(); }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace sluice::inferd
