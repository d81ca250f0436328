// Where a device's buffers lie in the memory that its kernels address: the one thing that checking an
// operation's arguments must know of a device.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/buffer.h"

namespace sluice {

class Addresses {
 public:
  virtual ~Addresses() = default;

  // The device's address of `ref`, or nullptr if [ref, ref + bytes) is not inside a live buffer (Write: or
  // not writable). For the device's kernels alone: the host may not be able to follow it.
  virtual const std::byte* Read(BufferRef ref, uint64_t bytes) const = 0;
  virtual std::byte* Write(BufferRef ref, uint64_t bytes) const = 0;

  // Why Read or Write gave nullptr, naming `what` and the numbers.
  virtual absl::Status Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const = 0;
};

}  // namespace sluice
