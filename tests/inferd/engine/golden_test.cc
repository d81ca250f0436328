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

// A tensor of the folder's golden.safetensors as a vector of T.
template <typename T>
std::vector<T> ReadGolden(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/golden.safetensors";
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

struct Case {
  const char* family;
  uint32_t threads;  // 0: the reference backend
};

class GoldenTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = std::string("tests/data/tiny/") + GetParam().family;
    const absl::Status packed = PackFolder(folder_, dir_.File("pack"));
    ASSERT_TRUE(packed.ok()) << packed;
    options_.engine.kv = KvType::kF32;
    options_.engine.context = 128;
    options_.threads = GetParam().threads;
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options_);
    ASSERT_TRUE(test.ok()) << test.status();
    test_ = *std::move(test);
  }
  TempDir dir_;
  std::string folder_;
  TestEngineOptions options_;
  TestEngine test_;
};

TEST_P(GoldenTest, LogitsOfTheTinyModelAreRight) {
  const std::vector<float> want = ReadGolden<float>(folder_, "logits");
  const absl::StatusOr<std::vector<float>> got =
      ScoreLogits(test_.engine.get(), "s", ToIds(ReadGolden<int64_t>(folder_, "input_ids")));
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), want.size());
  float worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::abs((*got)[i] - want[i]));
  }
  EXPECT_LE(worst, 2e-3f);
}

TEST_P(GoldenTest, GreedyTokensOfTheTinyModelAreRight) {
  const std::vector<int32_t> want = ToIds(ReadGolden<int64_t>(folder_, "greedy_ids"));
  const absl::StatusOr<std::vector<int32_t>> got = GenerateIds(
      test_.engine.get(),
      GreedySpec("g", ToIds(ReadGolden<int64_t>(folder_, "prompt_ids")), static_cast<uint32_t>(want.size())));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, want);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* family : {"deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "llama4",
                             "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_5_moe", "qwen3_moe"}) {
    for (const uint32_t threads : {0u, 2u}) {
      cases.push_back({family, threads});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, testing::ValuesIn(Cases()), [](const auto& info) {
  return absl::StrCat(info.param.family, "_", info.param.threads, "_threads");
});

}  // namespace
}  // namespace sluice
