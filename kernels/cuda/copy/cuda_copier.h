#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/transfer/copier.h"
#include "kernels/cuda/copy/cuda_slab.h"
#include "kernels/cuda/copy/pinned_ring.h"
#include "kernels/cuda/copy/sources.h"

namespace sluice::cuda {

class CudaCopier final : public Copier {
 public:
  struct Options {
    // Bytes of rows that are put side by side and on their way. A link's window is 4 MiB
    // (TransferSchedule::Options), so this is for several.
    uint64_t ring_bytes = 16ull << 20;
  };
  explicit CudaCopier(const Options& options) : options_(options) {}
  // Waits for what is on its way.
  ~CudaCopier() override;

  bool Supports(HandleKind kind) const override { return IsCudaHandle(kind); }
  bool IsSynchronous() const override { return false; }
  absl::StatusOr<std::shared_ptr<Slab>> Open(UniqueFd fd, const SlabHandle& handle) override;
  absl::Status Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) override;
  std::vector<CopyDone> Completed(int64_t max_wait_nanos) override;
  void AddSource(absl::Span<const std::byte> memory, std::shared_ptr<const void> owner) override {
    sources_.Add(memory, std::move(owner));
  }
  void RemoveSource(const std::byte* base) override { sources_.Remove(base); }

  // Pinned bytes of the sources. WaitForSources() returns when all sources added so far are locked and all
  // removed ones unlocked.
  uint64_t locked_bytes() const { return sources_.locked_bytes(); }
  void WaitForSources() { sources_.WaitIdle(); }

 private:
  // A copy with an event recorded after it: a chunk's last copy, or a copy from a piece of the ring.
  struct Flight {
    cudaEvent_t event = nullptr;
    uint64_t piece = 0;  // 0: none
    uint64_t tag = 0;    // 0: of a chunk that is not complete with it
  };
  struct Device {
    cudaStream_t stream = nullptr;
    std::deque<Flight> flights;  // in the stream's order
    std::vector<cudaEvent_t> spare;
    absl::Status failed;  // it takes no more copies
  };
  // Rows of a lane that go to equally spaced places.
  struct Rows {
    const CopyLane* lane = nullptr;
    const uint32_t* neurons = nullptr;  // of the rows; null: first, first + 1, ...
    uint64_t first = 0;                 // place in the slab
    uint64_t count = 0;
  };

  absl::Status OpenDevice(int device);
  absl::Status CopyLaneOf(const TransferPlan& plan, const CopyLane& lane, const PlanChunk& chunk,
                          const CudaSlab& slab);
  absl::Status CopyRun(const std::byte* source, uint64_t bytes, CUdeviceptr to, int device);
  absl::Status CopyRows(const Rows& rows, const CudaSlab& slab);
  absl::StatusOr<PinnedRing::Piece> TakePiece(uint64_t bytes, int device);
  // Enqueues a copy of `height` rows of `width` bytes (pitches apply to more than one), with an event behind
  // it if it is from a piece.
  absl::Status Enqueue(int device, CUdeviceptr to, uint64_t to_pitch, const std::byte* from,
                       uint64_t from_pitch, uint64_t width, uint64_t height, uint64_t piece);
  absl::Status Mark(Device* device, uint64_t piece, uint64_t tag);
  void Reap(Device* device);

  const Options options_;
  Sources sources_;  // self-synchronised
  std::mutex mutex_;
  std::map<int, Device> devices_;     // guarded by mutex_, as all below
  std::unique_ptr<PinnedRing> ring_;  // from the first slab on
  std::vector<CopyDone> done_;
};

}  // namespace sluice::cuda
