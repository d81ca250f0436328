// TuningApi: changes memory budgets while requests run.
//
// Thread safety: a TuningApi is thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"

namespace sluice::inferd {

// Requested changes; an absent field stays unchanged.
struct EngineTuning {
  std::optional<uint64_t> dram_budget;  // weightd's, bytes
  std::optional<uint64_t> kv_budget;    // bytes
  std::optional<uint32_t> context;      // maximum tokens of new requests; the start sets the upper bound
};

// Values in effect.
struct EngineTuned {
  uint64_t dram_budget = 0;    // bytes; 0: not requested
  uint64_t segment_bytes = 0;  // segment bytes that weightd holds, or has not yet released
  uint64_t kv_bytes = 0;       // pages and recurrent states
  uint32_t kv_pages = 0;
  uint32_t context = 0;
  uint32_t restarted = 0;  // sequences whose KV cache is computed again
};

class TuningApi {
 public:
  using Done = std::function<void(const absl::StatusOr<EngineTuned>& result)>;
  virtual ~TuningApi() = default;

  // Applies the changes between two steps; calls `done` once, from any thread, possibly within this call. No
  // request ends because of it: running sequences are computed again if the KV cache changes. Errors leave
  // everything unchanged: INVALID_ARGUMENT for a context beyond the one laid out; FAILED_PRECONDITION and
  // RESOURCE_EXHAUSTED with the numbers for a budget that is too small or does not fit into memory;
  // UNAVAILABLE.
  virtual void Tune(const EngineTuning& tuning, Done done) = 0;
};

}  // namespace sluice::inferd
