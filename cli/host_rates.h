// Rates of this host: kernels over weights in memory, and reads from its disk, measured in seconds.
//
// Thread safety: free functions; nothing else should work meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/model_facts.h"

namespace sluice::cli {

// Bytes of weights a second, of one token's operations at a model's shapes.
struct KernelRates {
  double dense = 0;
  double experts = 0;
  double layer_seconds = 0;  // of a layer's small operations, which read no weights to speak of
};

// Over half a second of steps, in memory of the kind that weightd has. RESOURCE_EXHAUSTED without that
// memory; errors of CreateCpuBackend.
absl::StatusOr<KernelRates> MeasureKernels(const ModelConfig& config, const StoredSizes& sizes,
                                           uint32_t threads);

// Multiply-adds a second with weights that stay in caches: what instructions allow, whatever memory does.
struct ProductRates {
  double dense = 0;
  double experts = 0;
};

// For steps of `tokens` rows, `rows_each` of them to an expert that is computed; 1..512 and 1..tokens. As
// MeasureKernels().
absl::StatusOr<ProductRates> MeasureProducts(const ModelConfig& config, const StoredSizes& sizes,
                                             uint32_t threads, uint32_t tokens, uint32_t rows_each);

// Bytes a second of requests for `read_bytes` each, at random places of a file of 256 MiB or more, by the
// reader that weightd reads with (host_rates.cc).
absl::StatusOr<double> MeasureDisk(const std::string& path, uint64_t read_bytes);

// The same of a file that is made for it in `folder`, and gone afterwards.
absl::StatusOr<double> MeasureFolder(const std::string& folder, uint64_t read_bytes);

}  // namespace sluice::cli
