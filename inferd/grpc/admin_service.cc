// AdminService.Calibrate: a call between the calibration's thread, which reports progress, and a client that
// may read slowly. Only the latest progress is kept, so a slow reader costs no memory.

#include "inferd/grpc/admin_service.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/grpc/service_call.h"
#include "inferd/grpc/service_request.h"
#include "inferd/grpc/service_response.h"
#include "inferd/serving/serving_metrics.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;

class CalibrateCall final : public ServiceStream<v1::CalibrateResponse>, public CalibrationSink {
 public:
  CalibrateCall(const ServiceContext& context, grpc::CallbackServerContext* call)
      : ServiceStream(context, call, {"calibrate", "", ""}, {}) {}

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
  const absl::StatusOr<EngineApi*> engine = context_.state->Engine();
  const absl::Status status =
      engine.ok() ? (*engine)->Calibrate(*std::move(spec), calibrate) : engine.status();
  if (!status.ok()) {
    calibrate->End(status);
  }
  return calibrate.get();
}

namespace {

v1::ServerState PhaseToProto(ServerState::Phase phase) {
  switch (phase) {
    case ServerState::Phase::kStarting:
      return v1::SERVER_STATE_STARTING;
    case ServerState::Phase::kServing:
      return v1::SERVER_STATE_SERVING;
    case ServerState::Phase::kUnavailable:
      return v1::SERVER_STATE_UNAVAILABLE;
    case ServerState::Phase::kDraining:
      return v1::SERVER_STATE_DRAINING;
  }
  return v1::SERVER_STATE_UNSPECIFIED;
}

// Returns spdlog's log level; `off`, which clients cannot request, marks an unknown number.
spdlog::level::level_enum LevelFromProto(v1::LogLevel level) {
  switch (level) {
    case v1::LOG_LEVEL_DEBUG:
      return spdlog::level::debug;
    case v1::LOG_LEVEL_INFO:
      return spdlog::level::info;
    case v1::LOG_LEVEL_WARNING:
      return spdlog::level::warn;
    case v1::LOG_LEVEL_ERROR:
      return spdlog::level::err;
    default:
      return spdlog::level::off;
  }
}

v1::LogLevel LevelToProto(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug:
      return v1::LOG_LEVEL_DEBUG;
    case spdlog::level::info:
      return v1::LOG_LEVEL_INFO;
    case spdlog::level::warn:
      return v1::LOG_LEVEL_WARNING;
    default:
      return v1::LOG_LEVEL_ERROR;
  }
}

void FillInfo(const ServerInfo& info, v1::GetServerInfoResponse* out) {
  out->set_version(info.version);
  out->mutable_libraries()->Assign(info.libraries.begin(), info.libraries.end());
  out->set_pid(info.pid);
  out->set_uid(info.uid);
  const int64_t nanos = absl::ToUnixNanos(info.start_time);
  out->mutable_start_time()->set_seconds(nanos / 1'000'000'000);
  out->mutable_start_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  out->set_model_id(info.model_id);
  out->set_pack_path(info.pack_path);
  out->set_isa(info.isa);
  out->set_backend(info.backend);
  out->set_weight_transport(info.weight_transport);
  for (const ReportedOption& option : info.options) {
    v1::OptionValue* value = out->add_options();
    value->set_name(option.name);
    value->set_value(option.value);
    value->set_is_set(option.is_set);
  }
}

}  // namespace

grpc::ServerUnaryReactor* AdminServiceImpl::GetServerInfo(grpc::CallbackServerContext* call,
                                                          const v1::GetServerInfoRequest* request,
                                                          v1::GetServerInfoResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  ServerState::View view = context_.state->Look();
  response->set_state(PhaseToProto(view.phase));
  response->set_state_detail(std::move(view.detail));
  FillInfo(context_.state->info(), response);
  return Reply(call, status);
}

grpc::ServerUnaryReactor* AdminServiceImpl::GetStats(grpc::CallbackServerContext* call,
                                                     const v1::GetStatsRequest* request,
                                                     v1::GetStatsResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  // Parts are read one after the other while the engine runs, so counters of different parts need not add up.
  FillStats(context_.state->Stats(), response);
  if (const absl::StatusOr<EngineApi*> engine = context_.state->Engine(); engine.ok()) {
    FillSparsity((*engine)->Sparsity(), response);
    FillLayers((*engine)->Layers(), response);
  }
  response->mutable_gauges()->set_calls_active(context_.calls->calls());
  response->mutable_gauges()->set_unsent_bytes(context_.calls->unsent_bytes());
  response->mutable_resources()->set_open_descriptors(CountOpenDescriptors());
  response->mutable_resources()->set_client_connections(count_connections_());
  response->mutable_resources()->set_resident_bytes(ResidentBytes());
  response->mutable_counters()->set_slow_consumers(context_.calls->slow_consumers());
  return Reply(call, status);
}

grpc::ServerUnaryReactor* AdminServiceImpl::Drain(grpc::CallbackServerContext* call,
                                                  const v1::DrainRequest* request,
                                                  v1::DrainResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  if (status.ok()) {
    context_.log->info("draining: asked by a client");
    context_.state->StartDrain();
    response->set_requests_left(context_.calls->calls());
  }
  return Reply(call, status);
}

grpc::ServerUnaryReactor* AdminServiceImpl::Tune(grpc::CallbackServerContext* call,
                                                 const v1::TuneRequest* request, v1::TuneResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  if (status.ok() && tuning_ == nullptr) {
    status = absl::UnimplementedError("this server's memory cannot be given another size");
  }
  if (!status.ok()) {
    return Reply(call, status);
  }
  EngineTuning tuning;
  if (request->has_dram_budget_bytes()) tuning.dram_budget = request->dram_budget_bytes();
  if (request->has_kv_budget_bytes()) tuning.kv_budget = request->kv_budget_bytes();
  if (request->has_context()) tuning.context = request->context();
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  tuning_->Tune(tuning, [reactor, response](const absl::StatusOr<EngineTuned>& tuned) {
    if (tuned.ok()) {
      response->set_dram_budget_bytes(tuned->dram_budget);
      response->set_segment_bytes(tuned->segment_bytes);
      response->set_kv_bytes(tuned->kv_bytes);
      response->set_kv_pages(tuned->kv_pages);
      response->set_context(tuned->context);
      response->set_restarted(tuned->restarted);
    }
    reactor->Finish(ToGrpcStatus(Explain(tuned.status())));
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminServiceImpl::SetLogLevel(grpc::CallbackServerContext* call,
                                                        const v1::SetLogLevelRequest* request,
                                                        v1::SetLogLevelResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  const spdlog::level::level_enum level = LevelFromProto(request->level());
  if (status.ok() && level == spdlog::level::off) {
    status = FieldError(absl::StatusCode::kInvalidArgument, "level",
                        absl::StrCat("is ", static_cast<int>(request->level()), ", which is no level"));
  }
  if (status.ok()) {
    response->set_previous_level(LevelToProto(context_.log->level()));
    context_.log->set_level(level);
  }
  return Reply(call, status);
}

grpc::ServerUnaryReactor* AdminServiceImpl::Abort(grpc::CallbackServerContext* call,
                                                  const v1::AbortRequest* request, v1::AbortResponse*) {
  absl::Status status = CheckNoUnknownFields(*request);
  if (status.ok()) {
    const absl::StatusOr<EngineApi*> engine = context_.state->Engine();
    status = engine.ok() ? (*engine)->Cancel(request->request_id()) : engine.status();
  }
  return Reply(call, status);
}

}  // namespace sluice::inferd
