#include "inferd/model/pull_client.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/protocol/link_model.h"
#include "pack/row_layout.h"

namespace sluice::inferd {
namespace {

constexpr std::array<Part, kPartCount> kParts = {Part::kUp, Part::kGate, Part::kDown};
// Bit in ids of fill requests; the caller's serial numbers stay below.
constexpr uint64_t kOwnIds = uint64_t{1} << 63;
// Maximum DRAM of prefetches being copied, in largest experts: a link may be slower than their requests, and
// their sources must not fill all memory.
constexpr uint64_t kPrefetchExperts = 4;
constexpr absl::Duration kStopPace = absl::Microseconds(100);

bool Asks(PartSet parts, Part part) { return (parts & PartBit(part)) != 0; }
bool IsDense(const FetchRequest& request) { return request.dense_extent != FetchRequest::kNoExtent; }

TransferKey KeyOf(const FetchRequest& request) {
  const TransferTarget& target = *request.transfer;
  TransferKey key;
  key.layer = request.layer;
  key.expert = request.expert;
  key.extent = request.dense_extent;
  key.parts = request.parts;
  key.slab = target.slab;
  key.base = target.base;
  key.stride = target.stride;
  key.neurons.assign(target.neurons.begin(), target.neurons.end());
  return key;
}

}  // namespace

PullClient::PullClient(std::unique_ptr<WeightClient> behind, std::vector<std::shared_ptr<Copier>> devices)
    : behind_(std::move(behind)),
      devices_(std::move(devices)),
      engine_(std::make_unique<TransferEngine>(
          TransferEngine::Options{.threads = 1}, &clock_, [this] { behind_->Wake(); }, devices_)),
      shared_(
          engine_.get(),
          {.left = [this](uint64_t, uint64_t id) { Complete(id, {}, absl::StatusCode::kCancelled); },
           .cancel_fill = [this](const Transfer& transfer) { behind_->Cancel(kOwnIds | transfer.fill); }}) {
  behind_->SetSegmentObserver(this).IgnoreError();  // the caller's observer is null and has no errors
}

PullClient::~PullClient() {
  StopCopies();
  behind_->SetSegmentObserver(nullptr).IgnoreError();  // removing an observer cannot fail
  for (const auto& [segment, memory] : segments_) {
    engine_->RemoveSource(memory.data());
  }
  engine_.reset();
}

absl::Status PullClient::SetSegmentObserver(SegmentObserver* observer) {
  observer_ = observer;
  for (const auto& [segment, memory] : segments_) {
    if (observer != nullptr) {
      RETURN_IF_ERROR(observer->OnSegmentMapped(segment, memory.data(), memory.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status PullClient::OnSegmentMapped(uint32_t segment, const std::byte* base, uint64_t bytes) {
  segments_[segment] = {base, bytes};
  engine_->AddSource({base, bytes}, nullptr);
  return observer_ == nullptr ? absl::OkStatus() : observer_->OnSegmentMapped(segment, base, bytes);
}

// Sources of copies are leased, and a segment with leases is not retired.
void PullClient::OnSegmentUnmapped(uint32_t segment) {
  if (observer_ != nullptr) {
    observer_->OnSegmentUnmapped(segment);
  }
  engine_->RemoveSource(segments_.at(segment).data());
  segments_.erase(segment);
}

std::string PullClient::Describe() const {
  return absl::StrCat(behind_->Describe(), ", experts leased there and copied here");
}

absl::StatusOr<uint32_t> PullClient::OfferSlab(const SlabOffer& offer) {
  HostCopier host;
  Copier* opener = offer.kind == HandleKind::kMemoryFile ? &host : nullptr;
  for (const std::shared_ptr<Copier>& device : devices_) {
    opener = device->Supports(offer.kind) ? device.get() : opener;
  }
  if (opener == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("nothing here copies into memory of handle kind ", static_cast<int>(offer.kind)));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Slab> slab,
                   opener->Open(UniqueFd(offer.own == 0 ? dup(offer.fd) : -1),
                                {offer.kind, offer.device, offer.bytes, offer.ipc, offer.own}));
  slabs_.push_back({std::move(slab), engine_->AddLink(MakeLinkRate(offer.link_gbps, offer.link_latency_us))});
  return static_cast<uint32_t>(slabs_.size() - 1);
}

// ---------------------------------------------------------------- requests

PullClient::Sources PullClient::SourcesOf(const FetchRequest& request) const {
  Sources sources;
  sources.step = request.step;
  if (IsDense(request)) {
    sources.extents[sources.count++] = request.dense_extent;
    return sources;
  }
  for (const Part part : kParts) {
    if (Asks(request.parts, part)) {
      const uint32_t extent = pack().part(request.layer, request.expert, part).extent;
      const auto end = sources.extents.begin() + sources.count;
      if (std::find(sources.extents.begin(), end, extent) == end) {
        sources.extents[sources.count++] = extent;
      }
    }
  }
  return sources;
}

absl::Status PullClient::CheckTarget(const FetchRequest& request) const {
  const TransferTarget& target = *request.transfer;
  if (target.slab >= slabs_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("no slab ", target.slab, " was offered"));
  }
  const uint64_t room = slabs_[target.slab].slab->bytes();
  const auto check = [room](uint64_t base, uint64_t stride, uint64_t rows, uint64_t row_bytes) {
    const bool fits = rows > 0 && row_bytes <= room && base <= room - row_bytes && stride >= row_bytes &&
                      (rows == 1 || stride <= (room - row_bytes - base) / (rows - 1));
    return fits ? absl::OkStatus()
                : absl::InvalidArgumentError(
                      absl::StrCat(rows, " rows at ", base, " do not fit a slab of ", room, " bytes"));
  };
  if (IsDense(request)) {
    const uint64_t length = pack().extents()[request.dense_extent].length;
    return length > 0xffffffff ? absl::UnimplementedError("an extent of 4 GiB and more")
                               : check(target.base[0], length, 1, length);
  }
  for (const Part part : kParts) {
    if (Asks(request.parts, part)) {
      const PartView view = pack().part(request.layer, request.expert, part);
      const auto p = static_cast<size_t>(part);
      RETURN_IF_ERROR(check(target.base[p], target.stride[p],
                            target.neurons.empty() ? view.rows : target.neurons.size(),
                            RowBytes(view.encoding, view.cols)));
      if (!target.neurons.empty() && pack().by_outputs()) {
        return absl::InvalidArgumentError("single neurons of a pack whose down is by outputs");
      }
      if (!target.neurons.empty() && target.neurons.back() >= view.rows) {
        return absl::InvalidArgumentError(absl::StrCat("neuron ", target.neurons.back(), " of ", view.rows));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PullClient::Submit(const FetchRequest& request) {
  if (request.transfer == nullptr) {
    return behind_->Submit(request);
  }
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  if (!CheckTarget(request).ok()) {
    Complete(request.id, {}, absl::StatusCode::kInvalidArgument);
    return absl::OkStatus();
  }
  Transfer* const transfer =
      shared_.Join(KeyOf(request), {request.id, request.request_class, request.step, request.layer,
                                    std::make_shared<std::atomic<uint64_t>>(0)});
  if (transfer == nullptr) {
    return absl::OkStatus();
  }
  if (transfer->waiters.size() > 1) {
    // The prefetch's fill cannot be moved up, but a demand's is coalesced with it. Without room in the ring
    // it arrives as the prefetch it was; what was evicted meanwhile is filled again anyway.
    if (transfer->fill != 0) {
      Fill(transfer).IgnoreError();
    }
    return absl::OkStatus();
  }
  transfer->work.tile_neurons = request.transfer->tile_neurons;
  transfer->work.sources = SourcesOf(request);
  const uint64_t number = transfer->number;
  const absl::Status begun = Begin(transfer);
  if (!begun.ok()) {
    shared_.End(number);
    outstanding_.fetch_sub(1, std::memory_order_relaxed);
  }
  return begun;
}

bool PullClient::PrefetchesHoldTooMuch() const {
  uint64_t held = 0;
  for (const auto& [number, other] : shared_.transfers()) {
    held += other.copying && other.request_class == RequestClass::kPrefetch ? 1 : 0;
  }
  return held >= kPrefetchExperts;
}

absl::Status PullClient::Begin(Transfer* transfer) {
  if (transfer->closed) {
    End(transfer, absl::StatusCode::kCancelled);
  } else if (transfer->request_class == RequestClass::kPrefetch && PrefetchesHoldTooMuch()) {
    End(transfer, absl::StatusCode::kResourceExhausted);
  } else if (Lease(&transfer->work.sources)) {
    StartCopy(transfer);
  } else {
    return Fill(transfer);
  }
  return absl::OkStatus();
}

absl::Status PullClient::Fill(Transfer* transfer) {
  const TransferKey& key = transfer->key;
  const uint64_t replaced = transfer->fill;
  FetchRequest fill;
  fill.id = kOwnIds | shared_.BeginFill(transfer);
  fill.request_class = transfer->request_class;
  fill.step = transfer->waiters.front().step;
  fill.layer = key.layer;
  fill.expert = key.expert;
  fill.parts = key.parts;
  fill.dense_extent = key.extent;
  const absl::Status sent = behind_->Submit(fill);
  if (!sent.ok()) {
    transfer->fill = replaced;
  }
  return sent;
}

bool PullClient::Lease(Sources* sources) {
  for (uint32_t i = 0; i < sources->count; ++i) {
    if (!behind_->TryLease(sources->extents[i], &sources->leases[i])) {
      while (i > 0) {
        behind_->Release(sources->extents[--i], sources->step);
      }
      return false;
    }
  }
  return true;
}

void PullClient::Unlease(const Sources& sources) {
  for (uint32_t i = 0; i < sources.count; ++i) {
    behind_->Release(sources.extents[i], sources.step);
  }
}

TransferPlan PullClient::PlanOf(const Transfer& transfer) const {
  const TransferKey& key = transfer.key;
  const Sources& sources = transfer.work.sources;
  if (key.extent != FetchRequest::kNoExtent) {
    return MakeRangePlan(sources.leases[0].data, key.base[0], static_cast<uint32_t>(sources.leases[0].bytes),
                         plan_);
  }
  std::vector<PartCopy> parts;
  const uint32_t neurons = pack().part(key.layer, key.expert, Part::kUp).rows;
  for (const Part part : kParts) {
    if (Asks(key.parts, part)) {
      const PartView view = pack().part(key.layer, key.expert, part);
      const auto source = std::find(sources.extents.begin(), sources.extents.end(), view.extent);
      const auto p = static_cast<size_t>(part);
      parts.push_back({sources.leases[static_cast<size_t>(source - sources.extents.begin())].data + view.base,
                       key.base[p], view.stride, key.stride[p], RowBytes(view.encoding, view.cols),
                       view.rows == neurons ? 0 : view.rows});
    }
  }
  return MakeTransferPlan(parts, neurons, key.neurons, transfer.work.tile_neurons, plan_);
}

void PullClient::StartCopy(Transfer* transfer) {
  const OwnedSlab& slab = slabs_[transfer->key.slab];
  TransferJob job;
  job.link = slab.link;
  job.plan = PlanOf(*transfer);
  job.slab = slab.slab;
  ++copies_;
  shared_.StartCopy(transfer, std::move(job));
}

// ---------------------------------------------------------------- completions

void PullClient::OnFilled(const FetchCompletion& filled) {
  Transfer* const transfer = shared_.EndFill(filled.id & ~kOwnIds);
  if (transfer == nullptr) {
    return;  // replaced by a later one
  }
  FetchCompletion& completion = transfer->work.completion;
  completion.bytes += filled.bytes;
  completion.extent = filled.extent;
  completion.queue_us += filled.queue_us;
  completion.io_us += filled.io_us;
  if (transfer->closed || filled.code != absl::StatusCode::kOk) {
    End(transfer, transfer->closed ? absl::StatusCode::kCancelled : filled.code);
  } else if (transfer->request_class == RequestClass::kPrefetch && PrefetchesHoldTooMuch()) {
    End(transfer, absl::StatusCode::kResourceExhausted);
  } else if (Lease(&transfer->work.sources)) {
    StartCopy(transfer);
  } else {
    refills_.push_back(transfer->number);  // evicted meanwhile
  }
}

void PullClient::OnCopied(const TransferEnd& end) {
  Transfer* const transfer = shared_.Find(end.number);
  --copies_;
  FetchCompletion& completion = transfer->work.completion;
  completion.link_bytes = end.link_bytes;
  completion.copy_us = static_cast<uint32_t>(std::min<int64_t>(end.copy_nanos / 1000, UINT32_MAX));
  bytes_link_.fetch_add(end.link_bytes, std::memory_order_relaxed);
  // Leased memory is unchanged while the session lasts, so the session is checked after the last byte was
  // read.
  const bool lost = !behind_->connected();
  Unlease(transfer->work.sources);
  End(transfer, lost              ? absl::StatusCode::kUnavailable
                : !end.error.ok() ? absl::StatusCode::kInternal
                : end.cancelled   ? absl::StatusCode::kCancelled
                                  : absl::StatusCode::kOk);
}

void PullClient::End(Transfer* transfer, absl::StatusCode code) {
  const Transfer ended = shared_.End(transfer->number);
  FetchCompletion completion = ended.work.completion;
  for (const TransferWaiter& waiter : ended.waiters) {
    Complete(waiter.id, completion, code);
    completion.bytes = 0;  // the first one is charged
    completion.link_bytes = 0;
  }
}

void PullClient::Complete(uint64_t id, const FetchCompletion& completion, absl::StatusCode code) {
  over_.push_back(completion);
  over_.back().id = id;
  over_.back().code = code;
}

void PullClient::TakeEnds() {
  for (const TransferEvent& event : engine_->TakeEvents()) {
    OnCopied(std::get<TransferEnd>(event));
  }
  for (const uint64_t number : std::exchange(refills_, {})) {
    Transfer* const transfer = shared_.Find(number);
    const absl::Status begun = Begin(transfer);
    if (!begun.ok()) {
      End(transfer, begun.code());
    }
  }
}

size_t PullClient::Poll(absl::FunctionRef<void(const FetchCompletion&)> handle) {
  size_t handled = 0;
  behind_->Poll([&](const FetchCompletion& completion) {
    if ((completion.id & kOwnIds) == 0) {
      handle(completion);
      ++handled;
    } else {
      OnFilled(completion);
    }
  });
  TakeEnds();
  // Handlers may submit more.
  while (!over_.empty()) {
    const FetchCompletion completion = over_.front();
    over_.pop_front();
    outstanding_.fetch_sub(1, std::memory_order_relaxed);
    handle(completion);
    ++handled;
  }
  return handled;
}

absl::Status PullClient::Wait(absl::Time deadline) {
  if (!over_.empty() || engine_->HasEvents()) {
    return absl::OkStatus();
  }
  return behind_->Wait(deadline);
}

uint32_t PullClient::LandedTiles(uint64_t id) const {
  const Transfer* transfer = shared_.FindByRequest(0, id);
  return transfer == nullptr
             ? 0
             : static_cast<uint32_t>(transfer->waiters.front().progress->load(std::memory_order_acquire));
}

void PullClient::Cancel(uint64_t id) {
  if (!shared_.Cancel(0, id)) {
    behind_->Cancel(id);
  }
}

void PullClient::CancelPrefetches(uint64_t step, uint32_t layer) {
  shared_.CancelPrefetches(0, 0, step, layer);
  behind_->CancelPrefetches(step, layer);
}

// Blocks until no copy reads a lease, and none is held.
void PullClient::StopCopies() {
  for (const auto& [number, transfer] : shared_.transfers()) {
    if (transfer.copying) {
      engine_->Cancel(number);
    }
  }
  while (copies_ != 0) {
    TakeEnds();
    if (copies_ != 0) {
      absl::SleepFor(kStopPace);
    }
  }
}

void PullClient::DropSlabs() {
  StopCopies();
  for (const OwnedSlab& slab : slabs_) {
    engine_->RemoveLink(slab.link);
  }
  slabs_.clear();
}

// weightd has mapped none of them, so its session may continue.
absl::Status PullClient::RevokeSlabs(absl::Time /*deadline*/) {
  DropSlabs();
  return absl::OkStatus();
}

absl::Status PullClient::Reconnect(absl::Time deadline) {
  refills_.clear();
  DropSlabs();
  shared_.DropSession(0);
  over_.clear();
  outstanding_.store(0, std::memory_order_relaxed);
  return behind_->Reconnect(deadline);
}

WeightClientCounters PullClient::counters() const {
  WeightClientCounters counters = behind_->counters();
  counters.bytes_link += bytes_link_.load(std::memory_order_relaxed);
  counters.outstanding += outstanding_.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace sluice::inferd
