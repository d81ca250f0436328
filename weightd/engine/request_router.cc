#include "weightd/engine/request_router.h"

#include <utility>

#include "absl/status/status.h"

namespace sluice::weightd {
namespace {

// Maximum number of submissions served per session and turn.
constexpr int kBatch = 64;

}  // namespace

bool RequestRouter::Serve(Session* session) {
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
  if (result == RingResult::kCorrupt || !session->ReleaseReaped(&parts_.tier->store())) {
    parts_.sessions->MarkForClose(session->id(), /*misbehaved=*/true, "impossible ring cursor or sequence");
    return false;
  }
  return taken == kBatch;
}

void RequestRouter::Handle(Session* session, const SubmissionEntry& entry, std::vector<uint32_t> neurons) {
  if (parts_.fetcher->IsOutstanding(session->id(), entry.id) ||
      parts_.transfers->IsOutstanding(session->id(), entry.id)) {
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
      Fill(session, entry);
      return;
    case Opcode::kTransfer:
    case Opcode::kTransferExtent:
      parts_.transfers->Accept(session, entry, std::move(neurons));
      return;
    case Opcode::kCancel:
      Cancel(session, entry);
      return;
    case Opcode::kCancelPrefetches:
      CancelPrefetches(session, entry);
      return;
    default:
      Answer(session, entry, {}, 0);
  }
}

void RequestRouter::Fill(Session* session, const SubmissionEntry& entry) {
  const SessionPackPlan& plan = session->options().packs[entry.pack];
  FillRequest request;
  request.session = session->id();
  request.id = entry.id;
  request.request_class = entry.request_class;
  request.step = entry.step;
  request.layer = entry.layer;
  request.pack = plan.pack;
  request.progress = entry.progress;
  request.scan = (entry.flags & kScanFlag) != 0;
  if (entry.opcode == Opcode::kFillExpert) {
    request.extents = plan.source->ExpertExtents(entry.layer, entry.expert, entry.parts);
  } else {
    request.extents.ids[0] = entry.extent;
    request.extents.count = 1;
  }
  parts_.fetcher->Accept(request);
}

void RequestRouter::Cancel(Session* session, const SubmissionEntry& entry) {
  const bool found = parts_.transfers->Cancel(session->id(), entry.target) ||
                     parts_.fetcher->Cancel(session->id(), entry.target);
  Answer(session, entry,
         {found ? absl::StatusCode::kOk : absl::StatusCode::kNotFound,
          found ? EntryField::kNone : EntryField::kTarget},
         0);
}

void RequestRouter::CancelPrefetches(Session* session, const SubmissionEntry& entry) {
  const uint32_t pack = session->options().packs[entry.pack].pack;
  // Fills that wait come first: the fetcher ends them with their transfers, so they are not counted twice.
  const uint64_t waiting = parts_.fetcher->CancelPrefetches(session->id(), pack, entry.step, entry.layer);
  const uint64_t filled = parts_.transfers->CancelPrefetches(session->id(), pack, entry.step, entry.layer);
  Answer(session, entry, {}, waiting + filled);
}

void RequestRouter::Answer(Session* session, const SubmissionEntry& entry, EntryVerdict verdict,
                           uint64_t count) {
  CompletionEntry completion{};
  completion.id = entry.id;
  completion.code = static_cast<uint16_t>(verdict.code);
  completion.field = verdict.field;
  completion.extent = kNoExtent;
  completion.bytes = count;
  session->Deliver(completion, {}, parts_.tier->store());
}

void RequestRouter::Complete(uint64_t id, const CompletionEntry& entry, std::vector<ExtentId> held) {
  if (entry.code == static_cast<uint16_t>(absl::StatusCode::kOk)) {
    parts_.stalled->OnServed(id);
  }
  Session* session = parts_.sessions->Find(id);
  if (session != nullptr && session->state != SessionState::kLost) {
    session->bytes_read += entry.bytes;
    session->Deliver(entry, std::move(held), parts_.tier->store());
    return;
  }
  for (const ExtentId extent_id : held) {
    parts_.tier->store().Unpin(extent_id);
  }
}

}  // namespace sluice::weightd
