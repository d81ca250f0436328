#include "inferd/daemon/daemon.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/version.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/listen_address.h"
#include "common/base/machine_facts.h"
#include "common/base/metrics.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "inferd/daemon/device_start.h"
#include "inferd/engine/cache_setup.h"
#include "inferd/engine/device_setup.h"
#include "inferd/grammar/grammar_manager.h"
#include "inferd/model/dense_shapes.h"
#include "inferd/policy/policies.h"
#include "inferd/policy/sparsity.h"
#include "inferd/serving/dialect.h"
#include "inferd/serving/server_state.h"
#include "inferd/serving/serving_context.h"
#include "inferd/serving/serving_metrics.h"
#include "inferd/session/session_weight_client.h"
#include "kernels/backend.h"
#include "kernels/sparse_profile.h"
#include "pack/pack.h"

namespace sluice::inferd {

// Self description of an inferd for clients and operators: the served model, versions and CPU features.
//
// Thread safety: pure functions, safe to call from any thread.

// Resolves symbolic links; returns the path itself if that fails.
std::string AbsolutePath(const std::string& path);

// Names and versions, such as "gRPC 1.51.1".
std::vector<std::string> LinkedLibraries();

// Name of the CPU kernels in use: avx512, avx2vnni or avx2.
const char* IsaName();

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(path, error);
  return error ? path : canonical.string();
}

std::vector<std::string> LinkedLibraries() {
  return {absl::StrCat("gRPC ", grpc::Version()),
          absl::StrCat("protobuf ", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)),
          absl::StrCat("spdlog ", SPDLOG_VER_MAJOR, ".", SPDLOG_VER_MINOR, ".", SPDLOG_VER_PATCH)};
}

const char* IsaName() {
  return CpuIsaSupported(CpuIsa::kAvx512)     ? "avx512"
         : CpuIsaSupported(CpuIsa::kAvx2Vnni) ? "avx2vnni"
                                              : "avx2";
}

namespace {

// Timeout of the self-test. A first token needs experts of every layer from SSD; slow disks and large models
// need time.
constexpr absl::Duration kSelfTestLimit = absl::Minutes(5);
// Timeout of a trial copy, which fetches and copies one extent of the dense weights.
constexpr absl::Duration kTrialLimit = absl::Seconds(30);
// Delay before a start that lost weightd is repeated.
constexpr absl::Duration kStartPause = absl::Milliseconds(100);

uint32_t UsableCpus() { return static_cast<uint32_t>(std::max<size_t>(1, AllowedCpus().size())); }

absl::StatusOr<std::vector<ListenAddress>> ParseAddresses(const std::vector<std::string>& texts) {
  std::vector<ListenAddress> addresses;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(text));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

template <typename Id>
auto IdsOf(const std::vector<Id>& named) {
  std::vector<decltype(Id::id)> ids;
  for (const Id& one : named) {
    ids.push_back(one.id);
  }
  return ids;
}

std::string WeightdSocket(const InferdOptions& options) {
  return absl::StartsWith(options.weightd, "unix:") ? options.weightd.substr(5) : options.weightd;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeHostBackend(const BackendLimits& limits, uint32_t threads,
                                                         bool pin) {
  if (!pin) {
    return CreateCpuBackend(limits, threads);
  }
  ASSIGN_OR_RETURN(const CpuTopology topology, ReadCpuTopology(AllowedCpus()));
  ASSIGN_OR_RETURN(const std::vector<uint32_t> cpus, AssignCpus(topology, threads));
  return CreatePinnedCpuBackend(limits, cpus);
}

void WriteHttpMetrics(const HttpCounts& counts, MetricText* text) {
  text->One("inferd_http_connections", MetricType::kGauge, "Connections of HTTP clients.",
            counts.connections);
  text->One("inferd_http_refused_connections_total", MetricType::kCounter,
            "Connections closed because there were too many, or their peer may not connect.",
            counts.refused_connections);
  text->One("inferd_http_client_disconnects_total", MetricType::kCounter,
            "Answers whose client went away, or was cut, before their end.", counts.client_disconnects);
  text->Family("inferd_http_responses_total", MetricType::kCounter, "Responses by client and status.");
  for (const auto& [who, count] : counts.responses) {
    text->Sample({{"client", who.first}, {"code", absl::StrCat(who.second)}}, count);
  }
}

}  // namespace

InferdDaemon::InferdDaemon(const InferdOptions& options, spdlog::logger* log)
    : options_(options), log_(log), start_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::StatusOr<std::unique_ptr<InferdDaemon>> InferdDaemon::Prepare(
    const InferdOptions& options, const SetOptions& set, spdlog::logger* log,
    std::function<void(const ServerState::View&)> on_phase, InheritedSockets* inherited) {
  RETURN_IF_ERROR(CheckInferdOptions(options, set));
  RETURN_IF_ERROR(CheckCpuOf(options.device, CpuIsaSupported(CpuIsa::kBest)));
  std::unique_ptr<InferdDaemon> daemon(new InferdDaemon(options, log));
  if (!daemon->start_event_.valid()) {
    return ErrnoToStatus(errno, "eventfd");
  }
  // All errors of pack, options or addresses are found here, before clients and weightd are involved; the
  // engine starts later (Begin()), while health and stats already answer.
  RETURN_IF_ERROR(daemon->Open(set));
  RETURN_IF_ERROR(daemon->Serve(std::move(on_phase), inherited));
  RETURN_IF_ERROR(daemon->OpenHttp(inherited));
  RETURN_IF_ERROR(daemon->OpenMetrics(options.metrics));
  return daemon;
}

absl::Status InferdDaemon::Open(const SetOptions& set) {
  const EngineOptions engine = EngineOptionsOf(options_);
  if (engine.device == DeviceKind::kCuda) {
    transport_set_ = set.count("transport") > 0;
    ASSIGN_OR_RETURN(cuda_, LoadCudaModule());
  }
  if (engine.prefill_math == PrefillMath::kAuto && engine.device != DeviceKind::kCuda) {
    log_->info("prefill math exact (auto: device {} has no other)", options_.device);
  }
  ASSIGN_OR_RETURN(pack_, Pack::Open(options_.pack));
  RETURN_IF_ERROR(OpenTokenizer());
  OpenChat();
  ASSIGN_OR_RETURN(plan_, PlanEngine(engine, pack_->config()));
  plan_.backend.dense_shapes = DenseShapesOf(*pack_);
  if (engine.device != DeviceKind::kHost) {
    ASSIGN_OR_RETURN(const Policies policies, PoliciesOf(engine.preset, engine.policies, engine.device));
    const DeviceBudget budget{options_.device_budget.bytes, options_.device_budget.percent};
    ASSIGN_OR_RETURN(const DeviceMemory memory, DivideDeviceMemory(budget, plan_, policies, *pack_));
    slot_budget_ = memory.experts;
    if (cuda_ == nullptr) {  // free device memory is not known yet
      log_->info("device memory {}", memory.Describe(*pack_));
    }
    if (const std::string warning = AllocationWarning(policies, *pack_); !warning.empty()) {
      log_->warn("{}", warning);
    }
  }
  threads_ = options_.threads > 0 ? options_.threads : UsableCpus();
  reported_ = ReportOptionsOf(options_, set, plan_, threads_);
  return absl::OkStatus();
}

absl::Status InferdDaemon::OpenTokenizer() {
  ASSIGN_OR_RETURN(const TokenizerFiles files, pack_->ReadTokenizerFiles());
  if (files.empty()) {
    log_->warn("the pack has no tokenizer: only token ids are served");
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::LoadFromFiles(files));
  return absl::OkStatus();
}

void InferdDaemon::OpenChat() {
  if (tokenizer_ == nullptr || pack_->chat_template().empty()) {
    return;
  }
  auto chat = ChatFormatter::Create(pack_->chat_template(), *tokenizer_);
  // An unsupported template does not prevent serving: Generate needs none, and a request may bring its own.
  if (chat.ok()) {
    chat_ = *std::move(chat);
    return;
  }
  chat_error_ = chat.status();
  log_->warn("the pack's chat template cannot be run, so Chat is refused: {}",
             std::string(chat_error_.message()));
}

absl::Status InferdDaemon::Serve(std::function<void(const ServerState::View&)> on_phase,
                                 InheritedSockets* inherited) {
  ServerInfo info;
  info.version = Version();
  info.libraries = LinkedLibraries();
  info.pid = static_cast<uint32_t>(getpid());
  info.uid = static_cast<uint32_t>(geteuid());
  info.start_time = absl::Now();
  info.model_id = pack_->model_id();
  info.pack_path = AbsolutePath(options_.pack);
  info.isa = IsaName();
  info.options = reported_;
  state_ = std::make_unique<ServerState>(std::move(info));

  ServingContext context;
  context.state = state_.get();
  context.tokenizer = tokenizer_.get();
  context.chat = chat_.get();
  context.chat_error = chat_error_;
  context.dialect = DialectOf(pack_->chat_template());
  context.model = DescribeModel(*pack_, options_.pack, plan_.options.context);
  context.limits = ServingLimitsOf(options_);
  context.log = log_;
  context.metrics = &metrics_;
  InferdServerOptions server;
  ASSIGN_OR_RETURN(server.addresses, ParseAddresses(options_.listen));
  ASSIGN_OR_RETURN(server.admin, ParseAddresses(options_.admin));
  server.allowed_uids = IdsOf(options_.allow_uid);
  server.allowed_gids = IdsOf(options_.allow_group);
  server.socket_mode = options_.socket_mode.bits;
  server.tls = {options_.tls_certificate, options_.tls_key, options_.tls_client_ca};
  server.inherited = inherited;
  server.on_phase = std::move(on_phase);
  tuner_ = std::make_unique<MemoryTuner>(WeightdSocket(options_), log_);
  server.tuning = tuner_.get();
  ASSIGN_OR_RETURN(server_, InferdServer::Start(std::move(server), std::move(context)));
  return absl::OkStatus();
}

absl::Status InferdDaemon::OpenHttp(InheritedSockets* inherited) {
  if (options_.http.empty()) {
    return absl::OkStatus();
  }
  if (chat_ == nullptr && chat_error_.ok() && tokenizer_ != nullptr) {
    log_->warn("the pack has no chat template: conversations over HTTP are continued as plain text");
  }
  openai_ = std::make_unique<OpenAiEndpoint>(server_->context(), [this] { return MetricsText(); });
  ASSIGN_OR_RETURN(HttpServerOptions http, HttpOptionsOf(options_));
  http.peers = {IdsOf(options_.allow_uid), IdsOf(options_.allow_group)};
  http.socket_mode = options_.socket_mode.bits;
  http.inherited = inherited;
  http.stall_timeout = [this] { return server_->context().limits.stall_timeout.Get(); };
  http.on_refused = [log = log_](const std::string& why) { log->warn("{}", why); };
  ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(http), openai_.get()));
  http_view_ = http_.get();
  return absl::OkStatus();
}

// Memory of weights and caches, as far as this process knows; weightd reports its own.
void InferdDaemon::WriteMemory(MetricText* text) const {
  const ResidentParts resident = ReadResidentParts();
  const EngineOptions& engine = plan_.options;
  uint64_t slots = 0;
  if (engine.device != DeviceKind::kHost) {
    slots = slot_budget_ == 0 ? pack_->total_expert_bytes() : slot_budget_.load();
  }
  text->Family("inferd_memory_bytes", MetricType::kGauge, "Memory by what it is for.");
  text->Sample({{"part", "device_slots"}}, slots);
  text->Sample({{"part", "kv"}}, plan_.kv_bytes);
  text->Sample({{"part", "private"}}, resident.own);
  text->Sample({{"part", "weights"}}, resident.shared);
}

std::string InferdDaemon::MetricsText() {
  MetricText text;
  WriteMemory(&text);
  if (const HttpServer* http = http_view_.load(); http != nullptr) {
    WriteHttpMetrics(http->Counts(), &text);
  }
  if (const Engine* engine = engine_view_.load(); engine != nullptr) {
    WriteGrammarMetrics(engine->guide_stats(), &text);
  }
  return metrics_.Text(state_->Stats(), state_->info(), state_->Look().phase, *server_->context().calls) +
         text.Take();
}

// An empty address closes the metrics endpoint.
absl::Status InferdDaemon::OpenMetrics(const std::string& address) {
  if (address.empty()) {
    metrics_endpoint_.reset();
  } else {
    ASSIGN_OR_RETURN(metrics_endpoint_, MetricsServer::Open(address, [this] { return MetricsText(); }));
    log_->info("metrics on http://{}/metrics", metrics_endpoint_->address());
  }
  metrics_address_ = address;
  return absl::OkStatus();
}

absl::Status InferdDaemon::Reload(const InferdOptions& options) {
  server_->Tune(IdsOf(options.allow_uid), IdsOf(options.allow_group), ServingLimitsOf(options));
  state_->SetQueueLimits(QueueLimitsOf(options));
  if (http_ != nullptr) {
    http_->SetPeers({IdsOf(options.allow_uid), IdsOf(options.allow_group)});
    if (const absl::Status status = http_->Reload(); !status.ok()) {
      log_->error("HTTP's keys and certificate stay as they were: {}", std::string(status.message()));
    }
  }
  return options.metrics == metrics_address_ ? absl::OkStatus() : OpenMetrics(options.metrics);
}

void InferdDaemon::Begin() {
  starter_ = std::thread([this] {
    // weightd may die during this start, as at any other time: reconnect and start again.
    const absl::Time until = SteadyNow() + options_.weightd_wait;
    absl::Status status = StartEngine(until);
    while (absl::IsUnavailable(status) && engine_ == nullptr && SteadyNow() + kStartPause < until) {
      log_->warn("starting anew: {}", std::string(status.message()));
      absl::SleepFor(kStartPause);
      status = StartEngine(until);
    }
    {
      const absl::MutexLock lock(&mutex_);
      start_status_ = std::move(status);
    }
    eventfd_write(start_event_.get(), 1);
  });
}

// Runs on the engine's thread before the first computation. Without a measurement the default switch points
// are used: same results, only slower.
absl::Status InferdDaemon::SetUpSparsity(const BackendLimits& limits, Backend& backend) {
  const EngineOptions options = EngineOptionsOf(options_);
  ASSIGN_OR_RETURN(const Policies policies, PoliciesOf(options.preset, options.policies, options.device));
  const absl::StatusOr<std::string> line =
      SetUpSparseSwitches(*pack_, policies.sparsity, limits, SparseProfileFolder(), backend);
  if (!line.ok()) {
    log_->warn("dense against sparse experts could not be measured, defaults are used: {}",
               std::string(line.status().message()));
  } else if (!line->empty()) {
    log_->info("{}", *line);
  }
  return absl::OkStatus();
}

// Creates the backend of device cuda and applies the options that depend on it.
absl::StatusOr<std::unique_ptr<Backend>> InferdDaemon::StartDevice(WeightClient* client,
                                                                   EngineOptions* options) {
  state_->SetProgress("trying the device");
  ASSIGN_OR_RETURN(const Policies policies, PoliciesOf(options->preset, options->policies, options->device));
  const DeviceBudget budget{options_.device_budget.bytes, options_.device_budget.percent};
  ASSIGN_OR_RETURN(
      CudaStart start,
      StartCuda(*cuda_, plan_, budget, policies,
                transport_set_ ? std::optional(options->slab.transport) : std::nullopt, kTrialLimit, client));
  slot_budget_ = start.memory.experts;
  options->slab.transport = start.transport;
  log_->info("device memory {}", start.memory.Describe(*pack_));
  log_->info("transport {}: {}", start.transport == Transport::kPull ? "pull" : "push", start.why);
  return std::move(start.backend);
}

// Copiers of this process, for the pull transport.
absl::StatusOr<std::vector<std::shared_ptr<Copier>>> InferdDaemon::MakeCopiers() const {
  std::vector<std::shared_ptr<Copier>> copiers;
  if (cuda_ != nullptr) {
    absl::Status error;
    copiers.emplace_back(cuda_->new_copier(&error));
    RETURN_IF_ERROR(error);
  }
  return copiers;
}

absl::Status InferdDaemon::StartEngine(absl::Time until) {
  state_->SetProgress("waiting for weightd");
  SessionWeightClientOptions session;
  session.socket = WeightdSocket(options_);
  session.pack_dir = options_.pack;
  session.compute_threads = threads_;
  ASSIGN_OR_RETURN(std::unique_ptr<SessionWeightClient> client, SessionWeightClient::Connect(session, until));
  state_->SetProgress(absl::StrCat("reading ", FormatSize(pack_->dense_bytes()), " of dense weights"));
  EngineOptions options = EngineOptionsOf(options_);
  std::unique_ptr<Backend> device;
  if (cuda_ != nullptr) {
    ASSIGN_OR_RETURN(device, StartDevice(client.get(), &options));
    // weightd keeps the trial's lease as long as that session lasts. The trial created two contexts, and a
    // cold GPU takes seconds for each: the second session has a time limit of its own.
    client.reset();
    until = std::max(until, SteadyNow() + options_.weightd_wait);
    ASSIGN_OR_RETURN(client, SessionWeightClient::Connect(session, until));
  }
  const std::string transport = client->Describe();
  options.slab.budget = slot_budget_;
  if (options.max_prefill_chunk == 0) {
    const uint64_t weights = pack_->dense_bytes() + pack_->total_expert_bytes();
    options.max_prefill_chunk = GrowingChunk(options, client->dram_budget_bytes() >= weights);
  }
  std::string backend;
  auto device_factory = [&](const DeviceNeeds& needed) -> absl::StatusOr<ComputeDevices> {
    const ThreadSplit shared =
        SplitThreads(needed.device, needed.cpu_parallel, threads_, options_.cpu_threads);
    ComputeDevices devices;
    devices.device = std::move(device);
    if (devices.device == nullptr) {
      ASSIGN_OR_RETURN(devices.device, MakeHostBackend(needed.limits, shared.device, options_.pin_threads));
      RETURN_IF_ERROR(SetUpSparsity(needed.limits, *devices.device));
    }
    if (needed.cpu_parallel) {
      ASSIGN_OR_RETURN(devices.cpu, MakeHostBackend(needed.limits, shared.cpu, /*pin=*/false));
      RETURN_IF_ERROR(SetUpSparsity(needed.limits, *devices.cpu));
    }
    backend = devices.device->Describe();
    return devices;
  };
  ASSIGN_OR_RETURN(std::vector<std::shared_ptr<Copier>> copiers, MakeCopiers());
  ASSIGN_OR_RETURN(engine_, Engine::Create(options, std::move(client), device_factory, tokenizer_.get(),
                                           std::move(copiers)));
  state_->SetBackend(IsaName(), backend, transport);
  OpenPrefixes();
  if (options_.self_test) {
    // Clients are admitted only after a whole step has worked, including kernels, weights and tokenizer.
    state_->SetProgress("making a first token");
    const std::vector<int32_t>& bos = pack_->config().bos_ids;
    RETURN_IF_ERROR(SelfTest(engine_.get(), bos.empty() ? 0 : bos.front(), kSelfTestLimit));
  }
  log_->info("{}", engine_->description());
  tuner_->Open(engine_.get());
  state_->SetEngine(engine_.get());
  engine_view_ = engine_.get();
  return absl::OkStatus();
}

// Loads the prefix file, and lets the engine save to it from now on.
void InferdDaemon::OpenPrefixes() {
  const std::string& path = options_.prefix_file;
  if (path.empty()) {
    return;
  }
  state_->SetProgress(absl::StrCat("reading prefixes from ", path));
  const absl::Time begin = SteadyNow();
  absl::Status rejected;
  const auto on_failure = [log = log_](const absl::Status& why) {
    log->error("cached prefixes are saved no more: {}", std::string(why.message()));
  };
  const absl::StatusOr<PrefixCache::Saved> loaded =
      engine_->OpenPrefixes(path, options_.prefix_limit.bytes, &rejected, on_failure);
  if (!loaded.ok()) {
    log_->warn("no prefixes are loaded or saved: {}", std::string(loaded.status().message()));
  } else if (!rejected.ok()) {
    log_->warn("no prefixes are loaded, the file is replaced: {}", std::string(rejected.message()));
  } else {
    log_->info(
        "loaded {} pages and {} states of cached prefixes from {} in {:.2f} s; {} records were damaged",
        loaded->pages, loaded->states, path, absl::ToDoubleSeconds(SteadyNow() - begin), loaded->damaged);
  }
}

void InferdDaemon::ClosePrefixes() {
  if (options_.prefix_file.empty() || engine_ == nullptr || !StartStatus().ok()) {
    return;
  }
  const absl::Time begin = SteadyNow();
  const absl::StatusOr<PrefixCache::Saved> saved = engine_->ClosePrefixes();
  if (saved.ok()) {
    log_->info("{} pages and {} states of cached prefixes are in {}, after {:.2f} s", saved->pages,
               saved->states, options_.prefix_file, absl::ToDoubleSeconds(SteadyNow() - begin));
  } else if (!absl::IsNotFound(saved.status())) {  // that was logged before
    log_->error("cached prefixes could not be saved: {}", std::string(saved.status().message()));
  }
}

absl::Status InferdDaemon::StartStatus() {
  const absl::MutexLock lock(&mutex_);
  return start_status_;
}

bool InferdDaemon::Drain(absl::Duration timeout) {
  server_->StartDrain();
  return server_->AwaitCalls(timeout);
}

void InferdDaemon::Shutdown(absl::Duration timeout) {
  if (server_ != nullptr) {
    server_->StartDrain();
    server_->AwaitCalls(timeout);
    metrics_endpoint_.reset();  // it reads from the servers
    http_view_ = nullptr;
    engine_view_ = nullptr;
    http_.reset();  // its answers are among the server's calls
    server_->Shutdown(absl::ZeroDuration());
    server_.reset();  // removes the socket files; sinks held by the engine may outlive the server
  }
}

InferdDaemon::~InferdDaemon() {
  // Order of destruction: first the starting thread, which writes engine_; then the calls,
  // which hold sinks of the engine; then the engine.
  if (starter_.joinable()) {
    starter_.join();
  }
  Shutdown(absl::ZeroDuration());
  tuner_.reset();
  ClosePrefixes();
  engine_.reset();
}

std::string InferdDaemon::DescribeStart() const {
  std::string line = absl::StrCat("inferd ", Version(), ":");
  for (const ReportedOption& option : reported_) {
    absl::StrAppend(&line, " ", option.name, "=", option.value);
  }
  absl::StrAppend(&line, " isa=", IsaName(), " model=", pack_->model_id(), "; clients connect to");
  for (const ListenAddress& address : server_->addresses()) {  // with the actual port where 0 was requested
    absl::StrAppend(&line, " ", address.ToString());
  }
  if (http_ != nullptr) {
    absl::StrAppend(&line, "; over HTTP to");
    for (const ListenAddress& address : http_->addresses()) {
      absl::StrAppend(&line, " ", address.ToString());
    }
  }
  return line;
}

bool InferdDaemon::IsStuck() const { return ReasonOf(state_->Health()) == "STEP_STUCK"; }

}  // namespace sluice::inferd
