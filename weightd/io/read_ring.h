// The few things that the uring engine asks of a ring, so that tests can put scripted files behind it.
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

namespace sluice {

struct RingCompletion {
  uint32_t slot = 0;   // as given to Read()
  int64_t result = 0;  // bytes, or -errno
};

class ReadRing {
 public:
  virtual ~ReadRing() = default;

  // Makes `file` (borrowed for the ring's life) readable under the next number, from 0 on.
  virtual absl::Status AddFile(ReadFile* file) = 0;

  // Prepares a read; at most as many at a time as the ring was made for. Starts with the next Start() or
  // Wait().
  virtual void Read(uint32_t slot, int file, std::byte* dest, uint32_t length, uint64_t offset) = 0;

  // Starts what was prepared. An error: the kernel refused, and it stays prepared.
  virtual absl::Status Start() = 0;

  // Start(), then fills `completions` with what has ended, waiting for at least one or a Wake(). Errors as
  // Start().
  virtual absl::Status Wait(std::vector<RingCompletion>* completions) = 0;

  // Ends a Wait(), now or the next.
  virtual void Wake() = 0;
};

// A ring of the kernel for `depth` reads, its file table registered (one ring, one thread that submits and
// reaps). It is tried with a real read first: sandboxes may allow the set-up and refuse the use. UNAVAILABLE
// naming the step, the errno and what helps where the kernel or a sandbox has none.
absl::StatusOr<std::unique_ptr<ReadRing>> MakeReadRing(uint32_t depth);

// The errno with which this host refuses such a ring; 0 where it works.
int TryReadRing();

}  // namespace sluice
