// Shares as people write them: "50%".
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <optional>
#include <string_view>

namespace sluice {

// Parses the number before a final %, above 0 and at most 100; none for any other text.
std::optional<double> ParsePercent(std::string_view text);

}  // namespace sluice
