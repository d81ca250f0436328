// What this process holds of the system.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>

namespace sluice {

// Open file descriptors; 0 if /proc cannot be read.
uint64_t CountOpenDescriptors();

// Resident memory; 0 if /proc cannot be read. Mapped segments of weightd count as far as they were touched.
uint64_t ResidentBytes();

// Of the resident memory. Zeros if /proc cannot be read.
struct ResidentParts {
  uint64_t own = 0;     // anonymous: of this process alone
  uint64_t shared = 0;  // of mapped memory files: weightd's segments, as far as they were touched
};
ResidentParts ReadResidentParts();

}  // namespace sluice
