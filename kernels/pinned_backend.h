// The host backend with its threads pinned.
//
// Thread safety: as backend.h's makers.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace sluice {

// CreateCpuBackend() with as many threads as `cpus`; thread i runs on cpus[i] alone. The calling thread is
// thread 0 and is pinned from its first step on. Results are the same to the bit. Errors of
// CreateCpuBackend(); INVALID_ARGUMENT naming a CPU that this process may not use.
absl::StatusOr<std::unique_ptr<Backend>> CreatePinnedCpuBackend(const BackendLimits& limits,
                                                                absl::Span<const uint32_t> cpus,
                                                                CpuIsa isa = CpuIsa::kBest);

}  // namespace sluice
