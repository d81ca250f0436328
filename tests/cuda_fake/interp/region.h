// Memory that kernels reach by address.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "tests/cuda_fake/interp/shadow.h"

namespace sluice::cuda_fake {

// Told of what a kernel does to host memory.
class HostWatch {
 public:
  virtual ~HostWatch() = default;
  virtual void BeforeDevice(const uint8_t* host, uint64_t bytes, bool writes) = 0;
};

// Told of what operations do to memory that another process has too.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  virtual void Access(uint32_t operation, uint64_t offset, uint64_t bytes, bool writes) = 0;
};

// One live allocation. Kernels and copies name its bytes by `base`, the device's address, which the host
// cannot read; the fake itself reads and writes them at `bytes`.
struct Region {
  uint64_t base = 0;
  uint64_t size = 0;
  uint8_t* bytes = nullptr;
  Shadow* shadow = nullptr;    // nullptr: not checked (registered host memory)
  HostWatch* watch = nullptr;  // of registered host memory
  bool readable = true;
  bool writable = true;
  std::string name;            // "device memory of 4096 bytes"
  PeerWatch* peers = nullptr;  // of a memory file that another process may have too,
  uint64_t file_offset = 0;    // and where in it the region begins

  void TellPeers(uint32_t operation, uint64_t offset, uint64_t count, bool writes) const {
    if (peers != nullptr) {
      peers->Access(operation, file_offset + offset, count, writes);
    }
  }
};

class RegionTable {
 public:
  virtual ~RegionTable() = default;
  // The live region that `address` lies in, nullptr if none.
  virtual const Region* Find(uint64_t address) const = 0;
  // Describes the memory at or near `address` for a report: "freed", "16 bytes behind ...".
  virtual std::string Near(uint64_t address) const = 0;
};

}  // namespace sluice::cuda_fake
