// A calibration on its own thread, owned by the engine.
//
// Thread safety: thread-safe; destroyed by one thread.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "inferd/api/calibration_api.h"
#include "inferd/calibrate/calibrator.h"
#include "pack/pack.h"

namespace sluice::inferd {

class CalibrationTask {
 public:
  // Starts the calibration. `pack` outlives the task.
  CalibrationTask(CalibrationSpec spec, const CalibratorOptions& options, const Pack& pack,
                  OnEngine on_engine, std::shared_ptr<CalibrationSink> sink);
  // Cancels the calibration and waits for it; the sink has been told the end then.
  ~CalibrationTask();

  bool done() const { return done_.load(); }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace sluice::inferd
