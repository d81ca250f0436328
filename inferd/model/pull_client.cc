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
// First id of fill requests; the caller's serial numbers stay below.
constexpr uint64_t kOwnIds = uint64_t{1} << 63;
// Maximum DRAM of prefetches being copied, in largest experts: a link may be slower than their requests, and
// their sources must not fill all memory.
constexpr uint64_t kPrefetchExperts = 4;
constexpr absl::Duration kStopPace = absl::Microseconds(100);

bool Asks(const FetchRequest& request, Part part) { return (request.parts & PartBit(part)) != 0; }
bool IsDense(const FetchRequest& request) { return request.dense_extent != FetchRequest::kNoExtent; }
bool IsPrefetch(const FetchRequest& request) { return request.request_class == RequestClass::kPrefetch; }

}  // namespace

PullClient::PullClient(std::unique_ptr<WeightClient> behind, std::vector<std::shared_ptr<Copier>> devices)
    : behind_(std::move(behind)),
      devices_(std::move(devices)),
      engine_(std::make_unique<TransferEngine>(
          TransferEngine::Options{.threads = 1}, &clock_, [this] { behind_->Wake(); }, devices_)) {
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

PullClient::Transfer* PullClient::Find(uint64_t id) {
  const auto found = transfers_.find(id);
  return found == transfers_.end() ? nullptr : found->second.get();
}

const PullClient::Transfer* PullClient::Find(uint64_t id) const {
  return const_cast<PullClient*>(this)->Find(id);
}

PullClient::Transfer* PullClient::FindSame(const FetchRequest& request) {
  const TransferTarget& target = *request.transfer;
  for (const auto& [id, other] : transfers_) {
    const FetchRequest& r = other->request;
    const bool rows = r.layer == request.layer && r.expert == request.expert && r.parts == request.parts &&
                      r.dense_extent == request.dense_extent;
    const bool place = other->target.slab == target.slab && other->target.base == target.base &&
                       other->target.stride == target.stride &&
                       absl::MakeConstSpan(other->neurons) == target.neurons;
    if (rows && place && other->leader == 0 && !other->over && !other->stale) {
      return other.get();
    }
  }
  return nullptr;
}

PullClient::Sources PullClient::SourcesOf(const FetchRequest& request) const {
  Sources sources;
  if (IsDense(request)) {
    sources.extents[sources.count++] = request.dense_extent;
    return sources;
  }
  for (const Part part : kParts) {
    if (Asks(request, part)) {
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
    if (Asks(request, part)) {
      const PartView view = pack().part(request.layer, request.expert, part);
      const auto p = static_cast<size_t>(part);
      RETURN_IF_ERROR(check(target.base[p], target.stride[p],
                            target.neurons.empty() ? view.rows : target.neurons.size(),
                            RowBytes(view.encoding, view.cols)));
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
  auto owned = std::make_unique<Transfer>();
  Transfer* const transfer = owned.get();
  transfer->request = request;
  transfer->request.transfer = nullptr;
  transfer->target = *request.transfer;
  transfer->neurons.assign(request.transfer->neurons.begin(), request.transfer->neurons.end());
  transfer->target.neurons = {};
  transfer->completion.id = request.id;
  if (Transfer* same = FindSame(request); same != nullptr) {
    transfer->leader = same->request.id;
    ++same->followers;
    if (!IsPrefetch(request)) {
      Promote(same);
    }
  } else if (!CheckTarget(request).ok()) {
    End(transfer, absl::StatusCode::kInvalidArgument);
  } else {
    transfer->sources = SourcesOf(request);
    transfer->progress = std::make_shared<std::atomic<uint64_t>>(0);
    RETURN_IF_ERROR(Begin(transfer));
  }
  transfers_[request.id] = std::move(owned);
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

bool PullClient::PrefetchesHoldTooMuch() const {
  uint64_t held = 0;
  for (const auto& [id, other] : transfers_) {
    held += other->leased && IsPrefetch(other->request) ? 1 : 0;
  }
  return held >= kPrefetchExperts;
}

absl::Status PullClient::Begin(Transfer* transfer) {
  if (transfer->stale) {
    End(transfer, absl::StatusCode::kCancelled);
  } else if (IsPrefetch(transfer->request) && PrefetchesHoldTooMuch()) {
    End(transfer, absl::StatusCode::kResourceExhausted);
  } else if (Lease(transfer)) {
    StartCopy(transfer);
  } else {
    return Fill(transfer);
  }
  return absl::OkStatus();
}

absl::Status PullClient::Fill(Transfer* transfer) {
  FetchRequest fill = transfer->request;
  fill.id = kOwnIds | next_fill_++;
  RETURN_IF_ERROR(behind_->Submit(fill));
  fills_[fill.id] = transfer->request.id;
  transfer->fill = fill.id;
  return absl::OkStatus();
}

bool PullClient::Lease(Transfer* transfer) {
  Sources& sources = transfer->sources;
  for (uint32_t i = 0; i < sources.count; ++i) {
    if (!behind_->TryLease(sources.extents[i], &sources.leases[i])) {
      while (i > 0) {
        behind_->Release(sources.extents[--i], transfer->request.step);
      }
      return false;
    }
  }
  transfer->leased = true;
  return true;
}

void PullClient::Unlease(Transfer* transfer) {
  for (uint32_t i = 0; transfer->leased && i < transfer->sources.count; ++i) {
    behind_->Release(transfer->sources.extents[i], transfer->request.step);
  }
  transfer->leased = false;
}

TransferPlan PullClient::PlanOf(const Transfer& transfer) const {
  const Sources& sources = transfer.sources;
  if (IsDense(transfer.request)) {
    return MakeRangePlan(sources.leases[0].data, transfer.target.base[0],
                         static_cast<uint32_t>(sources.leases[0].bytes), plan_);
  }
  std::vector<PartCopy> parts;
  uint32_t rows = 0;
  for (const Part part : kParts) {
    if (Asks(transfer.request, part)) {
      const PartView view = pack().part(transfer.request.layer, transfer.request.expert, part);
      const auto source = std::find(sources.extents.begin(), sources.extents.end(), view.extent);
      const auto p = static_cast<size_t>(part);
      parts.push_back({sources.leases[static_cast<size_t>(source - sources.extents.begin())].data + view.base,
                       transfer.target.base[p], view.stride, transfer.target.stride[p],
                       RowBytes(view.encoding, view.cols)});
      rows = view.rows;
    }
  }
  return MakeTransferPlan(parts, rows, transfer.neurons, transfer.target.tile_neurons, plan_);
}

void PullClient::StartCopy(Transfer* transfer) {
  const OwnedSlab& slab = slabs_[transfer->target.slab];
  TransferJob job;
  job.number = transfer->number = next_copy_++;
  job.link = slab.link;
  job.request_class = transfer->request.request_class;
  job.plan = PlanOf(*transfer);
  job.slab = slab.slab;
  job.progress = transfer->progress;
  job.request = transfer->request.id;
  copies_[job.number] = transfer->request.id;
  engine_->Submit(std::move(job));
}

// A prefetch that is now awaited. Its fill cannot be moved up, but a demand's fill is coalesced with it.
void PullClient::Promote(Transfer* transfer) {
  if (!IsPrefetch(transfer->request)) {
    return;
  }
  transfer->request.request_class = RequestClass::kDemand;
  if (transfer->number != 0) {
    engine_->Promote(transfer->number);
  } else if (transfer->fill != 0) {
    Fill(transfer).IgnoreError();  // without room in the ring it arrives as the prefetch it was
  }
}

// ---------------------------------------------------------------- completions

void PullClient::OnFilled(const FetchCompletion& filled) {
  const auto found = fills_.find(filled.id);
  Transfer* const transfer = Find(found->second);
  fills_.erase(found);
  if (transfer == nullptr || transfer->fill != filled.id) {
    return;  // replaced by a later one
  }
  transfer->fill = 0;
  FetchCompletion& completion = transfer->completion;
  completion.bytes += filled.bytes;
  completion.extent = filled.extent;
  completion.queue_us += filled.queue_us;
  completion.io_us += filled.io_us;
  if (transfer->stale) {
    End(transfer, absl::StatusCode::kCancelled);
  } else if (filled.code != absl::StatusCode::kOk) {
    End(transfer, filled.code);
  } else if (IsPrefetch(transfer->request) && PrefetchesHoldTooMuch()) {
    End(transfer, absl::StatusCode::kResourceExhausted);
  } else if (Lease(transfer)) {
    StartCopy(transfer);
  } else {
    refills_.push_back(transfer->request.id);  // evicted meanwhile
  }
}

void PullClient::OnCopied(const TransferEnd& end) {
  const auto found = copies_.find(end.number);
  Transfer* const transfer = Find(found->second);
  copies_.erase(found);
  transfer->number = 0;
  transfer->completion.link_bytes = end.link_bytes;
  transfer->completion.copy_us = static_cast<uint32_t>(std::min<int64_t>(end.copy_nanos / 1000, UINT32_MAX));
  bytes_link_.fetch_add(end.link_bytes, std::memory_order_relaxed);
  // Leased memory is unchanged while the session lasts, so the session is checked after the last byte was
  // read.
  const bool lost = !behind_->connected();
  Unlease(transfer);
  End(transfer, lost              ? absl::StatusCode::kUnavailable
                : !end.error.ok() ? absl::StatusCode::kInternal
                : end.cancelled   ? absl::StatusCode::kCancelled
                                  : absl::StatusCode::kOk);
}

void PullClient::End(Transfer* transfer, absl::StatusCode code) {
  transfer->over = true;
  transfer->completion.code = code;
  over_.push_back(transfer->request.id);
  for (const auto& [id, other] : transfers_) {
    if (transfer->followers > 0 && other->leader == transfer->request.id && !other->over) {
      other->over = true;
      other->completion.code = code;
      other->completion.extent = transfer->completion.extent;
      over_.push_back(id);
    }
  }
}

void PullClient::TakeEnds() {
  for (const TransferEvent& event : engine_->TakeEvents()) {
    OnCopied(std::get<TransferEnd>(event));
  }
  for (const uint64_t id : std::exchange(refills_, {})) {
    Transfer* const transfer = Find(id);
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
    } else if (fills_.contains(completion.id)) {
      OnFilled(completion);
    }
  });
  TakeEnds();
  // Handlers may submit more.
  while (!over_.empty()) {
    const uint64_t id = over_.front();
    over_.erase(over_.begin());
    const auto node = transfers_.extract(id);
    outstanding_.fetch_sub(1, std::memory_order_relaxed);
    handle(node.mapped()->completion);
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
  const Transfer* transfer = Find(id);
  if (transfer != nullptr && transfer->leader != 0) {
    transfer = Find(transfer->leader);
  }
  return transfer == nullptr || transfer->progress == nullptr
             ? 0
             : static_cast<uint32_t>(transfer->progress->load(std::memory_order_acquire));
}

// ---------------------------------------------------------------- cancelling

void PullClient::Cancel(uint64_t id) {
  Transfer* const transfer = Find(id);
  if (transfer == nullptr) {
    behind_->Cancel(id);
  } else if (transfer->over || transfer->followers > 0) {
    return;  // others wait for its rows
  } else if (transfer->leader != 0) {
    --Find(transfer->leader)->followers;
    End(transfer, absl::StatusCode::kCancelled);
  } else if (transfer->number != 0) {
    engine_->Cancel(transfer->number);
  } else {
    transfer->stale = true;
    behind_->Cancel(transfer->fill);
  }
}

void PullClient::CancelPrefetches(uint64_t step, uint32_t layer) {
  for (const auto& [id, transfer] : transfers_) {
    const FetchRequest& request = transfer->request;
    const bool late = request.step > step || (request.step == step && request.layer > layer);
    if (!IsPrefetch(request) || late || transfer->over || transfer->followers > 0) {
      continue;
    }
    if (transfer->leader != 0) {
      --Find(transfer->leader)->followers;
      End(transfer.get(), absl::StatusCode::kCancelled);
    } else if (transfer->number != 0) {
      engine_->CancelIfNotStarted(transfer->number);
    } else {
      transfer->stale = true;  // its read may continue, but it is not copied
    }
  }
  behind_->CancelPrefetches(step, layer);
}

// Blocks until no copy reads a lease, and none is held.
void PullClient::StopCopies() {
  for (const auto& [number, id] : copies_) {
    engine_->Cancel(number);
  }
  while (!copies_.empty()) {
    TakeEnds();
    if (!copies_.empty()) {
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
  transfers_.clear();
  fills_.clear();
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
