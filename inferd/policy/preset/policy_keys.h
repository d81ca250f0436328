// The keys of --policy: one table of every value in Policies, by which it is set, shown and listed.
//
// Thread safety: immutable tables and pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/policy/preset/preset.h"

namespace sluice {

struct PolicyKey {
  const char* name;
  const char* values;  // what may be set, in words
  std::string (*show)(const Policies&);
  // False if `text` is none of `values`.
  bool (*set)(std::string_view text, Policies* policies);
};

absl::Span<const PolicyKey> PolicyKeys();

// Sets "KEY=VALUE". INVALID_ARGUMENT naming the known keys, or the key and its values.
absl::Status SetPolicy(std::string_view assignment, Policies* policies);

}  // namespace sluice
