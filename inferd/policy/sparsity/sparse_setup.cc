#include "inferd/policy/sparsity/sparse_setup.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/sparse/sparse_profile.h"

namespace sluice::inferd {
namespace {

// Maximum tokens of one expert that are measured; steps with more use this measurement.
constexpr uint32_t kMaxTokens = 128;

// One spec for each set of encodings that routed experts have.
std::vector<SparseProfileSpec> KindsOf(const Pack& pack, SparsityOrder order, const BackendLimits& limits) {
  std::vector<SparseProfileSpec> kinds;
  const ModelConfig& config = pack.config();
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      SparseProfileSpec spec;
      spec.order = order;
      spec.up = pack.part(layer, expert, Part::kUp).encoding;
      spec.gate = pack.part(layer, expert, Part::kGate).encoding;
      spec.down = pack.part(layer, expert, Part::kDown).encoding;
      spec.activation = {moe.activation, moe.activation_alpha, moe.activation_limit};
      spec.hidden = config.hidden;
      spec.width = moe.expert_width;
      spec.experts = moe.top_k;
      spec.max_tokens = std::min(limits.max_tokens, kMaxTokens);
      const bool known = std::any_of(kinds.begin(), kinds.end(), [&](const SparseProfileSpec& kind) {
        return kind.up == spec.up && kind.gate == spec.gate && kind.down == spec.down;
      });
      if (!known && kinds.size() < kMaxSparseSwitches) {
        kinds.push_back(spec);
      }
    }
  }
  return kinds;
}

}  // namespace

absl::StatusOr<std::string> SetUpSparseSwitches(const Pack& pack, const SparsityConfig& sparsity,
                                                const BackendLimits& limits, const std::string& folder,
                                                Backend& backend) {
  if (sparsity.order == SparsityOrder::kNone) {
    return std::string();
  }
  std::vector<SparseSwitchEntry> entries;
  std::string line = "masked experts are computed densely from this share kept on, at 1, 2, 4, ... tokens:";
  for (const SparseProfileSpec& spec : KindsOf(pack, sparsity.order, limits)) {
    ASSIGN_OR_RETURN(const SparseProfile profile, LoadOrMeasureSparseSwitch(backend, spec, folder));
    entries.push_back({spec.order, spec.up, spec.gate, spec.down, profile.found});
    for (const float share : profile.found.dense_above) {
      absl::StrAppend(&line, " ", share);
    }
    absl::StrAppend(&line, profile.measured ? " (measured now)" : " (measured before)");
    if (!profile.stored.ok()) {
      absl::StrAppend(&line, "; not kept: ", profile.stored.message());
    }
  }
  RETURN_IF_ERROR(backend.SetSparseSwitches(entries));
  return line;
}

}  // namespace sluice::inferd
