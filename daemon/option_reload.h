// Functions over all options of a daemon, which is whatever its ForEachOption visits
// (daemon/option_values.h).
//
// Thread safety: pure functions, safe to use from any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/option_values.h"

namespace sluice {

// Each as a flag takes it.
template <typename Options>
std::vector<OptionText> TextsOfAll(Options options) {
  std::vector<OptionText> texts;
  ForEachOption(&options, [&](const char* name, const auto* member, const char*) {
    texts.push_back({name, ShowOptionValue(*member)});
  });
  return texts;
}

// `running` with the values that `read` has for `names`.
template <typename Options>
Options TakeNamed(Options running, Options read, const std::set<std::string>& names) {
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
