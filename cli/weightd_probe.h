// Comparing a running weightd with the options asked for.
//
// Thread safety: free functions, safe to call from any thread.
#ifndef SLUICE_CLI_WEIGHTD_PROBE_H_
#define SLUICE_CLI_WEIGHTD_PROBE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/options.h"

namespace sluice::cli {

// Appends a phrase for each of `asked` (weightd's options) that the weightd at `socket` has otherwise.
absl::Status CompareWithWeightd(const std::string& socket, const std::vector<OptionSetting>& asked,
                                std::vector<std::string>* differences);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_WEIGHTD_PROBE_H_
