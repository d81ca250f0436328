// The fake device's memory, and the table of host memory that it knows.
//
// An allocation has two addresses: the device's, inside a range that the host may never touch (PROT_NONE: a
// host that dereferences a device pointer faults at once), and one of the fake's own, where the bytes are.
// Device addresses are never given out twice, so that the use of a freed one is found. New memory is poison.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "tests/cuda_fake/interp/region.h"

namespace sluice::cuda_fake {

inline constexpr uint8_t kPoison = 0xCB;
// The granularity that cuMemGetAllocationGranularity returns; sizes given to cuMemCreate are multiples of it.
inline constexpr uint64_t kGranularity = 2 << 20;

class DeviceMemory : public RegionTable {
 public:
  explicit DeviceMemory(uint64_t total);
  ~DeviceMemory() override;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  uint64_t total() const { return total_; }
  uint64_t used() const { return used_; }

  // 0 if it does not fit.
  uint64_t Allocate(uint64_t bytes, absl::string_view what);
  bool Free(uint64_t address);  // of an Allocate()
  // Moves one, with its bytes, to the beginning of a memory file that is large enough. `owner` and `peers`:
  // as Map()'s.
  bool MoveToFile(uint64_t address, int fd, std::shared_ptr<void> owner, PeerWatch* peers);
  bool IsAllocation(uint64_t address) const;
  uint64_t allocations() const { return allocations_; }

  HostWatch* host_watch = nullptr;  // of all host memory that is registered

  // Host memory that the device may read and write by its own address.
  bool RegisterHost(void* base, uint64_t bytes);
  bool UnregisterHost(void* base);
  bool IsRegistered(const void* base, uint64_t bytes) const;

  // Memory files (cuMemCreate), counted while a handle or a mapping holds them.
  bool Reserve(uint64_t bytes) { return total_ - used_ >= bytes && (used_ += bytes, true); }
  void Return(uint64_t bytes) { used_ -= bytes; }
  // A range of addresses without memory, and mappings of a file into it, readable and writable once access is
  // set.
  uint64_t ReserveAddresses(uint64_t bytes, uint64_t alignment);
  // `owner` lives as long as the mapping; `foreign`: another process may have written it; `peers`: told of
  // what is done to it, lives as long too, may be null.
  bool Map(uint64_t address, uint64_t bytes, int fd, uint64_t offset, std::shared_ptr<void> owner,
           bool foreign, PeerWatch* peers);
  bool Unmap(uint64_t address, uint64_t bytes);
  bool SetAccess(uint64_t address, uint64_t bytes, bool readable, bool writable);

  const Region* Find(uint64_t address) const override;
  std::string Near(uint64_t address) const override;

 private:
  struct Entry {
    Region region;
    std::shared_ptr<Shadow> shadow;  // one of all mappings of a memory file
    std::shared_ptr<void> owner;
    enum class Kind { kAllocation, kMapping, kHost } kind = Kind::kAllocation;
  };
  void Release(Entry* entry);

  uint64_t total_;
  uint64_t used_ = 0;
  uint64_t allocations_ = 0;
  uint64_t window_ = 0;  // [window_, window_ + kWindowSize): every device address
  uint64_t next_ = 0;
  std::map<uint64_t, Entry> entries_;  // by base
  // By the memory file's number, offset and bytes.
  std::map<std::tuple<uint64_t, uint64_t, uint64_t>, std::weak_ptr<Shadow>> file_shadows_;
  std::map<uint64_t, std::string> freed_;  // bases, with what they were
  std::map<uint64_t, uint64_t> freed_bytes_;
};

}  // namespace sluice::cuda_fake
