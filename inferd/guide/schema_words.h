// The words of JSON schemas that are known here: types, keywords and what they speak of, formats.
//
// Thread safety: constants and pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace sluice {

using SchemaJson = nlohmann::ordered_json;  // properties are answered in the schema's order

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

// The bit of the type of this name; 0: there is none.
uint32_t SchemaTypeNamed(std::string_view name);

// The types that a value has: an integer is a number, too.
uint32_t SchemaTypesOfValue(const SchemaJson& value);

// Whether the keyword says something about values of some type ("minimum"), and is none that stands for
// values or for other schemas ("enum", "anyOf").
bool IsTypedKeyword(std::string_view name);

// Whether the keyword says nothing about which values are valid ("title", "x-...").
bool IsAnnotation(std::string_view name);

// Whether the format's grammar is that of the format, as far as a grammar goes.
bool IsKnownFormat(std::string_view name);

}  // namespace sluice
