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

// Share of requests that find their expert among the `share` of all experts that memory holds, the least
// recently used leaving first, for independent tokens (Che's approximation, with the order of layers).
// `usage`: [layer][expert], empty for even use; every layer makes its top_k requests a token. 0..1.
double HitRate(const ModelConfig& config, const std::vector<std::vector<uint64_t>>& usage, double share);

// Memory plan: bytes of a model by memory tier, counted by the daemons' own functions.
//
// Thread safety: pure functions.

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

// Tokens a second of one sequence, from rates, sizes and hits.
//
// Thread safety: pure functions.

struct SpeedInput {
  KernelRates kernels;
  double disk = 0;  // bytes a second
  double link = 0;  // bytes a second between slab and host; 0: unthrottled
  // Bytes of experts read by a token's kernels, over the bytes of its routed experts (masks skip some).
  double computed_share = 1;
};

struct SpeedPlan {
  double tokens_per_second = 0;
  double hit_rate = 0;         // of routed experts, in weightd's memory
  uint64_t read_bytes = 0;     // by kernels, a token
  uint64_t disk_bytes = 0;     // a token
  uint64_t link_bytes = 0;     // a token
  double compute_seconds = 0;  // a token, the next three too
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
  std::optional<SpeedPlan> speed;  // none: does not run, or was not asked for
  KnownQuality quality;
};

struct PlanChoice {
  std::string bits;
  std::string preset;
  std::string why;  // for people, without a full stop
};

// Widest first: what a model is packed as without being asked. Fewer bits cost quality that can be seen, and
// are asked for by name.
const std::vector<std::string>& ChosenBits(bool is_gguf);

// Chooses among rows with preset `exact` and bits of ChosenBits() (a GGUF file's own where it has them) the
// widest whose weights are all in memory, else the narrowest. Where none runs, the narrowest, with the
// reason. A row of other bits where there is no other. REQUIRES: a row.
PlanChoice Choose(const std::vector<PlanRow>& rows);

// Share of the experts' bytes that a token's kernels read under a preset's masks on `host`, the masked
// kernels' own loss counted; 1 for presets without one.
double ComputedShare(const std::string& preset);

}  // namespace sluice::cli
