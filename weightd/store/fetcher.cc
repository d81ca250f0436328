#include "weightd/store/fetcher.h"

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::weightd {
namespace {

// Number of prefetched extents settled per round: their use marks are in memory that clients write.
constexpr size_t kSettledPerPump = 8;

}  // namespace

Fetcher::Fetcher(const Options& options, DramTier* tier, BlockReader* reader, const Clock* clock, Hooks hooks)
    : options_(options),
      tier_(tier),
      reader_(reader),
      clock_(clock),
      hooks_(std::move(hooks)),
      slow_read_nanos_(options.slow_read_nanos),
      own_metrics_(hooks_.metrics == nullptr ? std::make_unique<StoreMetrics>() : nullptr),
      metrics_(hooks_.metrics == nullptr ? own_metrics_.get() : hooks_.metrics) {}

void Fetcher::AddPack(uint32_t pack, const ExtentSource* source, std::vector<int> files) {
  packs_.resize(std::max<size_t>(packs_.size(), pack + 1));
  packs_[pack] = PackRecord{source, std::move(files)};
}

void Fetcher::Accept(const FillRequest& fill) {
  (fill.request_class == RequestClass::kDemand ? stats_.demand_requests : stats_.prefetch_requests) += 1;
  auto owned = std::make_unique<Request>();
  Request* request = owned.get();
  request->fill = fill;
  request->accepted_nanos = clock_->NowNanos();
  bool resident = true;
  for (uint32_t i = 0; i < fill.extents.count; ++i) {
    request->extent_ids[i] = tier_->store().FirstExtentId(fill.pack) + fill.extents.ids[i];
    resident = resident && tier_->store().state(request->extent_ids[i]) == ExtentState::kResident;
  }
  requests_[{fill.session, fill.id, fill.for_transfer}] = std::move(owned);
  if (resident) {
    ++stats_.resident_requests;
    PinAndCoalesce(request);
    Finish(request, absl::StatusCode::kOk, kNoExtent);
    return;
  }
  queue(fill.request_class).PushBack(fill.session, request);
}

uint64_t Fetcher::MissingBytes(const Request& request) const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count(request); ++i) {
    if (tier_->store().state(request.extent_ids[i]) == ExtentState::kAbsent) {
      bytes += tier_->store().length(request.extent_ids[i]);
    }
  }
  return bytes;
}

bool Fetcher::MayStart(const Request& request) const {
  const uint64_t bytes = MissingBytes(request);
  if (bytes == 0) {
    return true;
  }
  if (request.fill.request_class == RequestClass::kPrefetch &&
      started_prefetch_bytes_ > options_.prefetch_bytes) {
    return false;
  }
  // The reader lets a demand overtake prefetches that have started, however large.
  const uint64_t before = request.fill.request_class == RequestClass::kDemand
                              ? started_bytes_ - started_prefetch_bytes_
                              : started_bytes_;
  return before == 0 || before + bytes <= options_.started_bytes;
}

void Fetcher::SettlePrefetches(size_t most) {
  const ExtentStore& store = tier_->store();
  ledger_.Settle(most, [&store](ExtentId extent_id) {
    return PrefetchLedger::View{store.UseVersion(extent_id),
                                store.state(extent_id) == ExtentState::kResident};
  });
}

void Fetcher::RebasePrefetches() {
  ledger_.Rebase([this](ExtentId extent_id) { return tier_->store().UseVersion(extent_id); });
}

void Fetcher::Pump() {
  SettlePrefetches(kSettledPerPump);
  const int64_t now = clock_->NowNanos();
  PassDeadlines(now);
  while (!waiting_for_retirement_.empty() && waiting_for_retirement_.front()->retire_deadline <= now) {
    Request* request = waiting_for_retirement_.front();
    waiting_for_retirement_.pop_front();
    FailWithoutRoom(request);
  }
  while (StartNext(&demand_)) {
  }
  while (demand_.empty() && StartNext(&prefetch_)) {
  }
}

bool Fetcher::StartNext(Queue* queue) {
  if (queue->empty() || !MayStart(*queue->Front())) {
    return false;
  }
  Request* request = queue->Front();
  queue->PopFront(MissingBytes(*request));
  Start(request);
  return true;
}

void Fetcher::FailWithoutRoom(Request* request) {
  ++stats_.no_room;
  // Memory that the system refused within the budget is not the budget's fault.
  const std::string& refused = tier_->arena().last_error();
  if (!refused.empty() && hooks_.log_error && std::has_single_bit(stats_.no_room)) {
    hooks_.log_error(absl::StrCat("no room for ", stats_.no_room, " requests so far: ", refused));
  }
  if (request->fill.request_class == RequestClass::kDemand && hooks_.starved) {
    hooks_.starved(request->fill.session, request->accepted_nanos);
  }
  Finish(request, absl::StatusCode::kResourceExhausted, kNoExtent);
}

void Fetcher::Start(Request* request) {
  if (request->fill.request_class == RequestClass::kPrefetch && hooks_.prefetch_headroom) {
    // Dense weights have their room in every budget.
    const uint32_t extent = request->fill.extents.ids[0];
    const bool dense = packs_[request->fill.pack].source->extent(extent).dense;
    const uint64_t missing = dense ? 0 : MissingBytes(*request);
    if (missing != 0 && missing > hooks_.prefetch_headroom()) {
      FailWithoutRoom(request);
      return;
    }
  }
  if (!PinAndCoalesce(request)) {
    return;
  }
  const DramTier::AllocResult room = AllocateMissing(request);
  if (room == DramTier::AllocResult::kAllocated) {
    if (request->missing == 0) {
      Finish(request, absl::StatusCode::kOk, kNoExtent);
    }
    return;
  }
  if (room == DramTier::AllocResult::kRetiring) {
    Leave(request);
    if (request->retire_deadline == 0) {
      request->retire_deadline = clock_->NowNanos() + options_.retire_timeout_nanos;
    }
    const auto at = std::upper_bound(
        waiting_for_retirement_.begin(), waiting_for_retirement_.end(), request,
        [](const Request* a, const Request* b) { return a->retire_deadline < b->retire_deadline; });
    waiting_for_retirement_.insert(at, request);
    return;
  }
  FailWithoutRoom(request);
}

bool Fetcher::PinAndCoalesce(Request* request) {
  for (uint32_t i = 0; i < count(*request); ++i) {
    const ExtentId extent_id = request->extent_ids[i];
    switch (tier_->store().state(extent_id)) {
      case ExtentState::kResident:
        tier_->store().Pin(extent_id);
        request->pinned[i] = true;
        metrics_->Count(request->fill.request_class, FetchTier::kResident, tier_->store().length(extent_id));
        if (request->fill.request_class == RequestClass::kDemand) {
          ledger_.Demanded(extent_id);
        }
        break;
      case ExtentState::kFilling:
        ++stats_.coalesced;
        Join(request, extent_id);
        break;
      case ExtentState::kBad:
        Finish(request, absl::StatusCode::kDataLoss, request->fill.extents.ids[i]);
        return false;
      default:
        break;
    }
  }
  return true;
}

void Fetcher::Join(Request* request, ExtentId extent_id) {
  Fill& fill = fills_.at(extent_id);
  fill.waiters.push_back(request);
  ++request->missing;
  request->tier = std::max(request->tier, FetchTier::kCoalesced);
  metrics_->Count(request->fill.request_class, FetchTier::kCoalesced, tier_->store().length(extent_id));
  if (request->fill.request_class == RequestClass::kDemand && fill.started_as == RequestClass::kPrefetch) {
    metrics_->prefetch_late.Add();
    fill.started_as = RequestClass::kDemand;
    started_prefetch_bytes_ -= fill.counted ? tier_->store().length(extent_id) : 0;
    reader_->Promote(fill.tag);
  }
  if (fill.slow && fill.waiters.size() == 1) {  // earlier requests timed out
    SetDeadline(extent_id, &fill, (options_.timeout_multiple - 1) * slow_read_nanos_);
    StartHedgedRead(extent_id, &fill);
  }
}

std::optional<ScanPlace> Fetcher::PlaceInScan(const FillRequest& fill) const {
  if (!fill.scan) {
    return std::nullopt;
  }
  const ExtentSource& pack = *packs_[fill.pack].source;
  const auto first_of = [&](uint32_t layer) { return pack.ExpertExtents(layer, 0, kAllParts).ids[0]; };
  // While experts are prefetched for a layer, the previous layer with experts is computed.
  uint32_t running = fill.layer;
  if (fill.request_class == RequestClass::kPrefetch) {
    do {
      running = running == 0 ? fill.layer : running - 1;
    } while (pack.expert_count(running) == 0);
  }
  const ExtentList last = pack.ExpertExtents(fill.layer, pack.expert_count(fill.layer) - 1, kAllParts);
  const ExtentId pack_extent_id = tier_->store().FirstExtentId(fill.pack);
  return ScanPlace{fill.step, pack_extent_id + first_of(running),
                   pack_extent_id + last.ids[last.count - 1] + 1,
                   fill.request_class == RequestClass::kPrefetch};
}

DramTier::AllocResult Fetcher::AllocateMissing(Request* request) {
  const std::optional<ScanPlace> scan = PlaceInScan(request->fill);
  std::vector<std::pair<ExtentId, std::byte*>> placed;
  DramTier::AllocResult room = DramTier::AllocResult::kAllocated;
  for (uint32_t i = 0; i < count(*request) && room == DramTier::AllocResult::kAllocated; ++i) {
    const ExtentId extent_id = request->extent_ids[i];
    if (tier_->store().state(extent_id) == ExtentState::kAbsent) {
      std::byte* dest = nullptr;
      room = tier_->BeginFill(extent_id, &dest, request->fill.session, request->fill.step,
                              scan.has_value() ? &*scan : nullptr);
      if (room == DramTier::AllocResult::kAllocated) {
        placed.emplace_back(extent_id, dest);
      }
    }
  }
  for (const auto& [extent_id, dest] : placed) {
    if (room != DramTier::AllocResult::kAllocated) {
      tier_->AbandonFill(extent_id, /*bad=*/false);
      continue;
    }
    Fill& fill = fills_[extent_id];
    fill.dest = dest;
    fill.started_as = request->fill.request_class;
    fill.waiters.push_back(request);
    request->tier = FetchTier::kSsd;
    ++request->missing;
    started_bytes_ += tier_->store().length(extent_id);
    if (fill.started_as == RequestClass::kPrefetch) {
      started_prefetch_bytes_ += tier_->store().length(extent_id);
    }
    SubmitRead(extent_id, &fill);
  }
  return room;
}

ReadJob Fetcher::JobFor(ExtentId extent_id, uint64_t tag, std::byte* dest, RequestClass request_class) const {
  const ExtentRef ref = tier_->store().RefOf(extent_id);
  const PackRecord& pack = packs_[ref.pack];
  const ExtentInfo info = pack.source->extent(ref.extent);
  ReadJob job;
  job.tag = tag;
  job.file = pack.files[info.file];
  job.offset = info.offset;
  job.dest = dest;
  job.length = info.length;
  job.request_class = request_class;
  job.sole = sole_;
  job.prepare = hooks_.prepare;
  job.check = [source = pack.source, extent = ref.extent](uint64_t offset, std::span<const std::byte> bytes) {
    return source->Verify(extent, offset, bytes);
  };
  return job;
}

void Fetcher::SubmitRead(ExtentId extent_id, Fill* fill) {
  fill->tag = abandoned_.contains(extent_id) ? ++read_serial_ << 32 | extent_id : extent_id;
  fill->first_over = false;
  if (!fill->slow) {  // for a slow read the waiters' timeout goes on
    SetDeadline(extent_id, fill, slow_read_nanos_);
  }
  ReadJob job = JobFor(extent_id, fill->tag, fill->dest, fill->started_as);
  job.past_cache = fill->reread;
  reader_->Submit(std::move(job));
}

void Fetcher::OnRetired() {
  // These go ahead of the queue: they have waited longest.
  while (!waiting_for_retirement_.empty()) {
    Request* request = waiting_for_retirement_.back();
    waiting_for_retirement_.pop_back();
    queue(request->fill.request_class).PushFront(request->fill.session, request);
  }
}

void Fetcher::EndFill(ExtentId extent_id, Fill* fill) {
  if (!fill->counted) {
    return;
  }
  fill->counted = false;
  const uint64_t length = tier_->store().length(extent_id);
  started_bytes_ -= length;
  if (fill->started_as == RequestClass::kPrefetch) {
    started_prefetch_bytes_ -= length;
  }
}

void Fetcher::OnRead(const ReadResult& result) {
  stats_.bytes_read += result.bytes_read;
  stats_.cached_bytes += result.cached_bytes;
  if (auto abandoned = abandoned_.find(result.tag); abandoned != abandoned_.end()) {
    tier_->FreeSlot(abandoned->second);
    abandoned_.erase(abandoned);
    return;
  }
  const ExtentId extent_id = static_cast<ExtentId>(result.tag);
  auto found = fills_.find(extent_id);
  if (found == fills_.end()) {
    return;
  }
  Fill& fill = found->second;
  metrics_->Count(fill.started_as, FetchTier::kSsd, result.bytes_read);
  for (Request* waiter : fill.waiters) {
    if (waiter->started_nanos == 0) {
      waiter->started_nanos = result.started_nanos;
    }
  }
  if (!fill.waiters.empty()) {
    fill.waiters.front()->bytes += result.bytes_read;
  }
  stats_.checksum_failures += result.outcome == ReadOutcome::kCorrupt ? 1 : 0;
  stats_.io_errors +=
      result.outcome == ReadOutcome::kIoError || result.outcome == ReadOutcome::kEndOfFile ? 1 : 0;
  if (OnHedgedResult(extent_id, &fill, result)) {
    return;
  }
  if (result.outcome == ReadOutcome::kOk) {
    Fill done = std::move(fill);
    fills_.erase(found);
    ClearDeadline(&done);
    EndFill(extent_id, &done);
    OnFilled(extent_id, done);
    return;
  }
  // A damaged read is repeated once; a cancelled read that gained a waiter meanwhile starts over.
  const bool again = result.outcome == ReadOutcome::kCancelled ? !fill.waiters.empty()
                                                               : !fill.reread && !fill.waiters.empty();
  if (again) {
    fill.cancelled = false;
    if (result.outcome != ReadOutcome::kCancelled) {
      fill.reread = true;
      ++stats_.rereads;
    }
    SubmitRead(extent_id, &fill);
    return;
  }
  Fill failed = std::move(fill);
  fills_.erase(found);
  ClearDeadline(&failed);
  EndFill(extent_id, &failed);
  OnFailed(extent_id, failed, result);
}

// Ends of requests: filled, failed, cancelled, or with their session.

namespace {

uint32_t Micros(int64_t from, int64_t to) {
  const int64_t micros = from == 0 || to < from ? 0 : (to - from) / 1000;
  return static_cast<uint32_t>(std::min<int64_t>(micros, UINT32_MAX));
}

template <typename Queue, typename Item>
void EraseFrom(Queue* queue, const Item& item) {
  queue->erase(std::remove(queue->begin(), queue->end(), item), queue->end());
}

}  // namespace

void Fetcher::Leave(Request* request) {
  for (uint32_t i = 0; i < count(*request); ++i) {
    const ExtentId extent_id = request->extent_ids[i];
    if (request->pinned[i]) {
      tier_->store().Unpin(extent_id);
      request->pinned[i] = false;
      continue;
    }
    auto found = fills_.find(extent_id);
    if (found == fills_.end()) {
      continue;
    }
    Fill& fill = found->second;
    const size_t before = fill.waiters.size();
    EraseFrom(&fill.waiters, request);
    if (fill.waiters.empty() && before != 0 && !fill.cancelled) {
      fill.cancelled = true;
      reader_->Cancel(fill.tag);
      if (fill.second.has_value()) {
        reader_->Cancel(fill.second->tag);
      }
    }
  }
  request->missing = 0;
}

void Fetcher::Finish(Request* request, absl::StatusCode code, uint32_t bad_extent) {
  const int64_t now = clock_->NowNanos();
  CompletionEntry entry{};
  entry.id = request->fill.id;
  entry.code = static_cast<uint16_t>(code);
  entry.extent = bad_extent;
  entry.bytes = request->bytes;
  entry.queue_us =
      Micros(request->accepted_nanos, request->started_nanos == 0 ? now : request->started_nanos);
  entry.io_us = Micros(request->started_nanos, now);
  std::vector<ExtentId> held;
  if (code == absl::StatusCode::kOk) {
    metrics_->Ended(request->fill.request_class, request->tier, entry.queue_us, entry.io_us);
    held.assign(request->extent_ids.begin(), request->extent_ids.begin() + count(*request));
    entry.extents = count(*request);
  } else {
    Leave(request);
  }
  const uint64_t session = request->fill.session;
  const bool for_transfer = request->fill.for_transfer;
  Erase(request);
  if (for_transfer) {
    hooks_.filled(entry, std::move(held));
  } else {
    hooks_.complete(session, entry, std::move(held));
  }
}

void Fetcher::Erase(Request* request) {
  requests_.erase({request->fill.session, request->fill.id, request->fill.for_transfer});
}

bool Fetcher::Cancel(uint64_t session, uint64_t id, bool for_transfer) {
  auto found = requests_.find({session, id, for_transfer});
  if (found == requests_.end()) {
    return false;
  }
  Request* request = found->second.get();
  queue(request->fill.request_class).RemoveIf(session, [request](Request* other) {
    return other == request;
  });
  EraseFrom(&waiting_for_retirement_, request);
  ++stats_.cancelled;
  Finish(request, absl::StatusCode::kCancelled, kNoExtent);
  return true;
}

uint64_t Fetcher::CancelPrefetches(uint64_t session, uint32_t pack, uint64_t step, uint32_t layer) {
  std::vector<Request*> stale;
  prefetch_.RemoveIf(session, [&](Request* request) {
    const FillRequest& fill = request->fill;
    const bool late = fill.step > step || (fill.step == step && fill.layer > layer);
    const bool drop = fill.pack == pack && !late;
    if (drop) {
      stale.push_back(request);
    }
    return drop;
  });
  for (Request* request : stale) {
    ++stats_.cancelled;
    Finish(request, absl::StatusCode::kCancelled, kNoExtent);
  }
  return stale.size();
}

void Fetcher::DropSession(uint64_t session) {
  std::vector<Request*> gone;
  for (const auto& [key, request] : requests_) {
    if (std::get<0>(key) == session) {
      gone.push_back(request.get());
    }
  }
  // Sorted by id: the map's own order differs from run to run.
  std::sort(gone.begin(), gone.end(), [](const Request* a, const Request* b) {
    return std::pair(a->fill.for_transfer, a->fill.id) < std::pair(b->fill.for_transfer, b->fill.id);
  });
  demand_.Drop(session);
  prefetch_.Drop(session);
  for (Request* request : gone) {
    EraseFrom(&waiting_for_retirement_, request);
    Leave(request);
    Erase(request);
  }
}

void Fetcher::OnFilled(ExtentId extent_id, const Fill& fill) {
  ++stats_.fills;
  tier_->Publish(extent_id);
  if (fill.started_as == RequestClass::kPrefetch) {
    ledger_.Filled(extent_id, tier_->store().UseVersion(extent_id));
  }
  for (Request* request : fill.waiters) {
    for (uint32_t i = 0; i < count(*request); ++i) {
      if (request->extent_ids[i] == extent_id) {
        tier_->store().Pin(extent_id);
        request->pinned[i] = true;
      }
    }
    --request->missing;
    if (request->fill.progress != kNoProgress) {
      hooks_.progress(request->fill.session, request->fill.progress,
                      PackProgress(request->fill.id, count(*request) - request->missing));
    }
    if (request->missing == 0) {
      Finish(request, absl::StatusCode::kOk, kNoExtent);
    }
  }
}

void Fetcher::OnFailed(ExtentId extent_id, const Fill& fill, const ReadResult& result) {
  const ExtentRef ref = tier_->store().RefOf(extent_id);
  // A file that ends early is no damage of the medium: it was cut and may be restored, and the next demand
  // detects that by a read that costs nothing while it fails.
  const bool bad = fill.reread && result.outcome == ReadOutcome::kCorrupt;
  tier_->AbandonFill(extent_id, bad);
  if (result.outcome == ReadOutcome::kCancelled) {
    return;
  }
  if (hooks_.log_error) {
    hooks_.log_error(
        absl::StrCat(NameOf(extent_id), ": ", std::string(result.status.message()),
                     bad ? "; marked bad after a reread: repair the pack and restart weightd" : ""));
  }
  for (Request* request : fill.waiters) {
    Finish(request, absl::StatusCode::kDataLoss, ref.extent);
  }
}

}  // namespace sluice::weightd
