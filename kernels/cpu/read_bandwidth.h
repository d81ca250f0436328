// The base of every "share of the read bandwidth": the speed at which this machine's threads can read these
// very bytes. The best of {1, 4 streams a thread} x {software prefetch on, off}, with the widest loads of the
// instruction set, handing out pieces from a shared counter as the kernels do.
//
// Thread safety: a free function; it starts its own threads, and no other work should run meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace sluice {

struct ReadBandwidthOptions {
  uint32_t threads = 0;  // 0: the CPUs in the affinity mask
  CpuIsa isa = CpuIsa::kBest;
  uint64_t min_bytes = uint64_t{4} << 30;  // minimum bytes read in a round: regions are repeated
  uint32_t rounds = 3;                     // each variant's best round counts; variants take turns
};

struct ReadBandwidth {
  double best = 0;  // bytes per second
  // [prefetch off, on][1 stream, 4 streams], bytes per second.
  double variants[2][2] = {};
  uint64_t bytes = 0;  // read in one round
};

// Reads `regions`. INVALID_ARGUMENT with less than 1 MiB of them (smaller pieces are left out);
// FAILED_PRECONDITION as CreateCpuBackend.
absl::StatusOr<ReadBandwidth> MeasureReadBandwidth(absl::Span<const absl::Span<const std::byte>> regions,
                                                   const ReadBandwidthOptions& options);

}  // namespace sluice
