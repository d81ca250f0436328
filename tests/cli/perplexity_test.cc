// The arithmetic of `sluice perplexity`, the file of a base run, and the safetensors file of `sluice logits`.
#include "cli/measure/perplexity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "cli/measure/base_run.h"
#include "cli/output_files.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlanWindowsTest, FullStrideScoresEveryTokenOnce) {
  EXPECT_THAT(PlanWindows(1100, 512, 512),
              ElementsAre(Window{0, 512, 0}, Window{512, 1024, 512}, Window{1024, 1100, 1024}));
  EXPECT_THAT(PlanWindows(512, 512, 512), ElementsAre(Window{0, 512, 0}));
  EXPECT_TRUE(PlanWindows(0, 512, 512).empty());
}

TEST(PlanWindowsTest, SmallerStrideScoresOnlyNewTokens) {
  EXPECT_THAT(PlanWindows(10, 4, 2),
              ElementsAre(Window{0, 4, 0}, Window{2, 6, 4}, Window{4, 8, 6}, Window{6, 10, 8}));
  EXPECT_THAT(PlanWindows(5, 4, 3), ElementsAre(Window{0, 4, 0}, Window{3, 5, 4}));
}

TEST(SummarizeTest, MatchesTheFormulasOfTheProtocol) {
  const std::vector<double> losses = {1.0, 2.0, 4.0, 0.5};
  std::vector<WindowLoss> windows(2);
  for (size_t i = 0; i < losses.size(); ++i) {
    windows[i / 3].AddTarget(-losses[i]);
  }
  const PerplexityResult result = Summarize(windows);
  double mean = 0;
  for (const double loss : losses) {
    mean += loss / 4;
  }
  double variance = 0;
  for (const double loss : losses) {
    variance += (loss - mean) * (loss - mean) / 4;
  }
  EXPECT_EQ(result.tokens, 4u);
  EXPECT_DOUBLE_EQ(result.nll, mean);
  EXPECT_DOUBLE_EQ(result.ppl, std::exp(mean));
  EXPECT_NEAR(result.ppl_stderr, std::exp(mean) * std::sqrt(variance) / 2, 1e-12);
  EXPECT_FALSE(result.kld_mean.has_value());
  EXPECT_FALSE(result.same_top.has_value());
}

TEST(SummarizeTest, DivergenceIsAMeanOverComparedPositions) {
  WindowLoss window;
  window.AddTarget(-1);
  window.compared = 4;
  window.kld = 0.2;
  window.same_top = 3;
  const PerplexityResult result = Summarize({&window, 1});
  EXPECT_DOUBLE_EQ(*result.kld_mean, 0.05);
  EXPECT_DOUBLE_EQ(*result.same_top, 0.75);
}

TEST(LogSoftmaxTest, SumsToOneAlsoForLargeLogits) {
  std::vector<float> row = {1000, 1001, 999};
  LogSoftmax(absl::MakeSpan(row));
  double sum = 0;
  for (const float value : row) {
    sum += std::exp(static_cast<double>(value));
  }
  EXPECT_NEAR(sum, 1, 1e-6);
  EXPECT_NEAR(row[1] - row[0], 1, 1e-6);
}

TEST(KlDivergenceTest, IsZeroForEqualRowsAndMatchesAHandComputedCase) {
  std::vector<float> base = {std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  std::vector<float> run = {std::log(0.25f), std::log(0.5f), std::log(0.25f)};
  EXPECT_EQ(KlDivergence(base, base), 0);
  EXPECT_NEAR(KlDivergence(base, run), 0.25 * std::log(2.0), 1e-7);
}

TEST(ArgMaxTest, LowerIndexWinsATie) {
  const std::vector<float> row = {1, 3, 3};
  EXPECT_EQ(ArgMax(row), 1u);
}

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    char name[] = "/tmp/sluice-test-XXXXXX";
    root_ = mkdtemp(name);
    path_ = absl::StrCat(root_, "/file");
    header_.positions = 3;
    header_.vocab = 2;
    header_.window = 512;
    header_.stride = 256;
    header_.token_hash = 77;
    header_.model_id = std::string(32, 'a');
  }
  ~FileTest() override { EXPECT_EQ(std::system(absl::StrCat("rm -r ", root_).c_str()), 0); }

  void WriteBase() {
    auto writer = BaseRunWriter::Create(path_, header_);
    ASSERT_TRUE(writer.ok());
    for (const uint64_t position : {2, 0, 1}) {
      const std::vector<float> row = {static_cast<float>(position), -1.5f};
      ASSERT_TRUE((*writer)->WriteRow(position, row).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  std::string root_;
  std::string path_;
  BaseRunHeader header_;
};

TEST_F(FileTest, BaseRunRowsComeBackInAnyOrder) {
  WriteBase();
  const auto reader = BaseRunReader::Open(path_, header_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->header().model_id, header_.model_id);
  std::vector<float> row(2);
  for (const uint64_t position : {1, 2, 0}) {
    ASSERT_TRUE((*reader)->ReadRow(position, absl::MakeSpan(row)).ok());
    EXPECT_THAT(row, ElementsAre(static_cast<float>(position), -1.5f));
  }
}

TEST_F(FileTest, BaseRunOfAnotherTextOrShapeIsRefusedNamingIt) {
  WriteBase();
  const auto refused = [&](const char* what, auto change) {
    BaseRunHeader other = header_;
    change(&other);
    const auto reader = BaseRunReader::Open(path_, other);
    EXPECT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(reader.status().message()), HasSubstr(what));
  };
  refused("vocabulary", [](BaseRunHeader* h) { h->vocab = 3; });
  refused("positions", [](BaseRunHeader* h) { h->positions = 4; });
  refused("window", [](BaseRunHeader* h) { h->window = 1; });
  refused("stride", [](BaseRunHeader* h) { h->stride = 1; });
  refused("text", [](BaseRunHeader* h) { h->token_hash = 1; });
}

TEST_F(FileTest, DamagedBaseRunIsRefused) {
  const std::string good = SerializeBaseRunHeader(header_);
  EXPECT_TRUE(ParseBaseRunHeader(good, good.size() + 24).ok());
  EXPECT_FALSE(ParseBaseRunHeader(good, good.size() + 23).ok());
  EXPECT_FALSE(ParseBaseRunHeader(good.substr(0, 100), 100).ok());
  for (const size_t byte : {0, 8, 12, 16, 23, 24}) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 0x40);
    EXPECT_FALSE(ParseBaseRunHeader(bad, bad.size() + 24).ok()) << byte;
  }
  BaseRunHeader empty = header_;
  empty.vocab = 0;
  EXPECT_FALSE(ParseBaseRunHeader(SerializeBaseRunHeader(empty), 128).ok());
}

// Without BOS a last window of one token has no prediction, so nobody writes its row.
TEST_F(FileTest, BaseRunWithoutItsLastRowIsWholeAllTheSame) {
  auto writer = BaseRunWriter::Create(path_, header_);
  ASSERT_TRUE(writer.ok());
  const std::vector<float> row = {-0.5f, -1.5f};
  ASSERT_TRUE((*writer)->WriteRow(0, row).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto reader = BaseRunReader::Open(path_, header_);
  EXPECT_TRUE(reader.ok()) << reader.status();
}

TEST_F(FileTest, BaseRunWithNanIsDataLossNamingThePosition) {
  auto writer = BaseRunWriter::Create(path_, header_);
  ASSERT_TRUE(writer.ok());
  const std::vector<float> row = {-0.5f, std::nanf("")};
  ASSERT_TRUE((*writer)->WriteRow(1, row).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto reader = BaseRunReader::Open(path_, header_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> read(2);
  const absl::Status status = (*reader)->ReadRow(1, absl::MakeSpan(read));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("position 1 of 3"));
}

// A device or a folder of the name would be lost, or found to be in the way only at the end.
TEST_F(FileTest, OnlyARegularFileIsReplaced) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  for (const std::string& path : {path_, root_}) {
    const auto writer = BaseRunWriter::Create(path, header_);
    EXPECT_EQ(writer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(writer.status().message()), HasSubstr(path));
  }
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
}

TEST_F(FileTest, UnfinishedBaseRunLeavesNoFile) {
  { ASSERT_TRUE(BaseRunWriter::Create(path_, header_).ok()); }
  EXPECT_FALSE(ReadWholeFile(path_).ok());
}

TEST_F(FileTest, SafetensorsFileHasTheDocumentedBytes) {
  auto writer = SafetensorsWriter::Create(path_, "logits", 3, 2);
  ASSERT_TRUE(writer.ok());
  const std::vector<float> last = {5, 6};
  const std::vector<float> first = {1, 2, 3, 4};
  ASSERT_TRUE((*writer)->WriteRows(2, last).ok());
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE((*writer)->WriteRows(0, first).ok());
  EXPECT_EQ((*writer)->WriteRows(2, first).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*writer)->WriteRows(0, absl::MakeSpan(first).subspan(0, 3)).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE((*writer)->Finish().ok());
  const std::string bytes = *ReadWholeFile(path_);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  ASSERT_EQ(bytes.size(), 8 + length + 24);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_THAT(bytes.substr(8, length),
              ::testing::StartsWith(R"({"logits":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}})"));
  std::vector<float> values(6);
  std::memcpy(values.data(), bytes.data() + 8 + length, 24);
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
}

}  // namespace
}  // namespace sluice::cli
