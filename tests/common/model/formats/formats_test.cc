// Every quantized layout against its dequantized values, and refused input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "common/base/half.h"
#include "common/model/small_float.h"
#include "tests/common/model/formats/quantized_folder.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// Small numbers whose period does not match the sizes below.
class Numbers {
 public:
  uint32_t Next(uint32_t below) { return (state_ = state_ * 1664525 + 1013904223) / 65536 % below; }

 private:
  uint32_t state_ = 1;
};

std::vector<uint16_t> Halves(const std::vector<float>& values, bool bf16) {
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(bf16 ? FloatToBf16(value) : FloatToF16(value));
  return halves;
}

// Scales that f16 and bf16 represent exactly.
std::vector<float> Scales(size_t count, Numbers* numbers) {
  std::vector<float> scales;
  for (size_t i = 0; i < count; ++i) scales.push_back(static_cast<float>(numbers->Next(60) + 1) / 256);
  return scales;
}

class FormatsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const RawTensors& tensors,
                                                   const Quantization& quantization) {
    WriteRawFolder(tensors, dir_.path());
    return OpenCheckpointFolder(dir_.path(), quantization);
  }
  std::unique_ptr<Checkpoint> MustOpen(const RawTensors& tensors, const Quantization& quantization) {
    auto checkpoint = Open(tensors, quantization);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
  }
  std::string Error(const RawTensors& tensors, const Quantization& quantization) {
    const auto checkpoint = Open(tensors, quantization);
    EXPECT_FALSE(checkpoint.ok());
    return std::string(checkpoint.status().message());
  }
  TempDir dir_;
  Numbers numbers_;
};

TEST(SmallFloat, ScaledCodesAreTheScalarProducts) {
  // Every code at every position of a vector and its remainder, with scales of every kind.
  std::vector<uint8_t> codes(256 + 7);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37);
  std::vector<float> values(codes.size());
  for (const float scale : {1.0f, -0.0175f, 0.0f, 0x1p-140f, 0x1p-149f, 3e38f, INFINITY, NAN}) {
    for (const size_t count : {codes.size(), size_t{256}, size_t{15}, size_t{1}, size_t{0}}) {
      ScaleE4m3(absl::MakeConstSpan(codes).first(count), scale, values.data());
      for (size_t i = 0; i < count; ++i) {
        const float want = E4m3ToFloat(codes[i]) * scale;
        ASSERT_EQ(std::isnan(values[i]), std::isnan(want)) << i << " by " << scale;
        if (std::isnan(want)) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(want)) << i << " by " << scale;
      }
    }
  }
}

TEST(SmallFloat, HoldsWhatItsBitsSay) {
  EXPECT_EQ(E4m3ToFloat(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(E4m3ToFloat(0x80)));
  EXPECT_EQ(E4m3ToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(E4m3ToFloat(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(E4m3ToFloat(0x08), 0x1p-6f);
  EXPECT_EQ(E4m3ToFloat(0x38), 1.0f);
  EXPECT_EQ(E4m3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(E4m3ToFloat(0xfe), -448.0f);
  EXPECT_TRUE(std::isnan(E4m3ToFloat(0x7f)));
  EXPECT_TRUE(std::isnan(E4m3ToFloat(0xff)));
  EXPECT_EQ(E8m0ToFloat(127), 1.0f);
  EXPECT_EQ(E8m0ToFloat(0), 0x1p-127f);
  EXPECT_EQ(E8m0ToFloat(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(E8m0ToFloat(255)));
}

// Blocks of 4 x 8 over 6 x 20: those at the edges are smaller.
TEST_F(FormatsTest, Fp8BlocksAreMultipliedByTheirScales) {
  std::vector<uint8_t> codes;
  for (int i = 0; i < 6 * 20; ++i)
    codes.push_back(static_cast<uint8_t>(numbers_.Next(0x7f) | numbers_.Next(2) << 7));
  const std::vector<float> scales = Scales(2 * 3, &numbers_);
  for (const bool bf16 : {false, true}) {
    const RawTensor scale = bf16 ? Raw("BF16", {2, 3}, Halves(scales, true)) : Raw("F32", {2, 3}, scales);
    const auto checkpoint =
        MustOpen({{"p.weight", Raw("F8_E4M3", {6, 20}, codes)}, {"p.weight_scale_inv", scale}},
                 {.method = QuantMethod::kFp8, .block_rows = 4, .block_cols = 8});
    const std::vector<float> values = ReadLayer(*checkpoint, "p.weight");
    for (uint32_t r = 0; r < 6; ++r) {
      for (uint32_t c = 0; c < 20; ++c) {
        ASSERT_EQ(values[r * 20 + c], E4m3ToFloat(codes[r * 20 + c]) * scales[r / 4 * 3 + c / 8])
            << r << " " << c;
      }
    }
    // A part of the layer reads the same values.
    std::vector<float> part(2 * 7);
    ASSERT_TRUE(checkpoint
                    ->Read(*checkpoint->Find("p.weight"), {3, 2, 5, 7},
                           absl::MakeSpan(reinterpret_cast<std::byte*>(part.data()), 4 * part.size()))
                    .ok());
    for (uint32_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], values[(3 + i / 7) * 20 + 5 + i % 7]);
  }
}

TEST_F(FormatsTest, Fp8ScalesCanBeOneARowOrOne) {
  const std::vector<uint8_t> codes = {0x38, 0x40, 0x38, 0x40};
  const Quantization fp8 = {.method = QuantMethod::kCompressedTensors};
  const auto rows = MustOpen(
      {{"p.weight", Raw("F8_E4M3", {2, 2}, codes)}, {"p.weight_scale", Raw<float>("F32", {2, 1}, {2, 4})}},
      fp8);
  EXPECT_EQ(ReadLayer(*rows, "p.weight"), (std::vector<float>{2, 4, 4, 8}));
  const auto one = MustOpen(
      {{"p.weight", Raw("F8_E4M3", {2, 2}, codes)}, {"p.weight_scale", Raw<float>("F32", {1}, {2})}}, fp8);
  EXPECT_EQ(ReadLayer(*one, "p.weight"), (std::vector<float>{2, 4, 2, 4}));
}

TEST_F(FormatsTest, Fp8ScalesThatAreMissingOrMisshapenAreNamed) {
  const RawTensor codes = Raw("F8_E4M3", {6, 20}, std::vector<uint8_t>(120));
  const Quantization fp8 = {.method = QuantMethod::kFp8, .block_rows = 4, .block_cols = 8};
  EXPECT_THAT(Error({{"p.weight", codes}}, fp8), HasSubstr("has no p.weight_scale"));
  EXPECT_THAT(
      Error({{"p.weight", codes}, {"p.weight_scale_inv", Raw("F32", {2, 2}, std::vector<float>(4))}}, fp8),
      HasSubstr("does not fit p.weight [6, 20] in blocks of 4 x 8"));
}

// 9 rows of 12 values in groups of 4: rows of words are padded, and zeros are packed eight rows a word.
TEST_F(FormatsTest, PackedInt4WithAndWithoutZeros) {
  constexpr uint32_t kRows = 9, kCols = 12, kGroup = 4, kGroups = kCols / kGroup;
  std::vector<uint32_t> words(kRows * 2), zero_words(2 * kGroups);
  std::vector<int> codes(kRows * kCols), zeros(kRows * kGroups);
  for (uint32_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<int>(numbers_.Next(16));
    words[i / kCols * 2 + i % kCols / 8] |= static_cast<uint32_t>(codes[i]) << 4 * (i % kCols % 8);
  }
  for (uint32_t i = 0; i < zeros.size(); ++i) {
    zeros[i] = static_cast<int>(numbers_.Next(16));
    const uint32_t row = i / kGroups;
    zero_words[row / 8 * kGroups + i % kGroups] |= static_cast<uint32_t>(zeros[i]) << 4 * (row % 8);
  }
  const std::vector<float> scales = Scales(kRows * kGroups, &numbers_);
  RawTensors tensors = {{"p.weight_packed", Raw("I32", {kRows, 2}, words)},
                        {"p.weight_scale", Raw("BF16", {kRows, kGroups}, Halves(scales, true))},
                        {"p.weight_shape", Raw<int64_t>("I64", {2}, {kRows, kCols})}};
  for (const bool symmetric : {true, false}) {
    if (!symmetric) tensors["p.weight_zero_point"] = Raw("I32", {2, kGroups}, zero_words);
    const auto checkpoint = MustOpen(tensors, {.method = QuantMethod::kCompressedTensors});
    const std::vector<float> values = ReadLayer(*checkpoint, "p.weight");
    ASSERT_EQ(checkpoint->tensors().size(), 1u);
    for (uint32_t i = 0; i < codes.size(); ++i) {
      const uint32_t group = i / kCols * kGroups + i % kCols / kGroup;
      const int zero = symmetric ? 8 : zeros[group];
      ASSERT_EQ(values[i], static_cast<float>(codes[i] - zero) * scales[group]) << symmetric << " " << i;
    }
  }
  tensors["p.weight_shape"] = Raw<int64_t>("I64", {2}, {kRows, 40});
  EXPECT_THAT(Error(tensors, {.method = QuantMethod::kCompressedTensors}),
              HasSubstr("does not hold the [9, 40]"));
}

// The same codes in modelopt's form and in compressed-tensors' form, whose layer scale is the inverse.
TEST_F(FormatsTest, Nvfp4ScalesOfALayerAreMultipliedOrDividedBy) {
  std::vector<uint8_t> codes(2 * 16), scale_codes(2 * 2);
  for (uint8_t& pair : codes) pair = static_cast<uint8_t>(numbers_.Next(256));
  for (uint8_t& code : scale_codes) code = static_cast<uint8_t>(0x30 + numbers_.Next(16));
  const RawTensor packed = Raw("U8", {2, 16}, codes);
  const RawTensor scales = Raw("F8_E4M3", {2, 2}, scale_codes);
  const auto modelopt = MustOpen({{"p.weight", packed},
                                  {"p.weight_scale", scales},
                                  {"p.weight_scale_2", Raw<float>("F32", {}, {0.125f})},
                                  {"p.input_scale", Raw<float>("F32", {}, {3})}},
                                 {.method = QuantMethod::kModelopt});
  ASSERT_EQ(modelopt->tensors().size(), 1u);
  const std::vector<float> values = ReadLayer(*modelopt, "p.weight");
  const auto compressed = MustOpen({{"p.weight_packed", packed},
                                    {"p.weight_scale", scales},
                                    {"p.weight_global_scale", Raw<float>("F32", {1}, {8})}},
                                   {.method = QuantMethod::kCompressedTensors});
  EXPECT_EQ(values, ReadLayer(*compressed, "p.weight"));
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t code = i % 2 == 0 ? codes[i / 2] & 15u : codes[i / 2] >> 4;
    ASSERT_EQ(values[i], kE2m1Values[code] * (E4m3ToFloat(scale_codes[i / 16]) * 0.125f)) << i;
  }
}

// AWQ interleaves the outputs within a word; rows of words are inputs.
TEST_F(FormatsTest, AwqWordsInterleaveOutputs) {
  constexpr uint32_t kIn = 12, kOut = 16, kGroup = 4, kGroups = kIn / kGroup;
  constexpr uint32_t kOutputOf[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<uint32_t> words(kIn * kOut / 8), zeros(kGroups * kOut / 8);
  for (uint32_t& word : words) word = numbers_.Next(65536) << 16 | numbers_.Next(65536);
  for (uint32_t& word : zeros) word = numbers_.Next(65536) << 16 | numbers_.Next(65536);
  const std::vector<float> scales = Scales(kGroups * kOut, &numbers_);
  const auto checkpoint = MustOpen({{"p.qweight", Raw("I32", {kIn, kOut / 8}, words)},
                                    {"p.qzeros", Raw("I32", {kGroups, kOut / 8}, zeros)},
                                    {"p.scales", Raw("F16", {kGroups, kOut}, Halves(scales, false))}},
                                   {.method = QuantMethod::kAwq, .group = kGroup});
  const std::vector<float> values = ReadLayer(*checkpoint, "p.weight");
  for (uint32_t r = 0; r < kIn; ++r) {
    for (uint32_t w = 0; w < kOut / 8; ++w) {
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t output = 8 * w + kOutputOf[n];
        const uint32_t group = r / kGroup;
        const float code = static_cast<float>(words[r * kOut / 8 + w] >> 4 * n & 15);
        const float zero = static_cast<float>(zeros[group * kOut / 8 + w] >> 4 * n & 15);
        ASSERT_EQ(values[output * kIn + r], (code - zero) * scales[group * kOut + output])
            << r << " " << output;
      }
    }
  }
}

class GptqTest : public FormatsTest {
 protected:
  static constexpr uint32_t kIn = 16, kOut = 8, kGroups = 2;
  RawTensors Tensors(const std::vector<int32_t>& group_of) {
    words_.resize(kIn / 8 * kOut);
    zeros_.resize(kGroups);
    for (uint32_t& word : words_) word = numbers_.Next(65536) << 16 | numbers_.Next(65536);
    for (uint32_t& word : zeros_) word = numbers_.Next(65536) << 16 | numbers_.Next(65536);
    scales_ = Scales(kGroups * kOut, &numbers_);
    RawTensors tensors = {{"p.qweight", Raw("I32", {kIn / 8, kOut}, words_)},
                          {"p.qzeros", Raw("I32", {kGroups, 1}, zeros_)},
                          {"p.scales", Raw("F16", {kGroups, kOut}, Halves(scales_, false))}};
    if (!group_of.empty()) tensors["p.g_idx"] = Raw("I32", {kIn}, group_of);
    return tensors;
  }
  void Expect(const std::vector<float>& values, const std::vector<int32_t>& group_of, int zero_offset,
              bool symmetric) {
    for (uint32_t r = 0; r < kIn; ++r) {
      for (uint32_t o = 0; o < kOut; ++o) {
        const uint32_t group = group_of.empty() ? r / 8 : static_cast<uint32_t>(group_of[r]);
        const int code = static_cast<int>(words_[r / 8 * kOut + o] >> 4 * (r % 8) & 15);
        const int zero = symmetric ? 8 : static_cast<int>(zeros_[group] >> 4 * o & 15) + zero_offset;
        ASSERT_EQ(values[o * kIn + r], static_cast<float>(code - zero) * scales_[group * kOut + o])
            << r << " " << o;
      }
    }
  }
  std::vector<uint32_t> words_, zeros_;
  std::vector<float> scales_;
};

TEST_F(GptqTest, StoredZerosDependOnFormatAndSymmetry) {
  const RawTensors tensors = Tensors({});
  Quantization gptq = {.method = QuantMethod::kGptq, .group = 8, .zeros_minus_one = true};
  Expect(ReadLayer(*MustOpen(tensors, gptq), "p.weight"), {}, 1, false);
  gptq.zeros_minus_one = false;
  Expect(ReadLayer(*MustOpen(tensors, gptq), "p.weight"), {}, 0, false);
  gptq.symmetric = true;
  Expect(ReadLayer(*MustOpen(tensors, gptq), "p.weight"), {}, 0, true);
}

TEST_F(GptqTest, BiasesOfZerosMayBeLeftOut) {
  RawTensors tensors = Tensors({});
  tensors["p.bias"] = Raw("F16", {kOut}, std::vector<uint16_t>(kOut));
  tensors["q.bias"] = tensors["p.bias"];
  const Quantization gptq = {.method = QuantMethod::kGptq, .group = 8};
  const auto zero = MustOpen(tensors, gptq);
  EXPECT_TRUE(zero->Find("p.bias")->is_neutral);
  EXPECT_FALSE(zero->Find("q.bias")->is_neutral);  // not a quantized layer's
  tensors["p.bias"] = Raw("F16", {kOut}, std::vector<uint16_t>(kOut, 1));
  EXPECT_FALSE(MustOpen(tensors, gptq)->Find("p.bias")->is_neutral);
}

TEST_F(GptqTest, GroupsOfReorderedInputsAreScattered) {
  const std::vector<int32_t> group_of = {0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0};
  const Quantization gptq = {.method = QuantMethod::kGptq, .group = 8};
  Expect(ReadLayer(*MustOpen(Tensors(group_of), gptq), "p.weight"), group_of, 0, false);
  std::vector<int32_t> broken = group_of;
  broken[5] = 2;
  const auto checkpoint = MustOpen(Tensors(broken), gptq);
  std::vector<float> values(kIn * kOut);
  const absl::Status status =
      checkpoint->Read(*checkpoint->Find("p.weight"), {0, kIn, 0, kOut},
                       absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), 4 * values.size()));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("p.g_idx holds 2 at [5]; there are 2 groups"));
}

absl::StatusOr<Quantization> Read(const char* config) {
  const auto root = ParseJson(absl::StrCat("{\"quantization_config\":", config, "}"), "c");
  EXPECT_TRUE(root.ok()) << root.status();
  return ReadQuantization(*JsonObject::Of(*root, "c"));
}

TEST(Quantization, UnsupportedMethodsAreRefusedWithAdvice) {
  for (
      const auto& [config, word] : {
          std::pair(R"({"quant_method":"bitsandbytes"})", "quant_method \"bitsandbytes\""),
          std::pair(R"({"quant_method":"awq","version":"gemv"})", "version \"gemv\""),
          std::pair(R"({"quant_method":"awq","bits":8})", "bits 8"),
          std::pair(R"({"quant_method":"gptq","bits":3})", "bits 3"),
          std::pair(R"({"quant_method":"gptq","bits":4,"dynamic":{"+:x":{"bits":8}}})", "+:x"),
          std::pair(R"({"quant_method":"modelopt","quant_algo":"NVFP4_AWQ"})", "NVFP4_AWQ"),
          std::pair(R"({"quant_method":"compressed-tensors","format":"marlin-24","config_groups":{}})",
                    "marlin-24"),
          std::pair(
              R"({"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"type":"int","num_bits":8}}}})",
              "num_bits 8"),
      }) {
    const auto quantization = Read(config);
    EXPECT_EQ(quantization.status().code(), absl::StatusCode::kUnimplemented) << config;
    EXPECT_THAT(std::string(quantization.status().message()), HasSubstr(word));
    EXPECT_THAT(std::string(quantization.status().message()), HasSubstr("pack the model's bf16 folder"));
  }
}

TEST(Quantization, ReadsTheNumbersThatTensorsDoNotTell) {
  EXPECT_EQ(
      Read(R"({"quant_method":"fp8","weight_block_size":[128,64],"activation_scheme":"dynamic"})").value(),
      (Quantization{.method = QuantMethod::kFp8, .block_rows = 128, .block_cols = 64}));
  EXPECT_EQ(
      Read(R"({"quant_method":"gptq","bits":4,"group_size":-1,"sym":true,"checkpoint_format":"gptq_v2"})")
          .value(),
      (Quantization{.method = QuantMethod::kGptq, .symmetric = true}));
  EXPECT_EQ(Read(R"({"quant_method":"gptq","bits":4,"group_size":32,"dynamic":{"-:gate":{}}})").value(),
            (Quantization{.method = QuantMethod::kGptq, .group = 32, .zeros_minus_one = true}));
  EXPECT_EQ(ParseModeloptQuantization(R"({"quantization":{"quant_algo":"NVFP4","group_size":16}})", "f")
                .value()
                .method,
            QuantMethod::kModelopt);
}

}  // namespace
}  // namespace sluice
