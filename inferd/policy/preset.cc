#include "inferd/policy/preset.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {

std::vector<std::string> PresetNames() { return {"exact"}; }

absl::StatusOr<Policies> PoliciesOf(const std::string& preset) {
  if (preset == "exact") {
    return Policies{};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown preset \"", preset, "\"; this build has: ", absl::StrJoin(PresetNames(), ", ")));
}

}  // namespace sluice
