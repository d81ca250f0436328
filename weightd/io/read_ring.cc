#include "weightd/io/read_ring.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/ring/unique_fd.h"

namespace sluice::weightd {
namespace {

// Maximum number of payload files of all packs that a weightd serves.
constexpr uint32_t kMaxFiles = 1024;
constexpr uint64_t kWakeTag = ~0ull;

const char* WhatHelps(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "sysctl kernel.io_uring_disabled=0 and a seccomp profile that allows io_uring lift this";
    case ENOSYS:
    case EINVAL:
      return "it takes a kernel from 5.19 on and no sandbox that lacks it";
    case ENOMEM:
      return "a higher limit of locked memory lifts this (LimitMEMLOCK=)";
    default:
      return "`sluice doctor` looks closer";
  }
}

class KernelRing final : public ReadRing {
 public:
  ~KernelRing() override {
    if (made_) {
      io_uring_queue_exit(&ring_);
    }
  }

  // Returns 0, or the errno of the step that `step()` names.
  int Make(uint32_t depth) {
    int error = SetUp(depth);
    if (error == 0) {
      step_ = "registering a file table";
      error = -io_uring_register_files_sparse(&ring_, kMaxFiles);
    }
    if (error == 0) {
      step_ = "making an eventfd";
      wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      error = wake_.valid() ? 0 : errno;
    }
    return error == 0 ? TryRead() : error;
  }
  const char* step() const { return step_; }

  absl::Status AddFile(ReadFile* file) override {
    if (files_ == kMaxFiles) {
      return absl::ResourceExhaustedError(absl::StrCat("io_uring: a ring takes ", kMaxFiles, " files"));
    }
    if (const int error = SetFile(files_, file->fd()); error != 0) {
      return absl::UnavailableError(
          absl::StrCat("io_uring: registering a file: ", std::strerror(error), " (errno ", error, ")"));
    }
    ++files_;
    return absl::OkStatus();
  }

  void Read(uint32_t slot, int file, std::byte* dest, uint32_t length, uint64_t offset) override {
    io_uring_sqe* entry = Entry();
    io_uring_prep_read(entry, file, dest, length, offset);
    entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(entry, slot);
  }

  absl::Status Start() override { return Submitted(io_uring_submit(&ring_)); }

  absl::Status Wait(std::vector<RingCompletion>* completions) override {
    completions->clear();
    WatchWake();
    const int submitted = SubmitAndWait();
    Reap(completions);
    return Submitted(submitted);
  }

  void Wake() override { eventfd_write(wake_.get(), 1); }

 private:
  static absl::Status Submitted(int result) {
    return result >= 0
               ? absl::OkStatus()
               : absl::UnavailableError(absl::StrCat("io_uring: submitting reads: ", std::strerror(-result)));
  }

  int SubmitAndWait() {
    int submitted;
    do {
      submitted = io_uring_submit_and_wait(&ring_, 1);
    } while (submitted == -EINTR);
    return submitted;
  }

  int SetUp(uint32_t depth) {
    step_ = "setting up a ring";
    io_uring_params params{};
    params.flags = IORING_SETUP_COOP_TASKRUN;  // completions need no interrupt of the engine's thread
    int error = -io_uring_queue_init_params(depth + 1, &ring_, &params);
    if (error == EINVAL) {  // before Linux 5.19
      params = {};
      error = -io_uring_queue_init_params(depth + 1, &ring_, &params);
    }
    made_ = error == 0;
    return error;
  }

  int SetFile(uint32_t at, int fd) {
    const int done = io_uring_register_files_update(&ring_, at, &fd, 1);
    return done < 0 ? -done : 0;
  }

  void Reap(std::vector<RingCompletion>* completions) {
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      if (entry->user_data == kWakeTag) {
        watching_ = false;
        eventfd_t ignored;
        eventfd_read(wake_.get(), &ignored);
      } else {
        completions->push_back({static_cast<uint32_t>(entry->user_data), entry->res});
      }
      io_uring_cqe_seen(&ring_, entry);
    }
  }

  // Never null: the ring has an entry for every read and one for the wake.
  io_uring_sqe* Entry() { return io_uring_get_sqe(&ring_); }

  void WatchWake() {
    if (!watching_) {
      io_uring_sqe* entry = Entry();
      io_uring_prep_poll_add(entry, wake_.get(), POLLIN);
      io_uring_sqe_set_data64(entry, kWakeTag);
      watching_ = true;
    }
  }

  // Reads from a file in memory through the registered table, as packs are read.
  int TryRead() {
    step_ = "trying a read";
    UniqueFd file(memfd_create("sluice-try", MFD_CLOEXEC));
    std::array<std::byte, 64> bytes{};
    bytes.fill(std::byte{0x5a});
    if (!file.valid() || write(file.get(), bytes.data(), bytes.size()) != ssize_t{bytes.size()}) {
      return errno;
    }
    if (const int error = SetFile(0, file.get()); error != 0) {
      return error;
    }
    std::array<std::byte, 64> got{};
    Read(0, 0, got.data(), got.size(), 0);
    std::vector<RingCompletion> completions;
    while (completions.empty()) {
      if (!Wait(&completions).ok() && completions.empty()) {
        return EPERM;
      }
    }
    const int64_t result = completions.front().result;
    if (result < 0) {
      return static_cast<int>(-result);
    }
    return got == bytes ? SetFile(0, -1) : EIO;
  }

  io_uring ring_{};
  bool made_ = false;
  bool watching_ = false;
  uint32_t files_ = 0;
  UniqueFd wake_;
  const char* step_ = "";
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReadRing>> MakeReadRing(uint32_t depth) {
  auto ring = std::make_unique<KernelRing>();
  if (const int error = ring->Make(depth); error != 0) {
    return absl::UnavailableError(absl::StrCat("io_uring: ", ring->step(), ": ", std::strerror(error),
                                               " (errno ", error, "); ", WhatHelps(error)));
  }
  return ring;
}

int TryReadRing() {
  KernelRing ring;
  return ring.Make(1);
}

}  // namespace sluice::weightd
