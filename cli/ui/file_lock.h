// A lock between processes: an open file that one of them holds.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ring/unique_fd.h"

namespace sluice::cli {

// Opens (creates, mode 0600) and locks `path`, waiting up to `patience`. DeadlineExceeded naming the path.
// Cancelled once *cancel (may be null) is true. `on_wait` (may be empty) hears once, after a second, who
// holds the lock: "process 123", or "another process" if the file does not say.
absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration patience,
                                  const std::atomic<bool>* cancel,
                                  const std::function<void(const std::string& holder)>& on_wait = {});

}  // namespace sluice::cli
