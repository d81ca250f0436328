// Memory plan: bytes of a model by memory tier, counted by the daemons' own functions.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/plan/model_facts.h"
#include "inferd/engine/parts/engine_options.h"

namespace sluice::cli {

struct MemoryRequest {
  uint64_t memory = 0;  // bytes that both daemons may take
  uint32_t threads = 1;
  std::optional<uint64_t> dram_budget;  // none: weightd's default
  uint64_t device_budget = 0;           // for all that lies on device sim; 0: all experts
  inferd::EngineOptions engine;
};

// Bytes.
struct MemoryPlan {
  uint64_t dram_budget = 0;  // weightd's, for weights
  uint64_t least_budget = 0;
  uint64_t kv = 0;            // inferd's KV cache and recurrent states
  uint64_t activations = 0;   // inferd's
  uint64_t slab = 0;          // experts in device memory that is the host's too (device sim)
  uint64_t device_dense = 0;  // the dense weights there
  uint64_t processes = 0;     // code, tables and rings
  uint32_t context = 0;       // tokens
  bool whole = false;         // all weights are in memory
  std::string refusal;        // why it does not run, with the numbers; empty: it does

  uint64_t total() const { return dram_budget + kv + activations + slab + device_dense + processes; }
};

// INVALID_ARGUMENT and UNIMPLEMENTED of PlanEngine().
absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const StoredSizes& sizes,
                                      const MemoryRequest& request);

}  // namespace sluice::cli
