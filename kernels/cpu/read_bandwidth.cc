#include "kernels/cpu/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "common/base/status.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice {
namespace {

// Bytes of a piece of a region: long compared with the start of a stream, short compared with the whole.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr uint32_t kPrefetchBytes = 2048;

}  // namespace

absl::StatusOr<ReadBandwidth> MeasureReadBandwidth(absl::Span<const absl::Span<const std::byte>> regions,
                                                   const ReadBandwidthOptions& options) {
  ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::ChooseKernels(options.isa));
  ASSIGN_OR_RETURN(const uint32_t threads, cpu::ChooseThreads(options.threads));
  std::vector<const uint8_t*> pieces;
  for (const absl::Span<const std::byte> region : regions) {
    for (uint64_t at = 0; at + kPieceBytes <= region.size(); at += kPieceBytes) {
      pieces.push_back(reinterpret_cast<const uint8_t*>(region.data()) + at);
    }
  }
  if (pieces.empty()) {
    return absl::InvalidArgumentError("read bandwidth: no region of 1 MiB or more");
  }
  const uint64_t once = pieces.size();
  const uint64_t wanted = std::max(once, (options.min_bytes + kPieceBytes - 1) / kPieceBytes);
  for (uint64_t i = once; i < wanted; ++i) {
    pieces.push_back(pieces[i - once]);
  }
  ReadBandwidth result;
  result.bytes = pieces.size() * kPieceBytes;
  std::vector<std::atomic<uint64_t>> seen(threads);  // keeps the reads alive
  ThreadPool pool(threads);
  pool.BeginStep();
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (const int prefetch : {0, 1}) {
      for (const int streams : {0, 1}) {
        const auto start = std::chrono::steady_clock::now();
        pool.Run(static_cast<uint32_t>(pieces.size()), [&](uint32_t piece, uint32_t worker) {
          seen[worker].fetch_or(kernels->read(pieces[piece], kPieceBytes, streams == 0 ? 1 : 4,
                                              prefetch == 0 ? 0 : kPrefetchBytes),
                                std::memory_order_relaxed);
        });
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        double& best = result.variants[prefetch][streams];
        best = std::max(best, static_cast<double>(result.bytes) / seconds.count());
        result.best = std::max(result.best, best);
      }
    }
  }
  pool.EndStep();
  return result;
}

}  // namespace sluice
