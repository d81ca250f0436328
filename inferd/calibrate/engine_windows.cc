#include "inferd/calibrate/engine_windows.h"

#include <utility>

#include "common/status.h"

namespace sluice::inferd {

EngineWindows::~EngineWindows() {
  const absl::Status status = on_engine_([this](const ModelParts&, uint64_t) {
    runner_.reset();
    backend_.reset();
    return absl::OkStatus();
  });
  if (!status.ok() && backend_ != nullptr) {
    // The engine's thread has ended, or weightd is lost: buffers cannot be freed from this thread, so they
    // are freed with the engine's backend.
    backend_->Forget();
  }
}

absl::StatusOr<double> EngineWindows::Run(const CalibrationWindow& window, const WindowRunner::Hooks& hooks) {
  double loss = 0;
  RETURN_IF_ERROR(on_engine_([&](const ModelParts&, uint64_t step) -> absl::Status {
    ASSIGN_OR_RETURN(loss, runner_->Run(window, hooks, step));
    return absl::OkStatus();
  }));
  return loss;
}

absl::Status EngineWindows::UseSparsity(const SparsityConfig& config, const std::string& profile_folder) {
  ASSIGN_OR_RETURN(std::unique_ptr<SparsityPolicy> sparsity,
                   SparsityPolicy::Create(config, pack_.config(), profile_folder, pack_.model_id()));
  return on_engine_([&](const ModelParts& parts, uint64_t) -> absl::Status {
    // The old runner is destroyed first, since both together may not fit the backend's memory.
    runner_.reset();
    backend_ = std::make_unique<ScopedBackend>(parts.backend);
    ModelParts scoped = parts;
    scoped.backend = backend_.get();
    ASSIGN_OR_RETURN(runner_, WindowRunner::Create(scoped, positions_, std::move(sparsity)));
    return absl::OkStatus();
  });
}

}  // namespace sluice::inferd
