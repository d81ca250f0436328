#include "cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <utility>

#include "cli/command_line.h"

namespace sluice::cli {
namespace {

int BlockAndWatch() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return signalfd(-1, &set, SFD_CLOEXEC);
}

}  // namespace

Interrupt::Interrupt()
    : stop_fd_(eventfd(0, EFD_CLOEXEC)), signal_fd_(BlockAndWatch()), thread_([this] { Listen(); }) {}

Interrupt::~Interrupt() {
  const uint64_t one = 1;
  // Cannot fail: the counter is 0.
  const ssize_t written = write(stop_fd_, &one, sizeof(one));
  static_cast<void>(written);
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

absl::Status Interrupt::Check() const {
  return requested() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

int Interrupt::OnRequest(std::function<void()> call) {
  absl::MutexLock lock(&mutex_);
  if (requested()) {
    call();
  }
  calls_.emplace(next_handle_, std::move(call));
  return next_handle_++;
}

void Interrupt::Remove(int handle) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(handle);
}

void Interrupt::SetSoftHandler(std::function<bool()> handler) {
  absl::MutexLock lock(&mutex_);
  soft_handler_ = std::move(handler);
}

bool Interrupt::Soften(uint32_t signal) {
  absl::MutexLock lock(&mutex_);
  return signal == SIGINT && soft_handler_ != nullptr && soft_handler_();
}

void Interrupt::Listen() {
  pollfd fds[] = {{stop_fd_, POLLIN, 0}, {signal_fd_, POLLIN, 0}};
  while (true) {
    if (poll(fds, 2, -1) < 0) {
      continue;
    }
    if (fds[0].revents != 0) {
      return;
    }
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) {
      continue;
    }
    if (!requested() && Soften(info.ssi_signo)) {
      continue;
    }
    if (requested_.exchange(true)) {
      _exit(kExitFailed);
    }
    absl::MutexLock lock(&mutex_);
    for (const auto& [handle, call] : calls_) {
      call();
    }
  }
}

}  // namespace sluice::cli
