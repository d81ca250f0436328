// The base of the bench's "share of the read bandwidth": how fast this host's threads read as many bytes as
// the pack has, measured in the same run, when the daemons are idle.
//
// The bytes are anonymous memory on huge pages: the best mapping that weightd could have, so the share is
// never flattered.
//
// Thread safety: a free function; nothing else should use the memory bandwidth meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Bytes of memory that a measurement reads.
struct ReadBaseSize {
  uint64_t bytes = 0;  // whole huge pages; 0: too little is free for a figure that means memory
  std::string note;    // what is less than wanted and why, for people; "" where nothing is
};

// Size for a pack of `pack_bytes`: all of it, at most 4 GiB and half of `usable_bytes`, which is what this
// process may still take (UsableMemory: its cgroup counts too). Less than 256 MiB of a larger pack would
// measure caches, so it is nothing.
ReadBaseSize SizeOfReadBase(uint64_t pack_bytes, uint64_t usable_bytes);

// Bytes per second of `threads` threads over `bytes` of memory, read until at least 4 GiB have passed.
// RESOURCE_EXHAUSTED naming the bytes when the memory cannot be had.
absl::StatusOr<double> MeasureReadBase(uint64_t bytes, uint32_t threads);

}  // namespace sluice
