#include "inferd/session/session_weight_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::inferd {

FetchCompletion CompletionOf(const CompletionEntry& entry, uint64_t caller_id) {
  FetchCompletion completion;
  completion.id = caller_id;
  completion.code = entry.code <= static_cast<uint16_t>(absl::StatusCode::kUnauthenticated)
                        ? static_cast<absl::StatusCode>(entry.code)
                        : absl::StatusCode::kInternal;
  completion.extent = entry.extent;
  completion.bytes = entry.bytes;
  completion.queue_us = entry.queue_us;
  completion.io_us = entry.io_us;
  completion.copy_us = entry.copy_us;
  completion.link_bytes = entry.link_bytes;
  return completion;
}

SubmissionEntry EmptyEntry(Opcode opcode, RequestClass request_class) {
  SubmissionEntry entry{};
  entry.opcode = opcode;
  entry.request_class = request_class;
  entry.extent = kNoExtent;
  entry.slab = kNoSlab;
  entry.progress = kNoProgress;
  return entry;
}

SubmissionEntry EntryOf(const FetchRequest& request) {
  const bool dense = request.dense_extent != FetchRequest::kNoExtent;
  SubmissionEntry entry =
      EmptyEntry(dense ? Opcode::kFillExtent : Opcode::kFillExpert, request.request_class);
  entry.step = request.step;
  if (dense) {
    entry.extent = request.dense_extent;
    entry.layer = request.request_class == RequestClass::kPrefetch ? request.layer : 0;
  } else {
    entry.parts = request.parts;
    entry.layer = request.layer;
    entry.expert = request.expert;
  }
  if (request.transfer != nullptr) {
    const TransferTarget& target = *request.transfer;
    entry.opcode = dense ? Opcode::kTransferExtent : Opcode::kTransfer;
    entry.slab = target.slab;
    entry.tile_neurons = target.tile_neurons;
    std::copy(target.base.begin(), target.base.end(), entry.base);
    std::copy(target.stride.begin(), target.stride.end(), entry.stride);
  }
  return entry;
}

namespace {

constexpr absl::Duration kConnectPause = absl::Milliseconds(20);
// Timeout for the exit of a weightd that closed its sockets. A dying process is gone well within it; one that
// is still there has only closed the session.
constexpr absl::Duration kPeerExitTimeout = absl::Seconds(1);
// Timeout for weightd to map a slab: populating its pages takes about a second for 8 GiB.
constexpr absl::Duration kSlabTimeout = absl::Minutes(2);
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
// Interval of Poll()'s checks of the side socket, each of which costs a system call. Memory of retired
// segments returns to weightd within this time.
constexpr int64_t kDrainNanos = 200'000;
// Validity of a connection check, which costs a system call. A request sent to a weightd that went away in
// between is lost with it, like one sent just before.
constexpr int64_t kLookNanos = 200'000;
// Maximum time that queued requests of a batch wait for the doorbell.
constexpr int64_t kMaxBatchNanos = 200'000;
// Reserved ring entries: with a full ring a cancel, which makes room, must still be possible.
constexpr size_t kCancelPlaces = 4;

std::vector<uint64_t> ExtentBytes(const Pack& pack) {
  std::vector<uint64_t> bytes;
  bytes.reserve(pack.extent_count());
  for (const ExtentEntry& extent : pack.extents()) {
    bytes.push_back(extent.length);
  }
  return bytes;
}

int MillisLeft(absl::Time deadline) {
  return static_cast<int>(std::clamp<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(deadline - SteadyNow(), absl::Milliseconds(1))), 0, 3'600'000));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionWeightClient>> SessionWeightClient::Connect(
    SessionWeightClientOptions options, absl::Time deadline) {
  if (!options.layout.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rings of ", options.layout.ring_entries, " entries are not possible"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<const Pack> pack, Pack::Open(options.pack_dir));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return ErrnoToStatus(errno, "eventfd");
  }
  std::unique_ptr<SessionWeightClient> client(
      new SessionWeightClient(std::move(options), std::move(pack), std::move(wake)));
  absl::Status status = client->OpenSession(deadline);
  // UNAVAILABLE means that weightd is not up yet; every other error would repeat.
  while (absl::IsUnavailable(status) && SteadyNow() + kConnectPause < deadline) {
    absl::SleepFor(kConnectPause);
    status = client->OpenSession(deadline);
  }
  RETURN_IF_ERROR(status);
  return client;
}

SessionWeightClient::SessionWeightClient(SessionWeightClientOptions options, std::unique_ptr<const Pack> pack,
                                         UniqueFd wake)
    : options_(std::move(options)),
      pack_(std::move(pack)),
      extent_bytes_(ExtentBytes(*pack_)),
      wake_(std::move(wake)),
      requests_(options_.layout.ring_entries) {}

SessionWeightClient::~SessionWeightClient() {
  if (session_ != nullptr && connected()) {
    // Without this call weightd would hold the session's pins until this process has exited.
    WeightsRpcClient(options_.socket)
        .CloseSession(session_->opened().session, session_->opened().boot_epoch, SteadyNow() + kCloseTimeout)
        .IgnoreError();
  }
}

absl::Status SessionWeightClient::OpenSession(absl::Time deadline) {
  OpenSessionParams params;
  params.model_id = pack_->model_id();
  params.compute_threads = options_.compute_threads;
  params.client_name = options_.client_name;
  params.layout = options_.layout;
  WeightsRpcClient rpc(options_.socket);
  ASSIGN_OR_RETURN(const OpenedSession opened, rpc.OpenSession(params, deadline));
  ASSIGN_OR_RETURN(session_, WeightSession::Join(opened, extent_bytes_, wake_.get(), deadline));
  if (session_->ring_entries() != options_.layout.ring_entries) {
    const uint32_t entries = session_->ring_entries();
    session_.reset();
    return absl::InternalError(absl::StrCat("weightd made rings of ", entries, " entries, ",
                                            options_.layout.ring_entries, " were asked for"));
  }
  lost_ = absl::OkStatus();
  revoked_.reset();
  next_look_nanos_ = 0;
  batch_since_.reset();
  description_.Set(absl::StrFormat(
      "weightd at %s (process %d, %s), session %d of epoch %016x, %s of %s reserved, %d segments mapped, "
      "wakes by eventfd and pipe, spin %s",
      options_.socket, session_->peer_pid(), opened.io_engine, opened.session, opened.boot_epoch,
      FormatSize(opened.reserved_bytes), FormatSize(opened.dram_budget_bytes), session_->mapped_segments(),
      FormatTimeSpan(options_.spin)));
  const absl::Status observed = session_->SetObserver(observer_);
  if (!observed.ok()) {
    session_.reset();
  }
  return observed;
}

absl::Status SessionWeightClient::SetSegmentObserver(SegmentObserver* observer) {
  observer_ = observer;
  return session_ == nullptr ? absl::OkStatus() : session_->SetObserver(observer);
}

// ---------------------------------------------------------------- leases

bool SessionWeightClient::TryLease(uint32_t extent, ExtentLease* lease) {
  if (session_ == nullptr || !session_->TryLease(extent, lease)) {
    lease_misses_.Add(1);
    return false;
  }
  leases_.Add(1);
  return true;
}

void SessionWeightClient::Release(uint32_t extent, uint64_t step) {
  // The order of releases within a step is part of the stamp, so that weightd's LRU knows which of a step's
  // extents was used last.
  if (step > step_) {
    step_ = step;
    order_ = 0;
  }
  session_->Release(extent, StepStamp(step_, order_++), /*counts=*/!scan_);
  releases_.Add(1);
}

bool SessionWeightClient::IsResident(uint32_t extent) const {
  return session_ != nullptr && session_->IsResident(extent);
}

// ---------------------------------------------------------------- requests

absl::Status SessionWeightClient::Submit(const FetchRequest& request) {
  if (!WasConnected()) {  // checked before the table: completions of a dead weightd make no room in it
    return lost();
  }
  if (requests_.size() + kCancelPlaces >= requests_.capacity()) {
    return absl::ResourceExhaustedError(absl::StrCat(requests_.size(), " requests are outstanding"));
  }
  SubmissionEntry entry = EntryOf(request);
  entry.flags = scan_ && request.dense_extent == FetchRequest::kNoExtent ? kScanFlag : 0;
  RETURN_IF_ERROR(
      Push(entry, {request.id, request.request_class},
           request.transfer == nullptr ? absl::Span<const uint32_t>() : request.transfer->neurons));
  (request.request_class == RequestClass::kPrefetch ? prefetch_requests_ : demand_requests_).Add(1);
  return absl::OkStatus();
}

absl::Status SessionWeightClient::Push(SubmissionEntry entry, const PendingRequest& request,
                                       absl::Span<const uint32_t> neurons) {
  entry.id = requests_.Add(request);
  const size_t word = RequestTable::SlotOf(entry.id);
  if (entry.slab != kNoSlab && word < session_->progress_words()) {
    session_->ClearProgress(word);
    entry.progress = static_cast<uint32_t>(word);
  }
  const absl::Status status = session_->Submit(entry, neurons);
  if (!status.ok()) {
    requests_.Take(entry.id);
    return status;
  }
  const int64_t now = batch_depth_ == 0 ? 0 : MonotonicClock().NowNanos();
  batch_since_ = batch_since_.value_or(now);
  if (batch_depth_ == 0 || now - *batch_since_ > kMaxBatchNanos) {
    RingNow();
  }
  return absl::OkStatus();
}

void SessionWeightClient::RingNow() {
  if (batch_since_.has_value() && session_ != nullptr) {
    wakeups_.Add(session_->WakeWeightd() ? 1 : 0);
  }
  batch_since_.reset();
}

void SessionWeightClient::EndSubmitBatch() {
  if (--batch_depth_ == 0) {
    RingNow();
  }
}

absl::StatusOr<uint32_t> SessionWeightClient::OfferSlab(const SlabOffer& offer) {
  if (session_ == nullptr) {
    return lost();
  }
  const uint32_t number = next_slab_++;
  RETURN_IF_ERROR(session_->OfferSlab(number, offer, SteadyNow() + kSlabTimeout));
  return number;
}

// A second slab of the session needs no wait, nor one behind a failed wait.
absl::Status SessionWeightClient::RevokeSlabs(absl::Time deadline) {
  if (session_ == nullptr) {
    return absl::OkStatus();  // DropSession() has waited
  }
  if (!revoked_.has_value()) {
    session_->Lose(absl::UnavailableError("the session was ended, to take slabs back"));
    revoked_ = Close(session_->opened(), session_->side(), session_->peer_pidfd(), deadline);
  }
  return *revoked_;
}

absl::Status SessionWeightClient::Close(const OpenedSession& opened, int side, int process,
                                        absl::Time deadline) const {
  const absl::Status closed =
      WeightsRpcClient(options_.socket)
          .CloseSession(opened.session, opened.boot_epoch, std::min(deadline, SteadyNow() + kCloseTimeout));
  // weightd's sockets are closed in the middle of a process' death: a peer that closes one and does not
  // answer is dying, and its other resources are gone at its end.
  const bool answers = closed.ok() || absl::IsNotFound(closed);
  while (true) {
    pollfd polled[2] = {{side, 0, 0}, {process, POLLIN, 0}};
    poll(polled, 2, 0);
    const bool unmapped = (polled[0].revents & POLLHUP) != 0;
    const bool exited = (polled[1].revents & POLLIN) != 0;
    if (exited || (unmapped && (answers || process < 0))) {
      return absl::OkStatus();
    }
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("weightd has not unmapped the slabs of session ",
                                                      opened.session,
                                                      " in time (closing it: ", closed.ToString(), ")"));
    }
    // A socket that has hung up wakes poll(2) whatever events are requested.
    poll(unmapped ? polled + 1 : polled, unmapped ? 1 : 2, MillisLeft(deadline));
  }
}

uint32_t SessionWeightClient::LandedTiles(uint64_t id) const {
  const uint64_t ring_id = requests_.RingId(id);
  const size_t word = RequestTable::SlotOf(ring_id);
  if (session_ == nullptr || ring_id == 0 || word >= session_->progress_words()) {
    return 0;
  }
  const uint64_t progress = session_->Progress(word);
  // The word belongs to the request in its slot; its upper half identifies that request. weightd may not have
  // begun with this one, while the word still holds the previous one's count.
  return progress >> 32 == (ring_id & 0xffffffff) ? static_cast<uint32_t>(progress) : 0;
}

void SessionWeightClient::Cancel(uint64_t id) {
  if (session_ != nullptr && !SendOneCancel(id)) {
    unsent_ids_.push_back(id);  // Poll sends it
  }
}

// Returns false if the ring has no room for it now.
bool SessionWeightClient::SendOneCancel(uint64_t caller_id) {
  const uint64_t ring_id = requests_.RingId(caller_id);
  if (ring_id == 0) {
    return true;  // over already
  }
  SubmissionEntry entry = EmptyEntry(Opcode::kCancel, RequestClass::kDemand);
  entry.target = ring_id;
  return requests_.size() < requests_.capacity() && Push(entry, {.cancel = true}).ok();
}

void SessionWeightClient::CancelPrefetches(uint64_t step, uint32_t layer) {
  if (session_ != nullptr && requests_.prefetches() > 0) {
    SendCancel({step, layer});
  }
}

void SessionWeightClient::SendCancel(const CancelPoint& point) {
  SubmissionEntry entry = EmptyEntry(Opcode::kCancelPrefetches, RequestClass::kDemand);
  entry.step = point.step;
  entry.layer = point.layer;
  if (requests_.size() < requests_.capacity() && Push(entry, {.cancel = true}).ok()) {
    unsent_cancel_.reset();
  } else {
    unsent_cancel_ = point;  // the latest covers the earlier ones; Poll sends it
  }
}

size_t SessionWeightClient::Poll(absl::FunctionRef<void(const FetchCompletion&)> handle) {
  if (session_ == nullptr) {
    return 0;
  }
  const int64_t now = MonotonicClock().NowNanos();
  if (now >= next_drain_nanos_) {
    session_->DrainSide();
    next_drain_nanos_ = now + kDrainNanos;
  }
  size_t handled = 0;
  CompletionEntry entry;
  while (session_->Peek(&entry)) {
    handled += Handle(entry, handle) ? 1 : 0;
    // The entry is released after the completion has been handled: until then weightd does not evict a filled
    // extent, and the handler may lease it.
    session_->Advance();
  }
  if (unsent_cancel_.has_value()) {
    SendCancel(*unsent_cancel_);
  }
  while (!unsent_ids_.empty() && SendOneCancel(unsent_ids_.back())) {
    unsent_ids_.pop_back();
  }
  return handled;
}

// Returns true if the completion was of a caller's request; cancels are internal.
bool SessionWeightClient::Handle(const CompletionEntry& entry,
                                 absl::FunctionRef<void(const FetchCompletion&)> handle) {
  const std::optional<PendingRequest> request = requests_.Take(entry.id);
  if (!request.has_value()) {
    session_->Lose(
        absl::InternalError(absl::StrCat("weightd completed request ", entry.id, ", which is none")));
    return false;
  }
  if (request->cancel) {
    return false;
  }
  ended_requests_.Add(1);
  bytes_ssd_.Add(entry.bytes);
  bytes_link_.Add(entry.link_bytes);
  handle(CompletionOf(entry, request->caller_id));
  return true;
}

// ---------------------------------------------------------------- waiting

bool SessionWeightClient::SpinForCompletion() {
  CompletionEntry entry;
  bool found = session_->Peek(&entry);
  if (!found && options_.spin > absl::ZeroDuration()) {
    const MonotonicClock clock;
    const int64_t end = clock.NowNanos() + absl::ToInt64Nanoseconds(options_.spin);
    while (!found && clock.NowNanos() < end) {
      found = session_->Peek(&entry);
    }
  }
  return found;
}

absl::Status SessionWeightClient::Wait(absl::Time deadline) {
  RingNow();
  while (true) {
    if (session_ == nullptr || !session_->lost().ok()) {
      return lost();
    }
    if (SpinForCompletion()) {
      return absl::OkStatus();
    }
    const bool woken = session_->Sleep(deadline);
    // Other ends of the sleep, such as a new segment, are not the event that the caller waits for.
    if (session_->lost().ok() && (woken || (deadline != absl::InfiniteFuture() && SteadyNow() >= deadline))) {
      return absl::OkStatus();
    }
  }
}

void SessionWeightClient::Wake() { eventfd_write(wake_.get(), 1); }

// ---------------------------------------------------------------- connection

bool SessionWeightClient::connected() const {
  return session_ != nullptr && session_->lost().ok() && !session_->PeerGone();
}

bool SessionWeightClient::WasConnected() {
  const int64_t now = MonotonicClock().NowNanos();
  if (session_ != nullptr && session_->lost().ok() && now < next_look_nanos_) {
    return true;
  }
  const bool is = connected();
  next_look_nanos_ = is ? now + kLookNanos : 0;
  return is;
}

absl::Status SessionWeightClient::lost() const {
  const absl::Status& why = session_ == nullptr ? lost_ : session_->lost();
  if (!why.ok()) {
    return why;
  }
  return absl::UnavailableError(session_ == nullptr ? "no session with weightd"
                                                    : "weightd's process is gone");
}

void SessionWeightClient::ForgetRequests() {
  ended_requests_.Add(requests_.size() - requests_.cancels());
  requests_ = RequestTable(requests_.capacity());
  unsent_cancel_.reset();
  unsent_ids_.clear();
}

// The segments are unmapped first: they may be all the memory there is, and a new weightd cannot start before
// it is free.
void SessionWeightClient::DropSession(absl::Time deadline) {
  if (session_ == nullptr) {
    return;
  }
  const bool same_process = session_->peer_pid() == getpid();  // as in tests: it does not exit
  const WeightSession::Ends ends = session_->TakeEnds();
  shutdown(ends.side.get(), SHUT_WR);  // it is over for weightd too
  const OpenedSession opened = session_->opened();
  lost_ = session_->lost();
  session_.reset();
  if (revoked_.has_value()) {
    return;  // already closed
  }
  bool exited = false;
  if (ends.process.valid() && !same_process) {
    pollfd polled{ends.process.get(), POLLIN, 0};
    exited = poll(&polled, 1, MillisLeft(std::min(deadline, SteadyNow() + kPeerExitTimeout))) > 0;
  }
  if (!exited) {
    // A live weightd keeps the pins and the reserve of a lost session until this process exits or reports
    // that it reads nothing any more.
    Close(opened, ends.side.get(), ends.process.get(), SteadyNow() + kCloseTimeout).IgnoreError();
  }
}

absl::Status SessionWeightClient::Reconnect(absl::Time deadline) {
  ForgetRequests();
  DropSession(deadline);
  RETURN_IF_ERROR(OpenSession(deadline));
  reconnects_.Add(1);
  return absl::OkStatus();
}

WeightClientCounters SessionWeightClient::counters() const {
  WeightClientCounters counters;
  // Gauges read the ended requests before the begun ones: in the other order a request that ends in between
  // would make them negative.
  const uint64_t released = releases_.value();
  const uint64_t ended = ended_requests_.value();
  counters.leases = leases_.value();
  counters.lease_misses = lease_misses_.value();
  counters.demand_requests = demand_requests_.value();
  counters.prefetch_requests = prefetch_requests_.value();
  counters.bytes_ssd = bytes_ssd_.value();
  counters.bytes_link = bytes_link_.value();
  counters.reconnects = reconnects_.value();
  counters.held_leases = counters.leases - released;
  counters.outstanding = counters.demand_requests + counters.prefetch_requests - ended;
  return counters;
}

std::string SessionWeightClient::Describe() const { return description_.Get(); }

}  // namespace sluice::inferd
