// Accepted schemas; all others are refused by keyword and place.
#include "inferd/grammar/schema_check.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Refusal(const std::string& schema) {
  const absl::StatusOr<std::string> checked = CheckSchema(schema);
  EXPECT_TRUE(checked.ok() || absl::IsInvalidArgument(checked.status())) << checked.status();
  return std::string(checked.status().message());
}

std::string TextOf(const std::string& schema) {
  const absl::StatusOr<std::string> checked = CheckSchema(schema);
  EXPECT_TRUE(checked.ok()) << schema << ": " << checked.status();
  return checked.value_or("");
}

TEST(SchemaCheckTest, AcceptsFullyConvertedSchemas) {
  for (
      const char* schema : {
          R"({})",
          R"(true)",
          R"({"type": "string"})",
          R"({"type": ["integer", "null"], "minimum": 3, "exclusiveMaximum": 9})",
          R"({"type": "string", "minLength": 1, "maxLength": 20})",
          R"({"type": "string", "pattern": "^[a-z]{2,5}$"})",
          R"({"type": "string", "format": "date-time"})",
          R"({"type": "integer", "format": "int32"})",
          R"({"enum": ["a", 1, null, {"b": [true]}]})",
          R"({"type": "string", "enum": ["a", "b"], "title": "letters", "default": "a"})",
          R"({"const": 3.5, "description": "the number"})",
          R"({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 4, "uniqueItems": false})",
          R"({"type": "array", "prefixItems": [{"type": "string"}, true], "items": false})",
          R"({"anyOf": [{"type": "string"}, {"type": "integer"}]})",
          R"({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "null"}}})",
          R"({"properties": {"a": {}, "b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": false})",
          R"({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3})",
          R"({"type": "object", "patternProperties": {"^x_": {"type": "integer"}}})",
          R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}})",
          R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://a/b", "x-order": 1})",
          // A list: its schema refers to itself through a property.
          R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}})",
      }) {
    EXPECT_EQ(Refusal(schema), "") << schema;
  }
}

TEST(SchemaCheckTest, RefusesByKeywordAndPlace) {
  struct Case {
    const char* schema;
    const char* place;
    const char* what;
  };
  for (
      const Case& c : {
          Case{R"({"not": {}})", "#:", "\"not\""},
          Case{R"({"if": {}, "then": {}})", "#:", "\"if\""},
          Case{R"({"properties": {"a": {"type": "array", "uniqueItems": true}}})",
               "#/properties/a:", "\"uniqueItems\""},
          Case{R"({"properties": {"a/b~c": {"type": "array", "contains": {}}}})",
               "#/properties/a~1b~0c:", "\"contains\""},
          Case{R"({"type": "object", "dependentRequired": {}})", "#:", "\"dependentRequired\""},
          Case{R"({"type": "object", "dependencies": {}})", "#:", "\"dependencies\""},
          Case{R"({"type": "string", "contentEncoding": "base64"})", "#:", "\"contentEncoding\""},
          Case{R"({"type": "string", "nullable": true})", "#:", "\"nullable\""},
          Case{R"({"type": "string", "maxlength": 3})", "#:", "\"maxlength\""},
          Case{R"({"$dynamicRef": "#a"})", "#:", "\"$dynamicRef\""},
          Case{R"({"type": "string", "format": "email"})", "#:", "\"format\""},
          Case{R"({"type": "string", "format": "date", "pattern": "a"})", "#:", "\"pattern\""},
          Case{R"({"type": "string", "pattern": "a", "maxLength": 3})", "#:", "beside \"pattern\""},
          Case{R"({"type": "string", "pattern": "a{2,1}"})", "#/pattern:", "at byte 5"},
          Case{R"({"type": "string", "pattern": "[\\n\\t]"})", "#/pattern:", "without an escape"},
          Case{R"({"type": "object", "patternProperties": {"(a": {}}})",
               "#/patternProperties/(a:", "a ( without"},
          Case{R"({"minLength": 3})", "#:", "\"minLength\" is not supported without \"type\""},
          Case{R"({"type": "string", "minLength": -1})", "#:", "\"minLength\""},
          Case{R"({"type": "array", "maxItems": 1e3})", "#:", "\"maxItems\""},
          Case{R"({"type": "string", "maxLength": 100000000000})", "#:", "\"maxLength\""},
          Case{R"({"$ref": "#/$defs/a", "minLength": 3, "$defs": {"a": {}}})",
               "#:", "\"minLength\" beside \"$ref\""},
          Case{R"({"$ref": "#/$defs/b"})", "#:", "leads nowhere"},
          Case{R"({"$ref": "https://example.com/schema"})", "#:", "$ref"},
          Case{R"({"$ref": "#/$defs/a%20b", "$defs": {"a b": {}}})", "#:", "$ref"},
          Case{R"({"enum": ["a"], "minLength": 3})", "#:", "\"minLength\" beside \"enum\""},
          Case{R"({"enum": []})", "#:", "enum"},
          Case{R"({"type": "string", "enum": ["a", null]})", "#:", "\"type\" does not allow"},
          Case{R"({"const": 18446744073709551615})", "#:", "beyond 2^63"},
          Case{R"({"type": "object", "anyOf": [{"type": "object"}]})", "#:", "\"type\" beside \"anyOf\""},
          Case{R"({"allOf": [{}, {}]})", "#:", "\"allOf\""},
          Case{R"({"anyOf": [{"type": "string"}, {"not": {}}]})", "#/anyOf/1:", "\"not\""},
          Case{R"({"type": "object", "required": ["a"]})", "#:", "\"required\""},
          Case{R"({"properties": {"a": {}}, "required": ["b"]})",
               "#:", "\"required\" is not supported with \"b\""},
          Case{R"({"properties": {"a": {}}, "patternProperties": {"b": {}}})", "#:", "\"patternProperties\""},
          Case{R"({"properties": {"a": {}}, "additionalProperties": {"type": "null"}})",
               "#:", "\"additionalProperties\""},
          Case{R"({"type": "object", "minProperties": 2})", "#:", "\"minProperties\""},
          Case{R"({"type": "object", "patternProperties": {"a": {}, "b": {}}})",
               "#:", "\"patternProperties\""},
          Case{R"({"type": "object", "propertyNames": {"enum": ["a"]}})", "#:", "\"propertyNames\""},
          Case{R"({"type": "array", "items": [{}]})", "#:", "\"items\""},
          Case{R"({"type": "array", "unevaluatedItems": {"type": "null"}})", "#:", "\"unevaluatedItems\""},
          Case{R"({"type": "text"})", "#:", "type"},
          Case{R"({"properties": {"a": false}})", "#/properties/a:", "false"},
          Case{R"({"properties": {"a": {"$id": "b"}}})", "#/properties/a:", "\"$id\""},
          Case{R"([])", "#:", "a schema"},
          Case{R"({"$ref": "#"})", "#:", "itself"},
          Case{
              R"({"anyOf": [{"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}}, {"$ref": "#/$defs/b"}],
                    "$defs": {"b": {"$ref": "#"}}})",
              "#", "itself"},
      }) {
    EXPECT_THAT(Refusal(c.schema), AllOf(HasSubstr(c.place), HasSubstr(c.what))) << c.schema;
  }
}

TEST(SchemaCheckTest, RefusesWhatIsNoJsonOrTooMuch) {
  EXPECT_THAT(Refusal("{"), HasSubstr("JSON"));
  EXPECT_THAT(Refusal(R"({"type": "string", "type": "null"})"), HasSubstr("duplicate key"));
  EXPECT_THAT(Refusal("{\"title\": \"\xff\"}"), HasSubstr("#"));
  std::string deep = "{}";
  for (int i = 0; i < 80; ++i) {
    deep = R"({"items":)" + deep + "}";
  }
  EXPECT_THAT(Refusal(deep), HasSubstr("64"));
  std::string wide = R"({"enum": [0)";
  for (int i = 0; i < 20'001; ++i) {
    wide += ",1";
  }
  EXPECT_THAT(Refusal(wide + "]}"), HasSubstr("20000"));
}

TEST(SchemaCheckTest, ClosesObjectsThatNameTheirMembers) {
  EXPECT_EQ(TextOf(R"({"type": "object"})"), R"({"type":"object","additionalProperties":{}})");
  EXPECT_EQ(TextOf(R"({"type": "array"})"), R"({"type":"array","items":{}})");
  EXPECT_EQ(TextOf(R"({"type": ["object", "array"]})"),
            R"({"type":["object","array"],"items":{},"additionalProperties":{}})");
  EXPECT_EQ(
      TextOf(R"({"properties": {"b": true, "a": {"type": "object"}}, "additionalProperties": true})"),
      R"({"properties":{"b":{},"a":{"type":"object","additionalProperties":{}}},"additionalProperties":false})");
  EXPECT_EQ(TextOf(R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}, "unused": {"not": {}}}})"),
            R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array","items":{}},"unused":{"not":{}}}})");
}

TEST(SchemaCheckTest, RewritesPatterns) {
  EXPECT_EQ(TextOf(R"({"type": "string", "pattern": "^[a-c]+$"})"),
            R"({"type":"string","pattern":"(?:[a-c]+)(?:é){0}"})");
  EXPECT_EQ(TextOf(R"({"type": "object", "patternProperties": {"a|b": {"type": "array"}}})"),
            R"({"type":"object","patternProperties":{"(?:a|b)(?:é){0}":{"type":"array","items":{}}}})");
}

}  // namespace
}  // namespace sluice::inferd
