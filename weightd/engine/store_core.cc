#include "weightd/engine/store_core.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::weightd {
namespace {

// Shrinking budget: segments emptied per round, since sessions wait for the round, and the pause before the
// next one.
constexpr int kShrinkSegments = 8;
constexpr int64_t kShrinkPauseNanos = 1'000'000;

}  // namespace

// Hooks of a part may refer to parts that are made later: none is called before the constructor's end.
StoreCore::StoreCore(const Options& options, const Environment& environment)
    : options_(options),
      environment_(environment),
      tier_(options.arena, Segments(), options.policy),
      fetcher_(options.fetcher, &tier_, environment.reader, environment.clock, FetcherHooks()),
      packs_(options.boot_epoch, &tier_, &fetcher_),
      shares_(options.arena.budget, options.session_quota, &packs_, &sessions_, &tier_.store()),
      session_manager_(options.boot_epoch, options.attach_timeout_nanos,
                       {&packs_, &shares_, &sessions_, &tier_, environment.poller, environment.clock}),
      side_(options.boot_epoch, environment.poller, &tier_.store(), &sessions_),
      notices_({options.slow_unmap_nanos, options.fetcher.retire_timeout_nanos}, &tier_, &fetcher_,
               &sessions_, &side_, environment.clock),
      slabs_(environment.transfers, &sessions_, &side_, &log_),
      stalled_(options.stall_nanos, &shares_, &sessions_),
      transfers_(
          options.transfers, &fetcher_, &tier_, environment.transfers, environment.metrics,
          [this](uint64_t session, const CompletionEntry& entry) { router_.Complete(session, entry, {}); }),
      router_({&sessions_, &fetcher_, &transfers_, &tier_, &stalled_}),
      scrubber_(options.scrub_rate, &tier_, [this](uint32_t pack) { return source(pack); }) {}

Arena::Listener StoreCore::Segments() {
  Arena::Listener listener;
  listener.added = [this](uint32_t segment, const std::shared_ptr<const SharedMemory>& memory) {
    if (const std::string& error = tier_.arena().placement_error(); !error.empty() && !placement_logged_) {
      placement_logged_ = true;
      log_.Say(LogSeverity::kWarning, absl::StrCat(error, "; segments lie where the kernel puts them"));
    }
    if (environment_.prefault) {
      environment_.prefault(memory);
    }
    if (environment_.transfers != nullptr) {
      environment_.transfers->AddSource({memory->map.data(), memory->map.bytes()}, memory);
    }
    notices_.OnAdded(segment, memory);
  };
  listener.retired = [this](uint32_t segment) { notices_.OnRetired(segment); };
  listener.dropped = [this](const std::shared_ptr<const SharedMemory>& memory) {
    if (environment_.transfers != nullptr) {
      environment_.transfers->RemoveSource(memory->map.data());
    }
  };
  return listener;
}

Fetcher::Hooks StoreCore::FetcherHooks() {
  Fetcher::Hooks hooks;
  hooks.complete = [this](uint64_t session, const CompletionEntry& entry, std::vector<ExtentId> held) {
    router_.Complete(session, entry, std::move(held));
  };
  hooks.filled = [this](const CompletionEntry& entry, std::vector<ExtentId> held) {
    transfers_.OnFilled(entry, std::move(held));
  };
  hooks.progress = [this](uint64_t session, uint32_t word, uint64_t value) {
    if (Session* found = sessions_.Find(session)) found->SetProgress(word, value);
  };
  hooks.log_error = [this](const std::string& message) { log_.Say(LogSeverity::kError, message); };
  hooks.prefetch_headroom = [this] {
    return shares_.PrefetchHeadroom(fetcher_.started_prefetch_bytes() + transfers_.pinned_bytes());
  };
  hooks.starved = [this](uint64_t session, int64_t since) {
    stalled_.OnStarved(session, since, environment_.clock->NowNanos());
  };
  hooks.prepare = environment_.prepare;
  hooks.metrics = environment_.metrics;
  return hooks;
}

void StoreCore::Tune(const StoreTuning& tuning) {
  fetcher_.SetSlowRead(int64_t{tuning.read_timeout_ms} * 1'000'000);
  scrubber_.SetRate(tuning.scrub_rate);
  shares_.SetSessionQuota(tuning.session_quota);
}

absl::Status StoreCore::SetBudget(uint64_t budget) {
  RETURN_IF_ERROR(shares_.SetBudget(budget));
  const Arena& arena = tier_.arena();
  if (budget != arena.budget()) {
    log_.Say(LogSeverity::kInfo, absl::StrCat("the DRAM budget is ", budget, " bytes from now on, it was ",
                                              arena.budget(), "; segments take ", arena.total_bytes()));
  }
  tier_.SetBudget(budget);
  shrink_at_ = environment_.clock->NowNanos();
  return absl::OkStatus();
}

const Pack* StoreCore::pack(uint32_t number) const {
  const ExtentSource* source = packs_.source(number);
  return source == nullptr ? nullptr : source->pack();
}

const std::byte* StoreCore::SegmentData(uint32_t segment) const {
  const SharedMemory* memory = tier_.arena().memory(segment);
  return memory == nullptr ? nullptr : memory->map.data();
}

// ---------------------------------------------------------------- rounds

void StoreCore::BeginDecision() {
  tier_.Tick();
  for (const auto& [id, session] : sessions_.all()) {
    session->NoteStamp(tier_.clock());
  }
}

bool StoreCore::Pump(const std::vector<ReadResult>& reads) {
  BeginDecision();
  tier_.ReclaimBadSlots();
  for (const ReadResult& read : reads) {
    fetcher_.OnRead(read);
  }
  TakeTransferEvents();
  bool more = !reads.empty();
  for (const auto& [id, session] : sessions_.all()) {
    more = router_.Serve(session.get()) || more;
  }
  const int64_t now = environment_.clock->NowNanos();
  notices_.NoteSlow(now);
  if (shrink_at_ != 0 && now >= shrink_at_) {
    shrink_at_ = tier_.Shrink(kShrinkSegments) ? 0 : now + kShrinkPauseNanos;
  }
  fetcher_.Pump();
  stalled_.EndStalled(now);
  for (const auto& [id, session] : sessions_.all()) {
    session->WakeClient();
  }
  session_manager_.EndUnattached(now);
  CloseMarked();
  return more;
}

void StoreCore::TakeTransferEvents() {
  if (environment_.transfers == nullptr) {
    return;
  }
  for (TransferEvent& event : environment_.transfers->TakeEvents()) {
    if (const auto* end = std::get_if<TransferEnd>(&event)) {
      if (!end->error.ok()) {
        log_.Say(LogSeverity::kError,
                 absl::StrCat("a copy into a slab failed: ", std::string(end->error.message())));
      }
      transfers_.OnEnd(*end);
    } else {
      slabs_.OnMapped(std::get<SlabMapped>(std::move(event)));
    }
  }
}

bool StoreCore::BeginSleep() {
  for (const auto& [id, session] : sessions_.all()) {
    if (session->state != SessionState::kLost && !session->BeginSleep()) {
      EndSleep();
      return false;
    }
  }
  if (environment_.transfers != nullptr && environment_.transfers->HasEvents()) {
    EndSleep();
    return false;
  }
  return true;
}

void StoreCore::EndSleep() {
  for (const auto& [id, session] : sessions_.all()) {
    session->EndSleep();
  }
}

int64_t StoreCore::NextDeadline() const {
  const auto earlier = [](int64_t a, int64_t b) { return a == 0 || b == 0 ? a + b : std::min(a, b); };
  int64_t next = fetcher_.next_deadline();
  if (next != 0) {
    // Fills that wait for a retired segment look again when it becomes slow; once it is lost the wait is over
    // anyway.
    next = earlier(next, notices_.NextSlow(environment_.clock->NowNanos()));
  }
  return earlier(earlier(next, session_manager_.next_deadline()), shrink_at_);
}

bool StoreCore::FinishScrub(const Scrubber::Chunk& chunk, const absl::Status& verdict) {
  if (!scrubber_.Done(chunk, verdict)) {
    return false;
  }
  log_.Say(LogSeverity::kError,
           absl::StrCat("pack ", chunk.source->model_id(), ", ", chunk.source->ExtentName(chunk.extent),
                        ": its bytes in memory have gone bad and are read again (",
                        std::string(verdict.message()), ")"));
  FillRequest again;  // for nobody: session 0 does not exist
  again.id = ++scrub_refills_;
  again.request_class = RequestClass::kPrefetch;
  again.pack = tier_.store().RefOf(chunk.extent_id).pack;
  again.extents.ids[0] = chunk.extent;
  again.extents.count = 1;
  fetcher_.Accept(again);
  return true;
}

// ---------------------------------------------------------------- sessions

absl::StatusOr<SessionHandle> StoreCore::OpenSession(const SessionParams& params) {
  ASSIGN_OR_RETURN(SessionHandle handle, session_manager_.Open(params));
  fetcher_.SetSole(sessions_.size() == 1);
  return handle;
}

absl::Status StoreCore::AttachSideSocket(uint64_t id, UniqueFd socket) {
  Session* session = sessions_.Find(id);
  if (session == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", id, " does not exist"));
  }
  if (session->state != SessionState::kOpened || session->side_socket.valid()) {
    return absl::FailedPreconditionError(absl::StrCat("session ", id, " is attached already"));
  }
  const absl::Status joined = side_.Join(session, std::move(socket));
  if (joined.ok()) {
    notices_.Welcome(session);
  } else if (session->side_socket.valid()) {
    End(id);
  }
  return joined;
}

absl::Status StoreCore::CloseSession(uint64_t session) {
  if (sessions_.Find(session) == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", session, " does not exist"));
  }
  End(session);
  return absl::OkStatus();
}

absl::StatusOr<LocalSession> StoreCore::Local(uint64_t id) const {
  Session* session = sessions_.Find(id);
  if (session == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", id, " does not exist"));
  }
  LocalSession local;
  local.control = session->view();
  const std::vector<int> fds = session->fds();
  local.server_bell = fds[WelcomeFds::kServerBell];
  local.client_bell = fds[WelcomeFds::kClientBell];
  for (size_t i = 0; i < session->options().packs.size(); ++i) {
    const SessionPackPlan& plan = session->options().packs[i];
    local.packs.push_back(
        {packs_.residency(plan.pack), session->mutable_pins(i), plan.source->extent_count()});
  }
  return local;
}

void StoreCore::HandleEvent(PollEvent event) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr) {
    return;
  }
  if (event.kind == PollKind::kProcess) {
    log_.Say(LogSeverity::kInfo, absl::StrCat("session ", event.session, ": its process has exited"));
    End(event.session);
  } else if (event.kind == PollKind::kSideSocket && session->side_socket.valid()) {
    side_.Flush(session);
    OnSideReadable(session);
    CloseMarked();
  }
}

void StoreCore::OnSideReadable(Session* session) {
  while (std::optional<SidePacket> packet = side_.Receive(session)) {
    const SideMessage& message = packet->message;
    if (message.type == SideType::kSlabOffered) {
      const absl::Status offered = slabs_.OnOffered(session, *std::move(packet));
      if (!offered.ok()) {
        sessions_.MarkForClose(session->id(), /*misbehaved=*/true, std::string(offered.message()));
        return;
      }
    } else if (message.type == SideType::kSegmentUnmapped && message.fd_count == 0) {
      notices_.OnUnmapped(session->id(), message.segment);
    } else {
      sessions_.MarkForClose(session->id(), /*misbehaved=*/true, "unexpected side message");
      return;
    }
  }
}

void StoreCore::OnConnectionLost(uint64_t session) {
  if (Session* found = sessions_.Find(session)) {
    Lose(found);
  }
}

void StoreCore::CloseMarked() {
  for (const SessionTable::MarkedSession& marked : sessions_.TakeMarked()) {
    if (marked.misbehaved) {
      ++sessions_lost_;
      End(marked.session);
    } else {
      OnConnectionLost(marked.session);
    }
  }
}

void StoreCore::StopServing(Session* session) {
  fetcher_.DropSession(session->id());
  transfers_.DropSession(session->id());
  slabs_.Drop(session);
  session->ReleaseAll(&tier_.store());
  // epoll knows files, not descriptors: the client's copies would keep them watched.
  environment_.poller->Unwatch(session->server_bell());
  if (session->side_socket.valid()) {
    side_.Leave(session);
  }
}

void StoreCore::Lose(Session* session) {
  if (session->state == SessionState::kLost) {
    return;
  }
  session->state = SessionState::kLost;
  const bool joined = session->side_socket.valid();
  StopServing(session);
  session->out.clear();
  // A client in this process is ended by OnProcessExit or CloseSession.
  if (joined && !session->pidfd.valid()) {
    End(session->id());  // the socket's end is the only sign of the process's end
  }
}

void StoreCore::End(uint64_t id) {
  Session* session = sessions_.Find(id);
  if (session == nullptr) {
    return;
  }
  StopServing(session);
  if (session->pidfd.valid()) {
    environment_.poller->Unwatch(session->pidfd.get());
  }
  BeginDecision();
  fetcher_.SettlePrefetches(SIZE_MAX);
  for (const SessionPackPlan& plan : session->options().packs) {
    tier_.RemovePins(plan.pack, id);
  }
  fetcher_.RebasePrefetches();
  tier_.RemoveSession(id);
  stalled_.OnServed(id);
  notices_.OnSessionEnd(id);
  sessions_.Erase(id);
  fetcher_.SetSole(sessions_.size() == 1);
}

// ---------------------------------------------------------------- statistics

StoreStats StoreCore::Stats() const {
  StoreStats stats;
  static_cast<FetcherStats&>(stats) = fetcher_.stats();
  static_cast<ScrubStats&>(stats) = scrubber_.stats();
  if (environment_.transfers != nullptr) {
    static_cast<TransferStats&>(stats) = environment_.transfers->stats();
  }
  const Arena& arena = tier_.arena();
  stats.dram_budget = arena.budget();
  stats.segment_bytes = arena.total_bytes();
  stats.retired_bytes = arena.retired_bytes();
  stats.segments = arena.segment_count();
  stats.resident_bytes = tier_.store().resident_bytes();
  stats.resident_extents = tier_.store().resident_extents();
  stats.bad_extents = tier_.store().bad_extents();
  stats.trusted_extents = tier_.trusted_extents();
  stats.in_flight_bytes = fetcher_.started_bytes();
  stats.queued_demand = fetcher_.queued(RequestClass::kDemand);
  stats.queued_prefetch = fetcher_.queued(RequestClass::kPrefetch);
  stats.evictions = tier_.evictions();
  stats.promotions = tier_.promotions();
  stats.prefetch_useful = fetcher_.prefetches().useful();
  stats.prefetch_wasted = fetcher_.prefetches().wasted();
  stats.sessions_lost = sessions_lost_;
  stats.sessions_stalled = stalled_.ended();
  stats.eviction = NameOf(tier_.policy_kind().eviction);
  stats.admission = tier_.policy_kind().admission;
  stats.io_engine = environment_.reader->Describe();
  for (const auto& [id, session] : sessions_.all()) {
    stats.sessions.push_back(StatsOf(*session));
    for (size_t i = 0; i < kHandleKinds.size(); ++i) {
      stats.slab_bytes[i] += session->SlabBytes(kHandleKinds[i]);
    }
  }
  return stats;
}

SessionStats StoreCore::StatsOf(const Session& session) const {
  const bool lost = session.state == SessionState::kLost;
  SessionStats stats;
  stats.session = session.id();
  stats.client_name = session.options().client_name;
  stats.state = lost ? "lost" : session.state == SessionState::kOpened ? "opened" : "active";
  stats.outstanding = lost ? 0 : session.outstanding();
  stats.requests = session.requests;
  stats.bytes_read = session.bytes_read;
  stats.quota_bytes = session.options().quota_bytes;
  stats.charged_bytes = tier_.charged_bytes(session.id());
  for (const SessionPackPlan& plan : session.options().packs) {
    const ExtentStore::Holdings held = tier_.store().HeldBy(plan.pack, session.id());
    stats.held_extents += held.extents;
    stats.held_bytes += held.bytes;
  }
  return stats;
}

int PumpTurn(StoreCore* core, ReadInbox* inbox, const Clock& clock) {
  if (core->Pump(inbox->Take())) {
    return 0;
  }
  const int64_t deadline = core->NextDeadline();
  const bool no_reports = inbox->BeginSleep();
  if (!core->BeginSleep() || !no_reports) {
    return 0;
  }
  if (deadline == 0) {
    return -1;
  }
  const int64_t left = (deadline - clock.NowNanos()) / 1'000'000 + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace sluice::weightd
