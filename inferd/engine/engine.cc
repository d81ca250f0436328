#include "inferd/engine/engine.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/machine_facts.h"
#include "common/base/status.h"
#include "inferd/api/request_checks.h"
#include "inferd/engine/cache_setup.h"
#include "inferd/engine/device_setup.h"
#include "inferd/forward/engine_options.h"
#include "inferd/forward/sequence.h"
#include "inferd/model/dense_shapes.h"

namespace sluice::inferd {
namespace {

// Timeout of one attempt to reach weightd; cancels are processed between attempts.
constexpr absl::Duration kAttempt = absl::Seconds(1);
constexpr absl::Duration kAttemptPause = absl::Milliseconds(50);
// Pause between attempts after the requests have failed.
constexpr absl::Duration kBackgroundPause = absl::Milliseconds(500);
// A congested sink cannot wake the engine, so it is polled at this pace.
constexpr absl::Duration kCongestedPause = absl::Milliseconds(1);
// Maximum sleep of the engine thread with live requests, whatever it waits for.
constexpr absl::Duration kMaxSleep = absl::Milliseconds(100);

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

absl::Status Lost(const std::string& why) {
  return WithRetryDelay(ReasonError(absl::StatusCode::kUnavailable, "WEIGHTD_LOST", why), absl::Seconds(1));
}

// Upper estimate of a waiting request's memory besides its tokens: objects, buffers and names.
constexpr uint64_t kRequestBytes = 4096;

uint64_t BytesOf(const GrammarSpec& constraint) {
  uint64_t bytes = constraint.text.size();
  for (const std::string& choice : constraint.choices) {
    bytes += choice.size();
  }
  for (const ToolCallGrammar& call : constraint.calls) {
    bytes += call.begin.size() + call.json_schema.size() + call.end.size();
  }
  return bytes;
}

}  // namespace

Engine::Engine(const EnginePlan& plan, std::unique_ptr<WeightClient> client, const Tokenizer* tokenizer,
               std::vector<std::shared_ptr<Copier>> copiers)
    : plan_(plan),
      clock_(plan.options.virtual_clock ? std::make_unique<VirtualClock>() : nullptr),
      client_(WithTransport(std::move(client), plan.options, clock_.get(), std::move(copiers))),
      tokenizer_(tokenizer),
      config_(ServedConfig(plan.options, client_->pack().config())),
      seed_base_(RandomSeed()),
      grammars_(tokenizer == nullptr ? nullptr
                                     : std::make_unique<GrammarManager>(
                                           VocabularyOf(*tokenizer, config_.vocab, config_.eos_ids))),
      registry_(plan.options.queue),
      context_(plan.options.context),
      tasks_([this] { WakeLoop(); }) {}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<WeightClient> client,
                                                       DeviceFactory device_factory,
                                                       const Tokenizer* tokenizer,
                                                       std::vector<std::shared_ptr<Copier>> copiers) {
  ASSIGN_OR_RETURN(EnginePlan plan, PlanEngine(options, client->pack().config()));
  plan.backend.dense_shapes = DenseShapesOf(client->pack());
  std::unique_ptr<Engine> engine(new Engine(plan, std::move(client), tokenizer, std::move(copiers)));
  Engine* const raw = engine.get();
  engine->thread_ = std::thread([raw, factory = std::move(device_factory)] { raw->Main(factory); });
  MutexLock lock(&engine->mutex_);
  while (!engine->started_) {
    engine->changed_.Wait(&engine->mutex_);
  }
  RETURN_IF_ERROR(engine->start_status_);
  return engine;
}

Engine::~Engine() {
  {
    MutexLock lock(&mutex_);  // so that a pause between reconnect attempts ends at once
    stopping_ = true;
  }
  WakeLoop();
  thread_.join();
  calibration_.reset();
}

void Engine::Main(const DeviceFactory& device_factory) {
  const absl::Status status = Setup(device_factory);
  {
    MutexLock lock(&mutex_);
    start_status_ = status;
    started_ = true;
    changed_.SignalAll();
  }
  if (status.ok()) {
    Loop();
  }
}

absl::Status Engine::Setup(const DeviceFactory& device_factory) {
  const EngineOptions& options = plan_.options;
  ASSIGN_OR_RETURN(PolicyChoice choice, ChoosePoliciesFor(options, client_->pack()));
  ASSIGN_OR_RETURN(ComputeDevices devices, MakeDevices(plan_, ComputesOnCpu(choice.policies, options.device),
                                                       config_, clock_.get(), device_factory));
  ASSIGN_OR_RETURN(core_, EngineCore::Create(plan_, std::move(choice), client_.get(), std::move(devices),
                                             &registry_, clock_.get()));
  core_->SetRemovalHook([this] { Publish(); });
  description_ = Describe();
  Publish();
  return absl::OkStatus();
}

std::string Engine::Describe() const {
  std::string out = absl::StrCat(
      core_->backend().Describe(), "; ", core_->cpu() == nullptr ? "" : core_->cpu()->Describe() + "; ",
      client_->Describe(), "; context ", plan_.options.context, ", parallel ", plan_.options.parallel,
      ", KV cache ", plan_.kv_bytes, " bytes, activations ", plan_.activation_bytes, " bytes");
  if (plan_.options.device != DeviceKind::kHost && clock_ == nullptr) {
    absl::StrAppend(&out, "; transport ", plan_.options.slab.transport == Transport::kPull ? "pull" : "push");
  }
  if (!core_->prefix_rule().empty()) {
    absl::StrAppend(&out, "; ", core_->prefix_rule());
  }
  if (!core_->speculation_rule().empty()) {
    absl::StrAppend(&out, "; ", core_->speculation_rule());
  }
  if (!core_->reasons().empty()) {
    absl::StrAppend(&out, "; auto: ", absl::StrJoin(core_->reasons(), ", "));
  }
  if (const std::string cache = core_->DescribeCache(); !cache.empty()) {
    absl::StrAppend(&out, "; ", cache);
  }
  return out;
}

void Engine::Loop() {
  while (!stopping_) {
    TakeQueued();
    core_->EndExpired(SteadyNow());
    if (!core_->has_weights()) {
      tasks_.FailSteps(Lost("the connection to weightd is lost"));
      RunNextTask();  // the remaining tasks need no weights
      HandleLoss();
      continue;
    }
    const bool ran_task = RunNextTask();
    const EngineCore::Outcome outcome = core_->Step(SteadyNow());
    Publish();
    if (!core_->broken().ok()) {
      SetHealth(core_->broken(), core_->broken());
    }
    const bool idle =
        !ran_task && (outcome == EngineCore::Outcome::kIdle || outcome == EngineCore::Outcome::kCongested);
    const bool saved = core_->SavePrefix(idle);
    if (idle && saved) {
      core_->Poll();
    } else if (idle) {
      Idle(outcome);
    }
  }
  TakeQueued();
  const absl::Status end =
      ReasonError(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "inferd is shutting down");
  core_->EndAll(end);
  tasks_.Close(end);
}

// Runs one control task; false: none waits. Requests get a step between two tasks.
bool Engine::RunNextTask() {
  return tasks_.RunNext([this](const EngineWork& work) { return core_->RunControlTask(work); });
}

// Wakes the engine thread, which may be waiting for weightd, or pausing between two attempts to reach it.
void Engine::WakeLoop() {
  {
    MutexLock lock(&mutex_);
    changed_.SignalAll();
  }
  client_->Wake();
}

Engine::KvTuned Engine::Kv() const {
  MutexLock lock(&mutex_);
  const uint32_t pages = static_cast<uint32_t>(stats_.kv_pages_total);
  return {.pages = pages, .bytes = KvBytesOf(plan_, config_, pages), .context = context_.load()};
}

absl::StatusOr<Engine::KvTuned> Engine::TuneKv(std::optional<uint64_t> kv_budget,
                                               std::optional<uint32_t> context, uint64_t coming) {
  const uint32_t wanted = context.value_or(context_.load());
  if (wanted == 0 || wanted > plan_.options.context) {
    return absl::InvalidArgumentError(absl::StrCat("a context of ", wanted, " tokens: 1 to ",
                                                   plan_.options.context,
                                                   " are possible, which the start has laid out"));
  }
  KvTuned tuned;
  RETURN_IF_ERROR(tasks_.RunCall([&] { return TuneKvNow(kv_budget, wanted, coming, &tuned); }));
  return tuned;
}

absl::StatusOr<PrefixCache::Saved> Engine::OpenPrefixes(const std::string& path, uint64_t limit,
                                                        absl::Status* rejected,
                                                        std::function<void(const absl::Status&)> on_failure) {
  absl::StatusOr<PrefixCache::Saved> loaded;
  RETURN_IF_ERROR(tasks_.RunCall([&] {
    loaded = core_->OpenPrefixes(path, limit, rejected, std::move(on_failure));
    Publish();  // before the caller reads statistics
    return loaded.status();
  }));
  return loaded;
}

absl::StatusOr<PrefixCache::Saved> Engine::ClosePrefixes() {
  absl::StatusOr<PrefixCache::Saved> saved;
  RETURN_IF_ERROR(tasks_.RunCall([&] {
    saved = core_->ClosePrefixes();
    return saved.status();
  }));
  return saved;
}

// Runs on the engine's thread. The limit changes before live requests are checked: a request that enters
// later checks it again.
absl::Status Engine::TuneKvNow(std::optional<uint64_t> kv_budget, uint32_t context, uint64_t coming,
                               KvTuned* tuned) {
  const uint32_t before = core_->kv_pages();
  const uint32_t old_context = context_.exchange(context);
  const auto refuse = [&](const absl::Status& status) {
    context_ = old_context;
    return status;
  };
  const uint32_t longest = registry_.live() > 0 ? plan_.options.context : context;
  const uint64_t budget = kv_budget.value_or(KvBytesOf(plan_, config_, before));
  const absl::StatusOr<uint32_t> pages = PagesWithin(plan_, config_, budget, longest);
  if (!pages.ok()) return refuse(pages.status());
  if (kv_budget.has_value() && *pages > before) {
    const absl::StatusOr<MemoryFacts> memory = ReadMemoryFacts();
    if (!memory.ok()) return refuse(memory.status());
    const uint64_t more = KvBytesOf(plan_, config_, *pages) - KvBytesOf(plan_, config_, before);
    if (more > UsableMemory(*memory) + coming) {
      return refuse(absl::ResourceExhaustedError(absl::StrCat("a KV budget of ", budget, " bytes takes ",
                                                              more, " more than now; ",
                                                              UsableMemory(*memory) + coming, " are free")));
    }
  }
  tuned->restarted = kv_budget.has_value() && *pages != before ? core_->running() : 0;
  if (kv_budget.has_value()) {
    if (const absl::Status status = core_->ResizeKv(*pages); !status.ok()) return refuse(status);
  }
  Publish();
  tuned->pages = core_->kv_pages();
  tuned->bytes = KvBytesOf(plan_, config_, tuned->pages);
  tuned->context = context;
  return absl::OkStatus();
}

void Engine::TakeQueued() {
  {
    MutexLock lock(&mutex_);
    taken_.swap(incoming_);
    taken_cancels_.swap(cancelled_);
  }
  for (std::unique_ptr<Sequence>& sequence : taken_) {
    core_->Add(std::move(sequence));
  }
  for (const SequenceId id : taken_cancels_) {
    core_->End(id, ReasonError(absl::StatusCode::kCancelled, "CANCELLED", "the request was cancelled"));
  }
  taken_.clear();
  taken_cancels_.clear();
}

void Engine::Idle(EngineCore::Outcome outcome) {
  absl::Time until = core_->NextDeadline();
  if (outcome == EngineCore::Outcome::kCongested) {
    until = std::min(until, SteadyNow() + kCongestedPause);
  } else if (core_->live() > 0) {
    until = std::min(until, SteadyNow() + kMaxSleep);
  }
  const absl::Status status = client_->Wait(until);
  core_->Poll();
  if (!status.ok()) {
    core_->LoseWeights();
  }
  Publish();
}

// Makes one attempt to recover the weights; pauses if it fails.
void Engine::HandleLoss() {
  const absl::Duration grace = plan_.options.weightd_grace;
  if (lost_since_ == absl::InfiniteFuture()) {
    lost_since_ = SteadyNow();
    SetHealth(Lost("the connection to weightd is lost"), absl::OkStatus());
  }
  const absl::Time give_up = lost_since_ + grace;
  const bool waiting = SteadyNow() < give_up;
  const absl::Status status =
      core_->Recover(waiting ? std::min(give_up, SteadyNow() + kAttempt) : SteadyNow() + kAttempt);
  if (status.ok()) {
    lost_since_ = absl::InfiniteFuture();
    SetHealth(absl::OkStatus(), absl::OkStatus());
    Publish();
    return;
  }
  if (client_->connected() && !absl::IsUnavailable(status)) {
    FailRequests(status);  // weightd is back but cannot give the dense weights
  } else if (SteadyNow() >= give_up) {
    FailRequests(Lost(
        absl::StrCat("weightd is not back after ", absl::FormatDuration(grace), ": ", status.message())));
  }
  const absl::Duration pause =
      waiting ? std::min(kAttemptPause, std::max(give_up - SteadyNow(), absl::ZeroDuration()))
              : kBackgroundPause;
  MutexLock lock(&mutex_);
  if (!stopping_ && incoming_.empty() && cancelled_.empty()) {
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(pause));
  }
}

void Engine::FailRequests(const absl::Status& why) {
  SetHealth(why, why);
  TakeQueued();
  core_->EndAll(why);
}

void Engine::SetHealth(const absl::Status& health, const absl::Status& refusal) {
  MutexLock lock(&mutex_);
  health_ = health;
  refusal_ = refusal;
}

void Engine::Publish() {
  EngineStats stats;
  core_->FillStats(&stats);
  const uint64_t live = registry_.live();
  stats.sequences_waiting = live - std::min(live, stats.sequences_running);
  MutexLock lock(&mutex_);
  stats_ = stats;
  core_->FillLayers(&layers_);
}

std::vector<LayerStats> Engine::Layers() const {
  MutexLock lock(&mutex_);
  return layers_;
}

EngineStats Engine::Stats() const {
  MutexLock lock(&mutex_);
  EngineStats stats = stats_;
  const uint64_t live = registry_.live();  // includes requests entered since the last step
  stats.sequences_waiting = live - std::min(live, stats.sequences_running);
  stats.requests_rejected = rejected_;
  return stats;
}

absl::Status Engine::Health() const {
  if (draining_) {
    return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "inferd is draining");
  }
  const int64_t heartbeat = core_->heartbeat_nanos();
  const absl::Duration silence = absl::Nanoseconds(MonotonicClock().NowNanos() - heartbeat);
  if (heartbeat != 0 && silence > plan_.options.watchdog) {
    // Counted in whole limits, so that a log of each health change does not repeat for every second.
    const absl::Duration limits = absl::Floor(silence, plan_.options.watchdog);
    return ReasonError(absl::StatusCode::kUnavailable, "STEP_STUCK",
                       absl::StrCat("the running step has not moved for ", absl::FormatDuration(limits)));
  }
  MutexLock lock(&mutex_);
  return health_;
}

void Engine::StartDrain() { draining_ = true; }

absl::Status Engine::Rejected(const absl::Status& status) {
  rejected_ += status.ok() ? 0 : 1;
  return status;
}

absl::StatusOr<SequenceId> Engine::Enter(const std::string& request_id, const std::string& client,
                                         absl::Time deadline, uint64_t tokens, uint64_t bytes) {
  if (draining_) {
    return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "inferd is draining");
  }
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(refusal_);
  }
  if (deadline <= SteadyNow()) {
    return ReasonError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                       "the deadline passed before the request came");
  }
  return registry_.Enter(request_id, tokens, bytes, client);
}

// Checks the context limit, which TuneKv() may have reduced since the server checked the request. Done once
// the request is live, as TuneKv() considers only live requests.
absl::Status Engine::StillFits(const std::string& request_id, uint64_t tokens) {
  const uint32_t context = context_.load();
  if (tokens <= context) {
    return absl::OkStatus();
  }
  registry_.End(request_id);
  return ContextTooLong("stopping.max_tokens",
                        absl::StrCat(tokens, " tokens of prompt and answer exceed the context of ", context));
}

void Engine::Hand(std::unique_ptr<Sequence> sequence) {
  {
    MutexLock lock(&mutex_);
    incoming_.push_back(std::move(sequence));
  }
  WakeLoop();
}

// Compiles the request's grammar; null if it has none. Besides the model's end tokens, an answer may end by
// stop ids that have no visible text.
absl::StatusOr<std::unique_ptr<GrammarConstraint>> Engine::StartConstraint(const GenerateSpec& spec) {
  if (!spec.constraint.has_value()) {
    return nullptr;
  }
  if (tokenizer_ == nullptr) {
    return FieldError(absl::StatusCode::kInvalidArgument, "guided",
                      "the model has no tokenizer, so output cannot be constrained");
  }
  std::vector<int32_t> end_ids(config_.eos_ids.begin(), config_.eos_ids.end());
  for (const int32_t id : spec.stopping.stop_token_ids) {
    if (tokenizer_->TokenBytes(id).empty()) {
      end_ids.push_back(id);
    }
  }
  return grammars_->Start(*spec.constraint, std::move(end_ids), spec.visible_special_tokens);
}

absl::Status Engine::Generate(GenerateSpec spec, std::shared_ptr<RequestSink> sink) {
  if (spec.stated_drafts.has_value() && plan_.options.speculate != SpeculateMode::kStated) {
    return Rejected(
        absl::FailedPreconditionError("stated drafts are for measurements: they need --speculate stated"));
  }
  absl::StatusOr<std::unique_ptr<GrammarConstraint>> constraint = StartConstraint(spec);
  RETURN_IF_ERROR(Rejected(constraint.status()));
  const uint64_t tokens = spec.prompt.size() + spec.stopping.max_tokens;
  const uint64_t constraint_bytes =
      spec.constraint.has_value() ? BytesOf(*spec.constraint) + config_.vocab / 8 : 0;
  const absl::StatusOr<SequenceId> id = Enter(spec.request_id, spec.client, spec.deadline, spec.prompt.size(),
                                              tokens * sizeof(int32_t) + kRequestBytes + constraint_bytes);
  RETURN_IF_ERROR(Rejected(id.status()));
  RETURN_IF_ERROR(Rejected(StillFits(spec.request_id, tokens)));
  const uint64_t seed = seed_base_ + ++seeds_drawn_;
  Hand(std::make_unique<GenerateSequence>(*id, std::move(spec), std::move(sink), SteadyNow(), seed,
                                          config_.eos_ids, tokenizer_, *std::move(constraint)));
  return absl::OkStatus();
}

absl::Status Engine::Score(ScoreSpec spec, std::shared_ptr<ScoreSink> sink) {
  const absl::StatusOr<SequenceId> id =
      Enter(spec.request_id, spec.client, spec.deadline, spec.input.size(),
            (spec.input.size() + spec.targets.size()) * sizeof(int32_t) + kRequestBytes);
  RETURN_IF_ERROR(Rejected(id.status()));
  RETURN_IF_ERROR(Rejected(StillFits(spec.request_id, spec.input.size())));
  Hand(std::make_unique<ScoreSequence>(*id, std::move(spec), std::move(sink), SteadyNow(), config_.vocab));
  return absl::OkStatus();
}

absl::Status Engine::Calibrate(CalibrationSpec spec, std::shared_ptr<CalibrationSink> sink) {
  if (draining_) {
    return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "inferd is draining");
  }
  CalibratorOptions options;
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  MutexLock lock(&calibration_mutex_);
  if (calibration_ != nullptr && !calibration_->done()) {
    return ReasonError(absl::StatusCode::kFailedPrecondition, "CALIBRATION_RUNS",
                       "a calibration is running already");
  }
  calibration_.reset();
  calibration_ = std::make_unique<CalibrationTask>(
      std::move(spec), options, client_->pack(),
      [this](EngineWork work) { return tasks_.RunStep(std::move(work)); }, std::move(sink));
  return absl::OkStatus();
}

absl::Status Engine::Cancel(const std::string& request_id) {
  const std::optional<SequenceId> id = registry_.Find(request_id);
  if (!id.has_value()) {
    return ReasonError(absl::StatusCode::kNotFound, "REQUEST_NOT_FOUND",
                       absl::StrCat("no request with the id \"", request_id, "\" is live"));
  }
  {
    MutexLock lock(&mutex_);
    cancelled_.push_back(*id);
  }
  WakeLoop();
  return absl::OkStatus();
}

}  // namespace sluice::inferd
