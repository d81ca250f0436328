// The whole engine against golden results of another implementation (tests/data).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/file_io.h"
#include "common/base/status.h"
#include "common/model/safetensors.h"
#include "common/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

// Reads a tensor of the folder's golden.safetensors as a vector of T.
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
  const char* name;
  uint32_t threads;            // 0: the reference backend
  const char* group = "tiny";  // folder in tests/data
  const char* file = "";       // file in the folder, if the model is one file
  const char* rounded = "";    // name suffix of the golden values for bf16 packs
  uint64_t delay_seed = 0;     // not 0: an asynchronous device
  const char* bits = "bf16";   // encoding of the pack
  const char* layout = "";     // of its experts; empty: by neurons
};

class GoldenTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat("tests/data/", GetParam().group, "/", GetParam().name);
    const absl::Status packed =
        PackFolder(folder_ + GetParam().file, dir_.File("pack"), GetParam().bits, GetParam().layout);
    ASSERT_TRUE(packed.ok()) << packed;
    options_.engine.kv = KvType::kF32;
    options_.engine.context = 128;
    options_.threads = GetParam().threads;
    options_.delay_seed = GetParam().delay_seed;
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options_);
    ASSERT_TRUE(test.ok()) << test.status();
    test_ = *std::move(test);
  }

  void ExpectLogits() {
    const std::vector<float> want = ReadGolden<float>(folder_, absl::StrCat("logits", GetParam().rounded));
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

  TempDir dir_;
  std::string folder_;
  TestEngineOptions options_;
  TestEngine test_;
};

TEST_P(GoldenTest, LogitsOfTheTinyModelAreRight) { ExpectLogits(); }

TEST_P(GoldenTest, GreedyTokensOfTheTinyModelAreRight) {
  const std::vector<int32_t> want =
      ToIds(ReadGolden<int64_t>(folder_, absl::StrCat("greedy_ids", GetParam().rounded)));
  const absl::StatusOr<std::vector<int32_t>> got = GenerateIds(
      test_.engine.get(),
      GreedySpec("g", ToIds(ReadGolden<int64_t>(folder_, "prompt_ids")), static_cast<uint32_t>(want.size())));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, want);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* family : {"afmoe",
                             "deepseek_v2",
                             "deepseek_v3",
                             "dots1",
                             "ernie4_5_moe",
                             "exaone_moe",
                             "gemma4",
                             "gemma4_mm",
                             "glm4_moe",
                             "glm4_moe_lite",
                             "gpt_oss",
                             "granitemoe",
                             "granitemoehybrid",
                             "hunyuan_v1_moe",
                             "hy_v3",
                             "kimi_k25",
                             "lfm2_moe",
                             "llama4",
                             "mellum",
                             "minimax_m2",
                             "minimax_m3",
                             "mistral4",
                             "mixtral",
                             "nemotron_h",
                             "olmoe",
                             "phimoe",
                             "qwen2_moe",
                             "qwen3_5_moe",
                             "qwen3_moe",
                             "qwen3_next",
                             "qwen3_vl_moe",
                             "solar_open",
                             "laguna",
                             "step3p5",
                             "mimo_v2_flash",
                             "cohere2_moe",
                             "flex_olmo",
                             "nemotron_h_latent",
                             "longcat_flash",
                             "jamba",
                             "kimi_linear",
                             "bailing_hybrid",
                             "qwen4_exp"}) {
    for (const uint32_t threads : {0u, 2u}) {
      cases.push_back({family, threads});
    }
    cases.push_back({.name = family, .threads = 1, .delay_seed = 5});
  }
  for (const char* family :
       {"deepseek_v2", "gemma4", "gpt_oss", "llama4", "mixtral", "nemotron_h", "phimoe", "qwen2_moe"}) {
    for (const uint32_t threads : {0u, 2u}) {
      cases.push_back({.name = family, .threads = threads, .layout = "up|gate|outputs"});
    }
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  std::string name = absl::StrCat(info.param.name, "_", info.param.threads, "_threads",
                                  info.param.delay_seed > 0 ? "_later" : "");
  absl::StrAppend(&name, *info.param.layout == '\0' ? "" : "_by_outputs");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, testing::ValuesIn(Cases()), CaseName);

// Quantized folders: golden values for weights rounded to bf16 once.
INSTANTIATE_TEST_SUITE_P(Formats, GoldenTest,
                         testing::Values(Case{"awq_qwen3_moe", 0, "formats", "", "_bf16"},
                                         Case{"fp8_minimax_m2", 0, "formats", "", "_bf16"},
                                         Case{"fp8_minimax_m2", 2, "formats", "", "_bf16"}),
                         CaseName);

// GGUF files: the exact values of their blocks.
INSTANTIATE_TEST_SUITE_P(Files, GoldenTest,
                         testing::Values(Case{"gptoss-mxfp4", 0, "gguf", "/model.gguf", "", 0, "source"},
                                         Case{"gptoss-mxfp4", 2, "gguf", "/model.gguf", "", 0, "source"},
                                         Case{"granitemoe-q5_k_m", 0, "gguf", "/model.gguf", "", 0, "source"},
                                         Case{"granitemoe-q5_k_m", 2, "gguf", "/model.gguf", "", 0, "source"},
                                         Case{"lfm2moe-bf16", 0, "gguf", "/model.gguf", "", 0, "source"},
                                         Case{"lfm2moe-bf16", 2, "gguf", "/model.gguf", "", 0, "source"},
                                         Case{"mistral4-bf16", 0, "gguf", "/model.gguf", "", 0, "source"},
                                         Case{"mistral4-bf16", 2, "gguf", "/model.gguf", "", 0, "source"}),
                         CaseName);

}  // namespace
}  // namespace sluice::inferd
