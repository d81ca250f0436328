#include "inferd/engine/engine_core.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "inferd/engine/cache_setup.h"
#include "inferd/engine/policy_choice.h"
#include "inferd/forward/scheduler.h"
#include "inferd/model/expert_source.h"
#include "inferd/model/model_shapes.h"
#include "inferd/policy/miss_routing.h"
#include "inferd/policy/policies.h"
#include "inferd/policy/replay_routing.h"

namespace sluice::inferd {

EngineCore::EngineCore(const EnginePlan& plan, PolicyChoice choice, WeightClient* client,
                       ComputeDevices devices, RequestRegistry* registry, VirtualClock* clock)
    : plan_(plan),
      config_(ServedConfig(plan.options, client->pack().config())),
      model_config_(WithoutMtpLayers(client->pack().config())),
      choice_(std::move(choice)),
      backend_(std::move(devices.device)),
      cpu_(std::move(devices.cpu)),
      segments_(cpu_ != nullptr ? cpu_.get() : backend_.get()),
      client_(client),
      registry_(registry),
      virtual_clock_(clock),
      fetches_(client_, backend_.get(), clock == nullptr ? static_cast<const Clock*>(&real_clock_) : clock),
      rows_(plan.forward, client_->pack().config().vocab, ShortRopeLimit(client_->pack().config())),
      recurrent_(StateBytesPerSequence(client_->pack().config()) > 0),
      scan_rows_(ScanRows(client_->pack().config())),
      chunk_(plan.options.prefill_chunk,
             std::max(plan.options.prefill_chunk, plan.options.max_prefill_chunk)) {}

EngineCore::~EngineCore() {
  if (residency_ != nullptr) {
    residency_->Abandon();
  }
  if (weights_ != nullptr) {
    weights_->Release();
  }
  client_->SetSegmentObserver(nullptr).IgnoreError();  // removing an observer cannot fail
}

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(const EnginePlan& plan, PolicyChoice choice,
                                                               WeightClient* client, ComputeDevices devices,
                                                               RequestRegistry* registry,
                                                               VirtualClock* clock) {
  std::unique_ptr<EngineCore> core(
      new EngineCore(plan, std::move(choice), client, std::move(devices), registry, clock));
  RETURN_IF_ERROR(core->Setup());
  return core;
}

absl::Status EngineCore::Setup() {
  const ModelConfig& config = model_config_;
  const EngineOptions& options = plan_.options;
  const Policies& policies = choice_.policies;
  if (options.device == DeviceKind::kHost || cpu_ != nullptr) {
    RETURN_IF_ERROR(client_->SetSegmentObserver(&segments_));
  }
  ASSIGN_OR_RETURN(weights_,
                   DenseWeights::Create(client_, &fetches_, &segments_,
                                        options.device == DeviceKind::kHost ? nullptr : backend_.get()));
  ASSIGN_OR_RETURN(kv_, KvCache::Create(config_, options.kv, plan_.kv_pages, options.parallel,
                                        options.context, backend_.get()));
  ASSIGN_OR_RETURN(states_,
                   RecurrentStates::Create(config_, options.parallel, plan_.kept_states, backend_.get()));
  RETURN_IF_ERROR(MakeSpeculation(policies));
  MakeScheduler(policies);
  ASSIGN_OR_RETURN(residency_, MakeResidency({&plan_, &policies, client_, &fetches_, &segments_,
                                              backend_.get(), cpu_.get(), virtual_clock_, weights_.get()}));
  link_gbps_ = LinkGbps(options, config);
  const std::string profile_dir = absl::StrCat(client_->pack().dir(), "/profile");
  const std::string source_digest = client_->pack().manifest().provenance.source_digest;
  ASSIGN_OR_RETURN(routing_, MakeRouting({&policies, &config, backend_.get(), plan_.forward.max_tokens,
                                          profile_dir, source_digest}));
  ASSIGN_OR_RETURN(
      sparsity_, SparsityPolicy::Create(policies.sparsity, config, profile_dir, client_->pack().model_id()));
  if (options.prefetch) {
    ASSIGN_OR_RETURN(prefetcher_,
                     MakePrefetcher({&policies, &config, weights_.get(), sparsity_.get(), backend_.get(),
                                     residency_.get(), plan_.forward.max_tokens, plan_.forward.max_sequences,
                                     profile_dir, source_digest, client_->pack().model_id()}));
  }
  if (policies.miss == ExpertMiss::kProceed) {
    ASSIGN_OR_RETURN(routing_, MissRouting::Create({std::move(routing_), prefetcher_.get(), &config,
                                                    backend_.get(), plan_.forward.max_tokens}));
  }
  if (!options.replay_trace.empty()) {
    ASSIGN_OR_RETURN(const Trace trace, ReadTrace(options.replay_trace));
    ASSIGN_OR_RETURN(routing_,
                     ReplayRouting::Create(trace, options.replay_trace, config, std::move(routing_)));
  }
  if (!options.trace.empty()) {
    ASSIGN_OR_RETURN(
        trace_, TraceRecorder::Create(options.trace, config, &backend_->queue(), plan_.forward.max_tokens));
  }
  ASSIGN_OR_RETURN(row_source_,
                   RowSource::Create(config_, plan_.forward.max_tokens, options.stall_limit,
                                     {client_, &fetches_, backend_.get(), [this] { residency_->Poll(); }}));
  hooks_ = std::make_unique<StepHooks>(client_, prefetcher_.get(), trace_.get(), [this] { Beat(); });
  ASSIGN_OR_RETURN(forward_, Forward::Create(config_, plan_.forward,
                                             {backend_.get(), weights_.get(), kv_.get(), states_.get(),
                                              residency_.get(), residency_.get(), routing_.get(),
                                              sparsity_.get(), hooks_.get(), cpu_.get(), row_source_.get()}));
  RETURN_IF_ERROR(MakeMtp());
  return AcquireWeights();
}

absl::Status EngineCore::MakeSpeculation(const Policies& policies) {
  ASSIGN_OR_RETURN(const SpeculationRule rule,
                   SpeculationRuleOf(plan_.options, policies, client_->pack().config()));
  drafts_by_mtp_ = rule.mtp;
  speculation_rule_ = rule.why;
  if (rule.on) {
    speculation_ = std::make_unique<Speculation>(plan_.options.drafts, recurrent_, rows_.short_rope_limit(),
                                                 [this](SequenceId id) { return sequences_.at(id).get(); });
    if (rule.stated) {
      speculation_->SetStated();
    }
  }
  return absl::OkStatus();
}

absl::Status EngineCore::MakeMtp() {
  if (!drafts_by_mtp_) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(mtp_,
                   MtpDrafter::Create(config_, plan_.forward, forward_.get(), kv_.get(), backend_.get()));
  speculation_->SetMtp(mtp_->most_drafts(),
                       [this](absl::Span<const MtpDrafter::Request> requests, absl::Span<Draft> drafts) {
                         ProposeMtp(requests, drafts);
                       });
  return absl::OkStatus();
}

void EngineCore::MakeScheduler(const Policies& policies) {
  const EngineOptions& options = plan_.options;
  const PrefixRule rule = PrefixRuleOf(options, policies);
  prefix_rule_ = rule.why;
  if (rule.reuse != PrefixReuse::kNone) {
    const Pack& pack = client_->pack();
    prefixes_ = std::make_unique<PrefixCache>(
        PrefixCacheOptions{rule.reuse,
                           absl::StrCat(PrefixIdentity(pack.model_id(), options, policies),
                                        config_.mtp_layers > 0 ? " mtp" : "", "; ", backend_->Describe()),
                           recurrent_, plan_.kept_states, options.parallel, rows_.short_rope_limit()},
        PrefixCache::Parts{kv_.get(), states_.get(), &backend_->queue(),
                           [this](SequenceId id) { return sequences_.at(id).get(); }});
  }
  scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{options.parallel, options.max_prefill_chunk},
                                           &kv_->pages(), prefixes_.get(), speculation_.get());
}

// Acquires everything that a step needs from a session.
absl::Status EngineCore::AcquireWeights() {
  RETURN_IF_ERROR(weights_->Acquire(plan_.options.stall_limit));
  return residency_->Attach();
}

void EngineCore::Add(std::unique_ptr<Sequence> sequence) {
  const Sequence::Header& header = sequence->header();
  ScheduleRequest request;
  request.id = header.id;
  request.client = header.client;
  request.priority = header.priority;
  request.deadline = header.deadline;
  request.start_by = header.start_by;
  request.length = static_cast<uint32_t>(sequence->tokens().size());
  request.row_limit = sequence->row_limit();
  scheduler_->Add(request);
  sequences_.emplace(header.id, std::move(sequence));
}

std::unique_ptr<Sequence> EngineCore::Remove(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) {
    return nullptr;
  }
  scheduler_->Remove(id);
  if (speculation_ != nullptr) {
    speculation_->Remove(id);
  }
  std::unique_ptr<Sequence> sequence = std::move(found->second);
  sequences_.erase(found);
  registry_->End(sequence->header().request_id);
  if (removal_hook_) {
    removal_hook_();
  }
  return sequence;
}

void EngineCore::End(SequenceId id, const absl::Status& status) {
  if (!sequences_.contains(id)) {
    return;
  }
  (absl::IsCancelled(status) ? counted_.requests_cancelled : counted_.requests_failed)++;
  Remove(id)->Fail(status);
}

void EngineCore::EndAll(const absl::Status& status) {
  while (!sequences_.empty()) {
    End(sequences_.begin()->first, status);
  }
}

void EngineCore::EndExpired(absl::Time now) {
  for (const SequenceId id : scheduler_->Expired(now)) {
    End(id, ReasonError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                        "the deadline passed before the answer was complete"));
  }
  for (const SequenceId id : scheduler_->Overdue(now)) {
    End(id, WithRetryDelay(ReasonError(absl::StatusCode::kResourceExhausted, "QUEUE_WAIT",
                                       "the request waited for its start longer than it allows"),
                           registry_->RetryDelay()));
  }
}

absl::Status EngineCore::ResizeKv(uint32_t pages) {
  if (pages == kv_->pages().total()) {
    return absl::OkStatus();
  }
  Queue& queue = backend_->queue();
  RETURN_IF_ERROR(queue.Wait(queue.Record()));
  absl::Status status;
  scheduler_->WithoutPages([&] {
    status = kv_->Resize(pages);
    if (prefixes_ != nullptr) {
      prefixes_->PagesChanged();
    }
  });
  if (absl::IsInternal(status)) {
    broken_ = status;
  }
  return status;
}

namespace {

// Between two steps, a save is followed by a pause of this many times its duration.
constexpr double kSavePause = 30;

absl::Status NoPrefixes(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("nothing is kept of cached prefixes: ", why));
}

}  // namespace

absl::StatusOr<PrefixCache::Saved> EngineCore::OpenPrefixes(
    const std::string& path, uint64_t limit, absl::Status* rejected,
    std::function<void(const absl::Status&)> on_failure) {
  on_save_failure_ = std::move(on_failure);
  return prefixes_ != nullptr ? prefixes_->OpenFile(path, limit, rejected) : NoPrefixes(prefix_rule_);
}

absl::StatusOr<PrefixCache::Saved> EngineCore::ClosePrefixes() {
  return prefixes_ != nullptr ? prefixes_->CloseFile() : NoPrefixes(prefix_rule_);
}

bool EngineCore::SavePrefix(bool idle) {
  const absl::Time begin = SteadyNow();
  if (prefixes_ == nullptr || (!idle && begin < next_save_)) {
    return false;
  }
  const absl::StatusOr<bool> saved = prefixes_->SaveNext();
  const absl::Time end = SteadyNow();
  next_save_ = end + kSavePause * (end - begin);
  if (!saved.ok()) {
    on_save_failure_(saved.status());
    return false;
  }
  return *saved;
}

// True if any sequence is blocked by its consumer.
bool EngineCore::BlockCongested() {
  bool any = false;
  for (const auto& [id, sequence] : sequences_) {
    const bool congested = sequence->Congested();
    scheduler_->SetBlocked(id, congested);
    any = any || congested;
  }
  return any;
}

// Ends the sequences that failed between steps.
void EngineCore::EndFailed() {
  for (auto next = sequences_.begin(); next != sequences_.end();) {
    const SequenceId id = next->first;
    const bool failed = next->second->state() == Sequence::State::kFailed;
    ++next;
    if (failed) {
      counted_.requests_failed++;
      Remove(id)->FinishFailed();
    }
  }
}

EngineCore::Outcome EngineCore::Step(absl::Time now) {
  EndExpired(now);
  if (sequences_.empty()) {
    last_step_end_ = 0;
    return Outcome::kIdle;
  }
  if (!has_weights() || !client_->connected()) {
    LoseWeights();
    return Outcome::kLost;
  }
  const bool congested = BlockCongested();
  EndFailed();
  scheduler_->SetPrefillRows(chunk_.rows());
  const StepPlan& plan = scheduler_->Plan();
  counted_.preemptions += plan.preempted.size();
  const absl::Status drafted = std::exchange(mtp_status_, absl::OkStatus());
  if (prefixes_ != nullptr && !prefixes_->status().ok()) {
    broken_ = prefixes_->status();
    EndAll(broken_);
    return Outcome::kRan;
  }
  for (const SequenceId id : plan.admitted) {
    Sequence* sequence = sequences_.at(id).get();
    registry_->LeaveQueue(sequence->header().request_id);
    sequence->Admit(virtual_clock_ == nullptr ? now : Now());
  }
  if (absl::IsUnavailable(drafted) || (!drafted.ok() && !client_->connected())) {
    LoseWeights();
    return Outcome::kLost;
  }
  if (!drafted.ok()) {
    broken_ = drafted;
    EndAll(broken_);
    return Outcome::kRan;
  }
  if (plan.rows == 0) {
    last_step_end_ = 0;
    return congested ? Outcome::kCongested : Outcome::kIdle;
  }
  rows_.Begin(++step_number_, plan, kv_.get(), *states_,
              [this](SequenceId id) { return sequences_.at(id).get(); });
  return RunStep(plan);
}

// Returns the time of the clock that times answers. A virtual clock begins at the epoch.
absl::Time EngineCore::Now() const {
  return virtual_clock_ == nullptr ? SteadyNow() : absl::FromUnixNanos(virtual_clock_->NowNanos());
}

void EngineCore::ReportScan(const StepPlan& plan) {
  const bool scan = scan_rows_ > 0 && plan.prefill_rows >= scan_rows_;
  client_->SetScan(scan);
  if (prefetcher_ != nullptr) {
    const bool more = std::any_of(plan.sequences.begin(), plan.sequences.end(),
                                  [](const ScheduledRows& rows) { return !rows.reaches_end; });
    prefetcher_->SetScan(scan && plan_.options.device == DeviceKind::kHost, more);
  }
}

EngineCore::Outcome EngineCore::RunStep(const StepPlan& plan) {
  const StepMarks marks = MarksNow();
  Beat();
  const StepCost before = CostNow();
  backend_->BeginStep();
  ReportScan(plan);
  residency_->BeginStep({.number = step_number_,
                         .prefill = plan.prefill_rows > 0,
                         .exact = rows_.batch().decode_rows() < rows_.batch().tokens()});
  absl::Status status = forward_->Run(rows_.mutable_batch());
  bool delivered = false;
  if (status.ok() && trace_ != nullptr) {
    status = trace_->Flush();
  }
  if (status.ok()) {
    const StepCost cost = CostSince(before);
    for (const StepRows::Running& running : rows_.running()) {
      running.sequence->AddCost(cost, static_cast<double>(running.rows.rows) / plan.rows);
    }
    status = rows_.WantLogits() ? rows_.Deliver(
                                      forward_.get(),
                                      [&] {
                                        const absl::Status session = CheckSession();
                                        delivered = session.ok();
                                        return session;
                                      },
                                      [this] { return Now(); })
                                : EndWithoutLogits();
  }
  if (status.ok() && prefetcher_ != nullptr) {
    const BatchSubmit batch_submit(client_);
    status = prefetcher_->Continue();
  }
  if (status.ok() && mtp_ != nullptr) {
    // The step's tokens are given: an error here must not end it, and shows again where it stays.
    if (const absl::Status kept = KeepHidden(); !kept.ok()) {
      forward_->Abandon();
      residency_->Abandon();
      mtp_->Forget();
    }
  }
  if (!status.ok()) {
    forward_->Abandon();  // queued work may still read the memory that is released next
  }
  backend_->EndStep();
  heartbeat_.store(0, std::memory_order_relaxed);
  if (absl::IsUnavailable(status) || (!status.ok() && !client_->connected())) {
    LoseWeights();
    return Outcome::kLost;
  }
  if (!status.ok()) {
    residency_->Abandon();
    if (delivered || !ForgoDrafts(status)) {
      FailStep(status);
    }
    return Outcome::kRan;
  }
  const double seconds = CountStep(plan, marks);
  CommitStep();
  if (speculation_ != nullptr && plan.prefill_rows == 0) {
    speculation_->EndStep(seconds);
  }
  return Outcome::kRan;
}

// Drafts with MTP layers, as a step of its own before the one that verifies them. A lack that may pass ends
// these sequences' speculation; other errors are kept for Step().
void EngineCore::ProposeMtp(absl::Span<const MtpDrafter::Request> requests, absl::Span<Draft> drafts) {
  backend_->BeginStep();
  residency_->BeginStep({.number = ++step_number_});
  const absl::Status status = mtp_->Propose(requests, drafts);
  if (!status.ok()) {
    forward_->Abandon();
    std::fill(drafts.begin(), drafts.end(), Draft());
  }
  backend_->EndStep();
  if (status.ok()) {
    return;
  }
  residency_->Abandon();
  mtp_->Forget();
  if (!absl::IsResourceExhausted(status) && !absl::IsDeadlineExceeded(status)) {
    mtp_status_ = status;
    return;
  }
  for (const MtpDrafter::Request& request : requests) {
    speculation_->Forgo(request.text.number);
  }
}

// Keeps the hidden states of the step's rows, but those of wrong drafts and of sequences that met damaged
// weights.
absl::Status EngineCore::KeepHidden() {
  const StepBatch& batch = rows_.batch();
  for (uint32_t i = 0; i < rows_.running().size(); ++i) {
    const StepRows::Running& running = rows_.running()[i];
    if (batch.failed_extent(i) != StepBatch::kNoExtent) {
      continue;
    }
    const MtpDrafter::Text text{running.rows.id, running.rows.slot, running.sequence->tokens()};
    RETURN_IF_ERROR(
        mtp_->Keep(text, batch.sequences()[i].first_row, running.rows.rows, running.rows.first_position));
    if (running.sequence->state() != Sequence::State::kRunning) {
      RETURN_IF_ERROR(mtp_->Finish(text));
    }
  }
  return absl::OkStatus();
}

// True if the step is repeated without drafts: they use experts that plain decoding may not need, and their
// lack must not end a request.
bool EngineCore::ForgoDrafts(const absl::Status& status) {
  bool any = false;
  if (!absl::IsResourceExhausted(status) && !absl::IsDeadlineExceeded(status)) {
    return any;
  }
  for (const StepRows::Running& running : rows_.running()) {
    if (!running.rows.drafts.empty()) {
      speculation_->Forgo(running.rows.id);
      any = true;
    }
  }
  return any;
}

absl::Status EngineCore::RunControlTask(const EngineWork& work) {
  last_step_end_ = 0;  // the task's time is no step's
  if (!has_weights() || !client_->connected()) {
    LoseWeights();
    return ReasonError(absl::StatusCode::kUnavailable, "WEIGHTD_LOST", "the connection to weightd is lost");
  }
  client_->SetScan(false);  // its experts are used again and again
  const ModelParts parts{&model_config_, &plan_,           backend_.get(),
                         weights_.get(), residency_.get(), residency_.get()};
  backend_->BeginStep();
  const absl::Status status = work(parts, ++step_number_);
  if (!status.ok()) {
    backend_->queue().Wait(backend_->queue().Record()).IgnoreError();  // as after a step
  }
  backend_->EndStep();
  if (absl::IsUnavailable(status) || !client_->connected()) {
    LoseWeights();
  } else if (!status.ok()) {
    residency_->Abandon();
  }
  return status;
}

// Checks the session: leased memory is valid only while the session lasts, as weightd closes a stalled
// session before it reuses its memory.
absl::Status EngineCore::CheckSession() const {
  return client_->connected() ? absl::OkStatus()
                              : absl::UnavailableError("the connection to weightd was lost during the step");
}

absl::Status EngineCore::EndWithoutLogits() {
  RETURN_IF_ERROR(forward_->Await());
  return CheckSession();
}

// Commits the step: marks rows as cached, appends tokens, removes finished sequences.
void EngineCore::CommitStep() {
  for (uint32_t i = 0; i < rows_.running().size(); ++i) {
    const StepRows::Running& running = rows_.running()[i];
    const uint32_t extent = rows_.batch().failed_extent(i);
    if (extent == StepBatch::kNoExtent) {
      CommitRows(running);
    } else if (!running.rows.drafts.empty()) {
      speculation_->Forgo(running.rows.id);  // the damaged expert may be a draft's alone
    } else {
      End(running.rows.id, ReasonError(absl::StatusCode::kDataLoss, "WEIGHT_CORRUPT",
                                       absl::StrCat(client_->pack().ExtentName(extent), " of pack ",
                                                    client_->pack().dir(), " is damaged")));
    }
  }
}

// Commits the rows of one sequence: all but those of wrong drafts, which are behind its last token, or none
// if its states would be those of a wrong draft.
void EngineCore::CommitRows(const StepRows::Running& running) {
  Sequence* sequence = running.sequence;
  const ScheduledRows& rows = running.rows;
  const uint32_t known = rows.known();
  const absl::Span<const int32_t> tokens =
      rows.reaches_end ? sequence->tokens().subspan(known) : absl::Span<const int32_t>();
  const uint32_t appended = static_cast<uint32_t>(tokens.size());
  const uint32_t accepted = appended > 0 ? appended - 1 : 0;
  counted_.generated_tokens += appended;
  const bool prompt_done = known == sequence->prompt_tokens() && rows.reaches_end;
  counted_.prompt_tokens += prompt_done ? sequence->prompt_tokens() : 0;
  counted_.cached_prompt_tokens += prompt_done ? sequence->cached_tokens() : 0;
  if (speculation_ != nullptr) {
    speculation_->NoteTokens(rows, tokens);
    sequence->NoteDrafts(static_cast<uint32_t>(rows.drafts.size()), accepted);
  }
  // A recurrent state behind a wrong draft is of no use, so that the next step redoes the rows.
  const bool redo = recurrent_ && accepted < rows.drafts.size();
  if (sequence->state() != Sequence::State::kFailed && !redo) {
    states_->Commit(rows.slot);
    scheduler_->Commit(rows.id, known + accepted - rows.first_position);
    if (prefixes_ != nullptr) {
      prefixes_->Computed(*sequence, rows.slot, known + accepted);
    }
  }
  switch (sequence->state()) {
    case Sequence::State::kRunning:
      if (appended > 0) {
        CountTokens(rows.id, appended, *sequence);
      }
      if (redo) {
        scheduler_->Redo(rows.id);
      }
      break;
    case Sequence::State::kFinished:
      counted_.requests_finished++;
      Remove(rows.id)->Finish();
      break;
    case Sequence::State::kFailed:
      counted_.requests_failed++;
      Remove(rows.id)->FinishFailed();
      break;
  }
}

// Appends the new tokens. A sequence that becomes long with the last is recomputed: its rows so far were
// rotated by the short rope table.
void EngineCore::CountTokens(SequenceId id, uint32_t tokens, const Sequence& sequence) {
  scheduler_->Append(id, tokens);
  if (rows_.short_rope_limit() > 0 && sequence.tokens().size() == rows_.short_rope_limit() + 1) {
    scheduler_->Restart(id);
  }
}

void EngineCore::FailStep(const absl::Status& status) {
  // These errors may pass: other sessions may release memory, or the bytes may arrive later.
  if (!absl::IsResourceExhausted(status) && !absl::IsDeadlineExceeded(status)) {
    broken_ = status;
  }
  for (const StepRows::Running& running : rows_.running()) {
    End(running.rows.id, status);
  }
}

void EngineCore::LoseWeights() {
  residency_->Abandon();
  weights_->Release();
  if (!client_->connected()) {
    fetches_.Forget();  // their completions never arrive
  }
}

absl::Status EngineCore::Recover(absl::Time deadline) {
  if (!client_->connected()) {
    fetches_.Forget();
    RETURN_IF_ERROR(client_->Reconnect(deadline));
  }
  return AcquireWeights();
}

// The engine's statistics: steps, times, and counters of its parts.

namespace {

void AddResidency(const ResidencyCounters& from, LayerStats* to) {
  to->requests = from.requests;
  to->hits = from.hits;
  to->late = from.late;
  to->cpu = from.cpu;
  to->prefetch_issued = from.prefetch_issued;
  to->prefetch_useful = from.prefetch_useful;
  to->bytes_device = from.bytes_touched - from.bytes_dram;
  to->bytes_dram = from.bytes_dram;
  to->bytes_link = from.bytes_link;
  to->bytes_ssd = from.bytes_ssd;
}

void AddNeurons(const NeuronCounters& from, LayerStats* to) {
  to->neurons_requested = from.requests;
  to->neurons_hit = from.hits;
  to->neurons_fetched = from.fetched + from.prefetched;
  to->neurons_left_out = from.left_out;
}

PredictionStats PredictionsOf(const PredictionCounters& from) {
  return {from.predicted, from.right, from.wanted, from.rows, from.best_right, from.best_found};
}

void AddNeuronPredictions(const NeuronPredictions& from, LayerStats* to) {
  to->neurons_predicted = from.predicted;
  to->neurons_right = from.right;
  to->neurons_wanted = from.wanted;
}

void AddRouting(const RoutingCounters& from, LayerStats* to) {
  to->routed_rows = from.rows;
  to->single_rows = from.single;
  to->routed_pairs = from.pairs;
  to->dropped_pairs = from.dropped;
  to->exchanged_pairs = from.exchanged;
}

}  // namespace

StepCost EngineCore::CostNow() const {
  const ResidencyCounters counters = residency_->stats().total;
  return {static_cast<double>(fetches_.stall_nanos()) * 1e-9, static_cast<double>(counters.requests),
          static_cast<double>(counters.hits), static_cast<double>(fetches_.bytes_ssd()),
          static_cast<double>(fetches_.bytes_link())};
}

StepCost EngineCore::CostSince(const StepCost& before) const {
  const StepCost now = CostNow();
  return {now.stall_seconds - before.stall_seconds, now.expert_requests - before.expert_requests,
          now.expert_hits - before.expert_hits, now.bytes_ssd - before.bytes_ssd,
          now.bytes_link - before.bytes_link};
}

// Busy time of the link: the modelled time of the bytes on a throttled link, else the measured time of
// copies.
double EngineCore::LoadSeconds() const {
  return link_gbps_ > 0 ? static_cast<double>(fetches_.bytes_link()) / (link_gbps_ * 1e9)
                        : fetches_.copy_seconds();
}

EngineCore::StepMarks EngineCore::MarksNow() const {
  const Clock& clock = virtual_clock_ == nullptr ? static_cast<const Clock&>(real_clock_) : *virtual_clock_;
  return {clock.NowNanos(),       real_clock_.NowNanos(),
          fetches_.stall_nanos(), fetches_.real_stall_nanos(),
          LoadSeconds(),          residency_->stats().total.bytes_touched,
          fetches_.bytes_ssd()};
}

void EngineCore::CountTimes(const StepMarks& before, const StepMarks& now) {
  const auto seconds = [](int64_t from, int64_t to) { return static_cast<double>(to - from) * 1e-9; };
  const double load = now.load_seconds - before.load_seconds;
  counted_.times.step_seconds += seconds(before.nanos, now.nanos);
  counted_.times.stall_seconds += seconds(before.stall_nanos, now.stall_nanos);
  counted_.times.load_seconds += load;
  counted_.real_times.step_seconds += seconds(before.real_nanos, now.real_nanos);
  counted_.real_times.stall_seconds += seconds(before.real_stall_nanos, now.real_stall_nanos);
  counted_.real_times.load_seconds += virtual_clock_ == nullptr ? load : 0;
}

double EngineCore::CountStep(const StepPlan& plan, const StepMarks& before) {
  const StepMarks now = MarksNow();
  CountTimes(before, now);
  const double seconds = static_cast<double>(now.nanos - before.nanos) * 1e-9;
  const int64_t begin = std::exchange(last_step_end_, now.nanos);
  const double since_last = begin == 0 ? seconds : static_cast<double>(now.nanos - begin) * 1e-9;
  const uint64_t expert_bytes = now.bytes_touched - before.bytes_touched;
  counted_.steps++;
  if (plan.prefill_rows > 0) {
    counted_.prompt_seconds += seconds;
    chunk_.Note(plan.prefill_rows, seconds, static_cast<double>(now.stall_nanos - before.stall_nanos) * 1e-9,
                now.bytes_ssd - before.bytes_ssd);
    return since_last;
  }
  counted_.decode_steps++;
  counted_.decode_seconds += seconds;
  counted_.weight_bytes_touched += weights_->bytes_per_step() + expert_bytes;
  return since_last;
}

void EngineCore::FillStats(EngineStats* stats) const {
  *stats = counted_;
  const ResidencyStats cache = residency_->stats();
  const BackendCounters backend = backend_->Counters();
  stats->sequences_running = scheduler_->running();
  stats->kv_pages_used = kv_->pages().used();
  stats->kv_pages_total = kv_->pages().total();
  stats->kv_pages_cached = kv_->pages().kept_pages();
  stats->expert_leases_held = cache.held;
  stats->dense_leases_held = weights_->leases();
  stats->fetches_outstanding = fetches_.outstanding();
  stats->expert_requests = cache.total.requests;
  stats->expert_hits = cache.total.hits;
  stats->prefetch_issued = cache.total.prefetch_issued;
  stats->prefetch_useful = cache.total.prefetch_useful;
  stats->draft_steps = forward_->drafts().made;
  stats->draft_steps_right = forward_->drafts().right;
  if (speculation_ != nullptr) {
    speculation_->FillStats(stats);
  }
  if (prefetcher_ != nullptr) {
    const PredictionCounters predictions = prefetcher_->total();
    stats->predictions = predictions.predicted;
    stats->predictions_right = predictions.right;
    stats->predictions_wanted = predictions.wanted;
  }
  if (cache.neuron_cache.has_value()) {
    stats->neuron_slots = cache.neuron_cache->slots;
    stats->leads_stay = cache.neuron_cache->leads_stay;
    stats->copy_all_share = cache.neuron_cache->copy_all_share;
  }
  stats->bytes_ssd = fetches_.bytes_ssd();
  stats->bytes_link = fetches_.bytes_link();
  stats->weightd_reconnects = client_->counters().reconnects;
  stats->device_waits = backend.waits;
  stats->device_kernels = backend.kernels;
  stats->device_graph_launches = backend.graph_launches;
  stats->device_graph_changes = backend.graphs_made + backend.graphs_updated;
  stats->device_library_products = backend.library_products;
  stats->fork_joins = backend.fork_joins;
  stats->fork_join_seconds = backend.region_seconds;
  stats->kernel_seconds = backend.kernel_seconds;
  stats->parts = forward_->part_works();
  stats->stall_seconds = static_cast<double>(fetches_.stall_nanos()) * 1e-9;
}

void EngineCore::FillLayers(std::vector<LayerStats>* layers) const {
  layers->resize(client_->pack().config().layers.size());
  const absl::Span<const ResidencyCounters> residency = residency_->stats().layers;
  const absl::Span<const NeuronCounters> neurons = residency_->stats().neurons;
  const absl::Span<const RoutingCounters> routing = routing_->layer_counters();
  const absl::Span<const uint64_t> skipped = routing_->skipped();
  for (uint32_t layer = 0; layer < layers->size(); ++layer) {
    LayerStats& stats = (*layers)[layer];
    stats = {};
    if (layer < residency.size()) {
      AddResidency(residency[layer], &stats);
    }
    if (layer < neurons.size()) {
      AddNeurons(neurons[layer], &stats);
    }
    if (prefetcher_ != nullptr && !IsMtpLayer(client_->pack().config(), layer)) {
      stats.predictions = PredictionsOf(prefetcher_->counters(layer));
      static_assert(std::tuple_size_v<decltype(stats.predictions_at)> == Prefetcher::kMaxPrefetchDepth + 1);
      for (uint32_t depth = 0; depth <= Prefetcher::kMaxPrefetchDepth; ++depth) {
        stats.predictions_at[depth] = PredictionsOf(prefetcher_->counters_at(layer, depth));
      }
      AddNeuronPredictions(prefetcher_->neuron_predictions(layer), &stats);
    }
    if (layer < routing.size()) {
      AddRouting(routing[layer], &stats);
    }
    stats.skipped = layer < skipped.size() ? skipped[layer] : 0;
  }
}

}  // namespace sluice::inferd
