// The arithmetic of `sluice plan`: cache hit rate, memory by tier, speed, and the choice of bits and preset.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/host_rates.h"
#include "cli/model_facts.h"
#include "common/model/model_config.h"
#include "inferd/forward/engine_options.h"

namespace sluice::cli {

// Returns the share of requests (0..1) that hit an LRU cache with the `share` of all experts, for independent
// tokens (Che's approximation, with the order of layers). `usage`: [layer][expert], empty for even use; every
// layer makes top_k requests per token.
double HitRate(const ModelConfig& config, const std::vector<std::vector<uint64_t>>& usage, double share);

// Memory plan: bytes of a model by memory tier, computed by the daemons' own functions.
//
// Thread safety: pure functions.

struct MemoryRequest {
  uint64_t memory = 0;  // bytes that both daemons may take
  uint32_t threads = 1;
  std::optional<uint64_t> dram_budget;  // none: weightd's default
  uint64_t device_budget = 0;           // for everything on device sim; 0: all experts
  inferd::EngineOptions engine;
};

// Memory by purpose, in bytes.
struct MemoryPlan {
  uint64_t dram_budget = 0;  // weightd's, for weights
  uint64_t least_budget = 0;
  uint64_t kv = 0;            // inferd's KV cache and recurrent states
  uint64_t activations = 0;   // inferd's
  uint64_t slab = 0;          // experts in device memory that is also host memory (device sim)
  uint64_t device_dense = 0;  // dense weights in device memory
  uint64_t processes = 0;     // code, tables and rings
  uint32_t context = 0;       // tokens
  bool whole = false;         // all weights are in memory
  std::string refusal;        // reason why it does not run, with the numbers; empty: it runs

  uint64_t total() const { return dram_budget + kv + activations + slab + device_dense + processes; }
};

// Errors: INVALID_ARGUMENT and UNIMPLEMENTED of PlanEngine().
absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const StoredSizes& sizes,
                                      const MemoryRequest& request);

// Speed of one sequence in tokens per second, from rates, sizes and hit rates.
//
// Thread safety: pure functions.

struct SpeedInput {
  KernelRates kernels;
  double disk = 0;  // bytes per second
  double link = 0;  // bytes per second between slab and host; 0: unlimited
  // Bytes of experts that a token's kernels read, divided by the bytes of its routed experts; masks reduce
  // it.
  double computed_share = 1;
};

struct SpeedPlan {
  double tokens_per_second = 0;
  double hit_rate = 0;         // of routed experts in weightd's memory
  uint64_t read_bytes = 0;     // by kernels, per token
  uint64_t disk_bytes = 0;     // per token
  uint64_t link_bytes = 0;     // per token
  double compute_seconds = 0;  // per token, as the next two
  double disk_seconds = 0;
  double link_seconds = 0;
};

SpeedPlan PlanSpeed(const ModelFacts& facts, const StoredSizes& sizes, const MemoryPlan& memory,
                    const SpeedInput& input);

// Rows of bits and presets for a model on a machine, and the choice among them.
//
// Thread safety: free functions, safe to call from any thread.

// Documented quality loss, measured on the sample model.
struct KnownQuality {
  double perplexity_rise = 0;  // 0.006: 0.6 %
  bool is_known = true;
};
KnownQuality QualityOf(const std::string& bits, const std::string& preset);

struct PlanRow {
  std::string bits;
  std::string preset;
  StoredSizes sizes;
  MemoryPlan memory;
  std::optional<SpeedPlan> speed;  // none: does not run, or was not requested
  KnownQuality quality;
};

struct PlanChoice {
  std::string bits;
  std::string preset;
  std::string why;  // for the user, without a full stop
};

// Bits that are used without being requested, widest first. Fewer bits cost visible quality and must be
// requested by name.
const std::vector<std::string>& ChosenBits(bool is_gguf);

// Chooses among the rows with preset `exact` and bits of ChosenBits(), a GGUF file's own if present: the
// widest whose weights fit into memory, else the narrowest. If none runs: the narrowest, with the reason. If
// there is no such row: any other. REQUIRES: a row.
PlanChoice Choose(const std::vector<PlanRow>& rows);

// Returns the share of the experts' bytes that a token's kernels read under a preset's masks on `host`, the
// lower rate of masked kernels included; 1 for presets without masks.
double ComputedShare(const std::string& preset);

}  // namespace sluice::cli
