// Read rates of the disk and of a mapping for a pack's experts: the bound and the baseline of
// capped_decode.py.
//
//   pack_reads direct PACK [LOOP [SEED]]
//       bytes per second of the best bare O_DIRECT loop over random experts, or of the LOOP that an earlier
//       call named; another SEED reads other experts
//   pack_reads mapped PACK TOKENS
//       seconds per token of reading its experts through mmap; the first half of the tokens is not timed
//
// In every layer a token reads top-K experts drawn evenly, each byte once, on all CPUs.
// Prints one JSON object.
//
// Thread safety: runs on the main thread; a mapped token's experts are divided among threads that end with
// it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/bare_reads.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "pack/pack.h"

namespace sluice {
namespace {

constexpr uint64_t kPieceBytes = 1ull << 20;
constexpr uint64_t kDirectBytes = 512ull << 20;

struct Range {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Returns the extents of one expert, which are contiguous (pack/FORMAT.md).
Range ExpertRange(const Pack& pack, uint32_t layer, uint32_t expert) {
  const ExtentRange extents = pack.expert_extents(layer, expert);
  const ExtentEntry& first = pack.extents()[extents.first];
  const ExtentEntry& last = pack.extents()[extents.first + extents.count - 1];
  return {first.offset, last.offset + last.length - first.offset};
}

std::vector<Range> TokenExperts(const Pack& pack, std::mt19937_64* random) {
  std::vector<Range> ranges;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    std::vector<uint32_t> experts(pack.expert_count(layer));
    for (uint32_t i = 0; i < experts.size(); ++i) {
      experts[i] = i;
    }
    for (uint32_t k = 0; k < pack.config().layers[layer].moe.top_k && k < experts.size(); ++k) {
      std::swap(experts[k], experts[k + (*random)() % (experts.size() - k)]);
      ranges.push_back(ExpertRange(pack, layer, experts[k]));
    }
  }
  return ranges;
}

absl::Status Direct(const Pack& pack, const std::string& loop_name, uint64_t seed) {
  const UniqueFd fd(open(pack.file_path(PackFile::kExperts).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "opening the experts with O_DIRECT");
  }
  std::mt19937_64 random(seed);
  std::vector<Piece> pieces;
  for (uint64_t total = 0; total < kDirectBytes;) {
    for (const Range& range : TokenExperts(pack, &random)) {
      for (uint64_t at = 0; at < range.bytes; at += kPieceBytes) {
        const uint64_t bytes = std::min(kPieceBytes, (range.bytes - at + 4095) / 4096 * 4096);
        pieces.push_back({range.offset + at, bytes});
        total += bytes;
      }
    }
  }
  const ReadBuffers buffers(192, kPieceBytes);
  ASSIGN_OR_RETURN(const BareLoop loop,
                   loop_name.empty() ? BestBareLoop(fd.get(), pieces, buffers) : BareLoopNamed(loop_name));
  ASSIGN_OR_RETURN(const double rate, ReadBare(loop, fd.get(), pieces, buffers));
  std::printf("{\"direct_bytes_per_second\":%.0f,\"loop\":\"%s\"}\n", rate, loop.name().c_str());
  return absl::OkStatus();
}

uint64_t Sum(const std::byte* data, uint64_t bytes) {
  uint64_t sum = 0;
  for (uint64_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, sizeof(word));
    sum += word;
  }
  return sum;
}

absl::Status Mapped(const Pack& pack, int tokens) {
  const UniqueFd fd(open(pack.file_path(PackFile::kExperts).c_str(), O_RDONLY | O_CLOEXEC));
  // Drops pages cached by other processes, which would count as read from disk.
  if (!fd.valid() || fdatasync(fd.get()) != 0 || posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) != 0) {
    return ErrnoToStatus(errno, "opening the experts and dropping them from the page cache");
  }
  const uint64_t bytes = pack.total_expert_bytes();
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) {
    return ErrnoToStatus(errno, "mapping the experts");
  }
  const std::byte* data = static_cast<const std::byte*>(map);
  std::mt19937_64 random(2);
  std::atomic<uint64_t> sink{0};
  double seconds = 0;
  uint64_t touched = 0;
  for (int token = 0; token < tokens; ++token) {
    const std::vector<Range> ranges = TokenExperts(pack, &random);
    const auto begin = std::chrono::steady_clock::now();
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
      threads.emplace_back([&] {
        for (size_t i = next.fetch_add(1); i < ranges.size(); i = next.fetch_add(1)) {
          sink.fetch_add(Sum(data + ranges[i].offset, ranges[i].bytes));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (token >= tokens / 2) {
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      for (const Range& range : ranges) {
        touched += range.bytes;
      }
    }
  }
  const int counted = tokens - tokens / 2;
  std::printf("{\"seconds_per_token\":%.6f,\"bytes_per_token\":%.0f,\"sum\":%llu}\n", seconds / counted,
              static_cast<double>(touched) / counted, static_cast<unsigned long long>(sink.load()));
  munmap(map, bytes);
  return absl::OkStatus();
}

absl::Status Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const bool direct = mode == "direct" && argc >= 3 && argc <= 5;
  if (!direct && !(mode == "mapped" && argc == 4 && std::atoi(argv[3]) > 1)) {
    return absl::InvalidArgumentError(
        "usage: pack_reads direct PACK [LOOP [SEED]] | pack_reads mapped PACK TOKENS");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(argv[2]));
  if (direct) {
    return Direct(*pack, argc > 3 ? argv[3] : "", argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0);
  }
  return Mapped(*pack, std::atoi(argv[3]));
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const absl::Status status = sluice::Main(argc, argv);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }
  return status.ok() ? 0 : 1;
}
