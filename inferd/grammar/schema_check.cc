// JSON schema vocabulary: types, keywords with the types they apply to, formats.
//
// Thread safety: constants and pure functions.

#include "inferd/grammar/schema_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "inferd/grammar/grammar_text.h"

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

// SchemaReferences: finds cycles among places of a JSON schema that apply to the same value.
//
// Thread safety: thread-compatible.

class SchemaReferences {
 public:
  // Records that `to` applies to the same value as `from`: a $ref, or a member of a choice.
  void Add(const std::string& from, const std::string& to) { next_[from].push_back(to); }

  // A place that refers to itself without a key or an item between, and so describes nothing; "": none.
  std::string PlaceOfCycle() const;

 private:
  std::map<std::string, std::vector<std::string>> next_;
};

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

namespace {

struct Visit {
  std::string place;
  size_t next = 0;  // index of its next reference
};

}  // namespace

// Depth first search without recursion, since schemas come from clients and chains may be long. A place that
// is entered but not finished is on the path to the present one.
std::string SchemaReferences::PlaceOfCycle() const {
  absl::flat_hash_map<std::string, bool> finished;
  for (const auto& [start, references] : next_) {
    if (finished.contains(start)) {
      continue;
    }
    std::vector<Visit> way = {{start}};
    finished[start] = false;
    while (!way.empty()) {
      const auto edges = next_.find(way.back().place);
      if (edges == next_.end() || way.back().next == edges->second.size()) {
        finished[way.back().place] = true;
        way.pop_back();
        continue;
      }
      const std::string& place = edges->second[way.back().next++];
      const auto [entry, is_new] = finished.emplace(place, false);
      if (is_new) {
        way.push_back({place});
      } else if (!entry->second) {
        return place;
      }
    }
  }
  return "";
}

namespace {

using Json = SchemaJson;

constexpr uint64_t kMaxValues = 20'000;
// Maximum count of items and characters; a larger one exceeds every context.
constexpr int64_t kMaxCount = 1'000'000;

// Integers above 2^63 - 1 would be printed as floating point numbers.
bool IsExact(const Json& value) {
  if (value.is_number_unsigned()) {
    return value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  }
  return std::all_of(value.begin(), value.end(),
                     [&value](const Json& part) { return &part == &value || IsExact(part); });
}

std::string Step(const std::string& place, std::string_view key) {
  return absl::StrCat(place, "/", absl::StrReplaceAll(std::string(key), {{"~", "~0"}, {"/", "~1"}}));
}

class Checker {
 public:
  explicit Checker(Json root) : root_(std::move(root)) {}

  absl::StatusOr<std::string> Run() {
    RETURN_IF_ERROR(Walk(&root_, "#", 0));
    if (const std::string place = references_.PlaceOfCycle(); !place.empty()) {
      return Refuse(place, "the schema refers to itself without a property or an item between");
    }
    // Done last: a new member moves its neighbours in memory.
    for (const auto& [place, member] : open_) {
      root_.at(Json::json_pointer(place.substr(1)))[member] = Json::object();
    }
    for (const auto& [place, name] : renamed_) {
      Json& only = root_.at(Json::json_pointer(place.substr(1)));
      only = Json::object({{name, only.begin().value()}});
    }
    return root_.dump();
  }

 private:
  absl::Status Walk(Json* schema, const std::string& place, uint32_t default_type);
  absl::Status WalkInPlace(Json* schema, const std::string& from, const std::string& place) {
    references_.Add(from, place);
    return Walk(schema, place, 0);
  }
  absl::Status WalkRef(const Json& schema, const std::string& place);
  absl::Status WalkChoice(Json* schema, const std::string& place, const char* keyword);
  absl::Status CheckValues(const Json& schema, const std::string& place, const char* keyword);
  absl::StatusOr<uint32_t> TypesOf(const Json& schema, const std::string& place, uint32_t default_type);
  absl::Status WalkTyped(Json* schema, const std::string& place, uint32_t types);
  absl::Status WalkString(Json* schema, const std::string& place);
  absl::Status WalkArray(Json* schema, const std::string& place);
  absl::Status WalkObject(Json* schema, const std::string& place);
  absl::Status WalkOpenObject(Json* schema, const std::string& place);
  absl::Status WalkNamedProperties(Json* schema, const std::string& place);
  absl::Status CheckCount(const Json& schema, const std::string& place, const char* keyword);
  absl::StatusOr<std::string> Pattern(const Json& pattern, const std::string& place);

  static absl::Status Refuse(const std::string& place, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
  }
  static absl::Status Unsupported(const std::string& place, std::string_view keyword) {
    return Refuse(place, absl::StrCat("the keyword \"", std::string(keyword), "\" is not supported"));
  }
  // Returns the first keyword of `schema` that constrains values and is not in `taken`; "": none.
  static std::string Other(const Json& schema, std::initializer_list<const char*> taken) {
    for (const auto& [key, value] : schema.items()) {
      const std::string& name = key;
      if (!IsAnnotation(name) &&
          std::none_of(taken.begin(), taken.end(), [&name](const char* word) { return name == word; })) {
        return name;
      }
    }
    return "";
  }

  Json root_;
  absl::flat_hash_set<std::string> visited_;
  SchemaReferences references_;
  std::vector<std::pair<std::string, std::string>> open_;  // places that get an empty schema as this member
  std::vector<std::pair<std::string, std::string>> renamed_;  // places whose only member gets this name
};

absl::Status Checker::Walk(Json* schema, const std::string& place, uint32_t default_type) {
  if (!visited_.insert(place).second) {
    return absl::OkStatus();
  }
  if (schema->is_boolean()) {
    if (!schema->get<bool>()) {
      return Refuse(place, "false allows no value");
    }
    *schema = Json::object();  // equivalent, and supported by the converter everywhere
    return absl::OkStatus();
  }
  if (!schema->is_object()) {
    return Refuse(place, "a schema must be an object or a boolean");
  }
  if (place == "#") {
    schema->erase("$id");  // references are to this document only
  }
  if (schema->contains("$ref")) {
    return WalkRef(*schema, place);
  }
  for (const char* keyword : {"const", "enum"}) {
    if (schema->contains(keyword)) {
      return CheckValues(*schema, place, keyword);
    }
  }
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    if (schema->contains(keyword)) {
      return WalkChoice(schema, place, keyword);
    }
  }
  ASSIGN_OR_RETURN(const uint32_t types, TypesOf(*schema, place, default_type));
  return WalkTyped(schema, place, types);
}

absl::Status Checker::WalkRef(const Json& schema, const std::string& place) {
  if (const std::string other = Other(schema, {"$ref"}); !other.empty()) {
    return Refuse(place, absl::StrCat("the keyword \"", other, "\" beside \"$ref\" is not supported"));
  }
  if (!schema["$ref"].is_string()) {
    return Refuse(place, "$ref must be a string");
  }
  const std::string uri = schema["$ref"].get<std::string>();
  const auto unsupported = [&] {
    return Refuse(place, absl::StrCat("$ref \"", uri,
                                      "\" is not supported: only \"#\" and paths of plain keys "
                                      "within the schema (\"#/$defs/NAME\") are"));
  };
  if (uri != "#" && (!absl::StartsWith(uri, "#/") || uri.find_first_of("~%") != std::string::npos)) {
    return unsupported();
  }
  Json* target = &root_;
  if (uri != "#") {
    for (const absl::string_view key : absl::StrSplit(absl::string_view(uri).substr(2), '/')) {
      if (key.empty()) {
        return unsupported();
      }
      if (!target->is_object() || !target->contains(std::string(key))) {
        return Refuse(place, absl::StrCat("$ref \"", uri, "\" leads nowhere"));
      }
      target = &(*target)[std::string(key)];
    }
  }
  return WalkInPlace(target, place, uri);
}

absl::Status Checker::CheckValues(const Json& schema, const std::string& place, const char* keyword) {
  if (const std::string other = Other(schema, {keyword, "type"}); !other.empty()) {
    return Refuse(place,
                  absl::StrCat("the keyword \"", other, "\" beside \"", keyword, "\" is not supported"));
  }
  const Json& values = schema[keyword];
  const bool is_enum = std::string_view(keyword) == "enum";
  if (is_enum && (!values.is_array() || values.empty())) {
    return Refuse(place, "enum must be an array of at least one value");
  }
  uint32_t types = ~0u;
  if (schema.contains("type")) {
    ASSIGN_OR_RETURN(types, TypesOf(schema, place, 0));
  }
  for (size_t i = 0; i < (is_enum ? values.size() : 1); ++i) {
    const Json& value = is_enum ? values[i] : values;
    if ((SchemaTypesOfValue(value) & types) == 0) {
      return Refuse(place, absl::StrCat("\"", keyword, "\" has a value that \"type\" does not allow"));
    }
    if (!IsExact(value)) {
      return Refuse(place, absl::StrCat("\"", keyword, "\" has an integer beyond 2^63 - 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::WalkChoice(Json* schema, const std::string& place, const char* keyword) {
  if (const std::string other = Other(*schema, {keyword}); !other.empty()) {
    return Refuse(place,
                  absl::StrCat("the keyword \"", other, "\" beside \"", keyword, "\" is not supported"));
  }
  Json& options = (*schema)[keyword];
  if (!options.is_array() || options.empty()) {
    return Refuse(place, absl::StrCat(keyword, " must be an array of at least one schema"));
  }
  if (options.size() > 1 && std::string_view(keyword) == "allOf") {
    return Refuse(place, "the keyword \"allOf\" is supported with one schema only");
  }
  for (size_t i = 0; i < options.size(); ++i) {
    RETURN_IF_ERROR(WalkInPlace(&options[i], place, absl::StrCat(place, "/", keyword, "/", i)));
  }
  return absl::OkStatus();
}

// Returns the types allowed for values of the schema, as the converter sees them; 0: any type, no other
// constraint.
absl::StatusOr<uint32_t> Checker::TypesOf(const Json& schema, const std::string& place,
                                          uint32_t default_type) {
  const auto type = schema.find("type");
  if (type == schema.end()) {
    for (const char* word : {"properties", "additionalProperties", "unevaluatedProperties"}) {
      if (default_type == 0 && schema.contains(word)) {
        return kObject;
      }
    }
    for (const char* word : {"items", "prefixItems", "unevaluatedItems"}) {
      if (default_type == 0 && schema.contains(word)) {
        return kArray;
      }
    }
    return default_type;
  }
  if (type->is_string() && SchemaTypeNamed(type->get<std::string>()) != 0) {
    return SchemaTypeNamed(type->get<std::string>());
  }
  uint32_t types = 0;
  if (type->is_array()) {
    for (const Json& word : *type) {
      const uint32_t bit = word.is_string() ? SchemaTypeNamed(word.get<std::string>()) : 0;
      if (bit == 0) {
        return Refuse(place, "type has a member that names no type");
      }
      types |= bit;
    }
  }
  if (types == 0) {
    return Refuse(place, "type names no type");
  }
  return types;
}

absl::Status Checker::WalkTyped(Json* schema, const std::string& place, uint32_t types) {
  for (const auto& [key, value] : schema->items()) {
    const std::string name = key;
    if (name == "type" || IsAnnotation(name)) {
      continue;
    }
    if (!IsTypedKeyword(name)) {
      return Unsupported(place, name);
    }
    if (types == 0) {
      return Refuse(place, absl::StrCat("the keyword \"", name, "\" is not supported without \"type\""));
    }
  }
  if ((types & kString) != 0) {
    RETURN_IF_ERROR(WalkString(schema, place));
  }
  if ((types & kArray) != 0) {
    RETURN_IF_ERROR(WalkArray(schema, place));
  }
  return (types & kObject) != 0 ? WalkObject(schema, place) : absl::OkStatus();
}

absl::Status Checker::CheckCount(const Json& schema, const std::string& place, const char* keyword) {
  const auto found = schema.find(keyword);
  if (found == schema.end() || (found->is_number_integer() && found->get<int64_t>() >= 0 &&
                                found->get<int64_t>() <= kMaxCount && IsExact(*found))) {
    return absl::OkStatus();
  }
  return Refuse(place, absl::StrCat("\"", keyword, "\" must be an integer from 0 to ", kMaxCount));
}

absl::Status Checker::WalkString(Json* schema, const std::string& place) {
  RETURN_IF_ERROR(CheckCount(*schema, place, "minLength"));
  RETURN_IF_ERROR(CheckCount(*schema, place, "maxLength"));
  const bool length = schema->contains("minLength") || schema->contains("maxLength");
  const auto format = schema->find("format");
  const auto pattern = schema->find("pattern");
  if (format != schema->end()) {
    if (!format->is_string() || !IsKnownFormat(format->get<std::string>())) {
      return Refuse(place, absl::StrCat("the keyword \"format\" is not supported with ", format->dump()));
    }
    if (length || pattern != schema->end()) {
      return Refuse(place, absl::StrCat("the keyword \"", length ? "minLength\" or \"maxLength" : "pattern",
                                        "\" beside \"format\" is not supported"));
    }
  }
  if (pattern == schema->end()) {
    return absl::OkStatus();
  }
  if (length) {
    return Refuse(place, "the keyword \"minLength\" or \"maxLength\" beside \"pattern\" is not supported");
  }
  ASSIGN_OR_RETURN(*pattern, Pattern(*pattern, absl::StrCat(place, "/pattern")));
  return absl::OkStatus();
}

// Forces the converter's correct path for a pattern (grammar_text.h): the other path is for ASCII only, so
// one character that never occurs decides it.
absl::StatusOr<std::string> Checker::Pattern(const Json& pattern, const std::string& place) {
  if (!pattern.is_string()) {
    return Refuse(place, "a pattern must be a string");
  }
  const std::string regex = pattern.get<std::string>();
  const absl::StatusOr<std::string> rewritten = RewriteRegex(regex, /*in_json_string=*/true);
  if (!rewritten.ok()) {
    return Refuse(place, absl::StrCat("the pattern is not supported: ", rewritten.status().message()));
  }
  return absl::StrCat("(?:", *rewritten, ")(?:\u00e9){0}");
}

absl::Status Checker::WalkArray(Json* schema, const std::string& place) {
  RETURN_IF_ERROR(CheckCount(*schema, place, "minItems"));
  RETURN_IF_ERROR(CheckCount(*schema, place, "maxItems"));
  if (const auto unique = schema->find("uniqueItems"); unique != schema->end() && *unique != false) {
    return Unsupported(place, "uniqueItems");
  }
  if (const auto others = schema->find("unevaluatedItems"); others != schema->end() && *others != false) {
    return Refuse(place, "the keyword \"unevaluatedItems\" is supported with false only");
  }
  if (const auto prefix = schema->find("prefixItems"); prefix != schema->end()) {
    if (!prefix->is_array()) {
      return Refuse(place, "prefixItems must be an array");
    }
    for (size_t i = 0; i < prefix->size(); ++i) {
      RETURN_IF_ERROR(Walk(&(*prefix)[i], absl::StrCat(place, "/prefixItems/", i), 0));
    }
  }
  const auto items = schema->find("items");
  if (items == schema->end()) {
    if (!schema->contains("prefixItems") && !schema->contains("unevaluatedItems")) {
      open_.emplace_back(place, "items");
    }
    return absl::OkStatus();
  }
  if (items->is_array()) {
    return Refuse(place, "the keyword \"items\" is not supported with an array (it is \"prefixItems\" now)");
  }
  return *items == false ? absl::OkStatus() : Walk(&*items, Step(place, "items"), 0);
}

absl::Status Checker::WalkObject(Json* schema, const std::string& place) {
  RETURN_IF_ERROR(CheckCount(*schema, place, "minProperties"));
  RETURN_IF_ERROR(CheckCount(*schema, place, "maxProperties"));
  if (const auto others = schema->find("unevaluatedProperties");
      others != schema->end() && *others != false) {
    return Refuse(place, "the keyword \"unevaluatedProperties\" is supported with false only");
  }
  const auto properties = schema->find("properties");
  if (properties != schema->end() && !properties->is_object()) {
    return Refuse(place, "properties must be an object");
  }
  if (const auto required = schema->find("required"); required != schema->end()) {
    if (!required->is_array()) {
      return Refuse(place, "required must be an array");
    }
    for (const Json& name : *required) {
      if (!name.is_string() || properties == schema->end() ||
          !properties->contains(name.get<std::string>())) {
        return Refuse(place, absl::StrCat("the keyword \"required\" is not supported with ", name.dump(),
                                          ", which \"properties\" does not name"));
      }
    }
  }
  return properties != schema->end() && !properties->empty() ? WalkNamedProperties(schema, place)
                                                             : WalkOpenObject(schema, place);
}

// Further keys could spell a named one by escapes, so an object with named properties is closed.
absl::Status Checker::WalkNamedProperties(Json* schema, const std::string& place) {
  for (const char* keyword : {"patternProperties", "propertyNames"}) {
    if (schema->contains(keyword)) {
      return Refuse(place,
                    absl::StrCat("the keyword \"", keyword, "\" beside \"properties\" is not supported"));
    }
  }
  if (const auto others = schema->find("additionalProperties"); others != schema->end()) {
    if (!others->is_boolean() && !(others->is_object() && others->empty())) {
      return Refuse(place,
                    "the keyword \"additionalProperties\" with a schema is not supported beside "
                    "\"properties\"");
    }
    *others = false;
  }
  for (auto& [name, property] : (*schema)["properties"].items()) {
    RETURN_IF_ERROR(Walk(&property, Step(Step(place, "properties"), name), 0));
  }
  return absl::OkStatus();
}

// A map: keys are not listed in the schema.
absl::Status Checker::WalkOpenObject(Json* schema, const std::string& place) {
  const auto others = schema->find("additionalProperties");
  const auto patterns = schema->find("patternProperties");
  const auto names = schema->find("propertyNames");
  const bool closed =
      (others != schema->end() && *others == false) || schema->contains("unevaluatedProperties");
  // A grammar cannot detect equal keys, and readers keep only one of two equal keys.
  if (const auto least = schema->find("minProperties"); least != schema->end() && *least > 1) {
    return Refuse(place, "the keyword \"minProperties\" above 1 is supported beside \"properties\" only");
  }
  if (patterns != schema->end()) {
    if (!patterns->is_object() || patterns->size() != 1 || names != schema->end()) {
      return Refuse(place,
                    "the keyword \"patternProperties\" is supported with one pattern, without "
                    "\"propertyNames\"");
    }
    const std::string pattern = patterns->begin().key();
    const std::string at = Step(Step(place, "patternProperties"), pattern);
    ASSIGN_OR_RETURN(const std::string rewritten, Pattern(Json(pattern), at));
    renamed_.emplace_back(Step(place, "patternProperties"), rewritten);
    if (others != schema->end()) {
      *others = false;
    }
    return Walk(&patterns->begin().value(), at, 0);
  }
  if (names != schema->end()) {
    const std::string at = Step(place, "propertyNames");
    if (closed || !names->is_object() || names->contains("$ref") || names->contains("const") ||
        names->contains("enum") || names->contains("anyOf") || names->contains("oneOf") ||
        names->contains("allOf") || (names->contains("type") && (*names)["type"] != "string")) {
      return Refuse(place,
                    "the keyword \"propertyNames\" is supported with \"pattern\", \"format\" and lengths, "
                    "where further properties are allowed");
    }
    RETURN_IF_ERROR(Walk(&*names, at, kString));
  }
  if (others != schema->end()) {
    return closed ? absl::OkStatus() : Walk(&*others, Step(place, "additionalProperties"), 0);
  }
  if (!closed) {
    open_.emplace_back(place, "additionalProperties");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> CheckSchema(std::string_view text) {
  JsonLimits limits;
  limits.max_values = kMaxValues;
  ASSIGN_OR_RETURN(Json schema, ParseOrderedJson(text, "#", limits));
  return Checker(std::move(schema)).Run();
}

}  // namespace sluice::inferd
