// How many file descriptors this process has open, for leak checks.
//
// Thread safety: safe from any thread; other threads that open and close make the answer inexact.
#ifndef SLUICE_TESTS_SUPPORT_FD_COUNT_H_
#define SLUICE_TESTS_SUPPORT_FD_COUNT_H_

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace sluice {

inline size_t OpenFdCount() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(fds), end(fds))) - 1;  // its own
}

}  // namespace sluice

#endif  // SLUICE_TESTS_SUPPORT_FD_COUNT_H_
