// StoreCore's rounds: submissions, completions, side sockets, sleep.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weightd/store_core.h"

namespace sluice {
namespace {
constexpr int kBatch = 64;  // submissions taken from one session before the next one's turn
}

void StoreCore::BeginDecision() {
  tier_.Tick();
  for (const auto& [id, session] : sessions_) {
    session->NoteStamp(tier_.clock());
  }
}

bool StoreCore::Pump(const std::vector<ReadResult>& reads) {
  BeginDecision();
  tier_.SweepCondemned();
  for (const ReadResult& read : reads) {
    fetcher_.OnRead(read);
  }
  bool more = !reads.empty();
  if (environment_.transfers != nullptr) {
    for (TransferEvent& event : environment_.transfers->TakeEvents()) {
      OnTransferEvent(std::move(event));
    }
  }
  for (const auto& [id, session] : sessions_) {
    more = Serve(session.get()) || more;
  }
  const int64_t now = environment_.clock->NowNanos();
  NoteSlowSessions(now);
  fetcher_.Pump();
  for (const auto& [id, session] : sessions_) {
    session->RingBell();
    if (session->state == SessionState::kOpened && options_.attach_timeout_nanos != 0 &&
        session->options().opened_nanos + options_.attach_timeout_nanos <= now) {
      Doom(id, /*misbehaved=*/true, "its side socket never came");
    }
  }
  EndDoomed();
  return more;
}

bool StoreCore::Serve(Session* session) {
  if (session->state == SessionState::kLost) {
    return false;
  }
  SubmissionEntry entry;
  std::vector<uint32_t> neurons;
  int taken = 0;
  RingResult result = RingResult::kOk;
  while (taken < kBatch && (result = session->Pop(&entry, &neurons)) == RingResult::kOk) {
    ++taken;
    Handle(session, entry, std::move(neurons));
  }
  if (result == RingResult::kCorrupt || !session->ReleaseReaped(&tier_.store())) {
    Doom(session->id(), /*misbehaved=*/true, "impossible ring cursor or sequence");
    return false;
  }
  return taken == kBatch;
}

void StoreCore::Handle(Session* session, const SubmissionEntry& entry, std::vector<uint32_t> neurons) {
  if (fetcher_.IsOutstanding(session->id(), entry.id) || transfers_.IsOutstanding(session->id(), entry.id)) {
    Answer(session, entry, {absl::StatusCode::kInvalidArgument, EntryField::kId}, 0);
    return;
  }
  EntryVerdict verdict =
      CheckEntry(entry, session->sources(), session->options().layout, session->MappedSlabs());
  if (verdict.code == absl::StatusCode::kOk && entry.opcode == Opcode::kTransfer) {
    verdict = CheckNeurons(entry, neurons, *session->options().packs[entry.pack].source);
  }
  if (verdict.code != absl::StatusCode::kOk) {
    Answer(session, entry, verdict, 0);
    return;
  }
  switch (entry.opcode) {
    case Opcode::kFillExpert:
    case Opcode::kFillExtent:
      HandleFill(session, entry);
      return;
    case Opcode::kTransfer:
      transfers_.Accept(session, entry, std::move(neurons));
      return;
    case Opcode::kCancel:
      HandleCancel(session, entry);
      return;
    case Opcode::kCancelPrefetches: {
      const uint32_t pack = session->options().packs[entry.pack].pack;
      // What waits for its fill first: the fetcher ends it, so it is not counted twice.
      const uint64_t waiting = fetcher_.CancelPrefetches(session->id(), pack, entry.step, entry.layer);
      const uint64_t filled = transfers_.CancelPrefetches(session->id(), pack, entry.step, entry.layer);
      Answer(session, entry, {}, waiting + filled);
      return;
    }
    default:
      Answer(session, entry, {}, 0);
  }
}

void StoreCore::HandleFill(Session* session, const SubmissionEntry& entry) {
  const SessionPackPlan& plan = session->options().packs[entry.pack];
  FillRequest request;
  request.session = session->id();
  request.id = entry.id;
  request.request_class = entry.request_class;
  request.step = entry.step;
  request.layer = entry.layer;
  request.pack = plan.pack;
  request.progress = entry.progress;
  if (entry.opcode == Opcode::kFillExpert) {
    request.extents = plan.source->ExpertExtents(entry.layer, entry.expert, entry.parts);
  } else {
    request.extents.ids[0] = entry.extent;
    request.extents.count = 1;
  }
  fetcher_.Accept(request);
}

uint64_t StoreCore::PrefetchRoom() const {
  uint64_t taken = fetcher_.started_prefetch_bytes() + transfers_.pinned_bytes();
  std::set<uint32_t> packs;
  for (const auto& [id, session] : sessions_) {
    taken += session->options().reserved_bytes + session->held_bytes();
    for (const SessionPackPlan& plan : session->options().packs) {
      packs.insert(plan.pack);
    }
  }
  taken += DenseBytes(packs);
  return options_.arena.budget - std::min(options_.arena.budget, taken);
}

void StoreCore::Answer(Session* session, const SubmissionEntry& entry, EntryVerdict verdict, uint64_t count) {
  CompletionEntry completion{};
  completion.id = entry.id;
  completion.code = static_cast<uint16_t>(verdict.code);
  completion.field = verdict.field;
  completion.extent = kNoExtent;
  completion.bytes = count;
  OnComplete(session->id(), completion, {});
}

void StoreCore::OnComplete(uint64_t id, const CompletionEntry& entry, std::vector<Gid> held) {
  if (Session* session = Find(id)) {
    session->bytes_read += held.empty() ? 0 : entry.bytes;
  }
  Deliver(id, entry, std::move(held));
}

void StoreCore::Deliver(uint64_t id, const CompletionEntry& entry, std::vector<Gid> held) {
  Session* session = Find(id);
  if (session == nullptr || session->state == SessionState::kLost) {
    for (Gid gid : held) {
      tier_.store().Unpin(gid);
    }
    return;
  }
  if (!session->out.empty() || !session->delayed.empty()) {
    session->delayed.push_back(Session::DelayedCompletion{entry, std::move(held)});
    return;
  }
  session->Complete(entry, std::move(held), tier_.store());
}

SideMessage StoreCore::Message(SideType type, const Session& session) const {
  SideMessage message;
  message.type = type;
  message.session = session.id();
  message.boot_epoch = options_.boot_epoch;
  return message;
}

void StoreCore::Send(Session* session, SideMessage message, std::shared_ptr<const SharedMemory> memory) {
  session->out.push_back(Session::OutMessage{message, std::move(memory)});
  Flush(session);
}

void StoreCore::Flush(Session* session) {
  while (!session->out.empty()) {
    const Session::OutMessage& next = session->out.front();
    int fd = next.memory == nullptr ? -1 : next.memory->fd.get();
    const absl::Status sent = SendSideMessage(session->side_socket.get(), next.message,
                                              std::span<const int>(&fd, next.memory == nullptr ? 0 : 1));
    if (absl::IsUnavailable(sent)) {
      break;
    }
    if (!sent.ok()) {
      Doom(session->id(), /*misbehaved=*/false, std::string(sent.message()));
      return;
    }
    session->out.pop_front();
  }
  const bool blocked = !session->out.empty();
  if (blocked != session->side_writable_wanted) {
    session->side_writable_wanted = blocked;
    const absl::Status watched = environment_.poller->RewatchReadable(
        session->side_socket.get(), {session->id(), PollKind::kSideSocket}, blocked);
    if (!watched.ok()) {
      Doom(session->id(), /*misbehaved=*/false, std::string(watched.message()));
    }
  }
  if (!blocked) {
    FlushDelayed(session);
  }
}

void StoreCore::FlushDelayed(Session* session) {
  while (!session->delayed.empty()) {
    Session::DelayedCompletion next = std::move(session->delayed.front());
    session->delayed.pop_front();
    session->Complete(next.entry, std::move(next.held), tier_.store());
  }
}

void StoreCore::HandleEvent(PollEvent event) {
  Session* session = Find(event.session);
  if (session == nullptr) {
    return;
  }
  if (event.kind == PollKind::kProcess) {
    Log(LogSeverity::kInfo, absl::StrCat("session ", event.session, ": its process has exited"));
    End(event.session);
  } else if (event.kind == PollKind::kSideSocket && session->side_socket.valid()) {
    Flush(session);
    OnSideReadable(session);
    EndDoomed();
  }
}

void StoreCore::OnSideReadable(Session* session) {
  while (true) {
    absl::StatusOr<SidePacket> packet = ReceiveSideMessage(session->side_socket.get());
    if (absl::IsUnavailable(packet.status())) {
      return;
    }
    if (absl::IsInvalidArgument(packet.status())) {
      Doom(session->id(), /*misbehaved=*/true, std::string(packet.status().message()));
      return;
    }
    if (!packet.ok()) {
      Doom(session->id(), /*misbehaved=*/false, "its side socket has closed");
      return;
    }
    if (packet->message.type == SideType::kSlabOffered && packet->fds.size() == 1) {
      OnSlabOffered(session, *std::move(packet));
      continue;
    }
    if (packet->message.type != SideType::kSegmentUnmapped || packet->message.fd_count != 0) {
      Doom(session->id(), /*misbehaved=*/true, "unexpected side message");
      return;
    }
    OnUnmapped(session->id(), packet->message.segment);
  }
}

void StoreCore::OnSegmentAdded(uint32_t segment, const std::shared_ptr<const SharedMemory>& memory) {
  if (environment_.prefault) {
    environment_.prefault(memory);
  }
  for (const auto& [id, session] : sessions_) {
    if (session->side_socket.valid()) {
      SideMessage message = Message(SideType::kSegmentAdded, *session);
      message.segment = segment;
      message.bytes = memory->map.bytes();
      Send(session.get(), message, memory);
    }
  }
}

void StoreCore::OnSegmentRetired(uint32_t segment) {
  std::set<uint64_t> waiting;
  for (const auto& [id, session] : sessions_) {
    const auto unsent =
        std::find_if(session->out.begin(), session->out.end(), [segment](const Session::OutMessage& out) {
          return out.message.type == SideType::kSegmentAdded && out.message.segment == segment;
        });
    if (unsent != session->out.end()) {
      session->out.erase(unsent);  // the client never hears of it
      continue;
    }
    if (session->side_socket.valid()) {
      SideMessage message = Message(SideType::kSegmentRetired, *session);
      message.segment = segment;
      Send(session.get(), message, nullptr);
    }
    // A lost session's process may still have it mapped.
    if (session->side_socket.valid() || session->pidfd.valid()) {
      waiting.insert(id);
    }
  }
  if (waiting.empty()) {
    tier_.DropSegment(segment);
  } else {
    const uint64_t bytes = tier_.arena().memory(segment)->map.bytes();
    retiring_[segment] = Retiring{std::move(waiting), bytes, environment_.clock->NowNanos()};
  }
}

void StoreCore::NoteSlowSessions(int64_t now) {
  uint64_t slow = 0;
  uint64_t lost = 0;
  for (const auto& [segment, retiring] : retiring_) {
    slow += now - retiring.since_nanos >= options_.slow_unmap_nanos ? retiring.bytes : 0;
    lost += now - retiring.since_nanos >= options_.fetcher.retire_wait_nanos ? retiring.bytes : 0;
  }
  if (slow != slow_bytes_ || lost != lost_bytes_) {
    slow_bytes_ = slow;
    lost_bytes_ = lost;
    tier_.SetSlow(slow, lost);
    fetcher_.OnRetired();
  }
}

void StoreCore::OnUnmapped(uint64_t session, uint32_t segment) {
  auto found = retiring_.find(segment);
  if (found == retiring_.end() || found->second.sessions.erase(session) == 0 ||
      !found->second.sessions.empty()) {
    return;
  }
  retiring_.erase(found);
  tier_.DropSegment(segment);
  NoteSlowSessions(environment_.clock->NowNanos());
  fetcher_.OnRetired();
}

bool StoreCore::BeginSleep() {
  for (const auto& [id, session] : sessions_) {
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
  for (const auto& [id, session] : sessions_) {
    session->EndSleep();
  }
}

int64_t StoreCore::NextDeadline() const {
  int64_t next = fetcher_.next_deadline();
  for (const auto& [segment, retiring] : retiring_) {
    // Who waits for it looks again when it becomes slow; when it is lost the wait is over anyway.
    const int64_t slow = retiring.since_nanos + options_.slow_unmap_nanos;
    if (next != 0 && slow > environment_.clock->NowNanos()) {
      next = std::min(next, slow);
    }
  }
  for (const auto& [id, session] : sessions_) {
    if (session->state == SessionState::kOpened && options_.attach_timeout_nanos != 0) {
      const int64_t deadline = session->options().opened_nanos + options_.attach_timeout_nanos;
      next = next == 0 ? deadline : std::min(next, deadline);
    }
  }
  return next;
}

std::optional<Scrubber::Chunk> StoreCore::TakeScrub() {
  return scrubber_.Take(environment_.clock->NowNanos());
}

bool StoreCore::FinishScrub(const Scrubber::Chunk& chunk, const absl::Status& verdict) {
  if (!scrubber_.Done(chunk, verdict)) {
    return false;
  }
  Log(LogSeverity::kError,
      absl::StrCat("pack ", chunk.source->model_id(), ", ", chunk.source->ExtentName(chunk.extent),
                   ": its bytes in memory have gone bad and are read again (", std::string(verdict.message()),
                   ")"));
  FillRequest again;  // for nobody: session 0 does not exist
  again.id = ++scrub_refills_;
  again.request_class = RequestClass::kPrefetch;
  again.pack = tier_.store().RefOf(chunk.gid).pack;
  again.extents.ids[0] = chunk.extent;
  again.extents.count = 1;
  fetcher_.Accept(again);
  return true;
}

StoreStats StoreCore::Stats() const {
  StoreStats stats;
  const Arena& arena = tier_.arena();
  const FetcherStats& fetches = fetcher_.stats();
  stats.dram_budget = arena.budget();
  stats.segment_bytes = arena.total_bytes();
  stats.retired_bytes = arena.retired_bytes();
  stats.segments = arena.segment_count();
  stats.resident_bytes = tier_.store().resident_bytes();
  stats.resident_extents = tier_.store().resident_extents();
  stats.bad_extents = tier_.store().bad_extents();
  stats.evictions = tier_.evictions();
  stats.eviction = NameOf(tier_.policy_kind().eviction);
  stats.admission = tier_.policy_kind().admission;
  stats.trusted_extents = tier_.trusted_extents();
  stats.promotions = tier_.promotions();
  stats.scrub_bytes = scrubber_.stats().bytes;
  stats.scrub_passes = scrubber_.stats().passes;
  stats.scrub_failures = scrubber_.stats().failures;
  stats.fills = fetches.fills;
  stats.bytes_read = fetches.bytes_read;
  stats.demand_requests = fetches.demand_requests;
  stats.prefetch_requests = fetches.prefetch_requests;
  stats.resident_requests = fetches.resident_requests;
  stats.joined = fetches.joined;
  stats.cancelled = fetches.cancelled;
  stats.no_room = fetches.no_room;
  stats.checksum_failures = fetches.checksum_failures;
  stats.io_errors = fetches.io_errors;
  stats.rereads = fetches.rereads;
  stats.slow_reads = fetches.slow_reads;
  stats.second_reads = fetches.second_reads;
  stats.second_reads_won = fetches.second_reads_won;
  stats.timed_out = fetches.timed_out;
  stats.sessions_lost = sessions_lost_;
  stats.in_flight_bytes = fetcher_.started_bytes();
  stats.prefetch_useful = fetcher_.prefetches().useful();
  stats.prefetch_wasted = fetcher_.prefetches().wasted();
  stats.queued_demand = fetcher_.queued(RequestClass::kDemand);
  stats.queued_prefetch = fetcher_.queued(RequestClass::kPrefetch);
  if (environment_.transfers != nullptr) {
    const TransferStats transfers = environment_.transfers->stats();
    stats.transfers = transfers.transfers;
    stats.transfers_cancelled = transfers.cancelled;
    stats.transfers_waiting = transfers.waiting;
    stats.link_bytes = transfers.link_bytes;
  }
  for (const auto& [id, session] : sessions_) {
    SessionStats one;
    one.session = id;
    one.client_name = session->options().client_name;
    one.state = session->state == SessionState::kOpened   ? "opened"
                : session->state == SessionState::kActive ? "active"
                                                          : "lost";
    one.outstanding = session->state == SessionState::kLost ? 0 : session->outstanding();
    one.requests = session->requests;
    one.quota_bytes = session->options().quota_bytes;
    one.charged_bytes = tier_.charged_bytes(id);
    one.bytes_read = session->bytes_read;
    for (const SessionPackPlan& plan : session->options().packs) {
      const Store::Holdings held = tier_.store().HeldBy(plan.pack, id);
      one.held_extents += held.extents;
      one.held_bytes += held.bytes;
    }
    stats.sessions.push_back(std::move(one));
  }
  return stats;
}

}  // namespace sluice
