// Functions over all options of a daemon, as visited by its ForEachOption (daemon/option_values.h).
//
// Thread safety: pure functions, safe to use from any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/option_values.h"

namespace sluice {

// Each value in the form of a flag.
template <typename Options>
std::vector<OptionText> OptionTexts(Options options) {
  std::vector<OptionText> texts;
  ForEachOption(&options, [&](const char* name, const auto* member, const char*) {
    texts.push_back({name, FormatOptionValue(*member)});
  });
  return texts;
}

// Returns `running` with the values of `read` for `names`.
template <typename Options>
Options MergeNamedOptions(Options running, Options read, const std::set<std::string>& names) {
  std::map<std::string, const void*> values;
  ForEachOption(&read, [&](const char* name, const auto* member, const char*) { values[name] = member; });
  ForEachOption(&running, [&]<typename T>(const char* name, T* member, const char*) {
    if (names.count(name) > 0) {
      *member = *static_cast<const T*>(values[name]);
    }
  });
  return running;
}

}  // namespace sluice
