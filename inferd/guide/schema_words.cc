#include "inferd/guide/schema_words.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice::inferd {
namespace {

constexpr const char* kTyped[] = {"minimum",
                                  "maximum",
                                  "exclusiveMinimum",
                                  "exclusiveMaximum",
                                  "multipleOf",
                                  "minLength",
                                  "maxLength",
                                  "pattern",
                                  "format",
                                  "items",
                                  "prefixItems",
                                  "unevaluatedItems",
                                  "minItems",
                                  "maxItems",
                                  "uniqueItems",
                                  "properties",
                                  "required",
                                  "additionalProperties",
                                  "unevaluatedProperties",
                                  "patternProperties",
                                  "propertyNames",
                                  "minProperties",
                                  "maxProperties"};

constexpr const char* kAnnotations[] = {"title",    "description", "default",    "example",   "examples",
                                        "$comment", "deprecated",  "readOnly",   "writeOnly", "$schema",
                                        "$anchor",  "$defs",       "definitions"};

// Formats whose grammar is exact, as far as a grammar can be (it has no calendar). The converter's other
// formats `email`, `json-pointer` and `relative-json-pointer` allow characters that JSON strings cannot hold.
constexpr const char* kFormats[] = {"date", "time",     "date-time", "duration", "ipv4",
                                    "ipv6", "hostname", "uuid",      "uri"};

template <size_t N>
bool Among(std::string_view word, const char* const (&words)[N]) {
  return std::any_of(std::begin(words), std::end(words), [word](const char* w) { return word == w; });
}

}  // namespace

uint32_t SchemaTypeNamed(std::string_view name) {
  constexpr std::pair<const char*, SchemaType> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject},
  };
  for (const auto& [word, bit] : kNames) {
    if (name == word) {
      return bit;
    }
  }
  return 0;
}

uint32_t SchemaTypesOfValue(const SchemaJson& value) {
  switch (value.type()) {
    case SchemaJson::value_t::null:
      return kNull;
    case SchemaJson::value_t::boolean:
      return kBoolean;
    case SchemaJson::value_t::number_integer:
    case SchemaJson::value_t::number_unsigned:
      return kInteger | kNumber;
    case SchemaJson::value_t::number_float:
      return kNumber;
    case SchemaJson::value_t::string:
      return kString;
    case SchemaJson::value_t::array:
      return kArray;
    default:
      return kObject;
  }
}

bool IsTypedKeyword(std::string_view name) { return Among(name, kTyped); }

bool IsAnnotation(std::string_view name) { return Among(name, kAnnotations) || name.substr(0, 2) == "x-"; }

bool IsKnownFormat(std::string_view name) { return Among(name, kFormats); }

}  // namespace sluice::inferd
