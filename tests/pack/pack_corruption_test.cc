// Every kind of damage to a pack is detected and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/file_io.h"
#include "common/base/status.h"
#include "pack/pack.h"
#include "pack/pack_tables.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PackCorruption : public ::testing::Test {
 protected:
  void SetUp() override {
    // Experts of more than one chunk: 420 rows of 640 bytes are 268800.
    ASSERT_TRUE(WriteTinyModel({.hidden = 320, .experts = 3, .width = 420}, dir_.File("model")).ok());
    ASSERT_TRUE(PackModel(dir_.File("model"), pack_, {}, nullptr, nullptr).ok());
    auto pack = Pack::Open(pack_);
    ASSERT_TRUE(pack.ok()) << pack.status();
    good_ = *std::move(pack);
  }

  // VerifyPack's error after `edit` of one file's content; the file is put back.
  absl::Status After(const std::string& name, const std::function<void(std::string*)>& edit) {
    const std::string path = pack_ + "/" + name;
    const std::string before = ReadAll(path);
    std::string content = before;
    edit(&content);
    WriteAll(path, content);
    const absl::Status status = VerifyPack(pack_, nullptr, nullptr);
    WriteAll(path, before);
    return status;
  }

  TempDir dir_;
  const std::string pack_ = dir_.File("pack");
  std::unique_ptr<Pack> good_;
};

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_F(PackCorruption, UntouchedPackVerifies) { EXPECT_TRUE(VerifyPack(pack_, nullptr, nullptr).ok()); }

TEST_F(PackCorruption, FlippedBitNamesTheExtentAndChunk) {
  const ExtentRange range = good_->expert_extents(1, 2);
  const ExtentEntry& entry = good_->extents()[range.first + 1];
  const absl::Status status = After(
      "experts.bin", [&](std::string* bytes) { (*bytes)[entry.offset + kChecksumChunkBytes + 5] ^= 4; });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Text(status),
              AllOf(HasSubstr("layer 1, expert 2, stream 1 gate"), HasSubstr("chunk 1"), HasSubstr(pack_)));
}

TEST_F(PackCorruption, EveryFlippedBitOfThePayloadIsFound) {
  for (const char* name : {"dense.bin", "experts.bin"}) {
    const uint64_t size = fs::file_size(pack_ + "/" + name);
    for (uint64_t at = 0; at < size; at += size / 23 + 1) {
      EXPECT_EQ(After(name, [&](std::string* bytes) { (*bytes)[at] ^= 1; }).code(),
                absl::StatusCode::kDataLoss)
          << at;
    }
  }
}

TEST_F(PackCorruption, SwappedIntactBlocksAreFound) {
  const ExtentEntry& a = good_->extents()[good_->expert_extents(0, 0).first];
  const ExtentEntry& b = good_->extents()[good_->expert_extents(1, 1).first];
  ASSERT_EQ(a.length, b.length);
  const absl::Status status = After("experts.bin", [&](std::string* bytes) {
    std::swap_ranges(bytes->begin() + a.offset, bytes->begin() + a.offset + a.length,
                     bytes->begin() + b.offset);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Text(status), HasSubstr("layer 0, expert 0, stream 0 up"));
}

TEST_F(PackCorruption, WrongFileSizesAreFoundWhenOpened) {
  for (const char* name : {"dense.bin", "experts.bin", "extents.bin"}) {
    for (const int change : {-64, -1, 1}) {
      const absl::Status status =
          After(name, [&](std::string* bytes) { bytes->resize(bytes->size() + change); });
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(Text(status), HasSubstr(name));
    }
    fs::rename(pack_ + "/" + name, dir_.File("away"));
    const absl::Status status = Pack::Open(pack_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(Text(status), AllOf(HasSubstr(name), HasSubstr("missing")));
    fs::rename(dir_.File("away"), pack_ + "/" + name);
  }
}

TEST_F(PackCorruption, DamagedManifestOrTableIsFoundWhenOpened) {
  for (const char* name : {"manifest.json", "extents.bin"}) {
    const size_t size = ReadAll(pack_ + "/" + name).size();
    for (size_t at = 0; at < size; at += 1 + size / 301) {
      const absl::Status status = After(name, [&](std::string* bytes) { (*bytes)[at] ^= 1; });
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name << " " << at << " " << status;
    }
  }
}

TEST_F(PackCorruption, DamagedTokenizerFilesAreFound) {
  ASSERT_TRUE(WriteFileDurably(dir_.File("model") + "/tokenizer.json", "{\"model\":1}").ok());
  ASSERT_TRUE(PackModel(dir_.File("model"), pack_, {.force = true}, nullptr, nullptr).ok());
  EXPECT_TRUE(VerifyPack(pack_, nullptr, nullptr).ok());
  const absl::Status status =
      After("tokenizer/tokenizer.json", [](std::string* bytes) { (*bytes)[3] = 'x'; });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Text(status), HasSubstr("tokenizer.json"));
}

TEST_F(PackCorruption, FilesOfAnotherPackAreFound) {
  ASSERT_TRUE(
      WriteTinyModel({.hidden = 320, .experts = 3, .width = 420, .seed = 2}, dir_.File("other")).ok());
  ASSERT_TRUE(PackModel(dir_.File("other"), dir_.File("pack2"), {}, nullptr, nullptr).ok());
  for (const char* name : {"dense.bin", "experts.bin", "extents.bin", "manifest.json"}) {
    const std::string other = ReadAll(dir_.File("pack2") + "/" + name);
    EXPECT_EQ(After(name, [&](std::string* bytes) { *bytes = other; }).code(), absl::StatusCode::kDataLoss)
        << name;
  }
}

TEST_F(PackCorruption, NoPackIsNotFound) {
  EXPECT_EQ(Pack::Open(dir_.File("nowhere")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Pack::Open(dir_.File("model")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PackCorruption, VerifyChunksTakesWholeChunksOnly) {
  const uint32_t extent = good_->expert_extents(0, 1).first;
  const ExtentEntry& entry = good_->extents()[extent];
  ASSERT_GT(entry.length, kChecksumChunkBytes);
  std::vector<std::byte> bytes(entry.length);
  const auto file = File::OpenForRead(good_->file_path(PackFile::kExperts));
  ASSERT_TRUE(file.ok() && file->ReadAt(entry.offset, absl::MakeSpan(bytes)).ok());
  const absl::Span<const std::byte> all = absl::MakeConstSpan(bytes);
  EXPECT_TRUE(VerifyExtent(*good_, extent, all).ok());
  EXPECT_TRUE(VerifyChunks(*good_, extent, 0, all.first(kChecksumChunkBytes)).ok());
  EXPECT_TRUE(VerifyChunks(*good_, extent, kChecksumChunkBytes, all.subspan(kChecksumChunkBytes)).ok());
  EXPECT_TRUE(VerifyChunks(*good_, extent, 0, {}).ok());
  const auto code = [&](uint32_t which, uint64_t offset, absl::Span<const std::byte> span) {
    return VerifyChunks(*good_, which, offset, span).code();
  };
  EXPECT_EQ(code(extent, 0, all.first(4096)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(extent, 4096, all.subspan(4096)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(extent, kChecksumChunkBytes, all), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(extent, UINT64_MAX - 4095, all), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(good_->extent_count(), 0, all), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(extent + 1, 0, all), absl::StatusCode::kDataLoss);
}

TEST_F(PackCorruption, UnknownVersionsAndFeaturesAreRefusedByNumber) {
  const auto rewritten = [&](const std::string& from, const std::string& to) {
    std::string text = ReadAll(pack_ + "/manifest.json");
    const size_t begin = std::string("{\"manifest\":").size();
    std::string body = text.substr(begin, text.rfind(",\n\"digest\"") - begin);
    const size_t at = body.find(from);
    EXPECT_NE(at, std::string::npos);
    body.replace(at, from.size(), to);
    return ParseManifest("{\"manifest\":" + body + ",\n\"digest\":\"" + DigestOf(body).ToHex() + "\"}\n")
        .status();
  };
  EXPECT_TRUE(rewritten("\"format_version\": 1", "\"format_version\": 1").ok());
  absl::Status status = rewritten("\"format_version\": 1", "\"format_version\": 2");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Text(status), HasSubstr("version 2"));
  status = rewritten("\"incompatible\": 0", "\"incompatible\": 2199023255552");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Text(status), HasSubstr("bit 41"));
  EXPECT_TRUE(rewritten("\"compatible\": 0", "\"compatible\": 7").ok());
  EXPECT_EQ(rewritten("\"incompatible\": 0", "\"incompatible\": 1").code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace sluice
