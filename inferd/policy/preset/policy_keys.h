// The keys of --policy: one table by which every value in Policies is set, shown and listed.
//
// Thread safety: immutable tables and pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/policy/preset/preset.h"

namespace sluice::inferd {

struct PolicyKey {
  const char* name;
  const char* values;  // possible values, in words
  std::string (*show)(const Policies&);
  // Returns false if `text` is none of `values`.
  bool (*set)(std::string_view text, Policies* policies);
};

absl::Span<const PolicyKey> PolicyKeys();

// Sets "KEY=VALUE". INVALID_ARGUMENT naming the known keys, or the key and its values.
absl::Status SetPolicy(std::string_view assignment, Policies* policies);

}  // namespace sluice::inferd
