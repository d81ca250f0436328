// Presets: named sets of policies.
//
// Thread safety: plain values and pure functions.
#ifndef SLUICE_INFERD_POLICY_PRESET_H_
#define SLUICE_INFERD_POLICY_PRESET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

enum class RoutingKind : uint8_t { kTopK };
enum class ExpertPredictorKind : uint8_t { kNone, kGateReuse };
enum class ExpertMiss : uint8_t { kLoad };

struct Policies {
  std::string preset = "exact";
  RoutingKind routing = RoutingKind::kTopK;
  ExpertPredictorKind predictor = ExpertPredictorKind::kGateReuse;
  // Experts of the next layer that one step asks for ahead at most. A decode batch names few; a prefill chunk
  // names most of a layer, and asking for them all would only push out what the layer itself still needs.
  uint32_t max_prefetch = 16;
  ExpertMiss miss = ExpertMiss::kLoad;
};

// INVALID_ARGUMENT naming the presets that this build has.
absl::StatusOr<Policies> PoliciesOf(const std::string& preset);
std::vector<std::string> PresetNames();

}  // namespace sluice

#endif  // SLUICE_INFERD_POLICY_PRESET_H_
