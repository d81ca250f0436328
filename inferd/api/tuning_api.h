// Memory that is given another size while requests run.
//
// Thread safety: a TuningApi is thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"

namespace sluice {

// What is not set stays as it is.
struct EngineTuning {
  std::optional<uint64_t> dram_budget;  // weightd's, bytes
  std::optional<uint64_t> kv_budget;    // bytes
  std::optional<uint32_t> context;      // tokens of a request from now on, at most what the start laid out
};

// What is in effect.
struct EngineTuned {
  uint64_t dram_budget = 0;    // bytes; 0: was not asked for
  uint64_t segment_bytes = 0;  // that weightd has taken of it, or not yet given back
  uint64_t kv_bytes = 0;       // pages and recurrent states
  uint32_t kv_pages = 0;
  uint32_t context = 0;
  uint32_t restarted = 0;  // sequences whose past is computed again
};

class TuningApi {
 public:
  using Done = std::function<void(const absl::StatusOr<EngineTuned>& result)>;
  virtual ~TuningApi() = default;

  // Done between two steps; `done` is called once, from any thread, also from this call. No request ends by
  // it: what runs is computed again where the KV cache changes. Errors leave everything as it was:
  // INVALID_ARGUMENT for a context beyond the one laid out; FAILED_PRECONDITION and RESOURCE_EXHAUSTED with
  // the numbers for what does not hold what it must, or does not fit into memory; UNAVAILABLE.
  virtual void Tune(const EngineTuning& tuning, Done done) = 0;
};

}  // namespace sluice
