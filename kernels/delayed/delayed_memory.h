// A test device that computes later. It copies operations when they are enqueued; its own thread runs them on
// the inner backend, in order, after random delays: at once, some microseconds later, or only when the host
// waits.
//
// The host can access staging memory only, and reads poison there until it knows that the writer is done.
// Accesses that are too early make the queue's error, which names the pending operation: a buffer freed,
// staging memory read or changed, weights overwritten before an operation read them.
//
// Thread safety: as Backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kernels/buffer.h"
#include "kernels/calls/addresses.h"

namespace sluice {

// The buffers of a delayed backend: the bytes that each operation reads and writes, and the bytes that the
// host may access. Staging memory has two copies, as with a link between host and device.

// Bytes [begin, end) of a buffer.
struct Access {
  BufferId buffer = kNoBuffer;
  uint64_t begin = 0;
  uint64_t end = 0;
  bool write = false;
  bool Overlaps(const Access& other) const {
    return buffer == other.buffer && begin < other.end && other.begin < end;
  }
};

class DelayedMemory final : public Addresses {
 public:
  enum class Kind : uint8_t {
    kDevice,   // visible to the device only
    kStaging,  // the host has a copy of its own
    kOthers,   // imported, or shared with another process: others write there
  };

  // Adds a buffer of the inner backend, whose memory begins at `device`.
  void Add(BufferId buffer, std::byte* device, uint64_t bytes, Kind kind);
  void Remove(BufferId buffer) { buffers_[buffer - 1] = {}; }
  bool Lives(BufferId buffer) const {
    return buffer != kNoBuffer && buffer <= buffers_.size() && buffers_[buffer - 1].device != nullptr;
  }
  Kind kind(BufferId buffer) const { return buffers_[buffer - 1].kind; }

  // Returns the accesses noted since the last call, and begins to note anew.
  std::vector<Access> TakeAccesses();

  // Returns the host's copy of staging memory; nullptr for other memory, or outside.
  std::byte* Host(BufferRef ref, uint64_t bytes) const;
  std::byte* Host(const Access& access) const {
    return Host({access.buffer, access.begin}, access.end - access.begin);
  }
  std::byte* Device(const Access& access) const { return buffers_[access.buffer - 1].device + access.begin; }

  const std::byte* Read(BufferRef ref, uint64_t bytes) const override;
  std::byte* Write(BufferRef ref, uint64_t bytes) const override;
  absl::Status Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const override;

 private:
  struct Buffer {
    std::byte* device = nullptr;  // nullptr: freed
    uint64_t bytes = 0;
    Kind kind = Kind::kDevice;
    std::unique_ptr<std::byte[]> host;
  };
  const Buffer* Find(BufferRef ref, uint64_t bytes) const;

  std::vector<Buffer> buffers_;  // buffers_[id - 1]
  mutable std::vector<Access> noted_accesses_;
};

}  // namespace sluice
