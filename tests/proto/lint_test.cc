// The project's protos follow buf's STANDARD and COMMENTS rules; each rule is shown to catch a violation.
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/proto/proto_rules.h"

namespace sluice {
namespace {

using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

FileDescriptorSet Parse(const std::string& text) {
  FileDescriptorSet set;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, set.add_file()));
  return set;
}

TEST(ProtoLintTest, OurProtosBreakNoRule) {
  const char* path = std::getenv("SLUICE_DESCRIPTOR_SET");
  ASSERT_NE(nullptr, path);
  std::ifstream file(path, std::ios::binary);
  FileDescriptorSet set;
  ASSERT_TRUE(set.ParseFromIstream(&file));
  int ours = 0;
  for (const FileDescriptorProto& proto : set.file()) {
    ours += proto.name().rfind("sluice/", 0) == 0 ? 1 : 0;
  }
  EXPECT_GE(ours, 6);
  EXPECT_THAT(LintBreaches(set, "sluice/"), IsEmpty());
}

TEST(ProtoLintTest, CommentsAreDemandedOfEveryElement) {
  const auto breaches = LintBreaches(Parse(R"(
      name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
      message_type { name: "GetRequest" field { name: "f" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
                     oneof_decl { name: "kind" } }
      message_type { name: "GetResponse" }
      enum_type { name: "Mode" value { name: "MODE_UNSPECIFIED" number: 0 } }
      service { name: "AService" method { name: "Get" input_type: ".a.v1.GetRequest" output_type: ".a.v1.GetResponse" } })"),
                                     "");
  EXPECT_THAT(breaches, testing::UnorderedElementsAre(
                            "COMMENT_MESSAGE: a.v1.GetRequest", "COMMENT_FIELD: a.v1.GetRequest.f",
                            "COMMENT_ONEOF: a.v1.GetRequest.kind", "COMMENT_MESSAGE: a.v1.GetResponse",
                            "COMMENT_ENUM: a.v1.Mode", "COMMENT_ENUM_VALUE: a.v1.MODE_UNSPECIFIED",
                            "COMMENT_SERVICE: a.v1.AService", "COMMENT_RPC: a.v1.AService.Get"));
}

TEST(ProtoLintTest, EachNamingRuleCatchesItsBreach) {
  const struct {
    const char* rule;
    const char* file;
  } cases[] = {
      {"PACKAGE_DEFINED", R"(name: "x.proto" syntax: "proto3")"},
      {"SYNTAX_SPECIFIED", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto2")"},
      {"FILE_LOWER_SNAKE_CASE", R"(name: "a/v1/MyFile.proto" package: "a.v1" syntax: "proto3")"},
      {"PACKAGE_VERSION_SUFFIX", R"(name: "a/b/x.proto" package: "a.b" syntax: "proto3")"},
      {"PACKAGE_DIRECTORY_MATCH", R"(name: "b/v1/x.proto" package: "a.v1" syntax: "proto3")"},
      {"MESSAGE_PASCAL_CASE",
       R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3" message_type { name: "get_it" })"},
      {"FIELD_LOWER_SNAKE_CASE", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          message_type { name: "M" field { name: "camelCase" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } })"},
      {"ONEOF_LOWER_SNAKE_CASE", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          message_type { name: "M" oneof_decl { name: "Kind" }
                         field { name: "f" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 } })"},
      {"ENUM_PASCAL_CASE", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          enum_type { name: "mode" value { name: "MODE_UNSPECIFIED" number: 0 } })"},
      {"ENUM_VALUE_UPPER_SNAKE_CASE", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          enum_type { name: "Mode" value { name: "mode_UNSPECIFIED" number: 0 } })"},
      {"ENUM_VALUE_PREFIX", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          enum_type { name: "FinishMode" value { name: "MODE_UNSPECIFIED" number: 0 } })"},
      {"ENUM_ZERO_VALUE_SUFFIX", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          enum_type { name: "Mode" value { name: "MODE_NONE" number: 0 } })"},
      {"ENUM_NO_ALLOW_ALIAS", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          enum_type { name: "Mode" options { allow_alias: true } value { name: "MODE_UNSPECIFIED" number: 0 }
                      value { name: "MODE_ZERO" number: 0 } })"},
      {"SERVICE_SUFFIX",
       R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3" service { name: "Getter" })"},
      {"RPC_REQUEST_STANDARD_NAME", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          message_type { name: "Ask" } message_type { name: "GetResponse" }
          service { name: "AService" method { name: "Get" input_type: ".a.v1.Ask" output_type: ".a.v1.GetResponse" } })"},
      {"RPC_RESPONSE_STANDARD_NAME", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          message_type { name: "GetRequest" } message_type { name: "Answer" }
          service { name: "AService" method { name: "Get" input_type: ".a.v1.GetRequest" output_type: ".a.v1.Answer" } })"},
      {"RPC_REQUEST_RESPONSE_UNIQUE", R"(name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
          message_type { name: "GetRequest" } message_type { name: "GetResponse" }
          service { name: "AService" method { name: "Get" input_type: ".a.v1.GetRequest" output_type: ".a.v1.GetResponse" } }
          service { name: "BService" method { name: "Get" input_type: ".a.v1.GetRequest" output_type: ".a.v1.GetResponse" } })"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(LintBreaches(Parse(c.file), ""), Contains(testing::StartsWith(c.rule))) << c.rule;
  }
}

TEST(ProtoLintTest, UnusedImportIsCaught) {
  FileDescriptorSet set = Parse(R"(name: "b/v1/b.proto" package: "b.v1" syntax: "proto3")");
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(name: "a/v1/a.proto" package: "a.v1" syntax: "proto3" dependency: "b/v1/b.proto")", set.add_file()));
  EXPECT_THAT(LintBreaches(set, "a/"), ElementsAre("IMPORT_USED: a/v1/a.proto imports b/v1/b.proto"));
}

}  // namespace
}  // namespace sluice
