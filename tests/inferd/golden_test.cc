// The whole engine against what another implementation computed (tests/data).
#include <cmath>
#include <cstring>

#include "common/file_io.h"
#include "common/model/safetensors.h"
#include "common/status.h"
#include "common/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_testing.h"

namespace sluice {
namespace {

constexpr char kTinyMixtral[] = "tests/data/tiny/mixtral";

// A tensor of golden.safetensors as a vector of T.
template <typename T>
std::vector<T> ReadGolden(const std::string& name) {
  const std::string path = std::string(kTinyMixtral) + "/golden.safetensors";
  const absl::StatusOr<std::string> file = ReadFile(path, 1 << 24);
  EXPECT_TRUE(file.ok()) << file.status();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file->data(), sizeof(header_bytes));
  const absl::StatusOr<std::vector<TensorInfo>> tensors =
      ParseSafetensorsHeader(std::string_view(*file).substr(8, header_bytes), file->size(), path);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  for (const TensorInfo& tensor : *tensors) {
    if (tensor.name == name) {
      std::vector<T> values(tensor.bytes / sizeof(T));
      std::memcpy(values.data(), file->data() + tensor.offset, tensor.bytes);
      return values;
    }
  }
  ADD_FAILURE() << name << " is not in " << path;
  return {};
}

std::vector<int32_t> ToIds(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

class GoldenTest : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(PackFolder(kTinyMixtral, dir_.File("pack")).ok());
    options_.engine.kv = KvType::kF32;
    options_.threads = GetParam();
  }
  TempDir dir_;
  TestEngineOptions options_;
};

TEST_P(GoldenTest, LogitsOfTheTinyMixtralAreRight) {
  absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options_);
  ASSERT_TRUE(test.ok()) << test.status();
  const std::vector<float> want = ReadGolden<float>("logits");
  const absl::StatusOr<std::vector<float>> got =
      ScoreLogits(test->engine.get(), "s", ToIds(ReadGolden<int64_t>("input_ids")));
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), want.size());
  float worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::abs((*got)[i] - want[i]));
  }
  EXPECT_LE(worst, 2e-3f);
}

TEST_P(GoldenTest, GreedyTokensOfTheTinyMixtralAreRight) {
  absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options_);
  ASSERT_TRUE(test.ok()) << test.status();
  const std::vector<int32_t> want = ToIds(ReadGolden<int64_t>("greedy_ids"));
  const absl::StatusOr<std::vector<int32_t>> got = GenerateIds(
      test->engine.get(),
      GreedySpec("g", ToIds(ReadGolden<int64_t>("prompt_ids")), static_cast<uint32_t>(want.size())));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, want);
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenTest, testing::Values(0u, 1u, 2u));

}  // namespace
}  // namespace sluice
