#include "common/base/renamed_names.h"

#include <cstdio>

namespace sluice {

std::string_view PresentName(absl::Span<const RenamedName> table, std::string_view name) {
  for (const RenamedName& renamed : table) {
    if (name == renamed.old_name) {
      std::fprintf(stderr, "warning: %s is deprecated and will be removed in the next release: use %s\n",
                   renamed.old_name, renamed.name);
      return renamed.name;
    }
  }
  return name;
}

}  // namespace sluice
