// CudaCopier: the copier into CUDA memory. Chunks from locked memory are one copy a lane, rows that lie apart
// are put side by side in a ring of pinned memory first; all of a device go down one stream of its own, in
// the order of Begin(), and an event behind each says when it has arrived. No kernels, no memset, no copies
// on the device, from pageable memory or on the default stream: this process' work is the copy engine's
// alone, so that it runs beside another process' kernels.
//
// The transfer engine (common/link/transfer_schedule.h) limits the copies in flight and puts demand first.
// One stream is enough: a copy engine takes one copy at a time, and the next is queued while it runs.
//
// A device that has failed fails every copy from then on, as its driver does.
//
// Thread safety: as Copier's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"

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

}  // namespace sluice::cuda
