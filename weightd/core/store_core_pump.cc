// StoreCore's rounds: submissions, completions, sleep, scrub.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weightd/core/store_core.h"

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
  EndStopped(now);
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
  if (!held.empty()) {
    starving_.erase(id);
  }
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

}  // namespace sluice
