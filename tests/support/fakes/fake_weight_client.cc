#include "tests/support/fakes/fake_weight_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "pack/pack.h"

namespace sluice {

FakeWeightClient::FakeWeightClient(std::unique_ptr<Pack> pack, const FakeWeightOptions& options)
    : pack_(std::move(pack)), options_(options), random_(options.seed), budget_(options.dram_budget) {
  pending_.reserve(options.ring_entries);
  finished_.reserve(options.ring_entries);
}

FakeWeightClient::~FakeWeightClient() { UnmapSegments(); }

absl::StatusOr<std::unique_ptr<FakeWeightClient>> FakeWeightClient::Open(const std::string& pack_dir,
                                                                         const FakeWeightOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Pack> pack, Pack::Open(pack_dir));
  std::unique_ptr<FakeWeightClient> client(new FakeWeightClient(std::move(pack), options));
  for (uint32_t file = 0; file < client->pack_->file_count(); ++file) {
    ASSIGN_OR_RETURN(File opened, File::OpenForRead(client->pack_->file_path(static_cast<PackFile>(file))));
    client->files_.push_back(std::move(opened));
  }
  RETURN_IF_ERROR(client->MapSegments());
  return client;
}

void FakeWeightClient::Breach(const std::string& what) {
  MutexLock lock(&mutex_);
  if (violation_.empty()) {
    violation_ = what;
  }
}

absl::Status FakeWeightClient::MapSegments() {
  segments_.resize(options_.segments);
  extents_.assign(pack_->extent_count(), Extent());
  for (Segment& segment : segments_) {
    segment.id = next_segment_id_++;
    segment.bytes.clear();
  }
  std::vector<uint64_t> sizes(options_.segments, 0);
  for (uint32_t i = 0; i < extents_.size(); ++i) {
    extents_[i].segment_index = i % options_.segments;
    extents_[i].offset = sizes[extents_[i].segment_index];
    sizes[extents_[i].segment_index] += pack_->extents()[i].length;
  }
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    segments_[i].bytes.assign(sizes[i], std::byte{0xff});
    if (observer_ != nullptr && sizes[i] > 0) {
      RETURN_IF_ERROR(
          observer_->OnSegmentMapped(segments_[i].id, segments_[i].bytes.data(), segments_[i].bytes.size()));
    }
  }
  return absl::OkStatus();
}

void FakeWeightClient::UnmapSegments() {
  for (Segment& segment : segments_) {
    if (observer_ != nullptr && !segment.bytes.empty()) {
      observer_->OnSegmentUnmapped(segment.id);
    }
    std::fill(segment.bytes.begin(), segment.bytes.end(), std::byte{0xff});
  }
  segments_.clear();
}

absl::Status FakeWeightClient::SetSegmentObserver(inferd::SegmentObserver* observer) {
  observer_ = observer;
  for (const Segment& segment : segments_) {
    if (observer != nullptr && !segment.bytes.empty()) {
      RETURN_IF_ERROR(observer->OnSegmentMapped(segment.id, segment.bytes.data(), segment.bytes.size()));
    }
  }
  return absl::OkStatus();
}

bool FakeWeightClient::TryLease(uint32_t extent, inferd::ExtentLease* lease) {
  Extent& e = extents_[extent];
  MutexLock lock(&mutex_);
  if (!e.resident || (!connected_ && e.pins == 0)) {
    counters_.lease_misses++;
    return false;
  }
  e.pins++;
  e.last_use = ++clock_;
  counters_.leases++;
  counters_.held_leases++;
  const Segment& segment = segments_[e.segment_index];
  *lease = {segment.bytes.data() + e.offset, pack_->extents()[extent].length, segment.id, e.offset};
  return true;
}

void FakeWeightClient::Release(uint32_t extent, uint64_t) {
  Extent& e = extents_[extent];
  if (e.pins == 0) {
    Breach(absl::StrCat("released without a lease: ", pack_->ExtentName(extent)));
    return;
  }
  e.pins--;
  e.last_use = ++clock_;
  MutexLock lock(&mutex_);
  counters_.held_leases--;
}

bool FakeWeightClient::IsResident(uint32_t extent) const { return extents_[extent].resident; }

absl::Status FakeWeightClient::Submit(const inferd::FetchRequest& request) {
  bool poison = false;
  if (request.transfer != nullptr) {
    RETURN_IF_ERROR(CheckTarget(request));
    poison = !IsDuplicateTransfer(request);
  }
  MutexLock lock(&mutex_);
  if (!connected_) {
    return absl::Status(death_, "the fake weightd is dead");
  }
  if (pending_.size() >= options_.ring_entries) {
    return absl::ResourceExhaustedError("the ring is full");
  }
  for (const Pending& other : pending_) {
    if (other.request.id == request.id && violation_.empty()) {
      violation_ = absl::StrCat("request id ", request.id, " used twice");
    }
  }
  Pending pending;
  pending.request = request;
  pending.completion.id = request.id;
  pending.polls_left = static_cast<uint32_t>(random_() % (options_.max_delay_polls + 1));
  if (request.transfer != nullptr) {
    KeepTarget(request, poison, &pending);
  }
  pending_.push_back(pending);
  (request.request_class == RequestClass::kDemand ? counters_.demand_requests
                                                  : counters_.prefetch_requests)++;
  counters_.outstanding++;
  return absl::OkStatus();
}

void FakeWeightClient::CancelPrefetches(uint64_t step, uint32_t layer) {
  if (options_.prefetches_begin_at_once) {
    return;
  }
  for (Pending& pending : pending_) {
    const inferd::FetchRequest& request = pending.request;
    pending.cancelled =
        pending.cancelled || (request.request_class == RequestClass::kPrefetch && !pending.filled &&
                              request.step <= step && request.layer <= layer);
  }
}

// Counts down to an ordered death; false once weightd is dead or frozen.
bool FakeWeightClient::TakePoll() {
  MutexLock lock(&mutex_);
  if (polls_to_death_ != ~uint64_t{0} && polls_to_death_-- == 0) {
    connected_ = false;
    polls_to_death_ = ~uint64_t{0};
  }
  return connected_ && !frozen_;
}

size_t FakeWeightClient::Poll(absl::FunctionRef<void(const inferd::FetchCompletion&)> handle) {
  if (!TakePoll()) {
    return 0;
  }
  EvictAtRandom();
  finished_.clear();
  size_t kept = 0;
  for (Pending& pending : pending_) {
    if (Advance(&pending)) {
      finished_.push_back(pending);
    } else {
      pending_[kept++] = pending;
    }
  }
  pending_.resize(kept);
  for (Pending& pending : finished_) {
    Complete(&pending, handle);
  }
  return finished_.size();
}

bool FakeWeightClient::Advance(Pending* pending) {
  if (pending->cancelled || pending->request.transfer == nullptr) {
    return pending->cancelled || pending->polls_left-- == 0;
  }
  if (!pending->filled) {
    if (pending->polls_left != 0) {
      pending->polls_left--;
      return false;
    }
    if (!Fill(pending->request, &pending->completion)) {
      return true;
    }
    PinExtents(pending->request, true);  // sources of unfinished copies
    pending->filled = true;
  }
  do {
    LandTile(pending);
  } while (options_.max_delay_polls == 0 && pending->tiles_landed < TilesOf(*pending));
  return pending->tiles_landed == TilesOf(*pending);
}

void FakeWeightClient::PinExtents(const inferd::FetchRequest& request, bool pin) {
  const ExtentRange range = ExtentsOf(request);
  for (uint32_t i = 0; i < range.count; ++i) {
    extents_[range.first + i].pins += pin ? 1 : ~0u;
  }
}

void FakeWeightClient::Complete(Pending* pending,
                                absl::FunctionRef<void(const inferd::FetchCompletion&)> handle) {
  inferd::FetchCompletion& completion = pending->completion;
  const bool transfer = pending->request.transfer != nullptr;
  bool filled = pending->filled;
  const bool ended = !transfer && !pending->cancelled && EndsInjected(pending->request, &completion);
  if (!transfer && !pending->cancelled && !ended && Fill(pending->request, &completion)) {
    PinExtents(pending->request, true);  // until the completion has been handled
    filled = true;
  }
  completion.code = pending->cancelled ? absl::StatusCode::kCancelled : completion.code;
  {
    MutexLock lock(&mutex_);
    counters_.outstanding--;
    counters_.bytes_ssd += completion.bytes;
    counters_.bytes_link += completion.link_bytes;
  }
  if (transfer) {
    free_lists_.push_back(pending->list);
  }
  handle(completion);
  if (filled) {
    PinExtents(pending->request, false);
  }
}

ExtentRange FakeWeightClient::ExtentsOf(const inferd::FetchRequest& request) const {
  if (request.dense_extent != inferd::FetchRequest::kNoExtent) {
    return {request.dense_extent, 1};
  }
  return pack_->expert_extents(request.layer, request.expert);
}

bool FakeWeightClient::Fill(const inferd::FetchRequest& request, inferd::FetchCompletion* completion) {
  const ExtentRange range = ExtentsOf(request);
  for (uint32_t i = 0; i < range.count; ++i) {
    extents_[range.first + i].pins++;  // slots of unfinished reads
  }
  const bool refused = std::uniform_real_distribution<double>()(random_) < options_.no_room_chance;
  completion->code = refused ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOk;
  for (uint32_t i = 0; i < range.count && completion->code == absl::StatusCode::kOk; ++i) {
    FillExtent(range.first + i, completion);
  }
  for (uint32_t i = 0; i < range.count; ++i) {
    extents_[range.first + i].pins--;
  }
  return completion->code == absl::StatusCode::kOk;
}

void FakeWeightClient::FillExtent(uint32_t extent, inferd::FetchCompletion* completion) {
  Extent& e = extents_[extent];
  e.last_use = ++clock_;
  const ExtentEntry& entry = pack_->extents()[extent];
  if (e.resident) {
    return;
  }
  if (!MakeRoom(entry.length)) {
    completion->code = absl::StatusCode::kResourceExhausted;
    return;
  }
  const absl::Span<std::byte> place(segments_[e.segment_index].bytes.data() + e.offset, entry.length);
  if (!files_[entry.file].ReadAt(entry.offset, place).ok() || !VerifyExtent(*pack_, extent, place).ok()) {
    std::fill(place.begin(), place.end(), std::byte{0xff});
    completion->code = absl::StatusCode::kDataLoss;
    completion->extent = extent;
    return;
  }
  e.resident = true;
  resident_bytes_ += entry.length;
  completion->bytes += entry.length;
}

bool FakeWeightClient::MakeRoom(uint64_t bytes) {
  uint64_t budget;
  {
    MutexLock lock(&mutex_);
    budget = budget_;
  }
  while (resident_bytes_ + bytes > budget) {
    uint32_t victim = inferd::FetchRequest::kNoExtent;
    for (uint32_t i = 0; i < extents_.size(); ++i) {
      if (extents_[i].resident && extents_[i].pins == 0 &&
          (victim == inferd::FetchRequest::kNoExtent || extents_[i].last_use < extents_[victim].last_use)) {
        victim = i;
      }
    }
    if (victim == inferd::FetchRequest::kNoExtent) {
      return false;
    }
    Evict(victim);
  }
  return true;
}

void FakeWeightClient::Evict(uint32_t extent) {
  Extent& e = extents_[extent];
  const uint64_t length = pack_->extents()[extent].length;
  std::memset(segments_[e.segment_index].bytes.data() + e.offset, 0xff, length);
  e.resident = false;
  resident_bytes_ -= length;
}

void FakeWeightClient::EvictAtRandom() {
  if (options_.evict_chance > 0 &&
      std::uniform_real_distribution<double>()(random_) < options_.evict_chance) {
    const uint32_t extent = static_cast<uint32_t>(random_() % extents_.size());
    if (extents_[extent].resident && extents_[extent].pins == 0) {
      Evict(extent);
    }
  }
}

absl::Status FakeWeightClient::Wait(absl::Time deadline) {
  MutexLock lock(&mutex_);
  ++waits_;
  while (!woken_ && connected_ && (pending_.empty() || frozen_) && SteadyNow() < deadline) {
    // Bounded, because an infinite duration overflows std::chrono.
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(std::min(deadline - SteadyNow(), absl::Hours(1))));
  }
  woken_ = false;
  return connected_ ? absl::OkStatus() : absl::Status(death_, "the fake weightd is dead");
}

uint64_t FakeWeightClient::waits() const {
  MutexLock lock(&mutex_);
  return waits_;
}

void FakeWeightClient::Wake() {
  MutexLock lock(&mutex_);
  woken_ = true;
  changed_.SignalAll();
}

bool FakeWeightClient::connected() const {
  MutexLock lock(&mutex_);
  return connected_;
}

absl::Status FakeWeightClient::Reconnect(absl::Time) {
  for (const Pending& pending : pending_) {
    if (pending.filled) {
      PinExtents(pending.request, false);
    }
  }
  for (uint32_t i = 0; i < extents_.size(); ++i) {
    if (extents_[i].pins > 0) {
      Breach(absl::StrCat("reconnects while it holds ", pack_->ExtentName(i)));
    }
  }
  {
    MutexLock lock(&mutex_);
    if (connected_ && violation_.empty()) {
      violation_ = "reconnects while connected";
    }
    if (!allow_reconnect_) {
      return absl::Status(refusal_, "the fake weightd is not back");
    }
  }
  UnmapSegments();
  for (const Pending& pending : pending_) {
    if (pending.request.transfer != nullptr) {
      free_lists_.push_back(pending.list);
    }
  }
  pending_.clear();
  slabs_.clear();
  resident_bytes_ = 0;
  RETURN_IF_ERROR(MapSegments());
  MutexLock lock(&mutex_);
  counters_.outstanding = 0;
  counters_.reconnects++;
  connected_ = true;
  return absl::OkStatus();
}

inferd::WeightClientCounters FakeWeightClient::counters() const {
  MutexLock lock(&mutex_);
  return counters_;
}

void FakeWeightClient::Disconnect(absl::StatusCode code) {
  MutexLock lock(&mutex_);
  connected_ = false;
  death_ = code;
  changed_.SignalAll();
}

void FakeWeightClient::DisconnectAfterPolls(uint64_t polls) {
  MutexLock lock(&mutex_);
  polls_to_death_ = polls;
}

void FakeWeightClient::AllowReconnect(bool allow, absl::StatusCode code) {
  MutexLock lock(&mutex_);
  allow_reconnect_ = allow;
  refusal_ = code;
}

void FakeWeightClient::EndDemands(absl::StatusCode code, int count) {
  MutexLock lock(&mutex_);
  demands_end_ = code;
  demands_to_end_ = count;
}

bool FakeWeightClient::EndsInjected(const inferd::FetchRequest& request,
                                    inferd::FetchCompletion* completion) {
  MutexLock lock(&mutex_);
  if (request.request_class != RequestClass::kDemand ||
      request.dense_extent != inferd::FetchRequest::kNoExtent || demands_to_end_ == 0) {
    return false;
  }
  --demands_to_end_;
  completion->code = demands_end_;
  return true;
}

void FakeWeightClient::Freeze(bool frozen) {
  MutexLock lock(&mutex_);
  frozen_ = frozen;
  changed_.SignalAll();
}

void FakeWeightClient::SetBudget(uint64_t bytes) {
  MutexLock lock(&mutex_);
  budget_ = bytes;
}

std::string FakeWeightClient::violation() const {
  MutexLock lock(&mutex_);
  return violation_;
}

uint64_t FakeWeightClient::resident_bytes() const { return resident_bytes_; }

}  // namespace sluice
