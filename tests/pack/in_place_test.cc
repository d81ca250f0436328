// GGUF files in place: an index gives the bytes of the pack that the file would become, refuses a changed
// file, and learns checksums.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/file_io.h"
#include "pack/in_place/in_place_checksums.h"
#include "pack/in_place/in_place_index.h"
#include "pack/in_place/in_place_payload.h"
#include "pack/pack.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"
#include "pack/writer/pack_writer.h"
#include "tests/pack/gguf_of_encodings.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr char kGranite[] = "tests/data/gguf/granitemoe-q5_k_m/model.gguf";

std::string DataFile(const std::string& name) {
  return absl::StrCat("tests/data/gguf/", name, "/model.gguf");
}

std::unique_ptr<Pack> Index(const std::string& model, const std::string& dir) {
  EXPECT_EQ(WriteInPlaceIndex(model, dir), absl::OkStatus());
  auto pack = Pack::Open(dir);
  EXPECT_TRUE(pack.ok()) << pack.status();
  return *std::move(pack);
}

// The pack that the index of `model` stands for.
std::unique_ptr<Pack> Packed(const std::string& model, const std::string& dir) {
  PackOptions options;
  options.recipe = *RecipeFromOptions({});
  options.recipe.layout = ExpertLayout::kUpGateOutputs;
  options.recipe.keep_f32 = true;
  const auto summary = PackModel(model, dir, options, nullptr, nullptr);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return *Pack::Open(dir);
}

std::vector<std::byte> FileBytes(const Pack& pack, PackFile file) {
  std::vector<std::byte> bytes(pack.file_bytes(file));
  EXPECT_TRUE(File::OpenForRead(pack.file_path(file))->ReadAt(0, absl::MakeSpan(bytes)).ok());
  return bytes;
}

// Reads the payload in pieces of random length, whole blocks, as weightd does.
std::vector<std::byte> PayloadBytes(const Pack& index, PackFile file, uint32_t seed) {
  std::vector<std::byte> bytes(index.file_bytes(file));
  const auto reader = InPlaceReader::Open(index);
  EXPECT_TRUE(reader.ok()) << reader.status();
  std::mt19937 random(seed);
  for (uint64_t at = 0; at < bytes.size();) {
    const uint64_t piece = std::min<uint64_t>(kExtentAlignment * (1 + random() % 64), bytes.size() - at);
    EXPECT_EQ((*reader)->Read(file, at, absl::MakeSpan(bytes).subspan(at, piece)), absl::OkStatus());
    at += piece;
  }
  return bytes;
}

void ExpectSamePayload(const std::string& model) {
  SCOPED_TRACE(model);
  TempDir dir;
  const std::unique_ptr<Pack> index = Index(model, dir.File("index"));
  const std::unique_ptr<Pack> pack = Packed(model, dir.File("pack"));
  ASSERT_EQ(index->dense_tensors().size(), pack->dense_tensors().size());
  EXPECT_EQ(index->manifest().expert_formats, pack->manifest().expert_formats);
  for (const PackFile file : {PackFile::kDense, PackFile::kExperts}) {
    ASSERT_EQ(index->file_bytes(file), pack->file_bytes(file));
    EXPECT_TRUE(PayloadBytes(*index, file, 1) == FileBytes(*pack, file));
  }
}

TEST(InPlace, PayloadIsThatOfAPack) {
  for (const char* const name : {"granitemoe-q5_k_m", "lfm2moe-bf16", "mistral4-bf16"}) {
    ExpectSamePayload(DataFile(name));
  }
}

TEST(InPlace, PayloadOfEveryBlockTypeIsThatOfAPack) {
  std::vector<Encoding> encodings(std::begin(kBlockEncodings), std::end(kBlockEncodings));
  encodings.insert(encodings.end(), std::begin(kFileBlockEncodings), std::end(kFileBlockEncodings));
  TempDir dir;
  ASSERT_TRUE(WriteFileDurably(dir.File("m.gguf"), GgufOfEncodings(encodings)).ok());
  ExpectSamePayload(dir.File("m.gguf"));
}

// A pack of MXFP4 may choose other scales for the same values.
TEST(InPlace, Mxfp4RowsHaveTheValuesOfAPack) {
  TempDir dir;
  const std::unique_ptr<Pack> index = Index(DataFile("gptoss-mxfp4"), dir.File("index"));
  const std::unique_ptr<Pack> pack = Packed(DataFile("gptoss-mxfp4"), dir.File("pack"));
  EXPECT_TRUE(PayloadBytes(*index, PackFile::kDense, 1) == FileBytes(*pack, PackFile::kDense));
  const std::vector<std::byte> bytes = PayloadBytes(*index, PackFile::kExperts, 2);
  const std::vector<std::byte> packed = FileBytes(*pack, PackFile::kExperts);
  ASSERT_EQ(bytes.size(), packed.size());
  for (uint32_t expert = 0; expert < index->expert_count(0); ++expert) {
    for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
      const PartView view = index->part(0, expert, part);
      ASSERT_EQ(view.encoding.encoding, Encoding::kMxfp4);
      for (uint32_t r = 0; r < view.rows; ++r) {
        const uint64_t at = index->extents()[view.extent].offset + view.base + uint64_t{r} * view.stride;
        std::vector<float> got(view.cols), want(view.cols);
        DecodeMxfp4Row(&bytes[at], absl::MakeSpan(got));
        DecodeMxfp4Row(&packed[at], absl::MakeSpan(want));
        ASSERT_EQ(got, want) << "expert " << expert << " row " << r;
      }
    }
  }
}

TEST(InPlace, IndexIsSmallAndNamesItsModel) {
  TempDir dir;
  const std::unique_ptr<Pack> index = Index(kGranite, dir.File("index"));
  EXPECT_TRUE(index->in_place());
  EXPECT_NE(index->manifest().incompatible_features & kFeatureInPlace, 0u);
  EXPECT_EQ(index->file_path(PackFile::kExperts), std::filesystem::canonical(kGranite).string());
  EXPECT_FALSE(FileExists(dir.File("index/experts.bin")));
}

TEST(InPlace, ChangedModelIsRefused) {
  TempDir dir;
  std::filesystem::copy_file(kGranite, dir.File("m.gguf"));
  const std::unique_ptr<Pack> index = Index(dir.File("m.gguf"), dir.File("index"));
  const auto payload = InPlacePayload::Open(*index);
  ASSERT_TRUE(payload.ok()) << payload.status();
  EXPECT_EQ((*payload)->CheckUnchanged(0), absl::OkStatus());
  const timespec times[2] = {{1, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, dir.File("m.gguf").c_str(), times, 0), 0);
  EXPECT_EQ((*payload)->CheckUnchanged(0).code(), absl::StatusCode::kFailedPrecondition);
  const auto again = InPlacePayload::Open(*index);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("m.gguf has changed"));
}

TEST(InPlace, DamageIsFoundByLearnedChecksums) {
  TempDir dir;
  const std::string model = dir.File("m.gguf");
  std::filesystem::copy_file(kGranite, model);
  const auto time = std::filesystem::last_write_time(model);
  Index(model, dir.File("index"));
  EXPECT_EQ(VerifyInPlace(dir.File("index"), nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(VerifyInPlace(dir.File("index"), nullptr, nullptr), absl::OkStatus());
  {
    const auto file = File::OpenForWrite(model);
    std::byte byte{};
    const uint64_t at = std::filesystem::file_size(model) / 2;
    ASSERT_TRUE(file->ReadAt(at, absl::MakeSpan(&byte, 1)).ok());
    byte ^= std::byte{1};
    ASSERT_TRUE(file->WriteAt(at, absl::MakeConstSpan(&byte, 1)).ok());
  }
  std::filesystem::last_write_time(model, time);
  const absl::Status damaged = VerifyInPlace(dir.File("index"), nullptr, nullptr);
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("is not what it was"));
}

TEST(InPlace, ValuesThatAreNotFiniteAreRefused) {
  TempDir dir;
  std::string file = GgufOfEncodings({blocks::kQ4_K});
  // The scales of the last blocks, those of a down matrix.
  for (size_t block = 1; block <= 8; ++block) {
    file[file.size() - block * 144] = '\xff';
    file[file.size() - block * 144 + 1] = '\x7f';
  }
  ASSERT_TRUE(WriteFileDurably(dir.File("m.gguf"), file).ok());
  Index(dir.File("m.gguf"), dir.File("index"));
  const absl::Status status = VerifyInPlace(dir.File("index"), nullptr, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("experts.1.w2"));
}

}  // namespace
}  // namespace sluice
