// Old names of options and policy keys. They are accepted for one release; their use is logged as deprecated.
//
// Thread safety: constants and a free function, safe to use from any thread.
#pragma once

#include <string_view>

#include "absl/types/span.h"

namespace sluice {

struct RenamedName {
  const char* old_name;
  const char* name;
};

// Options of the daemons, without dashes. Renamed in 0.2.0, to be removed in 0.3.0.
inline constexpr RenamedName kRenamedOptions[] = {{"prefill-chunk-most", "max-prefill-chunk"},
                                                  {"read-deadline", "read-timeout"}};
// Keys of --policy. Renamed in 0.2.0, to be removed in 0.3.0.
inline constexpr RenamedName kRenamedPolicyKeys[] = {{"token_guess", "token_draft"}};

// Returns the present name of `name`. If `table` lists it as an old name, logs a line to stderr; otherwise
// returns `name` itself.
std::string_view PresentName(absl::Span<const RenamedName> table, std::string_view name);

}  // namespace sluice
