// Checks that the protos are compatible with the golden descriptor set of all published elements.
#include <cstdlib>
#include <fstream>
#include <functional>
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
using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kGolden[] = "tests/proto/golden.descriptors";

// The project's own files of a descriptor set; empty if it cannot be read.
FileDescriptorSet Read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  FileDescriptorSet all;
  FileDescriptorSet ours;
  if (all.ParseFromIstream(&file)) {
    for (const FileDescriptorProto& proto : all.file()) {
      if (proto.name().rfind("sluice/", 0) == 0) {
        *ours.add_file() = proto;
      }
    }
  }
  return ours;
}

class ProtoBreakingTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* path = std::getenv("SLUICE_DESCRIPTOR_SET");
    ASSERT_NE(nullptr, path);
    current_ = Read(path);
    golden_ = Read(kGolden);
    ASSERT_GE(golden_.file_size(), 6);
  }
  FileDescriptorSet current_;
  FileDescriptorSet golden_;
};

TEST_F(ProtoBreakingTest, NothingPromisedIsBroken) {
  EXPECT_THAT(BreakingChanges(golden_, current_), IsEmpty());
}

TEST_F(ProtoBreakingTest, EverythingThatIsServedIsInTheGolden) {
  EXPECT_THAT(BreakingChanges(current_, golden_), IsEmpty()) << "run tests/proto/update_golden.sh";
}

TEST(ProtoBreakingRulesTest, EveryKindOfBreakIsNamed) {
  FileDescriptorSet before;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
      name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
      message_type {
        name: "M"
        field { name: "f" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
        field { name: "g" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
        oneof_decl { name: "kind" }
        nested_type { name: "Inner" }
      }
      enum_type { name: "E" value { name: "E_UNSPECIFIED" number: 0 } value { name: "E_ONE" number: 1 } }
      service { name: "S" method { name: "Get" input_type: ".a.v1.M" output_type: ".a.v1.M" } })",
                                                            before.add_file()));
  const std::string old_name = "f";
  const std::string other_name = "other";
  using Edit = std::function<void(FileDescriptorProto*)>;
  const struct {
    const char* expected;
    Edit edit;
  } cases[] = {
      {"a.v1.M: is gone", [&](auto* f) { f->clear_message_type(); }},
      {"a.v1.M.f: is gone and its number and name are not both reserved",
       [&](auto* f) {
         f->mutable_message_type(0)->mutable_field()->DeleteSubrange(0, 1);
         f->mutable_message_type(0)->add_reserved_name(old_name);
       }},
      {"a.v1.M.f: is now named other",
       [&](auto* f) { f->mutable_message_type(0)->mutable_field(0)->set_name(other_name); }},
      {"a.v1.M.f: its type changed",
       [&](auto* f) {
         f->mutable_message_type(0)->mutable_field(0)->set_type(
             google::protobuf::FieldDescriptorProto::TYPE_INT64);
       }},
      {"a.v1.M.f: its label changed",
       [&](auto* f) {
         f->mutable_message_type(0)->mutable_field(0)->set_label(
             google::protobuf::FieldDescriptorProto::LABEL_REPEATED);
       }},
      {"a.v1.M.f: its label changed",
       [&](auto* f) { f->mutable_message_type(0)->mutable_field(0)->set_proto3_optional(true); }},
      {"a.v1.M.g: its oneof changed",
       [&](auto* f) { f->mutable_message_type(0)->mutable_field(1)->clear_oneof_index(); }},
      {"a.v1.M.Inner: is gone", [&](auto* f) { f->mutable_message_type(0)->clear_nested_type(); }},
      {"a.v1.E.E_ONE: is gone and its number is not reserved",
       [&](auto* f) { f->mutable_enum_type(0)->mutable_value()->DeleteSubrange(1, 1); }},
      {"a.v1.E.E_ONE: its number is another's",
       [&](auto* f) { f->mutable_enum_type(0)->mutable_value(1)->set_name(other_name); }},
      {"a.v1.S.Get: is gone", [&](auto* f) { f->mutable_service(0)->clear_method(); }},
      {"a.v1.S.Get: its messages changed",
       [&](auto* f) { f->mutable_service(0)->mutable_method(0)->set_output_type(".a.v1.M.Inner"); }},
      {"a.v1.S.Get: its streaming changed",
       [&](auto* f) { f->mutable_service(0)->mutable_method(0)->set_server_streaming(true); }},
  };
  for (const auto& c : cases) {
    FileDescriptorSet after = before;
    c.edit(after.mutable_file(0));
    EXPECT_THAT(BreakingChanges(before, after), ElementsAre(c.expected)) << c.expected;
  }
  FileDescriptorSet none;
  EXPECT_THAT(BreakingChanges(before, none), ElementsAre("file.a/v1/x.proto: is gone"));
}

TEST(ProtoBreakingRulesTest, AdditionsAndReservedRemovalsAreAllowed) {
  FileDescriptorSet before;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
      name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
      message_type { name: "M" field { name: "f" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } })",
                                                            before.add_file()));
  FileDescriptorSet after;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
      name: "a/v1/x.proto" package: "a.v1" syntax: "proto3"
      message_type { name: "N" }
      message_type { name: "M" field { name: "g" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
                     reserved_range { start: 1 end: 2 } reserved_name: "f" })",
                                                            after.add_file()));
  EXPECT_THAT(BreakingChanges(before, after), IsEmpty());
}

}  // namespace
}  // namespace sluice
