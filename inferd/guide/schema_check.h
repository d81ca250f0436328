// Which JSON schemas can be kept to the letter, and which cannot.
//
// xgrammar converts schemas to grammars, and leaves out what it has no grammar for: keywords that it does not
// know, keywords beside others that go before them, combinations. An answer could then break the schema
// without anybody noticing. This check knows what is converted in full; everything else is refused by its
// name and place.
//
// What is accepted is narrower than the schema in two ways, both of which only ever leave out answers: an
// object that names properties, and an array that names items by place, hold no others; a pattern matches the
// whole string.
//
// Thread safety: pure function, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

// The schema as the converter is to see it. INVALID_ARGUMENT naming the place and the keyword: no JSON (also:
// duplicate keys, deeper than 64 levels, more than 20,000 values), no schema, or one that cannot be kept.
absl::StatusOr<std::string> CheckSchema(std::string_view text);

}  // namespace sluice
