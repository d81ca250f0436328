// Safetensors headers and folders: valid ones are read, all others are refused by name.
#include "common/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/file_io.h"
#include "common/base/status.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// Parses `header` as the header of a file with `data_bytes` of tensors.
absl::StatusOr<std::vector<TensorInfo>> Parse(const std::string& header, uint64_t data_bytes) {
  return ParseSafetensorsHeader(header, 8 + header.size() + data_bytes, "f");
}

std::string ParseError(const std::string& header, uint64_t data_bytes) {
  const auto result = Parse(header, data_bytes);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << header;
  return std::string(result.status().message());
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
  const auto tensors = Parse(header, 28);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].offset, 8 + header.size());
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].type, ElementType::kF32);
  EXPECT_EQ((*tensors)[1].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ((*tensors)[1].bytes, 24u);
}

TEST(SafetensorsHeader, TakesPaddingScalarsAndEmptyTensors) {
  EXPECT_TRUE(Parse(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}     )", 4).ok());
  EXPECT_TRUE(Parse(R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})", 0).ok());
  EXPECT_TRUE(Parse("{}", 0).ok());
}

TEST(SafetensorsHeader, RefusesWhatIsNotAHeader) {
  EXPECT_THAT(ParseError("", 0), HasSubstr("JSON error"));
  EXPECT_THAT(ParseError("[]", 0), HasSubstr("object"));
  EXPECT_THAT(ParseError("{} {}", 0), HasSubstr("JSON error"));
  EXPECT_THAT(ParseError(R"({"a":1})", 0), HasSubstr("\"a\""));
  EXPECT_THAT(ParseError(R"({"__metadata__":3})", 0), HasSubstr("__metadata__"));
  EXPECT_THAT(ParseError(std::string(100, '['), 0), HasSubstr("nested"));
  EXPECT_THAT(ParseError("{\"a\xff\":{}}", 0), HasSubstr("UTF-8"));
}

TEST(SafetensorsHeader, RefusesDuplicateNamesAndFields) {
  const std::string tensor = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(ParseError("{\"a\":" + tensor + ",\"a\":" + tensor + "}", 1), HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("duplicate key \"dtype\""));
}

TEST(SafetensorsHeader, RefusesWrongDtypesShapesAndRanges) {
  const auto with = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return ParseError(
        "{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}", 8);
  };
  EXPECT_THAT(with("\"F4\"", "[2]", "[0,8]"), HasSubstr("unknown dtype \"F4\""));
  EXPECT_THAT(with("7", "[2]", "[0,8]"), HasSubstr("needs exactly"));
  EXPECT_THAT(with("\"F32\"", "[3]", "[0,8]"), HasSubstr("need 12"));
  EXPECT_THAT(with("\"F32\"", "[-2]", "[0,8]"), HasSubstr("no whole number"));
  EXPECT_THAT(with("\"F32\"", "[2.0]", "[0,8]"), HasSubstr("no whole number"));
  EXPECT_THAT(with("\"F32\"", "[4294967296,4294967296]", "[0,8]"), HasSubstr("overflows"));
  EXPECT_THAT(with("\"F32\"", "[4611686018427387904]", "[0,0]"), HasSubstr("overflows"));
  EXPECT_THAT(with("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), HasSubstr("rank 9"));
  EXPECT_THAT(with("\"F32\"", "[2]", "[0]"), HasSubstr("two whole numbers"));
  EXPECT_THAT(with("\"F32\"", "[2]", "[8,0]"), HasSubstr("outside"));
  EXPECT_THAT(with("\"F32\"", "[2]", "[4,12]"), HasSubstr("outside"));
  EXPECT_THAT(with("\"F32\"", "[2]", "[0,18446744073709551615]"), HasSubstr("outside"));
}

TEST(SafetensorsHeader, RefusesOverlapsGapsAndBytesOfNobody) {
  const auto two = [](int a0, int a1, int b0, int b1, uint64_t data) {
    const auto tensor = [](int begin, int end) {
      return absl::StrCat(R"({"dtype":"U8","shape":[)", end - begin, R"(],"data_offsets":[)", begin, ",", end,
                          "]}");
    };
    return ParseError(absl::StrCat("{\"a\":", tensor(a0, a1), ",\"b\":", tensor(b0, b1), "}"), data);
  };
  EXPECT_THAT(two(0, 4, 2, 6, 6), HasSubstr("overlaps"));
  EXPECT_THAT(two(0, 4, 0, 4, 4), HasSubstr("overlaps"));
  EXPECT_THAT(two(0, 4, 6, 8, 8), HasSubstr("gap"));
  EXPECT_THAT(two(1, 4, 4, 8, 8), HasSubstr("gap"));
  EXPECT_THAT(two(0, 4, 4, 8, 9), HasSubstr("1 bytes at the end"));
}

TEST(SafetensorsHeader, HeaderLengthIsCheckedAgainstFileAndLimit) {
  const auto length = [](uint64_t value, uint64_t file_bytes) {
    std::byte bytes[8];
    std::memcpy(bytes, &value, 8);
    return SafetensorsHeaderBytes(bytes, file_bytes, "f");
  };
  EXPECT_EQ(length(2, 10).value_or(0), 2u);
  EXPECT_FALSE(length(3, 10).ok());
  EXPECT_FALSE(length(UINT64_MAX, 10).ok());
  EXPECT_FALSE(length(kMaxSafetensorsHeader + 1, 1ull << 40).ok());
  EXPECT_FALSE(length(0, 7).ok());
}

class TensorFolderTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    ASSERT_TRUE(WriteFileDurably(dir_.File(name), content).ok());
  }
  std::string OpenError() {
    const auto folder = TensorFolder::Open(dir_.path());
    EXPECT_FALSE(folder.ok());
    return std::string(folder.status().message());
  }
  static std::string File(const std::string& tensor) {
    return SafetensorsBytes({{tensor, {{2}, {1, 2}}}}, ElementType::kBf16);
  }
  static std::string Index(const std::string& map) { return "{\"weight_map\":{" + map + "}}"; }

  TempDir dir_;
};

TEST_F(TensorFolderTest, ReadsAcrossShards) {
  Write("a.safetensors", File("x"));
  Write("b.safetensors", File("y"));
  Write("model.safetensors.index.json", Index(R"("x":"a.safetensors","y":"b.safetensors")"));
  const auto folder = TensorFolder::Open(dir_.path());
  ASSERT_TRUE(folder.ok()) << folder.status();
  const TensorInfo* y = (*folder)->Find("y");
  ASSERT_NE(y, nullptr);
  uint16_t values[2] = {};
  ASSERT_TRUE((*folder)->Read(*y, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(values), 4)).ok());
  EXPECT_EQ(values[0], 0x3f80);
  EXPECT_EQ(values[1], 0x4000);
  EXPECT_EQ((*folder)->Find("z"), nullptr);
}

TEST_F(TensorFolderTest, FingerprintFollowsContentOfHeadersAndTimes) {
  Write("model.safetensors", File("x"));
  const std::string first = (*TensorFolder::Open(dir_.path()))->fingerprint();
  Write("model.safetensors", File("y"));
  EXPECT_NE((*TensorFolder::Open(dir_.path()))->fingerprint(), first);
}

TEST_F(TensorFolderTest, RefusesFoldersWithoutTensors) {
  EXPECT_THAT(OpenError(), HasSubstr("neither"));
  Write("model.safetensors", "abc");
  EXPECT_THAT(OpenError(), HasSubstr("3 bytes"));
}

TEST_F(TensorFolderTest, RefusesShardsThatDisagreeWithTheIndex) {
  Write("a.safetensors", File("x"));
  Write("b.safetensors", File("x"));
  Write("model.safetensors.index.json", Index(R"("x":"a.safetensors")"));
  EXPECT_TRUE(TensorFolder::Open(dir_.path()).ok());
  Write("model.safetensors.index.json", Index(R"("x":"a.safetensors","w":"b.safetensors")"));
  EXPECT_THAT(OpenError(), HasSubstr("another shard"));
  Write("b.safetensors", File("y"));
  EXPECT_THAT(OpenError(), HasSubstr("says otherwise"));
  Write("model.safetensors.index.json",
        Index(R"("x":"a.safetensors","y":"b.safetensors","w":"b.safetensors")"));
  EXPECT_THAT(OpenError(), HasSubstr("no tensor w"));
  Write("model.safetensors.index.json", Index(R"("x":"c.safetensors")"));
  EXPECT_THAT(OpenError(), HasSubstr("c.safetensors"));
}

TEST_F(TensorFolderTest, ShardNamesCannotLeaveTheFolder) {
  for (const char* name :
       {"../a.safetensors", "/etc/a.safetensors", "a.bin", ".safetensors", "x/a.safetensors"}) {
    Write("model.safetensors.index.json", Index(absl::StrCat("\"x\":\"", name, "\"")));
    EXPECT_THAT(OpenError(), HasSubstr("no shard's name"));
  }
}

TEST_F(TensorFolderTest, TruncatedFilesAreRefusedBeforeAnyTensorIsRead) {
  const std::string whole = File("x");
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    Write("model.safetensors", whole.substr(0, bytes));
    EXPECT_FALSE(TensorFolder::Open(dir_.path()).ok()) << bytes;
  }
}

}  // namespace
}  // namespace sluice
