// JSON from untrusted input: limits, duplicates, and messages that name the position.
#include "common/base/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text, const JsonLimits& limits = {}) {
  const auto result = ParseJson(text, "file", limits);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(result.status().message());
}

TEST(JsonReaderTest, ReadsValidJson) {
  const auto value = ParseJson(R"({"a":[1,-2,3.5,true,null,"x\u00e9"],"b":{"c":{}}})", "file");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->dump(-1, ' ', true), R"({"a":[1,-2,3.5,true,null,"x\u00e9"],"b":{"c":{}}})");
}

TEST(JsonReaderTest, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_THAT(ErrorOf(R"({"a":1,"a":1})"), HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(ErrorOf(R"([{"b":{"c":1,"c":2}}])"), HasSubstr("duplicate key \"c\""));
  EXPECT_TRUE(ParseJson(R"([{"b":1},{"b":2}])", "file").ok());
}

TEST(JsonReaderTest, RefusesSyntaxErrorsWithTheirPlace) {
  EXPECT_THAT(ErrorOf("{\"a\":}"), HasSubstr("file: JSON error at byte 6"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("JSON error"));
  EXPECT_THAT(ErrorOf("1 2"), HasSubstr("JSON error"));
  EXPECT_THAT(ErrorOf("1e999"), HasSubstr("JSON error"));
  EXPECT_THAT(ErrorOf("\"\xff\""), HasSubstr("JSON error"));
  EXPECT_THAT(ErrorOf("nan"), HasSubstr("JSON error"));
}

TEST(JsonReaderTest, BoundsDepthAndCount) {
  EXPECT_THAT(ErrorOf(std::string(1000000, '[')), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(ErrorOf("[1,2,3]", {.max_values = 3}), HasSubstr("more than 3 values"));
  EXPECT_TRUE(ParseJson("[1,2]", "file", {.max_values = 3}).ok());
}

TEST(JsonReaderTest, LastDuplicateCountsWhereAllowed) {
  const auto value = ParseJson(R"({"a":{"b":1},"a":[2]})", "file", {.allow_duplicate_keys = true});
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->dump(), R"({"a":[2]})");
}

TEST(JsonReaderTest, OrderedDocumentsKeepTheOrder) {
  const auto value = ParseOrderedJson(R"({"z":1,"a":{"y":2,"b":3}})", "file");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->dump(), R"({"z":1,"a":{"y":2,"b":3}})");
  EXPECT_THAT(std::string(ParseOrderedJson(R"({"a":1,"a":2})", "file").status().message()),
              HasSubstr("file: duplicate key \"a\""));
}

TEST(JsonReaderTest, BoundsMembersOfAnObject) {
  EXPECT_THAT(ErrorOf(R"({"a":1,"b":2,"c":3})", {.max_members = 2}), HasSubstr("more than 2 members"));
  EXPECT_TRUE(ParseJson(R"([{"a":1,"b":2},{"c":3}])", "file", {.max_members = 2}).ok());
}

TEST(JsonObject, ChecksTypesAndRangesAndNamesTheMember) {
  const auto value = ParseJson(R"({"n":7,"s":"x","d":0.5,"z":null,"o":{},"a":[]})", "file");
  ASSERT_TRUE(value.ok());
  const auto object = JsonObject::Of(*value, "file");
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(object->Uint("n", 0, 9).value_or(0), 7u);
  EXPECT_THAT(std::string(object->Uint("n", 0, 6).status().message()),
              HasSubstr("file: n is 7; a whole number from 0 to 6"));
  EXPECT_THAT(std::string(object->Uint("s", 0, 6).status().message()), HasSubstr("s is \"x\""));
  EXPECT_THAT(std::string(object->Uint("gone", 0, 6).status().message()), HasSubstr("gone is missing"));
  EXPECT_FALSE(object->Has("z"));
  EXPECT_EQ(object->UintOr("z", 0, 6, 3).value_or(0), 3u);
  EXPECT_EQ(object->Double("d", 0, 1).value_or(0), 0.5);
  EXPECT_FALSE(object->Double("d", 0, 0.25).ok());
  EXPECT_TRUE(object->Object("o").ok());
  EXPECT_FALSE(object->Object("a").ok());
  EXPECT_TRUE(object->Array("a").ok());
  EXPECT_FALSE(object->Bool("n").ok());
  EXPECT_FALSE(JsonObject::Of((*value)["a"], "file").ok());
}

}  // namespace
}  // namespace sluice
