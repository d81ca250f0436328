// GGUF files packed without bits: rows keep the exact values of the file's blocks, in encodings that hold
// them; down matrices by outputs too, transposed ones, which run across blocks, are encoded anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/model/dense_names.h"
#include "pack/pack_format.h"
#include "pack/row_layout.h"
#include "pack/writer/pack_writer.h"
#include "tests/pack/gguf_of_encodings.h"
#include "tests/support/gguf_of_folder.h"
#include "tests/support/pack_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_file.h"

namespace sluice {
namespace {

// Llama.cpp's mixture Q5_K_M: hidden 256, so that rows are whole blocks; Q6_K in some layers.
constexpr char kGranite[] = "tests/data/gguf/granitemoe-q5_k_m/model.gguf";
constexpr char kGptOss[] = "tests/data/gguf/gptoss-mxfp4/model.gguf";

PackValues Packed(const std::string& model, const std::string& out, const RecipeOptions& words) {
  PackOptions options;
  options.recipe = *RecipeFromOptions(words);
  const auto summary = PackModel(model, out, options, nullptr, nullptr);
  EXPECT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(VerifyPack(out, nullptr, nullptr).ok());
  return PackValues::Of(out);
}

// Every row of `kept` that is in a block encoding or mxfp4 has the values of `exact`; returns how many
// tensors and parts that were.
int ExpectExactRows(PackValues* kept, PackValues* exact) {
  int count = 0;
  const auto is_kept = [](const EncodingDescriptor& d) {
    return IsBlockEncoding(d.encoding) || d.encoding == Encoding::kMxfp4;
  };
  for (const DenseTensor& tensor : kept->pack().manifest().dense_tensors) {
    if (!is_kept(tensor.encoding)) continue;
    ++count;
    EXPECT_EQ(kept->Dense(tensor.name), exact->Dense(tensor.name)) << tensor.name;
  }
  for (uint32_t layer = 0; layer < kept->pack().config().layers.size(); ++layer) {
    for (uint32_t e = 0; e < kept->pack().expert_count(layer); ++e) {
      for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
        if (!is_kept(kept->pack().part(layer, e, part).encoding)) continue;
        ++count;
        EXPECT_EQ(kept->Expert(layer, e, part), exact->Expert(layer, e, part)) << layer << " " << e;
      }
    }
  }
  return count;
}

// [rows][cols] of `values`, which are [cols][rows].
std::vector<float> Turned(const std::vector<float>& values, size_t rows, size_t cols) {
  std::vector<float> turned(values.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) turned[r * cols + c] = values[c * rows + r];
  }
  return turned;
}

TEST(PackGguf, DownByOutputsKeepsTheBlocksValues) {
  TempDir dir;
  PackValues kept = Packed(kGranite, dir.File("kept"), {});
  PackValues exact = Packed(kGranite, dir.File("exact"), {.bits = "source", .layout = "up|gate|down"});
  ASSERT_TRUE(kept.pack().by_outputs());
  EXPECT_FALSE(exact.pack().by_outputs());
  EXPECT_NE(kept.pack().manifest().incompatible_features & kFeatureOutputs, 0u);
  const ModelConfig& config = kept.pack().config();
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const uint32_t width = config.layers[layer].moe.expert_width;
    EXPECT_TRUE(IsBlockEncoding(kept.pack().part(layer, 0, Part::kDown).encoding.encoding));
    for (uint32_t e = 0; e < kept.pack().expert_count(layer); ++e) {
      EXPECT_EQ(kept.Expert(layer, e, Part::kDown),
                Turned(exact.Expert(layer, e, Part::kDown), config.hidden, width));
    }
    const std::string shared = dense::LayerName(layer, dense::kSharedDown);
    if (kept.pack().FindDense(shared) == nullptr) continue;
    EXPECT_TRUE(IsBlockEncoding(kept.pack().FindDense(shared)->encoding.encoding));
    EXPECT_EQ(kept.Dense(shared),
              Turned(exact.Dense(shared), config.hidden, config.layers[layer].moe.shared_width));
  }
}

TEST(PackGguf, PackByOutputsIsAsLargeAsTheFile) {
  TempDir dir;
  const PackValues kept = Packed(kGranite, dir.File("kept"), {});
  double bytes = 0;
  double stored = 0;
  for (uint32_t layer = 0; layer < kept.pack().config().layers.size(); ++layer) {
    for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
      const PartView view = kept.pack().part(layer, 0, part);
      const double bits = view.encoding.encoding == blocks::kQ6_K ? 6.5625 : 5.5;  // Q5_K
      bytes += bits / 8 * view.rows * view.cols;
      stored += static_cast<double>(view.rows) * RowBytes(view.encoding, view.cols);
    }
  }
  EXPECT_LE(stored, 1.02 * bytes);
}

TEST(PackGguf, TransposedDownIsEncodedAnew) {
  TempDir dir;
  const std::string layout = "up|gate|down";
  PackValues kept = Packed(kGranite, dir.File("kept"), {.layout = layout});
  PackValues exact = Packed(kGranite, dir.File("exact"), {.bits = "source", .layout = layout});
  EXPECT_EQ(kept.pack().manifest().provenance.source_digest,
            exact.pack().manifest().provenance.source_digest);
  EXPECT_NE(kept.pack().manifest().incompatible_features & kFeatureBlocks, 0u);
  const uint32_t layers = static_cast<uint32_t>(kept.pack().config().layers.size());
  const uint32_t experts = kept.pack().expert_count(0);
  // Gate and up of every expert, and q, k, v and o of every layer at least.
  EXPECT_GE(ExpectExactRows(&kept, &exact), static_cast<int>(layers * (2 * experts + 4)));
  for (uint32_t layer = 0; layer < layers; ++layer) {
    EXPECT_EQ(kept.pack().part(layer, 0, Part::kUp).encoding, MakeDescriptor(blocks::kQ5_K));
    EXPECT_EQ(kept.pack().part(layer, 0, Part::kDown).encoding, MakeDescriptor(Encoding::kQ8, 64));
    const std::vector<float> down = kept.Expert(layer, 1, Part::kDown);
    const std::vector<float> want = exact.Expert(layer, 1, Part::kDown);
    double error = 0;
    double power = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (down[i] - want[i]) * (down[i] - want[i]);
      power += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(error / power), 0.01);
  }
}

TEST(PackGguf, DownBitsAndBitsAndDenseBitsAreFollowed) {
  TempDir dir;
  const auto down = [](PackValues values) { return values.pack().part(1, 0, Part::kDown).encoding; };
  EXPECT_EQ(down(Packed(kGranite, dir.File("q4"), {.group = 32, .down_bits = "q4"})),
            MakeDescriptor(Encoding::kQ4, 32));
  const PackValues anew = Packed(kGranite, dir.File("anew"), {.bits = "q4"});
  EXPECT_EQ(anew.pack().part(1, 0, Part::kUp).encoding, MakeDescriptor(Encoding::kQ4, 64));
  EXPECT_EQ(anew.pack().manifest().incompatible_features & kFeatureBlocks, 0u);
  const PackValues dense = Packed(kGranite, dir.File("dense"), {.dense_bits = "q8"});
  EXPECT_EQ(dense.pack().FindDense("layers.0.q")->encoding, MakeDescriptor(Encoding::kQ8, 64));
  EXPECT_EQ(dense.pack().part(1, 0, Part::kUp).encoding, MakeDescriptor(blocks::kQ5_K));
  EXPECT_FALSE(RecipeFromOptions({.bits = "q8", .down_bits = "q4"}).ok());
}

TEST(PackGguf, Mxfp4AndOtherRowsStayUnchanged) {
  TempDir dir;
  PackValues kept = Packed(kGptOss, dir.File("kept"), {});
  PackValues exact = Packed(kGptOss, dir.File("exact"), {.bits = "source"});
  EXPECT_GT(ExpectExactRows(&kept, &exact), 0);
  EXPECT_EQ(kept.pack().part(0, 0, Part::kGate).encoding.encoding, Encoding::kMxfp4);
  EXPECT_EQ(kept.pack().part(0, 0, Part::kDown).encoding.encoding, Encoding::kMxfp4);
}

TEST(PackGguf, FileBlocksStayAsTheyAre) {
  TempDir dir;
  const std::string file = GgufOfEncodings(kFileBlockEncodings);
  ASSERT_TRUE(WriteFileDurably(dir.File("m.gguf"), file).ok());
  PackValues kept = Packed(dir.File("m.gguf"), dir.File("kept"), {});
  PackValues exact = Packed(dir.File("m.gguf"), dir.File("exact"), {.bits = "source"});
  EXPECT_EQ(kept.pack().manifest().provenance.source_digest,
            exact.pack().manifest().provenance.source_digest);
  EXPECT_NE(kept.pack().manifest().incompatible_features & kFeatureFileBlocks, 0u);
  EXPECT_EQ(kept.pack().manifest().incompatible_features & kFeatureBlocks, 0u);
  const int layers = static_cast<int>(std::size(kFileBlockEncodings));
  EXPECT_EQ(ExpectExactRows(&kept, &exact), 1 + layers * (4 + 2 * 3));
  for (int i = 0; i < layers; ++i) {
    const auto layer = static_cast<uint32_t>(i);
    EXPECT_EQ(kept.pack().part(layer, 0, Part::kGate).encoding, MakeDescriptor(kFileBlockEncodings[i]));
    EXPECT_EQ(kept.pack().part(layer, 0, Part::kDown).encoding, MakeDescriptor(kFileBlockEncodings[i]));
  }
  // Packed anew from the decoded values.
  const PackValues anew = Packed(dir.File("m.gguf"), dir.File("anew"), {.bits = "q4"});
  EXPECT_EQ(anew.pack().manifest().incompatible_features & kFeatureFileBlocks, 0u);
}

class MtpOfGguf : public testing::TestWithParam<const char*> {};

// Every value of the MTP layer is the same as of the folder, and so are its drafts.
TEST_P(MtpOfGguf, LayersAreThoseOfTheFolder) {
  TempDir dir;
  const std::string folder = dir.File("model");
  ASSERT_TRUE(AddEchoingMtpLayer(absl::StrCat("tests/data/tiny/", GetParam()), folder).ok());
  const absl::Status written = WriteGgufOfFolder(folder, dir.File("m.gguf"));
  ASSERT_TRUE(written.ok()) << written;
  PackValues want = Packed(folder, dir.File("folder"), {.bits = "source", .layout = "up|gate|down"});
  PackValues got = Packed(dir.File("m.gguf"), dir.File("gguf"), {.bits = "source", .layout = "up|gate|down"});
  const ModelConfig& config = want.pack().config();
  ASSERT_EQ(config.mtp_layers, 1u);
  ASSERT_EQ(got.pack().config().mtp_layers, 1u);
  ASSERT_EQ(got.pack().config().layers.back(), config.layers.back());
  const uint32_t layer = ModelLayers(config);
  int tensors = 0;
  for (const DenseTensor& tensor : want.pack().manifest().dense_tensors) {
    if (!absl::StrContains(tensor.name, dense::LayerName(layer, ""))) continue;
    EXPECT_EQ(got.Dense(tensor.name), want.Dense(tensor.name)) << tensor.name;
    ++tensors;
  }
  EXPECT_GE(tensors, 10);
  for (uint32_t e = 0; e < want.pack().expert_count(layer); ++e) {
    for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
      EXPECT_EQ(got.Expert(layer, e, part), want.Expert(layer, e, part)) << e;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MtpOfGguf, testing::Values("deepseek_v3", "glm4_moe", "qwen3_next"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace sluice
