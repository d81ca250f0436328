// Shared parts of the round-trip benchmarks: the raw wake as their baseline, and timing.
//
// Thread safety: thread-compatible; RawWake has a thread of its own for the other side.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace sluice {

inline double NowNanos() {
  return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count());
}

inline double Quantile(std::vector<double> samples, double share) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<size_t>(share * static_cast<double>(samples.size() - 1))];
}

// Uses the same descriptors and calls as a session's wake, and nothing else.
class RawWake {
 public:
  RawWake() : bell_(eventfd(0, EFD_NONBLOCK)), epoll_(epoll_create1(0)) {
    int ends[2];
    ok_ = pipe(ends) == 0;
    read_ = ends[0];
    write_ = ends[1];
    epoll_event wanted{EPOLLIN | EPOLLET, {}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, bell_, &wanted);
    server_ = std::thread([this] {
      epoll_event event;
      while (epoll_wait(epoll_, &event, 1, -1) >= 0 && !stop_.load()) {
        ok_ = ok_ && write(write_, "x", 1) == 1;
      }
    });
  }
  ~RawWake() {
    stop_.store(true);
    Ring();
    server_.join();
    for (int fd : {bell_, epoll_, read_, write_}) close(fd);
  }
  bool Trip() {
    Ring();
    pollfd wait{read_, POLLIN, 0};
    char byte;
    return poll(&wait, 1, 10'000) == 1 && read(read_, &byte, 1) == 1;
  }

 private:
  void Ring() {
    const uint64_t one = 1;
    ok_ = write(bell_, &one, sizeof(one)) == sizeof(one) && ok_;
  }
  const int bell_;
  const int epoll_;
  int read_ = -1;
  int write_ = -1;
  std::atomic<bool> ok_{true};
  std::atomic<bool> stop_{false};
  std::thread server_;
};

// Quantiles by round.
struct Row {
  const char* name;
  std::vector<double> p50;
  std::vector<double> p99;
};

// Adds one round of `trips` calls of `trip`, which returns false on failure. Times are in microseconds.
template <typename Trip>
bool Time(Row* row, Trip trip, int trips = 2000) {
  std::vector<double> samples;
  for (int i = 0; i < trips; ++i) {
    const double start = NowNanos();
    if (!trip()) {
      return false;
    }
    samples.push_back((NowNanos() - start) / 1000);
  }
  row->p50.push_back(Quantile(samples, 0.5));
  row->p99.push_back(Quantile(samples, 0.99));
  return true;
}

}  // namespace sluice
