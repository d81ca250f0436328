#include "kernels/cuda/tables.h"

#include <algorithm>
#include <iterator>

#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace sluice::cuda {
namespace {

constexpr uint64_t kAlignment = 16;
constexpr uint64_t kSmallestSegment = 64 << 10;

uint64_t Up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

absl::StatusOr<std::unique_ptr<Tables>> Tables::Create(const Sizes& sizes, cudaStream_t stream) {
  std::unique_ptr<Tables> tables(new Tables(std::max(Up(sizes.call), kSmallestSegment), stream));
  RETURN_IF_ERROR(tables->CreateRing());
  for (size_t i = 0; i < sizes.kept.size(); ++i) {
    RETURN_IF_ERROR(tables->CreateRegion(Up(sizes.kept[i]) + tables->segment_bytes_, &tables->regions_[i]));
  }
  tables->kept_call_.resize(tables->segment_bytes_);
  return tables;
}

absl::Status Tables::CreateRing() {
  const uint64_t all = kSegments * segment_bytes_;
  void* place = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaHostAlloc(&place, all, cudaHostAllocDefault),
                           absl::StrCat("pinned memory for tables of ", all, " bytes")));
  host_ = static_cast<uint8_t*>(place);
  RETURN_IF_ERROR(
      StatusOf(cudaMalloc(&place, all), absl::StrCat("device memory for tables of ", all, " bytes")));
  device_ = static_cast<uint8_t*>(place);
  for (cudaEvent_t& event : events_) {
    RETURN_IF_ERROR(
        StatusOf(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event for tables"));
  }
  return absl::OkStatus();
}

// Both sides begin with zeros: what is equal is not sent.
absl::Status Tables::CreateRegion(uint64_t bytes, Region* region) {
  void* place = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaMalloc(&place, bytes),
                           absl::StrCat("device memory for kept tables of ", bytes, " bytes")));
  region->device = static_cast<uint8_t*>(place);
  region->host.resize(bytes);
  return StatusOf(cudaMemsetAsync(region->device, 0, bytes, stream_), "zeroing kept tables");
}

Tables::~Tables() {
  for (const cudaEvent_t event : events_) {
    if (event != nullptr) {
      cudaEventDestroy(event);
    }
  }
  for (const Region& region : regions_) {
    cudaFree(region.device);
  }
  cudaFree(device_);
  cudaFreeHost(host_);
}

bool Tables::HasRoom() const {
  return std::all_of(regions_.begin(), regions_.end(), [this](const Region& region) {
    return region.host.size() - region.next >= segment_bytes_;
  });
}

absl::Status Tables::Begin(uint64_t bytes, Change change) {
  if (bytes > segment_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("tables of ", bytes, " bytes for a call, more than the ",
                                                     segment_bytes_, " of a segment"));
  }
  used_ = 0;
  taken_.clear();
  if (keeps_) {
    region_ = &regions_[static_cast<size_t>(change)];
    call_host_ = kept_call_.data();
    call_device_ = region_->device + region_->next;
    return absl::OkStatus();
  }
  region_ = nullptr;
  RETURN_IF_ERROR(Reserve(bytes));
  call_host_ = host_ + next_;
  call_device_ = device_ + next_;
  return absl::OkStatus();
}

absl::Status Tables::Reserve(uint64_t bytes) {
  const uint64_t end = (static_cast<uint64_t>(segment_) + 1) * segment_bytes_;
  if (next_ + bytes > end) {
    RETURN_IF_ERROR(StatusOf(cudaEventRecord(events_[segment_], stream_), "the end of a segment of tables"));
    segment_ = (segment_ + 1) % kSegments;
    RETURN_IF_ERROR(StatusOf(cudaEventSynchronize(events_[segment_]), "waiting for tables of earlier calls"));
    next_ = static_cast<uint64_t>(segment_) * segment_bytes_;
  }
  return absl::OkStatus();
}

uint64_t Tables::Take(uint64_t bytes) {
  const uint64_t at = used_;
  used_ += Up(bytes);
  return at;
}

const uint8_t* Tables::Reuse(const Key& key, Change change) {
  Region& region = regions_[static_cast<size_t>(change)];
  const auto found = region.keyed.find(region.next);
  if (!keeps_ || key.number == 0 || found == region.keyed.end() || found->second.key != key) {
    return nullptr;
  }
  const uint8_t* const place = region.device + region.next;
  region.next += found->second.bytes;
  return place;
}

void Tables::Forget() {
  for (Region& region : regions_) {
    region.keyed.clear();
  }
}

// Notes the key of the running call's tables; those that had a part of their place have theirs no more.
void Tables::NoteKey(const Key& key, Region* region) {
  const uint64_t end = region->next + used_;
  auto at = region->keyed.upper_bound(region->next);
  if (at != region->keyed.begin() && std::prev(at)->first + std::prev(at)->second.bytes > region->next) {
    --at;
  }
  while (at != region->keyed.end() && at->first < end) {
    at = region->keyed.erase(at);
  }
  if (key.number != 0) {
    region->keyed[region->next] = {key, used_};
  }
}

absl::Status Tables::Send(const Key& key) {
  if (used_ == 0) {
    return absl::OkStatus();
  }
  if (region_ != nullptr) {
    for (const Taken& taken : taken_) {
      Keep(taken, region_);
    }
    NoteKey(key, region_);
    region_->next += used_;
    return absl::OkStatus();
  }
  next_ += used_;
  return StatusOf(cudaMemcpyAsync(call_device_, call_host_, used_, cudaMemcpyHostToDevice, stream_),
                  "copying tables");
}

// Values that are different go to where the host has what the device has.
void Tables::Keep(const Taken& taken, Region* region) {
  for (uint64_t i = 0; i < taken.count; ++i) {
    const uint64_t at = taken.at + i * taken.bytes;
    const uint8_t* const value = call_host_ + at;
    const uint64_t begin = region->next + at;
    if (taken.equal(value, &region->host[begin])) {
      continue;
    }
    std::memcpy(&region->host[begin], value, taken.bytes);
    const bool first = region->changed == region->changed_end;
    region->changed = first ? begin : std::min(region->changed, begin);
    region->changed_end = std::max(first ? 0 : region->changed_end, begin + taken.bytes);
  }
}

absl::Status Tables::SendKept() {
  for (Region& region : regions_) {
    region.next = 0;
    RETURN_IF_ERROR(SendChanges(&region));
  }
  return absl::OkStatus();
}

// Through the ring, whose memory stays as it is until the copy has run; the host's copy of the region may be
// another by then.
absl::Status Tables::SendChanges(Region* region) {
  while (region->changed < region->changed_end) {
    const uint64_t bytes = std::min(region->changed_end - region->changed, segment_bytes_);
    RETURN_IF_ERROR(Reserve(bytes));
    std::memcpy(host_ + next_, &region->host[region->changed], bytes);
    RETURN_IF_ERROR(StatusOf(cudaMemcpyAsync(region->device + region->changed, host_ + next_, bytes,
                                             cudaMemcpyHostToDevice, stream_),
                             "copying kept tables"));
    next_ += Up(bytes);
    region->changed += bytes;
  }
  return absl::OkStatus();
}

}  // namespace sluice::cuda
