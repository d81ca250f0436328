#include "kernels/cuda/copy/cuda_copier.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status.h"
#include "kernels/cuda/status.h"

namespace sluice::cuda {
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
  for (const CopyLane& lane : plan.lanes) {
    status.Update(CopyLaneOf(plan, lane, chunk, target));
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
