#include "bench/bare_reads.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/round_trips.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace sluice {
namespace {

// Loops that BestBareLoop() tries.
constexpr BareLoop kLoops[] = {{true, 4},   {true, 8},  {true, 16},  {true, 32}, {true, 64},
                               {true, 128}, {false, 4}, {false, 16}, {false, 32}};

absl::Status ReadByRing(uint32_t depth, int fd, std::span<const Piece> pieces, const ReadBuffers& buffers) {
  io_uring ring;
  if (const int error = io_uring_queue_init(depth, &ring, IORING_SETUP_COOP_TASKRUN); error < 0) {
    return ErrnoToStatus(-error, "io_uring_queue_init");
  }
  std::vector<size_t> slot_piece(depth);
  size_t next = 0;
  size_t done = 0;
  absl::Status status;
  const auto start = [&](uint32_t slot) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring);
    io_uring_prep_read(entry, fd, buffers.at(next % buffers.count()),
                       static_cast<uint32_t>(pieces[next].length), pieces[next].offset);
    io_uring_sqe_set_data64(entry, slot);
    slot_piece[slot] = next++;
  };
  for (uint32_t slot = 0; slot < depth && next < pieces.size(); ++slot) {
    start(slot);
  }
  while (done < pieces.size() && status.ok()) {
    io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* entry;
    while (io_uring_peek_cqe(&ring, &entry) == 0) {
      const uint32_t slot = static_cast<uint32_t>(entry->user_data);
      if (entry->res != static_cast<int>(pieces[slot_piece[slot]].length)) {
        status = absl::InternalError(absl::StrCat("a bare read gave ", entry->res));
      }
      io_uring_cqe_seen(&ring, entry);
      ++done;
      if (next < pieces.size()) {
        start(slot);
      }
    }
  }
  io_uring_queue_exit(&ring);
  return status;
}

absl::Status ReadByThreads(uint32_t threads, int fd, std::span<const Piece> pieces,
                           const ReadBuffers& buffers) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<std::thread> running;
  for (uint32_t i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      for (size_t at = next++; at < pieces.size(); at = next++) {
        const ssize_t got = pread(fd, buffers.at(at % buffers.count()), pieces[at].length,
                                  static_cast<off_t>(pieces[at].offset));
        if (got != static_cast<ssize_t>(pieces[at].length)) {
          failed = true;
        }
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  return failed ? absl::InternalError("a bare read failed") : absl::OkStatus();
}

}  // namespace

ReadBuffers::ReadBuffers(size_t count, size_t bytes) : count_(count), bytes_(bytes) {
  void* map = mmap(nullptr, count * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  data_ = map == MAP_FAILED ? nullptr : static_cast<std::byte*>(map);
  if (data_ != nullptr) {
    madvise(data_, count * bytes, MADV_HUGEPAGE);
    std::memset(data_, 1, count * bytes);
  }
}

ReadBuffers::~ReadBuffers() {
  if (data_ != nullptr) {
    munmap(data_, count_ * bytes_);
  }
}

std::string BareLoop::name() const { return absl::StrCat(ring ? "ring of " : "threads: ", depth); }

absl::StatusOr<double> ReadBare(const BareLoop& loop, int direct_fd, std::span<const Piece> pieces,
                                const ReadBuffers& buffers) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    bytes += piece.length;
  }
  const double start = NowNanos();
  RETURN_IF_ERROR(loop.ring ? ReadByRing(loop.depth, direct_fd, pieces, buffers)
                            : ReadByThreads(loop.depth, direct_fd, pieces, buffers));
  return static_cast<double>(bytes) / (NowNanos() - start) * 1e9;
}

absl::StatusOr<BareLoop> BestBareLoop(int direct_fd, std::span<const Piece> pieces,
                                      const ReadBuffers& buffers) {
  constexpr int kTries = 3;
  std::vector<std::vector<double>> rates(std::size(kLoops));
  for (int i = 0; i < kTries; ++i) {
    for (size_t loop = 0; loop < std::size(kLoops); ++loop) {
      ASSIGN_OR_RETURN(const double rate, ReadBare(kLoops[loop], direct_fd, pieces, buffers));
      rates[loop].push_back(rate);
    }
  }
  const auto best = std::max_element(rates.begin(), rates.end(),
                                     [](const std::vector<double>& a, const std::vector<double>& b) {
                                       return Quantile(a, 0.5) < Quantile(b, 0.5);
                                     });
  return kLoops[best - rates.begin()];
}

absl::StatusOr<BareLoop> BareLoopNamed(const std::string& name) {
  for (const BareLoop& loop : kLoops) {
    if (loop.name() == name) {
      return loop;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("no bare loop is called \"", name, "\""));
}

absl::Status WriteNoise(const std::string& path, uint64_t bytes) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return ErrnoToStatus(errno, path);
  }
  std::mt19937_64 random(1);
  std::vector<uint64_t> block(1 << 17);
  for (uint64_t written = 0; written < bytes; written += block.size() * 8) {
    for (uint64_t& word : block) {
      word = random();
    }
    if (write(file.get(), block.data(), block.size() * 8) != static_cast<ssize_t>(block.size() * 8)) {
      return ErrnoToStatus(errno, path);
    }
  }
  fsync(file.get());
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

}  // namespace sluice
