#include "cli/router/model_router.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cli/json.h"
#include "cli/router/grpc_services.h"
#include "cli/router/model_process.h"
#include "cli/router/routed_call.h"
#include "cli/router/routed_http_call.h"
#include "cli/runtime_paths.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "daemon/grpc_server.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "inferd/grpc/service_response.h"
#include "inferd/http/openai_endpoint.h"
#include "inferd/http/page.h"

namespace sluice::cli {
namespace {

namespace asio = boost::asio;
using inferd::OpenAiEndpoint;

constexpr char kModelPrefix[] = "/v1/models/";
constexpr char kMetricsPrefix[] = "/metrics/";
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
// weightd's own --drain-timeout and a margin.
constexpr absl::Duration kWeightdPatience = absl::Seconds(5);
constexpr int kLogLines = 10;
// A request is passed on again once if its inferd is lost before the response begins.
constexpr int kMaxAttempts = 2;
constexpr absl::Duration kRetryDelay = absl::Seconds(1);
// Time for gRPC's clients to read the ends of their calls, when the daemons have ended.
constexpr absl::Duration kGrpcLinger = absl::Seconds(1);

// A channel to an inferd that serves. It has connections of its own: of shared ones gRPC would remember that
// the inferd before was lost, and wait before the next attempt.
std::shared_ptr<grpc::Channel> ConnectInferd(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // the client has a limit
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", socket), grpc::InsecureChannelCredentials(),
                                   arguments);
}

inference::v1::ModelState ProtoOf(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return inference::v1::MODEL_STATE_UNLOADED;
    case ModelState::kLoading:
      return inference::v1::MODEL_STATE_LOADING;
    case ModelState::kLoaded:
      return inference::v1::MODEL_STATE_LOADED;
    case ModelState::kUnloading:
      break;
  }
  return inference::v1::MODEL_STATE_UNLOADING;
}

}  // namespace

// A model's process, its waiting requests, and its counts.
struct ModelLane {
  std::unique_ptr<ModelProcess> process;
  ModelServers servers;  // its channel: null unless loaded
  std::deque<std::shared_ptr<RoutedCall>> waiting;
  absl::Time load_began = absl::InfinitePast();  // of the load under way; infinite past: none
  absl::Duration load_time;                      // of the last load
  uint64_t loads = 0;
  uint64_t losses = 0;  // of a process that served or loaded
  std::string failure;  // reason of the last load's failure; empty after a success
};

// All members but those of other threads belong to the loop's thread.
struct ModelRouter::Impl final : public HttpHandler {
  explicit Impl(RouterOptions given)
      : options(std::move(given)), table(options.budget, options.idle), due(io), created(absl::Now()) {}

  absl::Status Prepare();
  absl::Status ServeGrpc();
  void StartLane(size_t model);
  absl::StatusOr<size_t> ModelNamed(const std::string& name) const;

  // HttpHandler, on the HTTP server's threads.
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  HttpResponse Refusal(const std::string& path, const HttpProblem& problem) override {
    return inferd::ErrorAnswer(problem, inferd::ErrorStyleOf(path));
  }
  bool IsPublic(const std::string& path) const override {
    return path == "/health" || path == "/v1/health" || path == "/";
  }
  bool IsRateLimited(const std::string& path) const override {
    return path != "/metrics" && !absl::StartsWith(path, kMetricsPrefix);
  }
  absl::Status Route(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange);
  void AnswerGet(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange);

  void PassMetrics(const std::string& path, const std::shared_ptr<HttpExchange>& exchange);
  void Admit(const std::shared_ptr<RoutedCall>& call);
  void Queue(const std::shared_ptr<RoutedCall>& call);
  void Unqueue(const std::shared_ptr<RoutedCall>& call);
  // Runs waiting requests and takes the table's steps until there is nothing left to do now.
  void Advance();
  void RunWaiting();
  void Run(std::shared_ptr<RoutedCall> call);
  void OnCallEnd(const std::shared_ptr<RoutedCall>& call, bool lost, const std::string& why);
  void OnLoaded(size_t model);
  void OnGone(size_t model, const absl::Status& why);
  void OnWeightdExit(const DaemonProcess::Exit& exit);
  void FailWaiting(size_t model, const absl::Status& status);
  // Ends the daemons, inferds first.
  void End();
  void EndIfGone();
  void NotifyEnd();

  size_t WaitingCount() const;
  void Describe(size_t model, inference::v1::Model* out) const;
  Json ModelJson(size_t model) const;
  HttpResponse ModelsAnswer() const;
  HttpResponse ModelAnswer(const std::string& path) const;
  HttpResponse HealthAnswer(const std::string& path) const;
  HttpResponse MetricsAnswer() const;
  void Log(const std::string& text) const {
    if (options.log) {
      options.log(text);
    }
  }

  RouterOptions options;
  asio::io_context io{1};
  UniqueFd lifeline;      // read end, inherited by the daemons
  UniqueFd lifeline_end;  // the kernel closes it when this process ends, for any reason
  ModelTable table;
  std::vector<ModelLane> lanes;
  std::unique_ptr<WatchedDaemon> weightd;
  asio::steady_timer due;
  const absl::Time created;
  bool ending = false;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard;

  mutable Mutex mutex;
  absl::Status failure ABSL_GUARDED_BY(mutex);

  std::thread thread;
  absl::Notification daemons_ended;  // after End()
  std::unique_ptr<HttpServer> server;
  std::unique_ptr<GrpcServices> services;
  std::unique_ptr<GrpcServer> grpc_server;
  bool stopped = false;
};

absl::Status ModelRouter::Impl::Prepare() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, "cannot make the lifeline");
  }
  lifeline.reset(ends[0]);
  lifeline_end.reset(ends[1]);
  lanes.resize(options.models.size());
  for (size_t i = 0; i < options.models.size(); ++i) {
    RETURN_IF_ERROR(table.Add(options.models[i].served.name, options.models[i].need));
    StartLane(i);
  }
  weightd = std::make_unique<WatchedDaemon>(io, options.weightd, lifeline.get(),
                                            [this](const DaemonProcess::Exit& exit) { OnWeightdExit(exit); });
  return weightd->Start();
}

void ModelRouter::Impl::StartLane(size_t model) {
  const RoutedModel& facts = options.models[model];
  lanes[model].servers.http_socket = facts.http_socket;
  ModelProcess::Events events;
  events.on_loaded = [this, model] { OnLoaded(model); };
  events.on_gone = [this, model](const absl::Status& why) { OnGone(model, why); };
  lanes[model].process = std::make_unique<ModelProcess>(io, facts.inferd, lifeline.get(), facts.http_socket,
                                                        options.load_patience, std::move(events));
}

absl::Status ModelRouter::Impl::ServeGrpc() {
  GrpcHooks hooks;
  hooks.find = [this](const std::string& name) { return ModelNamed(name); };
  hooks.admit = [this](const std::shared_ptr<RoutedCall>& call) { Admit(call); };
  hooks.describe = [this](size_t model, inference::v1::Model* out) { Describe(model, out); };
  services = std::make_unique<GrpcServices>(io, options.models.size(), std::move(hooks));
  ASSIGN_OR_RETURN(grpc_server, GrpcServer::Start(options.grpc, services->services()));
  grpc_server->SetServing(true);
  return absl::OkStatus();
}

absl::StatusOr<size_t> ModelRouter::Impl::ModelNamed(const std::string& name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < options.models.size(); ++i) {
    if (name == options.models[i].served.name || name == options.models[i].served.id) {
      return i;
    }
    names.push_back(options.models[i].served.name);
  }
  if (name.empty() && options.models.size() == 1) {
    return 0;
  }
  const std::string all = absl::StrJoin(names, ", ");
  if (name.empty()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "model",
                      absl::StrCat("is missing, and this server has several: ", all));
  }
  return ReasonError(
      absl::StatusCode::kNotFound, "UNKNOWN_MODEL",
      absl::StrCat("model \"", name.substr(0, 200), "\" is not served; those that are: ", all));
}

void ModelRouter::Impl::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  if (request.foreign_form) {
    exchange->Answer(
        Refusal(request.path, {403, "foreign_origin", "a form of another site is not answered"}));
    return;
  }
  const bool is_model = request.method == "GET" && (absl::StartsWith(request.path, kModelPrefix) ||
                                                    absl::StartsWith(request.path, kMetricsPrefix));
  if (auto answer = is_model ? std::nullopt : OpenAiEndpoint::AnswerUnrouted(request); answer.has_value()) {
    exchange->Answer(*std::move(answer));
  } else if (request.method == "GET") {
    AnswerGet(request, exchange);
  } else if (const absl::Status status = Route(request, exchange); !status.ok()) {
    exchange->Answer(inferd::ErrorAnswer(status, inferd::ErrorStyleOf(request.path)));
  }
}

void ModelRouter::Impl::AnswerGet(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
  if (request.path == "/") {
    exchange->Answer(inferd::PageAnswer());
    return;
  }
  asio::post(io, [this, path = request.path, exchange] {
    if (absl::StartsWith(path, kMetricsPrefix)) {
      PassMetrics(path, exchange);
      return;
    }
    exchange->Answer(path == "/metrics"                     ? MetricsAnswer()
                     : absl::EndsWith(path, "/health")      ? HealthAnswer(path)
                     : absl::StartsWith(path, kModelPrefix) ? ModelAnswer(path)
                                                            : ModelsAnswer());
  });
}

// Passes on the metrics of a loaded model's inferd; they are no use of the model.
void ModelRouter::Impl::PassMetrics(const std::string& path, const std::shared_ptr<HttpExchange>& exchange) {
  const absl::StatusOr<size_t> model = ModelNamed(path.substr(sizeof(kMetricsPrefix) - 1));
  const bool is_loaded = model.ok() && table.state(*model) == ModelState::kLoaded;
  if (!is_loaded) {
    const absl::Status status =
        model.ok() ? absl::UnavailableError(absl::StrCat("model ", options.models[*model].served.name, " is ",
                                                         NameOf(table.state(*model))))
                   : model.status();
    exchange->Answer(inferd::ErrorAnswer(status, inferd::ErrorStyle::kOpenAi));
    return;
  }
  HttpRequest request;
  request.method = "GET";
  request.path = "/metrics";
  const auto call =
      std::make_shared<RoutedHttpCall>(io, *model, /*streams=*/false, std::move(request), exchange);
  call->Begin([] {});
  call->Forward(lanes[*model].servers,
                [weak = std::weak_ptr<RoutedCall>(call)](bool lost, const std::string& why) {
                  if (const auto ended = weak.lock(); lost && ended != nullptr) {
                    ended->Fail(absl::UnavailableError(absl::StrCat("the model was lost: ", why)));
                  }
                });
}

absl::Status ModelRouter::Impl::Route(const HttpRequest& request,
                                      const std::shared_ptr<HttpExchange>& exchange) {
  ASSIGN_OR_RETURN(const OpenAiEndpoint::RoutedFields fields, OpenAiEndpoint::ReadRoutedFields(request.body));
  ASSIGN_OR_RETURN(const size_t model, ModelNamed(fields.model));
  auto call = std::make_shared<RoutedHttpCall>(io, model, fields.stream, request, exchange);
  asio::post(io, [this, call = std::move(call)] { Admit(call); });
  return absl::OkStatus();
}

size_t ModelRouter::Impl::WaitingCount() const {
  size_t count = 0;
  for (const ModelLane& lane : lanes) {
    count += lane.waiting.size();
  }
  return count;
}

void ModelRouter::Impl::Admit(const std::shared_ptr<RoutedCall>& call) {
  if (ending) {
    call->Fail(ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "the server is ending"));
    return;
  }
  if (WaitingCount() >= options.max_waiting) {
    call->Fail(
        WithRetryDelay(ReasonError(absl::StatusCode::kUnavailable, "QUEUE_FULL",
                                   absl::StrCat(options.max_waiting, " requests wait for their models")),
                       kRetryDelay));
    return;
  }
  Queue(call);
  call->Begin([this, weak = std::weak_ptr<RoutedCall>(call)] {
    if (const auto left = weak.lock(); left != nullptr) {
      Unqueue(left);
      Advance();
    }
  });
  Advance();
}

void ModelRouter::Impl::Queue(const std::shared_ptr<RoutedCall>& call) {
  call->ticket = table.Wait(call->model());
  lanes[call->model()].waiting.push_back(call);
}

void ModelRouter::Impl::Unqueue(const std::shared_ptr<RoutedCall>& call) {
  table.Leave(call->model(), call->ticket);
  std::erase(lanes[call->model()].waiting, call);
}

void ModelRouter::Impl::Advance() {
  if (ending) {
    return;
  }
  for (;;) {
    RunWaiting();
    const std::optional<ModelTable::Step> step = table.Next(SteadyNow());
    RunWaiting();  // a model may no longer have to make room
    if (!step.has_value()) {
      break;
    }
    ModelLane& lane = lanes[step->model];
    if (step->load) {
      Log(absl::StrCat("loading ", options.models[step->model].served.name));
      lane.load_began = SteadyNow();
      lane.process->Load();
    } else {
      Log(absl::StrCat("unloading ", options.models[step->model].served.name));
      lane.process->Unload();
    }
  }
  due.cancel();
  if (const absl::Time at = table.NextDue(); at != absl::InfiniteFuture()) {
    due.expires_after(absl::ToChronoMilliseconds(std::max(at - SteadyNow(), absl::ZeroDuration())) +
                      std::chrono::milliseconds(1));
    due.async_wait([this](boost::system::error_code error) {
      if (!error) {
        Advance();
      }
    });
  }
}

void ModelRouter::Impl::RunWaiting() {
  for (size_t i = 0; i < lanes.size(); ++i) {
    while (!lanes[i].waiting.empty() && table.MayRun(i)) {
      Run(lanes[i].waiting.front());
    }
  }
}

void ModelRouter::Impl::Run(std::shared_ptr<RoutedCall> call) {
  const size_t model = call->model();
  Unqueue(call);
  table.Began(model, SteadyNow());
  call->Forward(lanes[model].servers,
                [this, weak = std::weak_ptr<RoutedCall>(call)](bool lost, const std::string& why) {
                  if (const auto ended = weak.lock(); ended != nullptr) {
                    OnCallEnd(ended, lost, why);
                  }
                });
}

void ModelRouter::Impl::OnCallEnd(const std::shared_ptr<RoutedCall>& call, bool lost,
                                  const std::string& why) {
  const size_t model = call->model();
  table.Ended(model, SteadyNow());
  if (lost && (call->attempts() >= kMaxAttempts || ending)) {
    call->Fail(absl::UnavailableError(
        absl::StrCat("model ", options.models[model].served.name, " was lost before it answered: ", why)));
  } else if (lost) {
    Queue(call);
  }
  if (lost && table.state(model) == ModelState::kLoaded) {
    table.Stalled(model);  // until it answers, or its end is known
    lanes[model].process->Probe();
  }
  Advance();
}

void ModelRouter::Impl::OnLoaded(size_t model) {
  ModelLane& lane = lanes[model];
  if (table.state(model) != ModelState::kLoading) {
    return;
  }
  lane.failure.clear();
  lane.servers.grpc = ConnectInferd(options.models[model].grpc_socket);
  if (lane.load_began != absl::InfinitePast()) {
    lane.load_time = SteadyNow() - std::exchange(lane.load_began, absl::InfinitePast());
    ++lane.loads;
    Log(absl::StrFormat("loaded %s in %.2f s", options.models[model].served.name,
                        absl::ToDoubleSeconds(lane.load_time)));
  }
  table.Loaded(model, SteadyNow());
  Advance();
}

void ModelRouter::Impl::OnGone(size_t model, const absl::Status& why) {
  const std::string& name = options.models[model].served.name;
  const bool expected = table.state(model) == ModelState::kUnloading || ending;
  if (!expected) {
    ++lanes[model].losses;
  }
  lanes[model].load_began = absl::InfinitePast();
  lanes[model].servers.grpc.reset();
  table.Gone(model);
  if (!why.ok() && !expected) {
    Log(absl::StrCat("lost ", name, ": ", why.message()));
    lanes[model].failure = std::string(why.message());
    FailWaiting(
        model, WithRetryDelay(Annotate(why, absl::StrCat("model ", name, " cannot be loaded")), kRetryDelay));
  } else if (!expected) {
    Log(absl::StrCat("lost ", name, ": it was killed, and is started again for its next request"));
  }
  if (ending) {
    EndIfGone();
    return;
  }
  Advance();
}

void ModelRouter::Impl::FailWaiting(size_t model, const absl::Status& status) {
  while (!lanes[model].waiting.empty()) {
    const std::shared_ptr<RoutedCall> call = lanes[model].waiting.front();
    Unqueue(call);
    call->Fail(status);
  }
}

void ModelRouter::Impl::OnWeightdExit(const DaemonProcess::Exit& exit) {
  if (ending) {
    NotifyEnd();
    return;
  }
  absl::Status started = absl::UnavailableError(
      absl::StrCat("weightd ended (", exit.how, "): ", LastWords(options.weightd.log_path, kLogLines)));
  if (exit.killed && options.restart && weightd->MayRestart()) {
    Log("lost weightd: it was killed, and is started again");
    started = weightd->Start();
  }
  if (!started.ok()) {
    const MutexLock lock(&mutex);
    failure = started;
  }
}

void ModelRouter::Impl::End() {
  ending = true;
  due.cancel();
  for (size_t i = 0; i < lanes.size(); ++i) {
    FailWaiting(i, ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "the server is ending"));
    if (lanes[i].process->running()) {
      lanes[i].process->Unload();
    }
  }
  EndIfGone();
}

void ModelRouter::Impl::EndIfGone() {
  for (const ModelLane& lane : lanes) {
    if (lane.process->running()) {
      return;
    }
  }
  if (weightd->running()) {
    weightd->Stop(kWeightdPatience);
  } else {
    NotifyEnd();
  }
}

void ModelRouter::Impl::NotifyEnd() {
  if (!daemons_ended.HasBeenNotified()) {
    daemons_ended.Notify();
  }
}

void ModelRouter::Impl::Describe(size_t model, inference::v1::Model* out) const {
  inferd::FillModel(options.models[model].served, options.models[model].has_tokenizer, out);
  out->set_state(ProtoOf(table.state(model)));
  out->set_failure(lanes[model].failure);
}

Json ModelRouter::Impl::ModelJson(size_t model) const {
  const inferd::ServedModel& facts = options.models[model].served;
  Json meta = Json::Object();
  meta.Set("model_id", facts.id)
      .Set("family", facts.family)
      .Set("n_ctx", facts.context)
      .Set("n_ctx_train", facts.max_position)
      .Set("n_vocab", facts.vocab)
      .Set("size", options.models[model].bytes);
  Json json = Json::Object();
  json.Set("id", facts.name)
      .Set("object", "model")
      .Set("type", "model")  // Anthropic's members, for its clients
      .Set("display_name", facts.name)
      .Set("created_at", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", created, absl::UTCTimeZone()))
      .Set("created", absl::ToUnixSeconds(created))
      .Set("owned_by", "sluice")
      .Set("max_model_len", facts.context)
      .Set("state", NameOf(table.state(model)));
  if (!lanes[model].failure.empty()) {
    json.Set("failure", lanes[model].failure);
  }
  return json.Set("meta", std::move(meta));
}

HttpResponse ModelRouter::Impl::ModelsAnswer() const {
  Json data = Json::Array();
  for (size_t i = 0; i < options.models.size(); ++i) {
    data.Append(ModelJson(i));
  }
  HttpResponse answer;
  answer.body = Json::Object()
                    .Set("object", "list")
                    .Set("data", std::move(data))
                    .Set("has_more", false)
                    .Set("first_id", options.models.front().served.name)
                    .Set("last_id", options.models.back().served.name)
                    .Dump();
  return answer;
}

HttpResponse ModelRouter::Impl::ModelAnswer(const std::string& path) const {
  const absl::StatusOr<size_t> model = ModelNamed(path.substr(sizeof(kModelPrefix) - 1));
  if (!model.ok()) {
    return inferd::ErrorAnswer(model.status(), inferd::ErrorStyleOf(path));
  }
  HttpResponse answer;
  answer.body = ModelJson(*model).Dump();
  return answer;
}

HttpResponse ModelRouter::Impl::HealthAnswer(const std::string& path) const {
  if (ending || !weightd->running()) {
    return inferd::ErrorAnswer(
        absl::UnavailableError(ending ? "the server is ending" : "weightd does not run"),
        inferd::ErrorStyleOf(path));
  }
  HttpResponse answer;
  answer.body = Json::Object().Set("status", "ok").Dump();
  return answer;
}

HttpResponse ModelRouter::Impl::MetricsAnswer() const {
  MetricText text;
  const auto each = [&](const char* name, MetricType type, const char* help, auto value) {
    text.Family(name, type, help);
    for (size_t i = 0; i < lanes.size(); ++i) {
      text.Sample({{"model", options.models[i].served.name}}, value(i));
    }
  };
  text.Family("sluice_model_state", MetricType::kGauge, "1 for the state that the model is in.");
  for (size_t i = 0; i < lanes.size(); ++i) {
    for (const ModelState state :
         {ModelState::kUnloaded, ModelState::kLoading, ModelState::kLoaded, ModelState::kUnloading}) {
      text.Sample({{"model", options.models[i].served.name}, {"state", NameOf(state)}},
                  table.state(i) == state ? 1 : 0);
    }
  }
  each("sluice_model_requests_running", MetricType::kGauge, "Requests that the model's inferd has.",
       [&](size_t i) { return table.running(i); });
  each("sluice_model_requests_waiting", MetricType::kGauge, "Requests that wait until the model is loaded.",
       [&](size_t i) { return lanes[i].waiting.size(); });
  each("sluice_model_loads_total", MetricType::kCounter, "Times that the model was loaded.",
       [&](size_t i) { return lanes[i].loads; });
  each("sluice_model_losses_total", MetricType::kCounter, "Processes of the model that ended unasked.",
       [&](size_t i) { return lanes[i].losses; });
  each("sluice_model_load_seconds", MetricType::kGauge, "Time of the model's last load.",
       [&](size_t i) { return absl::ToDoubleSeconds(lanes[i].load_time); });
  text.Family("sluice_model_memory_bytes", MetricType::kGauge,
              "Memory that the model takes beside its weights in DRAM; 0 while it is unloaded.");
  for (size_t i = 0; i < lanes.size(); ++i) {
    const bool is_unloaded = table.state(i) == ModelState::kUnloaded;
    text.Sample({{"model", options.models[i].served.name}}, is_unloaded ? 0 : table.need(i).memory);
  }
  text.One("sluice_models_budget_bytes", MetricType::kGauge, "Bound of the models' memory together.",
           table.budget().memory);
  HttpResponse answer;
  answer.content_type = kMetricsType;
  answer.body = text.Take();
  return answer;
}

ModelRouter::ModelRouter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<ModelRouter>> ModelRouter::Start(RouterOptions options) {
  std::unique_ptr<ModelRouter> router(new ModelRouter(std::make_unique<Impl>(std::move(options))));
  Impl& impl = *router->impl_;
  impl.guard.emplace(impl.io.get_executor());
  if (absl::Status prepared = impl.Prepare(); !prepared.ok()) {
    impl.stopped = true;
    return prepared;
  }
  impl.thread = std::thread([&impl] { impl.io.run(); });
  RETURN_IF_ERROR(impl.ServeGrpc());
  ASSIGN_OR_RETURN(impl.server, HttpServer::Start(impl.options.http, &impl));
  return router;
}

ModelRouter::~ModelRouter() { Shutdown(); }

absl::Status ModelRouter::status() const {
  const MutexLock lock(&impl_->mutex);
  return impl_->failure;
}

void ModelRouter::Shutdown() {
  if (std::exchange(impl_->stopped, true)) {
    return;
  }
  if (impl_->server != nullptr) {
    impl_->server->StartDrain();
  }
  if (impl_->grpc_server != nullptr) {
    impl_->grpc_server->SetServing(false);
  }
  asio::post(impl_->io, [impl = impl_.get()] { impl->End(); });
  impl_->daemons_ended.WaitForNotification();
  if (impl_->grpc_server != nullptr) {
    impl_->grpc_server->Shutdown(kGrpcLinger);  // its last calls end in the loop
  }
  asio::post(impl_->io, [impl = impl_.get()] { impl->guard.reset(); });
  impl_->thread.join();
  if (impl_->server != nullptr) {
    impl_->server->Shutdown();
  }
  impl_->io.restart();
  impl_->io.poll();  // the ends of connections, which were posted during the shutdown
}

const std::vector<ListenAddress>& ModelRouter::addresses() const { return impl_->server->addresses(); }

const std::vector<ListenAddress>& ModelRouter::grpc_addresses() const {
  return impl_->grpc_server->addresses();
}

}  // namespace sluice::cli
