// Shares as people write them: "50%".
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <optional>
#include <string_view>

namespace sluice {

// Of a text that ends in %: the number before it, above 0 and at most 100; none for all else.
std::optional<double> ParsePercent(std::string_view text);

}  // namespace sluice
