// Checks of operation arguments, the same for every device: buffer references become addresses of the
// device's memory, encodings are checked against the format, sizes against limits. Every error names the
// operation, the argument and the numbers.
//
// Thread safety: thread-compatible; the Addresses must not change meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/buffer.h"

namespace sluice {

// The addresses of a device's buffers, in the memory that its kernels address. Argument checks need nothing
// else of a device.

class Addresses {
 public:
  virtual ~Addresses() = default;

  // Returns the device's address of `ref`, or nullptr if [ref, ref + bytes) is not inside a live buffer
  // (Write: or not writable). For the device's kernels only: the host may not be able to read it.
  virtual const std::byte* Read(BufferRef ref, uint64_t bytes) const = 0;
  virtual std::byte* Write(BufferRef ref, uint64_t bytes) const = 0;

  // Returns the reason why Read or Write returned nullptr, naming `what` and the numbers.
  virtual absl::Status Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const = 0;
};

}  // namespace sluice
