// CheckSchema: accepts JSON schemas that xgrammar enforces exactly, and refuses all others.
//
// xgrammar converts schemas to grammars, and ignores parts that it has no grammar for: unknown keywords,
// keywords beside others of higher precedence, combinations. An answer could then violate the schema
// unnoticed. This check lists the parts that are converted in full; everything else is refused by name and
// place.
//
// Accepted schemas are narrowed in two ways, both of which only exclude answers: an object that names
// properties, and an array that names items by position, have no further members; a pattern matches the whole
// string.
//
// Thread safety: pure function, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice::inferd {

// Returns the schema in the converter's form. INVALID_ARGUMENT naming the place and the keyword: invalid JSON
// (also: duplicate keys, deeper than 64 levels, more than 20,000 values), no schema, or one that cannot be
// enforced.
absl::StatusOr<std::string> CheckSchema(std::string_view text);

}  // namespace sluice::inferd
