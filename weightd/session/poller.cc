#include "weightd/session/poller.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

#include "common/status.h"

namespace sluice::weightd {
namespace {

uint64_t Encode(PollEvent event) { return event.session << 2 | static_cast<uint64_t>(event.kind); }
PollEvent Decode(uint64_t data) { return PollEvent{data >> 2, static_cast<PollKind>(data & 3)}; }

}  // namespace

absl::StatusOr<Poller> Poller::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) {
    return ErrnoToStatus(errno, "epoll");
  }
  return Poller(std::move(epoll));
}

absl::Status Poller::Control(int operation, int fd, uint32_t events, PollEvent event) {
  epoll_event wanted{};
  wanted.events = events;
  wanted.data.u64 = Encode(event);
  if (epoll_ctl(epoll_.get(), operation, fd, &wanted) != 0) {
    return ErrnoToStatus(errno, "epoll_ctl");
  }
  return absl::OkStatus();
}

absl::Status Poller::WatchBell(int fd, PollEvent event) {
  return Control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, event);
}

absl::Status Poller::WatchReadable(int fd, PollEvent event, bool also_writable) {
  return Control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP | (also_writable ? EPOLLOUT : 0u), event);
}

absl::Status Poller::RewatchReadable(int fd, PollEvent event, bool also_writable) {
  return Control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP | (also_writable ? EPOLLOUT : 0u), event);
}

void Poller::Unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::vector<PollEvent> Poller::Wait(int timeout_ms) {
  std::array<epoll_event, 64> ready;
  const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), timeout_ms);
  std::vector<PollEvent> events;
  for (int i = 0; i < count; ++i) {
    events.push_back(Decode(ready[static_cast<size_t>(i)].data.u64));
  }
  return events;
}

}  // namespace sluice::weightd
