#include "kernels/cuda/cuda_copier.h"

#include <cuda_runtime_api.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace sluice::cuda {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedRing>> PinnedRing::Create(uint64_t bytes) {
  void* memory = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable),
                           absl::StrCat("pinned memory of ", bytes, " bytes for gathering rows")));
  return std::unique_ptr<PinnedRing>(new PinnedRing(static_cast<std::byte*>(memory), bytes));
}

PinnedRing::~PinnedRing() { cudaFreeHost(data_); }

std::optional<PinnedRing::Piece> PinnedRing::Take(uint64_t bytes) {
  const uint64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const uint64_t place = end_ % bytes_;
  // A piece lies in one part: what is left before the ring's end is passed over.
  const uint64_t start = place + size <= bytes_ ? end_ : end_ - place + bytes_;
  if (start + size - begin_ > bytes_) {
    return std::nullopt;
  }
  end_ = start + size;
  taken_.push_back({end_, false});
  return Piece{data_ + start % bytes_, first_ + taken_.size() - 1};
}

void PinnedRing::GiveBack(uint64_t number) {
  taken_[number - first_].back = true;
  while (!taken_.empty() && taken_.front().back) {
    begin_ = taken_.front().end;
    taken_.pop_front();
    ++first_;
  }
}

namespace {

// Copies only read: where pages may not be written (a session's view of weightd's segments) CUDA is told so.
bool Lock(std::byte* base, uint64_t bytes) {
  for (const unsigned flags : {unsigned{cudaHostRegisterPortable},
                               unsigned{cudaHostRegisterPortable} | unsigned{cudaHostRegisterReadOnly}}) {
    if (cudaHostRegister(base, bytes, flags) == cudaSuccess) {
      return true;
    }
    cudaGetLastError();  // the next call of this thread shall not return it
  }
  return false;
}

}  // namespace

Sources::Sources() : thread_([this] { Run(); }) {}

Sources::~Sources() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const auto& [base, source] : sources_) {
    if (source.state == State::kLocked) {
      cudaHostUnregister(const_cast<std::byte*>(base));
    }
  }
}

void Sources::Start(int device) {
  {
    const std::lock_guard lock(mutex_);
    device_ = device_ < 0 ? device : device_;
  }
  changed_.notify_all();
}

void Sources::Add(absl::Span<const std::byte> memory, std::shared_ptr<const void> owner) {
  {
    const std::lock_guard lock(mutex_);
    sources_[memory.data()] = {memory.size(), std::move(owner)};
  }
  changed_.notify_all();
}

void Sources::Remove(const std::byte* base) {
  std::unique_lock lock(mutex_);
  const auto found = sources_.find(base);
  if (found == sources_.end()) {
    return;
  }
  found->second.removed = true;
  const bool waits = found->second.owner == nullptr;
  changed_.notify_all();
  if (waits) {
    changed_.wait(lock, [&] { return !sources_.contains(base); });
  }
}

bool Sources::IsLocked(const std::byte* data, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto after = sources_.upper_bound(data);
  if (after == sources_.begin()) {
    return false;
  }
  const auto& [base, source] = *--after;
  return source.state == State::kLocked && !source.removed && data + bytes <= base + source.bytes;
}

uint64_t Sources::locked_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [base, source] : sources_) {
    bytes += source.state == State::kLocked ? source.bytes : 0;
  }
  return bytes;
}

std::map<const std::byte*, Sources::Source>::iterator Sources::Next() {
  auto waiting = sources_.end();
  for (auto it = sources_.begin(); it != sources_.end(); ++it) {
    if (it->second.removed) {
      return it;
    }
    if (device_ >= 0 && it->second.state == State::kWaiting && waiting == sources_.end()) {
      waiting = it;
    }
  }
  return waiting;
}

void Sources::WaitIdle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    for (const auto& [base, source] : sources_) {
      if (source.removed || source.state == State::kWaiting || source.state == State::kLocking) {
        return false;
      }
    }
    return true;
  });
}

void Sources::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto next = Next();
    if (next == sources_.end()) {
      changed_.wait(lock);
      continue;
    }
    Source& source = next->second;  // stays: only this thread erases
    std::byte* const base = const_cast<std::byte*>(next->first);
    if (!source.removed) {
      source.state = State::kLocking;
      const int device = device_;
      lock.unlock();
      const bool locked = cudaSetDevice(device) == cudaSuccess && Lock(base, source.bytes);
      lock.lock();
      source.state = locked ? State::kLocked : State::kRefused;
    } else {
      const bool locked = source.state == State::kLocked;
      lock.unlock();
      if (locked) {
        cudaHostUnregister(base);
      }
      lock.lock();
      std::shared_ptr<const void> owner = std::move(source.owner);
      sources_.erase(next);
      lock.unlock();
      owner.reset();  // here the memory goes, if nobody else holds it
      lock.lock();
    }
    changed_.notify_all();
  }
}

namespace {

// Between two looks at an event: a chunk of 1 MiB takes some 40 microseconds.
constexpr int64_t kLookNanos = 10'000;
constexpr uint64_t kPitchAlignment = 16;

void Sleep(int64_t nanos) {
  const timespec pause{0, nanos};
  nanosleep(&pause, nullptr);
}

}  // namespace

CudaCopier::~CudaCopier() {
  for (auto& [number, device] : devices_) {
    cudaSetDevice(number);
    cudaStreamSynchronize(device.stream);
    for (const Flight& flight : device.flights) {
      cudaEventDestroy(flight.event);
    }
    for (const cudaEvent_t event : device.spare) {
      cudaEventDestroy(event);
    }
    cudaStreamDestroy(device.stream);
  }
}

absl::StatusOr<std::shared_ptr<Slab>> CudaCopier::Open(UniqueFd fd, const SlabHandle& handle) {
  ASSIGN_OR_RETURN(std::shared_ptr<CudaSlab> slab, CudaSlab::Import(std::move(fd), handle));
  RETURN_IF_ERROR(OpenDevice(slab->device()));
  sources_.Start(slab->device());
  return slab;
}

absl::Status CudaCopier::OpenDevice(int device) {
  const std::lock_guard lock(mutex_);
  if (ring_ == nullptr) {
    ASSIGN_OR_RETURN(ring_, PinnedRing::Create(options_.ring_bytes));
  }
  if (!devices_.contains(device)) {
    cudaStream_t stream = nullptr;
    RETURN_IF_ERROR(
        StatusOf(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream for copies"));
    devices_[device].stream = stream;
  }
  return devices_[device].failed;
}

absl::Status CudaCopier::Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) {
  const auto& target = static_cast<const CudaSlab&>(*slab);
  RETURN_IF_ERROR(StatusOf(cudaSetDevice(target.device()), "choosing the slab's GPU"));
  absl::Status status;
  for (uint32_t lane = chunk.first_lane; lane < chunk.end_lane; ++lane) {
    status.Update(CopyLaneOf(plan, plan.lanes[lane], chunk, target));
  }
  const std::lock_guard lock(mutex_);
  Device& device = devices_.at(target.device());
  if (status.ok()) {
    return Mark(&device, 0, tag);
  }
  // The engine may let sources and slab go now: what was enqueued of the chunk must not be on its way.
  cudaStreamSynchronize(device.stream);
  return status;
}

absl::Status CudaCopier::CopyLaneOf(const TransferPlan& plan, const CopyLane& lane, const PlanChunk& chunk,
                                    const CudaSlab& slab) {
  if (plan.neurons.empty() && lane.solid) {
    return CopyRun(lane.source + uint64_t{chunk.first} * lane.source_stride,
                   (uint64_t{chunk.rows} - 1) * lane.dest_stride + lane.row_bytes,
                   slab.address() + lane.dest + uint64_t{chunk.first} * lane.dest_stride, slab.device());
  }
  return CopyRows(
      {&lane, plan.neurons.empty() ? nullptr : plan.neurons.data() + chunk.first, chunk.first, chunk.rows},
      slab);
}

// Bytes that lie side by side on both sides.
absl::Status CudaCopier::CopyRun(const std::byte* source, uint64_t bytes, CUdeviceptr to, int device) {
  if (sources_.IsLocked(source, bytes)) {
    return Enqueue(device, to, bytes, source, bytes, bytes, 1, 0);
  }
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t part = std::min(bytes - at, ring_->piece_bytes());
    ASSIGN_OR_RETURN(const PinnedRing::Piece piece, TakePiece(part, device));
    std::memcpy(piece.data, source + at, part);
    RETURN_IF_ERROR(Enqueue(device, to + at, part, piece.data, part, part, 1, piece.number));
    at += part;
  }
  return absl::OkStatus();
}

absl::Status CudaCopier::CopyRows(const Rows& rows, const CudaSlab& slab) {
  const CopyLane& lane = *rows.lane;
  const auto row_of = [&](uint64_t i) {
    return lane.source +
           (rows.neurons == nullptr ? rows.first + i : uint64_t{rows.neurons[i]}) * lane.source_stride;
  };
  const CUdeviceptr to = slab.address() + lane.dest + rows.first * lane.dest_stride;
  // Where places lie side by side but for padding, rows do so in the ring too, and are one copy.
  const uint64_t pitch = lane.solid
                             ? lane.dest_stride
                             : (lane.row_bytes + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  const uint64_t batch = ring_->piece_bytes() / pitch;
  if (batch == 0) {
    for (uint64_t i = 0; i < rows.count; ++i) {
      RETURN_IF_ERROR(CopyRun(row_of(i), lane.row_bytes, to + i * lane.dest_stride, slab.device()));
    }
    return absl::OkStatus();
  }
  for (uint64_t begin = 0; begin < rows.count; begin += batch) {
    const uint64_t count = std::min(batch, rows.count - begin);
    ASSIGN_OR_RETURN(const PinnedRing::Piece piece, TakePiece(count * pitch, slab.device()));
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(piece.data + i * pitch, row_of(begin + i), lane.row_bytes);
    }
    const CUdeviceptr place = to + begin * lane.dest_stride;
    const uint64_t all = (count - 1) * pitch + lane.row_bytes;
    RETURN_IF_ERROR(lane.solid ? Enqueue(slab.device(), place, all, piece.data, all, all, 1, piece.number)
                               : Enqueue(slab.device(), place, lane.dest_stride, piece.data, pitch,
                                         lane.row_bytes, count, piece.number));
  }
  return absl::OkStatus();
}

absl::StatusOr<PinnedRing::Piece> CudaCopier::TakePiece(uint64_t bytes, int device) {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      for (auto& [number, each] : devices_) {
        Reap(&each);
      }
      RETURN_IF_ERROR(devices_.at(device).failed);
      if (const std::optional<PinnedRing::Piece> piece = ring_->Take(bytes); piece.has_value()) {
        return *piece;
      }
    }
    Sleep(kLookNanos);
  }
}

absl::Status CudaCopier::Enqueue(int number, CUdeviceptr to, uint64_t to_pitch, const std::byte* from,
                                 uint64_t from_pitch, uint64_t width, uint64_t height, uint64_t piece) {
  const std::lock_guard lock(mutex_);
  Device& device = devices_.at(number);
  absl::Status status = device.failed;
  if (status.ok()) {
    void* const place = reinterpret_cast<void*>(to);
    status = StatusOf(height == 1 ? cudaMemcpyAsync(place, from, width, cudaMemcpyHostToDevice, device.stream)
                                  : cudaMemcpy2DAsync(place, to_pitch, from, from_pitch, width, height,
                                                      cudaMemcpyHostToDevice, device.stream),
                      absl::StrCat("a copy of ", height, " x ", width, " bytes into a slab"));
  }
  if (piece == 0) {
    return status;
  }
  if (status.ok()) {
    status = Mark(&device, piece, 0);
  }
  if (!status.ok()) {
    cudaStreamSynchronize(device.stream);
    ring_->GiveBack(piece);
  }
  return status;
}

// An event behind everything enqueued so far.
absl::Status CudaCopier::Mark(Device* device, uint64_t piece, uint64_t tag) {
  RETURN_IF_ERROR(device->failed);
  cudaEvent_t event = nullptr;
  if (device->spare.empty()) {
    RETURN_IF_ERROR(
        StatusOf(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event for copies"));
  } else {
    event = device->spare.back();
    device->spare.pop_back();
  }
  if (const absl::Status recorded = StatusOf(cudaEventRecord(event, device->stream), "the end of a copy");
      !recorded.ok()) {
    device->spare.push_back(event);
    return recorded;
  }
  device->flights.push_back({event, piece, tag});
  return absl::OkStatus();
}

void CudaCopier::Reap(Device* device) {
  while (!device->flights.empty()) {
    const Flight flight = device->flights.front();
    if (device->failed.ok()) {
      const cudaError_t state = cudaEventQuery(flight.event);
      if (state == cudaErrorNotReady) {
        return;
      }
      device->failed = StatusOf(state, "copying into a slab");
    }
    device->flights.pop_front();
    device->spare.push_back(flight.event);
    if (flight.piece != 0) {
      ring_->GiveBack(flight.piece);
    }
    if (flight.tag != 0) {
      done_.push_back({flight.tag, device->failed});
    }
  }
}

std::vector<CopyDone> CudaCopier::Completed(int64_t max_wait_nanos) {
  const MonotonicClock clock;
  const int64_t end = clock.NowNanos() + max_wait_nanos;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      bool flying = false;
      for (auto& [number, device] : devices_) {
        Reap(&device);
        flying = flying || !device.flights.empty();
      }
      if (!done_.empty() || !flying || clock.NowNanos() >= end) {
        return std::exchange(done_, {});
      }
    }
    Sleep(kLookNanos);
  }
}

}  // namespace sluice::cuda
