// Number of open file descriptors of this process, for leak checks.
//
// Thread safety: safe from any thread; other threads that open and close make the answer inexact.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace sluice {

inline size_t OpenFdCount() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(fds), end(fds))) - 1;  // its own
}

}  // namespace sluice
