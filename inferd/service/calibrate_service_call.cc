// AdminService.Calibrate: a call between the calibration's thread, which reports progress, and a client that
// may read slowly. Only the latest progress is kept, so a slow reader costs no memory.
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "inferd/service/admin_service.h"
#include "inferd/service/service_call.h"
#include "inferd/service/service_request.h"
#include "inferd/service/service_stream.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;

class CalibrateCall final : public ServiceStream<v1::CalibrateResponse>, public CalibrationSink {
 public:
  using ServiceStream::ServiceStream;

  void OnProgress(const CalibrationProgress& progress) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool Cancelled() override { return cancelled_.load(); }
  void OnFinished(const CalibrationSummary& summary) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnError(const absl::Status& status) override { End(status); }

 private:
  std::optional<size_t> Take(bool ending, v1::CalibrateResponse* out) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    progress_.reset();
    finished_.reset();
  }
  void Ending(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    serving().log->info("calibration ended: {}", status.ok() ? "OK" : status.ToString());
  }
  void CancelWork() override { cancelled_ = true; }

  std::atomic<bool> cancelled_{false};
  std::optional<v1::CalibrateProgress> progress_ ABSL_GUARDED_BY(mutex_);  // latest progress only
  std::optional<v1::CalibrateFinished> finished_ ABSL_GUARDED_BY(mutex_);
};

void CalibrateCall::OnProgress(const CalibrationProgress& progress) {
  const absl::MutexLock lock(&mutex_);
  if (!Open()) {
    return;
  }
  v1::CalibrateProgress& next = progress_.emplace();
  next.set_stage(progress.stage);
  next.set_stage_number(progress.stage_number);
  next.set_stages(progress.stages);
  next.set_done(progress.done);
  next.set_total(progress.total);
  if (progress.seconds_left.has_value()) {
    next.set_seconds_left(*progress.seconds_left);
  }
  Wake();
}

void CalibrateCall::OnFinished(const CalibrationSummary& summary) {
  {
    const absl::MutexLock lock(&mutex_);
    if (Open()) {
      v1::CalibrateFinished& finished = finished_.emplace();
      finished.set_folder(summary.folder);
      finished.mutable_files()->Assign(summary.files.begin(), summary.files.end());
      finished.set_tokens(summary.tokens);
      finished.set_seconds(summary.seconds);
      finished.set_resumed(summary.resumed);
    }
  }
  End(absl::OkStatus());
}

std::optional<size_t> CalibrateCall::Take(bool, v1::CalibrateResponse* out) {
  if (progress_.has_value()) {
    *out->mutable_progress() = *std::exchange(progress_, std::nullopt);
  } else if (finished_.has_value()) {
    *out->mutable_finished() = *std::exchange(finished_, std::nullopt);
  } else {
    return std::nullopt;
  }
  return 0;  // at most one message of each kind is pending
}

absl::StatusOr<CalibrationSpec> PlanCalibration(const v1::CalibrateRequest& request) {
  absl::Status unknown = CheckNoUnknownFields(request);
  if (!unknown.ok()) {
    return unknown;
  }
  CalibrationSpec spec;
  spec.tokens.reserve(static_cast<size_t>(request.token_ids_size()));
  for (const uint32_t id : request.token_ids()) {
    if (id > INT32_MAX) {
      return FieldError(absl::StatusCode::kInvalidArgument, "token_ids", absl::StrCat("hold ", id));
    }
    spec.tokens.push_back(static_cast<int32_t>(id));
  }
  for (const double bound : request.quality_bounds()) {
    if (!(bound > 0 && bound <= 10)) {
      return FieldError(absl::StatusCode::kInvalidArgument, "quality_bounds",
                        absl::StrCat("hold ", bound, ", which is not in (0, 10]"));
    }
  }
  if (request.quality_bounds_size() > 0) {
    spec.quality_bounds.assign(request.quality_bounds().begin(), request.quality_bounds().end());
  }
  spec.window = request.has_window() ? request.window() : spec.window;
  spec.sensitivity_tokens =
      request.has_sensitivity_tokens() ? request.sensitivity_tokens() : spec.sensitivity_tokens;
  spec.fisher_draws = request.has_fisher_draws() ? request.fisher_draws() : spec.fisher_draws;
  spec.sparsity_tokens = request.has_sparsity_tokens() ? request.sparsity_tokens() : spec.sparsity_tokens;
  spec.predictors = request.has_predictors() ? request.predictors() : spec.predictors;
  spec.epochs = request.has_epochs() ? request.epochs() : spec.epochs;
  spec.seed = request.has_seed() ? request.seed() : spec.seed;
  return spec;
}

}  // namespace

grpc::ServerWriteReactor<v1::CalibrateResponse>* AdminServiceImpl::Calibrate(
    grpc::CallbackServerContext* call, const v1::CalibrateRequest* request) {
  absl::StatusOr<CalibrationSpec> spec = PlanCalibration(*request);
  if (!spec.ok()) {
    return Refuse<v1::CalibrateResponse>(spec.status());
  }
  auto calibrate = std::make_shared<CalibrateCall>(context_, call);
  context_.pump->Add(calibrate);
  const absl::Status status = context_.engine->Calibrate(*std::move(spec), calibrate);
  if (!status.ok()) {
    calibrate->End(status);
  }
  return calibrate.get();
}

}  // namespace sluice::inferd
