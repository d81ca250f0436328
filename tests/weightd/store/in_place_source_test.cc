// A pack in place as weightd's source: bytes of the model's file by reads of whole blocks, their faults, and
// checksums that outlive the process.
#include "weightd/store/in_place_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pack/in_place/in_place_index.h"
#include "pack/in_place/in_place_payload.h"
#include "tests/support/temp_dir.h"

namespace sluice::weightd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGranite[] = "tests/data/gguf/granitemoe-q5_k_m/model.gguf";

// Passes reads on, or fails them.
class FaultyFile final : public ReadFile {
 public:
  FaultyFile(std::unique_ptr<ReadFile> file, const int64_t* fault) : file_(std::move(file)), fault_(fault) {}
  int64_t ReadAt(std::byte* dest, uint64_t length, uint64_t offset) override {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(dest) % 4096 + length % 4096 + offset % 4096, 0u);
    return *fault_ != 0 ? *fault_ : file_->ReadAt(dest, length, offset);
  }
  uint64_t CopyCached(std::byte* dest, uint64_t length, uint64_t offset) override {
    return file_->CopyCached(dest, length, offset);
  }
  std::string how() const override { return file_->how(); }

 private:
  const std::unique_ptr<ReadFile> file_;
  const int64_t* const fault_;
};

class InPlaceSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::copy_file(kGranite, dir_.File("m.gguf"));
    ASSERT_EQ(WriteInPlaceIndex(dir_.File("m.gguf"), dir_.File("index")), absl::OkStatus());
    Open();
  }

  void Open() {
    source_.reset();
    auto source = InPlaceSource::Open(
        *Pack::Open(dir_.File("index")),
        [this](const std::string& path) -> absl::StatusOr<std::unique_ptr<ReadFile>> {
          return std::make_unique<FaultyFile>(*OpenReadFile(path, true), &fault_);
        },
        [this](const std::string& why) { reports_.push_back(why); });
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
  }

  // Reads an extent from its file.
  std::vector<std::byte> Extent(uint32_t extent, int64_t* got) {
    const ExtentInfo info = source_->extent(extent);
    std::vector<std::byte> bytes(info.length);
    *got = source_->OpenFile(info.file)->ReadAt(bytes.data(), bytes.size(), info.offset);
    return bytes;
  }

  TempDir dir_;
  int64_t fault_ = 0;
  std::vector<std::string> reports_;
  std::unique_ptr<InPlaceSource> source_;
};

TEST_F(InPlaceSourceTest, BytesAreThoseOfThePayload) {
  const auto reader = InPlaceReader::Open(*source_->pack());
  for (uint32_t extent = 0; extent < source_->extent_count(); ++extent) {
    int64_t got = 0;
    const std::vector<std::byte> bytes = Extent(extent, &got);
    ASSERT_EQ(got, static_cast<int64_t>(bytes.size()));
    const ExtentInfo info = source_->extent(extent);
    std::vector<std::byte> want(info.length);
    ASSERT_EQ((*reader)->Read(static_cast<PackFile>(info.file), info.offset, absl::MakeSpan(want)),
              absl::OkStatus());
    EXPECT_TRUE(bytes == want) << source_->ExtentName(extent);
  }
  EXPECT_TRUE(reports_.empty());
}

TEST_F(InPlaceSourceTest, CachedFileNeedsNoReads) {
  if (source_->OpenFile(0)->how() != "O_DIRECT") GTEST_SKIP() << "not run: no direct reads here";
  std::vector<std::vector<std::byte>> want;
  for (uint32_t extent = 0; extent < source_->extent_count(); ++extent) {
    int64_t got = 0;
    want.push_back(Extent(extent, &got));
  }
  fault_ = -EIO;
  for (uint32_t extent = 0; extent < source_->extent_count(); ++extent) {
    const ExtentInfo info = source_->extent(extent);
    std::vector<std::byte> bytes(info.length);
    EXPECT_EQ(source_->OpenFile(info.file)->CopyCached(bytes.data(), bytes.size(), info.offset), info.length);
    EXPECT_TRUE(bytes == want[extent]) << source_->ExtentName(extent);
  }
  EXPECT_TRUE(reports_.empty());
}

TEST_F(InPlaceSourceTest, UncachedExtentIsLeftToReads) {
  const int fd = open(dir_.File("m.gguf").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(fsync(fd), 0);
  ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(fd);
  const ExtentInfo info = source_->extent(source_->extent_count() - 1);
  std::vector<std::byte> bytes(info.length);
  EXPECT_EQ(source_->OpenFile(info.file)->CopyCached(bytes.data(), bytes.size(), info.offset), 0u);
}

TEST_F(InPlaceSourceTest, FaultsAreReportedWithTheirReason) {
  const uint32_t expert = source_->extent_count() - 1;
  int64_t got = 0;
  fault_ = -EIO;
  Extent(expert, &got);
  EXPECT_EQ(got, -EIO);
  fault_ = 0;
  Extent(expert, &got);
  EXPECT_GT(got, 0);
  fault_ = -EAGAIN;  // refused for good
  Extent(expert, &got);
  EXPECT_EQ(got, -EIO);
  EXPECT_THAT(reports_, ElementsAre(HasSubstr("m.gguf: read of"), HasSubstr("m.gguf: read of")));
}

TEST_F(InPlaceSourceTest, ChangedFileIsStale) {
  const timespec times[2] = {{1, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, dir_.File("m.gguf").c_str(), times, 0), 0);
  int64_t got = 0;
  Extent(source_->extent_count() - 1, &got);
  EXPECT_EQ(got, -ESTALE);
  EXPECT_THAT(reports_, ElementsAre(HasSubstr("was changed or replaced")));
}

TEST_F(InPlaceSourceTest, ChecksumsOutliveTheProcess) {
  const uint32_t expert = source_->extent_count() - 1;
  int64_t got = 0;
  std::vector<std::byte> bytes = Extent(expert, &got);
  EXPECT_TRUE(source_->Verify(expert, 0, bytes).ok());
  Open();
  EXPECT_TRUE(source_->Verify(expert, 0, bytes).ok());
  bytes[100] ^= std::byte{1};
  const absl::Status damaged = source_->Verify(expert, 0, bytes);
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("is not what it was when it was first read"));
}

}  // namespace
}  // namespace sluice::weightd
