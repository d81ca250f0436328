// The work of a simulated client with its session.
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/simulation/sim_client.h"

namespace sluice {
namespace {

constexpr size_t kMaxHeld = 6;
// Longer than the sum of the slowest reads, their repetition and the wait for retired segments.
constexpr int64_t kTimeoutNanos = 60'000'000'000;

}  // namespace

void SimClient::Act() {
  const SimShared::Tempting& tempting = shared_->tempting[pack_];
  if (tempting.until > scheduler().events() && Chance(2)) {
    TakeLease(tempting.extent);
    return;
  }
  const uint64_t draw = Below(1000);
  if (slab_ != nullptr) {
    Expect(slab_->CheckRest());
  }
  if (dense_ != nullptr) {
    Expect(dense_->CheckRest());
  }
  if (draw < 380) {
    Compute();
  } else if (draw < 420) {
    Chance(2) ? Pull() : static_cast<void>(SubmitDense());
  } else if (draw < 560) {
    SubmitTransfer(Chance(2) ? RequestClass::kDemand : RequestClass::kPrefetch);
  } else if (draw < 700) {
    SubmitFill(RequestClass::kPrefetch);
  } else if (draw < 780) {
    for (uint64_t i = 1 + Below(5); i > 0 && SubmitFill(RequestClass::kDemand); --i) {
    }
  } else if (draw < 850) {
    while (ReapOne(Chance(2))) {
    }
    session_->DrainSide();
  } else if (draw < 900) {
    SubmitOdd();
  } else if (draw < 925) {
    ChangeMind();
  } else if (draw < 950) {
    ReleaseSome();
  } else if (draw < 985) {
    AwaitAll();
  } else if (draw < 994) {
    Nap(static_cast<int64_t>(Below(Chance(5) ? 9'000'000'000 : 5'000'000)));
  } else if (shared_->faults && draw < 998) {
    shutdown(side_copy_.get(), SHUT_RDWR);
  } else if (shared_->faults && draw < 999) {
    Scribble();
  }
}

void SimClient::Nap(int64_t nanos) {
  napping_ = true;
  stalled_since_ = scheduler().NowNanos();
  scheduler().Sleep(nanos);
  napping_ = false;
  if (ended_as_stalled()) {  // its bytes are no longer those that it leased
    ++shared_->counters.stopped;
    held_.clear();
    session_->Lose(absl::UnavailableError("weightd has ended the session"));
  }
  stalled_since_ = -1;
  for (auto& [id, pending] : pending_) {
    pending.deadline = scheduler().NowNanos() + kTimeoutNanos;
  }
}

bool SimClient::ended_as_stalled() const {
  SimServer* const server = shared_->server.get();
  const bool long_enough = stalled_since_ >= 0 && shared_->scheduler->NowNanos() - stalled_since_ >=
                                                      weightd::StoreCore::Options().stall_nanos;
  return long_enough && session_ != nullptr && server != nullptr && server->epoch() == epoch_ &&
         !server->core().Local(session_->opened().session).ok();
}

// ---------------------------------------------------------------- leases

// Uses one expert or a few extents: leased if resident, else fetched; then read and released.
void SimClient::Compute() {
  ++step_;
  std::vector<uint32_t> missing;
  for (uint64_t i = 1 + Below(3); i > 0; --i) {
    const auto extent = static_cast<uint32_t>(Below(extent_bytes_.size()));
    if (!TakeLease(extent)) {
      missing.push_back(extent);
    }
  }
  if (!held_.empty()) {
    Verify(held_[Below(held_.size())]);
  }
  if (!missing.empty()) {
    ReleaseAll();  // before waiting for a fill
    for (uint32_t extent : missing) {
      SubmissionEntry entry = Entry(Opcode::kFillExtent, RequestClass::kDemand);
      entry.extent = extent;
      Submit(entry, {extent});
    }
    AwaitAll();
  }
  if (held_.size() >= kMaxHeld || Chance(2)) {
    ReleaseSome();
  }
}

bool SimClient::TakeLease(uint32_t extent) {
  inferd::ExtentLease lease;
  if (held_.size() >= 2 * kMaxHeld || !session_->TryLease(extent, &lease)) {
    ++shared_->counters.lease_misses;
    return false;
  }
  ++shared_->counters.leases;
  const std::span<const std::byte> bytes(lease.data, lease.bytes);
  held_.push_back(Held{extent, lease, SimPack::Cell(bytes, 0).fill});
  Held& held = held_.back();
  SimServer* const server = shared_->server.get();
  // Leased bytes stay in place, also when the scrub has had the extent read anew elsewhere.
  const bool again = std::count_if(held_.begin(), held_.end(),
                                   [extent](const Held& other) { return other.extent == extent; }) > 1;
  if (server != nullptr && server->epoch() == epoch_ && !again) {
    const weightd::ExtentId extent_id = server->core().tier().store().FirstExtentId(pack_) + extent;
    if (held.fill != server->LastFill(extent_id)) {
      Fail(absl::StrCat("extent ", extent, " is of fill ", held.fill, ", the latest is ",
                        server->LastFill(extent_id)));
    }
  }
  Verify(Held(held));
  return true;
}

void SimClient::Verify(const Held& held) {
  const std::span<const std::byte> bytes(held.lease.data, held.lease.bytes);
  const uint64_t offset = source_.extent(held.extent).offset;
  for (uint64_t at = 0; at < bytes.size(); at += kSimCellBytes) {
    const SimCell cell = SimPack::Cell(bytes, at);
    const bool wrong =
        cell.place != SimPositionWord(pack_, offset + at) && !shared_->rotten.contains(held.fill);
    if (wrong || cell.fill != held.fill) {
      Fail(absl::StrCat("leased extent ", held.extent, " at ", at, ": ",
                        cell.fill != held.fill ? "bytes of another fill" : "wrong bytes"));
      return;
    }
    if (at % 4096 == 0) {
      scheduler().MaybeYield();
    }
  }
}

void SimClient::ReleaseOne(size_t index) {
  const uint32_t extent = held_[index].extent;
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
  session_->Release(extent, StepStamp(step_, stamp_++ % 1000), /*counts=*/Below(4) != 0);
}

void SimClient::ReleaseAll() {
  while (!held_.empty()) {
    ReleaseOne(held_.size() - 1);
  }
}

void SimClient::ReleaseSome() {
  for (uint64_t i = Below(held_.size() + 1); i > 0; --i) {
    ReleaseOne(Below(held_.size()));
  }
}

// ---------------------------------------------------------------- requests

SubmissionEntry SimClient::Entry(Opcode opcode, RequestClass request_class) {
  SubmissionEntry entry{};
  entry.id = next_id_++;
  entry.opcode = opcode;
  entry.request_class = request_class;
  entry.step = request_class == RequestClass::kPrefetch ? step_ : 0;
  entry.extent = kNoExtent;
  entry.slab = kNoSlab;
  entry.progress = kNoProgress;
  return entry;
}

void SimClient::Expect(const std::string& wrong) {
  if (!wrong.empty()) {
    Fail(wrong);
  }
}

bool SimClient::Submit(SubmissionEntry entry, std::vector<uint32_t> extents,
                       const std::vector<uint32_t>& neurons) {
  if (pending_.size() >= kMinRingEntries || !session_->lost().ok()) {
    return false;
  }
  Pending& pending = pending_[entry.id];
  pending.fill = !extents.empty();
  pending.extents = std::move(extents);
  pending.deadline = scheduler().NowNanos() + kTimeoutNanos;
  pending.progress = entry.progress;
  ++shared_->counters.submitted;
  in_submit_ = true;
  const absl::Status status = session_->Submit(entry, neurons);
  session_->WakeWeightd();
  in_submit_ = false;
  if (!status.ok()) {
    if (session_->lost().ok() && neurons.empty()) {  // lists have less room than rings
      Fail(absl::StrCat("the ring is full with ", pending_.size() - 1, " requests outstanding"));
    }
    pending_.erase(entry.id);
  }
  return status.ok();
}

bool SimClient::SubmitFill(RequestClass request_class) {
  // Half of the demands are for the expert prefetched last, as with a predictor that is right half the time.
  const bool again = request_class == RequestClass::kDemand && Chance(2);
  const auto layer = again ? guess_.first : static_cast<uint32_t>(Below(source_.layer_count()));
  const auto expert = again ? guess_.second : static_cast<uint32_t>(Below(source_.expert_count(layer)));
  if (request_class == RequestClass::kPrefetch) {
    guess_ = {layer, expert};
  }
  const auto parts = static_cast<PartSet>(1 + Below(kAllParts));
  SubmissionEntry entry = Entry(Opcode::kFillExpert, request_class);
  entry.layer = layer;
  entry.expert = expert;
  entry.parts = parts;
  const weightd::ExtentList list = source_.ExpertExtents(layer, expert, parts);
  if (Chance(2)) {
    entry.progress = static_cast<uint32_t>(entry.id % 16);
  }
  return Submit(entry, {list.ids.begin(), list.ids.begin() + list.count});
}

void SimClient::SubmitOdd() {
  if (Chance(3)) {
    SubmissionEntry entry = Entry(Opcode::kCancelPrefetches, RequestClass::kDemand);
    entry.step = step_;
    entry.layer = static_cast<uint32_t>(Below(source_.layer_count()));
    Submit(entry, {});
  } else if (Chance(2) && !pending_.empty()) {
    SubmissionEntry entry = Entry(Opcode::kCancel, RequestClass::kDemand);
    entry.target = std::next(pending_.begin(), static_cast<ptrdiff_t>(Below(pending_.size())))->first;
    Submit(entry, {});
  } else if (shared_->faults && Chance(2)) {
    // An invalid entry at a valid ring position: it is answered, and the session lives.
    SubmissionEntry entry = Entry(static_cast<Opcode>(Below(8)), static_cast<RequestClass>(Below(3)));
    entry.parts = static_cast<PartSet>(Below(16));
    entry.pack = static_cast<uint32_t>(Below(2));
    entry.layer = static_cast<uint32_t>(Below(5));
    entry.expert = static_cast<uint32_t>(Below(20));
    entry.extent = Chance(2) ? kNoExtent : static_cast<uint32_t>(Below(200));
    entry.list_count = static_cast<uint32_t>(Below(3));
    entry.target = Chance(2) ? 0 : next_id_;
    Submit(entry, {});
  } else {
    Submit(Entry(Opcode::kNop, RequestClass::kDemand), {});
  }
}

// A prefetch, cancelled at once, and then needed after all: a cancelled read gains a new waiter.
void SimClient::ChangeMind() {
  if (pending_.size() + 3 > kMinRingEntries || !SubmitFill(RequestClass::kPrefetch)) {
    return;
  }
  SubmissionEntry cancel = Entry(Opcode::kCancel, RequestClass::kDemand);
  cancel.target = cancel.id - 1;
  for (uint64_t pause = Below(60); pause > 0; --pause) {
    scheduler().Yield();
  }
  Submit(cancel, {});
  SubmissionEntry entry = Entry(Opcode::kFillExpert, RequestClass::kDemand);
  entry.layer = guess_.first;
  entry.expert = guess_.second;
  entry.parts = kAllParts;
  const weightd::ExtentList list = source_.ExpertExtents(entry.layer, entry.expert, entry.parts);
  Submit(entry, {list.ids.begin(), list.ids.begin() + list.count});
}

// Impossible cursors: only this session is lost.
void SimClient::Scribble() {
  ReleaseAll();
  if (Misbehave()) {
    AwaitLoss();
  }
}

// Misbehaves so that weightd ends the session and ignores its pins. False: that life of weightd has ended.
bool SimClient::Misbehave() {
  SimServer* const server = shared_->server.get();
  if (server == nullptr || server->epoch() != epoch_) {
    return false;
  }
  const auto local = server->core().Local(session_->opened().session);
  if (!local.ok()) {
    return false;
  }
  ControlCursors& cursors = *local->control.cursors;
  if (Chance(2)) {
    cursors.submission_tail.value.store(cursors.submission_tail.value.load() + kMinRingEntries + 1 +
                                        Below(100));
  } else {
    cursors.completion_head.value.store(cursors.completion_tail.value.load() + 1 + Below(100));
  }
  napping_ = true;  // its requests may never be answered
  held_.clear();    // its leases hold nothing once weightd sees it
  Knock();
  scheduler().Sleep(static_cast<int64_t>(Below(20'000'000)));  // others may have its memory by then
  return true;
}

void SimClient::Knock() {
  in_submit_ = true;
  session_->Submit(Entry(Opcode::kNop, RequestClass::kDemand)).IgnoreError();
  session_->WakeWeightd();
  in_submit_ = false;
}

void SimClient::AwaitLoss() {
  while (!Lost()) {
    Knock();
    scheduler().Sleep(1'000'000);
  }
  napping_ = false;
}

// Reaps the oldest completion. With `lease`, leases its extents while they are still held.
bool SimClient::ReapOne(bool lease) {
  CompletionEntry entry;
  if (!session_->Peek(&entry)) {
    return false;
  }
  auto found = pending_.find(entry.id);
  if (found == pending_.end()) {
    Fail(absl::StrCat("request ", entry.id, " completes, and is none or has completed before"));
    return false;
  }
  SimCounters& counters = shared_->counters;
  ++counters.completed;
  const auto code = static_cast<absl::StatusCode>(entry.code);
  counters.no_room += code == absl::StatusCode::kResourceExhausted ? 1 : 0;
  counters.data_loss += code == absl::StatusCode::kDataLoss ? 1 : 0;
  counters.cancelled += code == absl::StatusCode::kCancelled ? 1 : 0;
  counters.refused +=
      code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kUnimplemented ? 1 : 0;
  CheckProgress(entry.id, &found->second);
  if (slab_ != nullptr) {
    Expect(slab_->TakeBack(entry.id, code == absl::StatusCode::kOk));
    Expect(dense_->TakeBack(entry.id, code == absl::StatusCode::kOk));
  }
  const Pending pending = std::move(found->second);
  pending_.erase(found);
  if (pending.fill && code == absl::StatusCode::kOk && lease) {
    for (uint32_t extent : pending.extents) {
      // The scrub may have found the extent rotten since: then it is no longer available.
      const bool rotten = shared_->rotten_extents.contains({pack_, extent});
      if (held_.size() < kMaxHeld && !TakeLease(extent) && !Lost() && !rotten) {
        Fail(absl::StrCat("extent ", extent, " was filled for request ", entry.id, ", but cannot be leased"));
      }
    }
  }
  if (session_->lost().ok()) {
    session_->Advance();
  }
  return true;
}

void SimClient::CheckProgress(uint64_t id, Pending* pending) {
  if (pending->progress == kNoProgress || shared_->server == nullptr || shared_->server->epoch() != epoch_) {
    return;
  }
  const auto local = shared_->server->core().Local(session_->opened().session);
  if (!local.ok()) {
    return;
  }
  const uint64_t word = local->control.progress[pending->progress].load();
  if (word >> 32 != (id & 0xffffffff)) {
    return;  // nothing has landed, or a later request uses the word
  }
  const auto landed = static_cast<uint32_t>(word);
  if (slab_ != nullptr) {
    Expect(slab_->CheckLanded(id, landed));
  }
  if (!pending->fill) {
    pending->landed = std::max(pending->landed, landed);
    return;
  }
  if (landed < pending->landed || landed > pending->extents.size()) {
    Fail(absl::StrCat("progress of request ", id, " is ", landed, " after ", pending->landed));
  }
  pending->landed = landed;
}

void SimClient::AwaitAll() {
  while (session_->lost().ok() && !pending_.empty()) {
    if (ReapOne(Chance(2))) {
      continue;
    }
    for (auto& [id, pending] : pending_) {
      CheckProgress(id, &pending);
    }
    ReleaseAll();  // a session holds nothing while it waits
    in_sleep_ = true;
    session_->Sleep(absl::InfiniteFuture());
    in_sleep_ = false;
  }
}

}  // namespace sluice
