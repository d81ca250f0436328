// Rows of bits and presets for a model on a machine, and the choice among them.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan/memory_plan.h"
#include "cli/plan/model_facts.h"
#include "cli/plan/speed_plan.h"

namespace sluice::cli {

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
