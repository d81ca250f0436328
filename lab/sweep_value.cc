#include "lab/sweep_value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cli/ui/args.h"
#include "inferd/policy/preset/policy_keys.h"

namespace sluice::cli {

absl::StatusOr<CommonOptions> WithSweepValue(const CommonOptions& options, const std::string& name,
                                             const std::string& value) {
  CommonOptions swept = options;
  const bool is_cost = name.ends_with("_ms");
  const bool virtual_link = name == "link-gbps" && swept.virtual_costs.has_value();
  if (is_cost || virtual_link) {
    // The table of costs says what the link takes unless it is told not to.
    const std::string setting = is_cost ? absl::StrCat(name, "=", value) : "link_ms=0";
    swept.virtual_costs =
        absl::StrCat(swept.virtual_costs.value_or(""), swept.virtual_costs.has_value() ? "," : "", setting);
  }
  if (is_cost) {
    return swept;
  }
  const absl::Span<const inferd::PolicyKey> keys = inferd::PolicyKeys();
  if (std::any_of(keys.begin(), keys.end(),
                  [&name](const inferd::PolicyKey& key) { return name == key.name; })) {
    swept.policy.push_back(absl::StrCat(name, "=", value));
    return swept;
  }
  ArgParser parser(absl::StrCat("--sweep ", name), "");
  swept.Declare(&parser);
  const std::string option = absl::StrCat("--", name);
  if (!parser.Knows(option) || option == "--pack" || option == "--help") {
    return absl::InvalidArgumentError(
        absl::StrCat("--sweep ", name, ": neither an option of the daemons, a virtual cost nor a policy"));
  }
  if (const absl::Status filled = parser.Fill({"--pack", options.pack, option, value}); !filled.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--sweep ", name, "=", value, ": ", filled.message()));
  }
  return swept;
}

}  // namespace sluice::cli
