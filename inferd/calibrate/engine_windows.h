// WindowHost on a running engine: allocates, uses and frees everything on the engine thread.
//
// Thread safety: thread-compatible; belongs to the calibration's thread.
#pragma once

#include <memory>
#include <string>

#include "inferd/calibrate/calibrator.h"
#include "inferd/calibrate/windows/calibration_stage.h"
#include "inferd/calibrate/windows/scoped_backend.h"
#include "pack/pack.h"

namespace sluice::inferd {

class EngineWindows final : public WindowHost {
 public:
  // Runs windows of up to `positions`, after UseSparsity(). Both arguments outlive this object.
  EngineWindows(const OnEngine& on_engine, const Pack& pack, uint32_t positions)
      : on_engine_(on_engine), pack_(pack), positions_(positions) {}
  ~EngineWindows() override;

  absl::StatusOr<double> Run(const CalibrationWindow& window, const WindowRunner::Hooks& hooks) override;
  absl::Status UseSparsity(const SparsityConfig& config, const std::string& profile_folder) override;
  const WindowRunner& runner() const override { return *runner_; }

 private:
  const OnEngine& on_engine_;
  const Pack& pack_;
  const uint32_t positions_;
  std::unique_ptr<ScopedBackend> backend_;
  std::unique_ptr<WindowRunner> runner_;  // null before UseSparsity()
};

}  // namespace sluice::inferd
