// Rates of this host: kernels over weights in memory, and reads from its disk. Each takes seconds to measure.
//
// Thread safety: free functions; other work on the machine would distort the results.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/model_facts.h"

namespace sluice::cli {

// Bytes of weights per second that one token's operations read, at a model's shapes.
struct KernelRates {
  double dense = 0;
  double experts = 0;
  double layer_seconds = 0;  // a layer's small operations, which read hardly any weights
};

// Measures half a second of steps, in memory of the kind that weightd uses. RESOURCE_EXHAUSTED without that
// memory; errors of CreateCpuBackend.
absl::StatusOr<KernelRates> MeasureKernels(const ModelConfig& config, const StoredSizes& sizes,
                                           uint32_t threads);

// Multiply-adds per second with weights in the CPU's caches: the limit set by instructions, not by memory.
struct ProductRates {
  double dense = 0;
  double experts = 0;
};

// Measures steps of `tokens` rows (1..512), `rows_each` (1..tokens) for each computed expert. Errors of
// MeasureKernels().
absl::StatusOr<ProductRates> MeasureProducts(const ModelConfig& config, const StoredSizes& sizes,
                                             uint32_t threads, uint32_t tokens, uint32_t rows_each);

// Measures bytes per second of requests of `read_bytes` each, at random places of a file of at least 256 MiB,
// with weightd's own reader.
absl::StatusOr<double> MeasureDisk(const std::string& path, uint64_t read_bytes);

// Same for a temporary file in `folder`.
absl::StatusOr<double> MeasureFolder(const std::string& folder, uint64_t read_bytes);

}  // namespace sluice::cli
