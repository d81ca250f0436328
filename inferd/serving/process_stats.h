// System resources of this process.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>

namespace sluice::inferd {

// Number of open file descriptors; 0 if /proc cannot be read.
uint64_t CountOpenDescriptors();

// Resident memory, bytes; 0 if /proc cannot be read. Only touched pages of weightd's mapped segments count.
uint64_t ResidentBytes();

// Parts of the resident memory. Zeros if /proc cannot be read.
struct ResidentParts {
  uint64_t own = 0;     // anonymous: private to this process
  uint64_t shared = 0;  // mapped memory files: touched pages of weightd's segments
};
ResidentParts ReadResidentParts();

}  // namespace sluice::inferd
