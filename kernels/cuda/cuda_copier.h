// CudaCopier: the copier into CUDA memory. Chunks from locked memory are one copy a lane, rows that lie apart
// are put side by side in a ring of pinned memory first; all of a device go down one stream of its own, in
// the order of Begin(), and an event behind each says when it has arrived. No kernels, no memset, no copies
// on the device, from pageable memory or on the default stream: this process' work is the copy engine's
// alone, so that it runs beside another process' kernels.
//
// The transfer engine (common/protocol/link_model.h) limits the copies in flight and puts demand first.
// One stream is enough: a copy engine takes one copy at a time, and the next is queued while it runs.
//
// A device that has failed fails every copy from then on, as its driver does.
//
// Thread safety: as Copier's.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/copier.h"
#include "kernels/cuda/cuda_slab.h"

namespace sluice::cuda {

// Pinned host memory where rows that lie apart are put side by side, for one copy instead of many: a ring
// whose pieces are given back in any order and used again in the order in which they were taken.

class PinnedRing {
 public:
  // RESOURCE_EXHAUSTED naming the bytes.
  static absl::StatusOr<std::unique_ptr<PinnedRing>> Create(uint64_t bytes);
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  struct Piece {
    std::byte* data = nullptr;
    uint64_t number = 0;
  };
  // None: there is no room before older pieces come back. REQUIRES: bytes above 0, at most piece_bytes().
  std::optional<Piece> Take(uint64_t bytes);
  void GiveBack(uint64_t number);
  // So much fits beside other pieces of this size, wherever the ring begins.
  uint64_t piece_bytes() const { return bytes_ / 4; }

 private:
  struct Taken {
    uint64_t end = 0;  // a position that only grows; modulo bytes_ a place
    bool back = false;
  };
  PinnedRing(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* const data_;
  const uint64_t bytes_;
  uint64_t begin_ = 0;  // of the oldest piece that is not back
  uint64_t end_ = 0;
  uint64_t first_ = 1;  // number of the oldest in taken_
  std::deque<Taken> taken_;
};

// Host memory that copies read from, page-locked for the copy engines: by a thread of its own, since locking
// a segment takes tens of milliseconds and holds nobody up. Memory that is not locked yet, or that the system
// refuses to lock, is copied through pinned memory.

class Sources {
 public:
  Sources();
  // Unlocks what is locked. REQUIRES: no copy reads any of it.
  ~Sources();
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;

  // Nothing is locked before this: from a device's context on.
  void Start(int device);

  // As Copier::AddSource() and RemoveSource().
  void Add(absl::Span<const std::byte> memory, std::shared_ptr<const void> owner);
  void Remove(const std::byte* base);

  // True if [data, data + bytes) is locked; it stays so until it is removed.
  bool IsLocked(const std::byte* data, uint64_t bytes) const;
  uint64_t locked_bytes() const;
  // Until what was added or removed so far is locked or unlocked; for tests.
  void WaitIdle();

 private:
  enum class State : uint8_t { kWaiting, kLocking, kLocked, kRefused };
  struct Source {
    uint64_t bytes = 0;
    std::shared_ptr<const void> owner;
    State state = State::kWaiting;
    bool removed = false;
  };
  void Run();
  // The source to lock or unlock next; end() if there is none.
  std::map<const std::byte*, Source>::iterator Next();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const std::byte*, Source> sources_;  // by base; guarded by mutex_, as the next
  int device_ = -1;                             // not started
  bool stop_ = false;
  std::thread thread_;  // const after construction
};

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
