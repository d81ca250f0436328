#include "weightd/engine/transfer_requests.h"

#include <algorithm>
#include <array>

namespace sluice::weightd {
namespace {

constexpr std::array<Part, kPartCount> kParts = {Part::kUp, Part::kGate, Part::kDown};

// Prefetches pin at most one of this many bytes of the budget, or one request.
constexpr uint64_t kPrefetchShare = 4;

TransferKey KeyOf(uint64_t session, uint32_t pack, const SubmissionEntry& entry,
                  std::vector<uint32_t> neurons) {
  TransferKey key;
  key.session = session;
  key.pack = pack;
  key.layer = entry.layer;
  key.expert = entry.expert;
  key.extent = entry.extent;
  key.parts = entry.parts;
  key.slab = entry.slab;
  std::copy(std::begin(entry.base), std::end(entry.base), key.base.begin());
  std::copy(std::begin(entry.stride), std::end(entry.stride), key.stride.begin());
  key.neurons = std::move(neurons);
  return key;
}

}  // namespace

TransferRequests::TransferRequests(const PlanOptions& plan, Fetcher* fetcher, DramTier* tier,
                                   TransferEngine* engine, StoreMetrics* metrics, OnComplete on_complete)
    : plan_(plan),
      fetcher_(fetcher),
      tier_(tier),
      metrics_(metrics),
      on_complete_(std::move(on_complete)),
      shared_(engine, {.left = [this](uint64_t session, uint64_t id) { CompleteCancelled(session, id); },
                       .cancel_fill =
                           [this](const Transfer& transfer) {
                             fetcher_->Cancel(transfer.key.session, transfer.fill, /*for_transfer=*/true);
                           }}) {}

void TransferRequests::Accept(Session* session, const SubmissionEntry& entry, std::vector<uint32_t> neurons) {
  TransferWaiter waiter{entry.id, entry.request_class, entry.step, entry.layer, nullptr};
  if (entry.progress != kNoProgress) {
    waiter.progress = session->ProgressWord(entry.progress);
  }
  const SessionPackPlan& plan = session->options().packs[entry.pack];
  Transfer* const transfer = shared_.Join(KeyOf(session->id(), plan.pack, entry, std::move(neurons)), waiter);
  if (transfer == nullptr) {
    return;
  }
  const Session::SlabRecord& slab = session->slabs.at(entry.slab);
  transfer->work.source = plan.source;
  transfer->work.slab = slab.slab;
  transfer->work.link = slab.link;
  transfer->work.tile_neurons = entry.tile_neurons;
  transfer->work.scan = (entry.flags & kScanFlag) != 0;
  // The demand's own fill is coalesced with the prefetch's reads, so their queue need not be waited for.
  const uint64_t replaced = transfer->fill;
  StartFill(transfer);
  if (replaced != 0) {
    fetcher_->Cancel(session->id(), replaced, /*for_transfer=*/true);
  }
}

void TransferRequests::StartFill(Transfer* transfer) {
  const TransferKey& key = transfer->key;
  FillRequest fill;
  fill.session = key.session;
  fill.id = shared_.BeginFill(transfer);
  fill.for_transfer = true;
  fill.request_class = transfer->request_class;
  fill.step = transfer->waiters.front().step;
  fill.layer = key.layer;
  fill.pack = key.pack;
  fill.scan = transfer->work.scan;
  if (key.extent != kNoExtent) {
    fill.extents.ids[0] = key.extent;
    fill.extents.count = 1;
  } else {
    fill.extents = transfer->work.source->ExpertExtents(key.layer, key.expert, key.parts);
  }
  fetcher_->Accept(fill);
}

void TransferRequests::OnFilled(const CompletionEntry& entry, std::vector<ExtentId> held) {
  Transfer* const transfer = shared_.EndFill(entry.id);
  if (transfer == nullptr) {
    for (ExtentId extent_id : held) {
      tier_->store().Unpin(extent_id);
    }
    return;  // replaced by a demand's
  }
  for (ExtentId extent_id : held) {
    pinned_bytes_ += tier_->store().length(extent_id);
  }
  transfer->work.held = std::move(held);
  transfer->work.completion = entry;
  const std::vector<ExtentId>& pinned = transfer->work.held;
  const auto code = static_cast<absl::StatusCode>(entry.code);
  const bool gone = std::any_of(pinned.begin(), pinned.end(), [this](ExtentId extent_id) {
    return tier_->store().state(extent_id) != ExtentState::kResident;
  });
  if (transfer->closed || code != absl::StatusCode::kOk) {
    Finish(transfer, transfer->closed ? absl::StatusCode::kCancelled : code);
  } else if (gone) {
    // The scrub took an extent away while the others were read.
    Unpin(transfer);
    StartFill(transfer);
  } else if (transfer->request_class == RequestClass::kPrefetch && PrefetchesPinTooMuch(*transfer)) {
    Finish(transfer, absl::StatusCode::kResourceExhausted);
  } else {
    StartCopy(transfer);
  }
}

// A link may be slower than its prefetches; their sources must not fill all of memory.
bool TransferRequests::PrefetchesPinTooMuch(const Transfer& transfer) const {
  uint64_t own = 0;
  for (ExtentId extent_id : transfer.work.held) {
    own += tier_->store().length(extent_id);
  }
  return pinned_bytes_ > own && pinned_bytes_ > tier_->arena().budget() / kPrefetchShare;
}

const std::byte* TransferRequests::DataOf(ExtentId extent_id) const {
  const ExtentStore& store = tier_->store();
  return tier_->arena().memory(store.segment(extent_id))->map.data() + store.offset(extent_id);
}

uint32_t TransferRequests::NeuronsOf(const Transfer& transfer) const {
  return transfer.work.source->ExpertPart(transfer.key.layer, transfer.key.expert, Part::kUp).rows;
}

PartCopy TransferRequests::CopyOf(const Transfer& transfer, Part part) const {
  const TransferKey& key = transfer.key;
  const PartRows place = transfer.work.source->ExpertPart(key.layer, key.expert, part);
  const auto p = static_cast<size_t>(part);
  PartCopy copy;
  copy.source = DataOf(tier_->store().FirstExtentId(key.pack) + place.extent) + place.base;
  copy.source_stride = place.stride;
  copy.dest = key.base[p];
  copy.dest_stride = key.stride[p];
  copy.row_bytes = place.row_bytes;
  copy.own_rows = place.rows == NeuronsOf(transfer) ? 0 : place.rows;
  return copy;
}

TransferPlan TransferRequests::PlanOf(const Transfer& transfer) const {
  const TransferKey& key = transfer.key;
  const Work& work = transfer.work;
  if (key.extent != kNoExtent) {
    return MakeRangePlan(DataOf(tier_->store().FirstExtentId(key.pack) + key.extent), key.base[0],
                         static_cast<uint32_t>(work.source->extent(key.extent).length), plan_);
  }
  std::vector<PartCopy> parts;
  for (Part part : kParts) {
    if ((key.parts & PartBit(part)) != 0) {
      parts.push_back(CopyOf(transfer, part));
    }
  }
  return MakeTransferPlan(parts, NeuronsOf(transfer), key.neurons, work.tile_neurons, plan_);
}

void TransferRequests::StartCopy(Transfer* transfer) {
  TransferJob job;
  job.link = transfer->work.link;
  job.plan = PlanOf(*transfer);
  job.slab = transfer->work.slab;
  shared_.StartCopy(transfer, std::move(job));
}

void TransferRequests::OnEnd(const TransferEnd& end) {
  Transfer* const transfer = shared_.Find(end.number);
  Work& work = transfer->work;
  work.completion.copy_us = static_cast<uint32_t>(std::min<int64_t>(end.copy_nanos / 1000, UINT32_MAX));
  work.completion.link_bytes = end.link_bytes;
  if (!end.cancelled && metrics_ != nullptr) {
    metrics_->copy_seconds.Observe(work.completion.copy_us * 1e-6);
  }
  const bool used = !end.cancelled && !transfer->waiters.empty();
  for (size_t i = 0; used && i < work.held.size(); ++i) {
    // The use has no lease, so the eviction learns of it here.
    if (work.scan) {
      tier_->NoteScanned(work.held[i], transfer->waiters.front().step);
    } else {
      tier_->NoteUse(work.held[i]);
    }
  }
  Finish(transfer, !end.error.ok() ? absl::StatusCode::kInternal
                   : end.cancelled ? absl::StatusCode::kCancelled
                                   : absl::StatusCode::kOk);
}

void TransferRequests::Finish(Transfer* transfer, absl::StatusCode code) {
  Unpin(transfer);
  const Transfer ended = shared_.End(transfer->number);
  CompletionEntry completion = ended.work.completion;
  completion.code = static_cast<uint16_t>(code);
  for (const TransferWaiter& waiter : ended.waiters) {
    completion.id = waiter.id;
    on_complete_(ended.key.session, completion);
    completion.bytes = 0;  // the first one is charged
    completion.link_bytes = 0;
  }
}

void TransferRequests::CompleteCancelled(uint64_t session, uint64_t id) {
  CompletionEntry completion{};
  completion.id = id;
  completion.code = static_cast<uint16_t>(absl::StatusCode::kCancelled);
  completion.extent = kNoExtent;
  on_complete_(session, completion);
}

void TransferRequests::Unpin(Transfer* transfer) {
  for (ExtentId extent_id : std::exchange(transfer->work.held, {})) {
    pinned_bytes_ -= tier_->store().length(extent_id);
    tier_->store().Unpin(extent_id);
  }
}

}  // namespace sluice::weightd
