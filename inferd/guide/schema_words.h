// JSON schema vocabulary: types, keywords with the types they apply to, formats.
//
// Thread safety: constants and pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace sluice::inferd {

using SchemaJson = nlohmann::ordered_json;  // answers follow the schema's order of properties

// Types as bits.
enum SchemaType : uint32_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
};

// Returns the bit of the named type; 0: unknown.
uint32_t SchemaTypeNamed(std::string_view name);

// Returns the types of a value: an integer is a number, too.
uint32_t SchemaTypesOfValue(const SchemaJson& value);

// True if the keyword constrains values of some type ("minimum"), and does not stand for values or for other
// schemas ("enum", "anyOf").
bool IsTypedKeyword(std::string_view name);

// True if the keyword does not constrain values ("title", "x-...").
bool IsAnnotation(std::string_view name);

// True if the grammar of the format is exact, as far as a grammar can be.
bool IsKnownFormat(std::string_view name);

}  // namespace sluice::inferd
