// A thin wrapper of epoll: the pump sleeps on it.
//
// Thread safety: thread-safe; Wait() belongs to one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ring/unique_fd.h"

namespace sluice::weightd {

// Target of an event. `session` 0 is the pump's own bell.
enum class PollKind : uint8_t { kPumpBell = 0, kServerBell = 1, kSideSocket = 2, kProcess = 3 };
struct PollEvent {
  uint64_t session = 0;
  PollKind kind = PollKind::kPumpBell;
};

class Poller {
 public:
  static absl::StatusOr<Poller> Create();

  // Watches a bell edge-triggered: each write to it is reported, and nobody ever reads it.
  absl::Status WatchBell(int fd, PollEvent event);
  absl::Status WatchReadable(int fd, PollEvent event, bool also_writable);
  absl::Status RewatchReadable(int fd, PollEvent event, bool also_writable);
  void Unwatch(int fd);

  // Sleeps until an event, or `timeout_ms` (-1: no limit).
  std::vector<PollEvent> Wait(int timeout_ms);

 private:
  explicit Poller(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  absl::Status Control(int operation, int fd, uint32_t events, PollEvent event);

  UniqueFd epoll_;
};

}  // namespace sluice::weightd
