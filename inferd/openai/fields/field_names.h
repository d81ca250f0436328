// What the fields of a chat request are called by the API that a request came in: errors name what its client
// sent.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// Pairs of what a chat request says and what the API says for it, as parts of a field's path; the first part
// that is found is replaced.
using FieldAliases = std::vector<std::pair<std::string, std::string>>;

std::string AliasOf(const std::string& field, const FieldAliases& aliases);

// `status` about the field by its alias; another as it is.
absl::Status InApisTerms(const absl::Status& status, const FieldAliases& aliases);

}  // namespace sluice
