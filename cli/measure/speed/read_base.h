// The base of the bench's "share of the read bandwidth": how fast this host's threads read as many bytes as
// the pack has, measured in the same run, when the daemons are idle.
//
// The bytes are anonymous memory on huge pages: the best mapping that weightd could have, so the share is
// never flattered.
//
// Thread safety: a free function; nothing else should use the memory bandwidth meanwhile.
#ifndef SLUICE_CLI_READ_BASE_H_
#define SLUICE_CLI_READ_BASE_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace sluice {

// Bytes per second of `threads` threads over min(pack_bytes, 4 GiB, half of `available_bytes`) of memory,
// read until at least 4 GiB have passed. RESOURCE_EXHAUSTED naming the bytes when the memory cannot be had.
absl::StatusOr<double> MeasureReadBase(uint64_t pack_bytes, uint64_t available_bytes, uint32_t threads);

}  // namespace sluice

#endif  // SLUICE_CLI_READ_BASE_H_
