// FieldAliases: names of chat fields in other APIs, so that errors name the field that the client sent.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace sluice::inferd {

// Pairs of a chat field and the API's field, as parts of a field's path; the first match is replaced.
using FieldAliases = std::vector<std::pair<std::string, std::string>>;

std::string AliasOf(const std::string& field, const FieldAliases& aliases);

// Returns `status` with the field's alias; a status without a match is unchanged.
absl::Status ToApiFieldNames(const absl::Status& status, const FieldAliases& aliases);

}  // namespace sluice::inferd
