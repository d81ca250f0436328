// The interface of a ring for the uring engine, so that tests can put scripted files behind it.
//
// Thread safety: Wake() from any thread, AddFile() from any but one at a time; everything else belongs to the
// engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weightd/io/read_file.h"

namespace sluice::weightd {

struct RingCompletion {
  uint32_t slot = 0;   // as passed to Read()
  int64_t result = 0;  // bytes, or -errno
};

class ReadRing {
 public:
  virtual ~ReadRing() = default;

  // Registers `file` (borrowed for the ring's life) under the next number, from 0 on.
  virtual absl::Status AddFile(ReadFile* file) = 0;

  // Prepares a read; at most `depth` (MakeReadRing) at a time. Starts with the next Start() or Wait().
  virtual void Read(uint32_t slot, int file, std::byte* dest, uint32_t length, uint64_t offset) = 0;

  // Starts the prepared reads. An error: the kernel refused, and they stay prepared.
  virtual absl::Status Start() = 0;

  // Calls Start(), then fills `completions` with the ended reads, waiting for at least one or a Wake().
  // Errors as for Start().
  virtual absl::Status Wait(std::vector<RingCompletion>* completions) = 0;

  // Ends a Wait(), the current or the next.
  virtual void Wake() = 0;
};

// Makes a kernel ring for `depth` reads with a registered file table (one ring, one thread that submits and
// reaps). It is tried with a real read first: sandboxes may allow the set-up and refuse the use. UNAVAILABLE
// naming the step, the errno and a remedy where the kernel or a sandbox refuses.
absl::StatusOr<std::unique_ptr<ReadRing>> MakeReadRing(uint32_t depth);

// The errno with which this host refuses such a ring; 0 where it works.
int TryReadRing();

}  // namespace sluice::weightd
