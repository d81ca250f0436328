// Packs of every family's tiny checkpoint hold its weights, each under its name of dense_names.h, for any
// layout of the checkpoint: a table of the families.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/dense_names.h"
#include "pack/writer/pack_writer.h"
#include "tests/pack/tiny_checkpoints.h"
#include "tests/support/pack_values.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

// Source of a dense tensor of the pack in the checkpoint.
enum class As { kSame, kTransposed, kPlusOne };

struct DenseRow {
  uint32_t layer;
  std::string_view canonical;
  const char* source;
  As as = As::kSame;
};

// Layout of a layer's experts in a checkpoint.
enum class Experts {
  kByName,              // a matrix for each part of each, [width, hidden] and down [hidden, width]
  kFusedLines,          // [experts * 2 width, hidden], an expert's gate lines before its up lines
  kAlternatingColumns,  // [experts * hidden, 2 width], gate and up columns in turn; down [experts * width,
                        // hidden]
  kHalves,              // [experts * hidden, 2 width], gate columns before up columns; down as above
};

struct ExpertRow {
  Experts as;
  uint32_t layer;
  // By name: prefix of the expert's number, and the names of the parts. Else: names of both, and of down.
  const char* base;
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

struct FamilyCase {
  const char* family;
  ExpertRow experts;
  std::vector<DenseRow> dense;
  const char* layers = "model.layers.";  // prefix of the checkpoint's layer names
};

std::vector<FamilyCase> Families() {
  const auto by_name = [](uint32_t layer) { return ExpertRow{Experts::kByName, layer, "mlp.experts."}; };
  const DenseRow router1 = {1, dense::kRouter, "mlp.gate.weight"};
  const DenseRow router2 = {2, dense::kRouter, "mlp.gate.weight"};
  const std::vector<DenseRow> norms = {{0, dense::kQNorm, "self_attn.q_norm.weight"},
                                       {0, dense::kKNorm, "self_attn.k_norm.weight"}};
  const std::vector<DenseRow> dense_first = {
      {0, dense::kDenseUp, "mlp.up_proj.weight"},
      {0, dense::kDenseGate, "mlp.gate_proj.weight"},
      {0, dense::kDenseDown, "mlp.down_proj.weight", As::kTransposed},
      {1, dense::kRouterCorrection, "mlp.gate.e_score_correction_bias"},
      {1, dense::kSharedGate, "mlp.shared_experts.gate_proj.weight"},
      {1, dense::kSharedDown, "mlp.shared_experts.down_proj.weight", As::kTransposed}};
  const std::vector<DenseRow> latent = {{2, dense::kKvDown, "self_attn.kv_a_proj_with_mqa.weight"},
                                        {2, dense::kKvDownNorm, "self_attn.kv_a_layernorm.weight"},
                                        {2, dense::kO, "self_attn.o_proj.weight"}};
  const auto all = [](std::vector<std::vector<DenseRow>> lists) {
    std::vector<DenseRow> rows;
    for (const std::vector<DenseRow>& list : lists) rows.insert(rows.end(), list.begin(), list.end());
    return rows;
  };
  return {{"qwen2_moe",
           by_name(1),
           {router1,
            {1, dense::kSharedUp, "mlp.shared_expert.up_proj.weight"},
            {1, dense::kSharedGate, "mlp.shared_expert.gate_proj.weight"},
            {1, dense::kSharedDown, "mlp.shared_expert.down_proj.weight", As::kTransposed},
            {1, dense::kSharedRouter, "mlp.shared_expert_gate.weight"},
            {1, dense::kQBias, "self_attn.q_proj.bias"},
            {1, dense::kKBias, "self_attn.k_proj.bias"},
            {1, dense::kVBias, "self_attn.v_proj.bias"}}},
          {"qwen3_moe", by_name(1), all({{router1}, norms})},
          {"olmoe", by_name(1), all({{router1}, norms})},
          {"glm4_moe", by_name(2), all({{router2}, dense_first})},
          {"deepseek_v2", by_name(2), all({{router2, {0, dense::kQ, "self_attn.q_proj.weight"}}, latent})},
          {"deepseek_v3", by_name(2),
           all({{router2,
                 {0, dense::kQ, "self_attn.q_b_proj.weight"},
                 {0, dense::kQDown, "self_attn.q_a_proj.weight"},
                 {0, dense::kQDownNorm, "self_attn.q_a_layernorm.weight"}},
                dense_first,
                latent})},
          {"phimoe",
           {Experts::kByName, 1, "block_sparse_moe.experts.", "w1", "w3", "w2"},
           {{1, dense::kRouter, "block_sparse_moe.gate.weight"},
            {0, dense::kAttnNormBias, "input_layernorm.bias"},
            {0, dense::kFfnNormBias, "post_attention_layernorm.bias"},
            {0, dense::kOBias, "self_attn.o_proj.bias"}}},
          {"granitemoe",
           {Experts::kFusedLines, 1, "block_sparse_moe.", "input_linear.weight", "", "output_linear.weight"},
           {{1, dense::kRouter, "block_sparse_moe.router.layer.weight"}}},
          {"gpt_oss",
           {Experts::kAlternatingColumns, 1, "mlp.experts.", "gate_up_proj", "", "down_proj"},
           {{1, dense::kExpertsDownBias, "mlp.experts.down_proj_bias"},
            {1, dense::kRouterBias, "mlp.router.bias"},
            {1, dense::kSinks, "self_attn.sinks"}}},
          {"llama4",
           {Experts::kHalves, 2, "feed_forward.experts.", "gate_up_proj", "", "down_proj"},
           {{2, dense::kSharedUp, "feed_forward.shared_expert.up_proj.weight"}}},
          {"qwen3_5_moe",
           by_name(3),
           {{3, dense::kRouter, "mlp.gate.weight"},
            {0, dense::kAttnNorm, "input_layernorm.weight", As::kPlusOne},
            {3, dense::kFfnNorm, "post_attention_layernorm.weight", As::kPlusOne},
            {3, dense::kQNorm, "self_attn.q_norm.weight", As::kPlusOne},
            {3, dense::kKNorm, "self_attn.k_norm.weight", As::kPlusOne},
            {0, dense::kDeltaQkv, "linear_attn.in_proj_qkv.weight"},
            {0, dense::kDeltaZ, "linear_attn.in_proj_z.weight"},
            {0, dense::kDeltaBeta, "linear_attn.in_proj_b.weight"},
            {0, dense::kDeltaDecay, "linear_attn.in_proj_a.weight"},
            {0, dense::kDeltaConv, "linear_attn.conv1d.weight"},
            {0, dense::kDeltaALog, "linear_attn.A_log"},
            {0, dense::kDeltaDtBias, "linear_attn.dt_bias"},
            {0, dense::kDeltaNorm, "linear_attn.norm.weight"},
            {0, dense::kO, "linear_attn.out_proj.weight"}}},
          {"dots1", by_name(1), all({norms, dense_first})},
          {"glm4_moe_lite", by_name(2), all({{router2}, latent, dense_first})},
          {"minimax_m2",
           {Experts::kByName, 1, "block_sparse_moe.experts.", "w1", "w3", "w2"},
           all({norms, {{1, dense::kRouterCorrection, "block_sparse_moe.e_score_correction_bias"}}})},
          {"ernie4_5_moe",
           by_name(2),
           {router2,
            {2, dense::kRouterCorrection, "mlp.moe_statics.e_score_correction_bias"},
            {2, dense::kSharedUp, "mlp.shared_experts.up_proj.weight"}}},
          {"mistral4",
           {Experts::kFusedLines, 1, "mlp.experts.", "gate_up_proj", "", "down_proj"},
           {router1, {0, dense::kSharedUp, "mlp.shared_experts.up_proj.weight"}}},
          {"hunyuan_v1_moe",
           by_name(1),
           {{1, dense::kRouter, "mlp.gate.wg.weight"},
            {1, dense::kSharedUp, "mlp.shared_mlp.up_proj.weight"},
            {0, dense::kQNorm, "self_attn.query_layernorm.weight"}}},
          {"afmoe",
           by_name(1),
           {{0, dense::kQGate, "self_attn.gate_proj.weight"},
            {0, dense::kAttnPostNorm, "post_attention_layernorm.weight"},
            {0, dense::kFfnNorm, "pre_mlp_layernorm.weight"},
            {3, dense::kFfnPostNorm, "post_mlp_layernorm.weight"},
            {1, dense::kRouterCorrection, "mlp.expert_bias"}}},
          {"gemma4",
           {Experts::kFusedLines, 2, "experts.", "gate_up_proj", "", "down_proj"},
           {{0, dense::kAttnPostNorm, "post_attention_layernorm.weight"},
            {0, dense::kFfnNorm, "pre_feedforward_layernorm.weight"},
            {0, dense::kFfnPostNorm, "post_feedforward_layernorm.weight"},
            {2, dense::kParallelPostNorm, "post_feedforward_layernorm_1.weight"},
            {2, dense::kExpertsPostNorm, "post_feedforward_layernorm_2.weight"},
            {2, dense::kExpertsNorm, "pre_feedforward_layernorm_2.weight"},
            {1, dense::kParallelDown, "mlp.down_proj.weight", As::kTransposed},
            {1, dense::kExpertScale, "router.per_expert_scale"},
            {1, dense::kLayerScale, "layer_scalar"}}},
          {"qwen3_vl_moe",
           {Experts::kHalves, 1, "mlp.experts.", "gate_up_proj", "", "down_proj"},
           all({{router1}, norms}),
           "model.language_model.layers."},
          {"granitemoehybrid",
           {Experts::kFusedLines, 1, "block_sparse_moe.", "input_linear.weight", "", "output_linear.weight"},
           {{1, dense::kSharedDown, "shared_mlp.output_linear.weight", As::kTransposed},
            {0, dense::kMambaConvBias, "mamba.conv1d.bias"},
            {0, dense::kMambaNorm, "mamba.norm.weight"},
            {0, dense::kMambaD, "mamba.D"}}},
          {"lfm2_moe",
           {Experts::kByName, 2, "feed_forward.experts.", "w1", "w3", "w2"},
           {{0, dense::kConvIn, "conv.in_proj.weight"},
            {0, dense::kAttnNorm, "operator_norm.weight"},
            {0, dense::kFfnNorm, "ffn_norm.weight"},
            {2, dense::kKNorm, "self_attn.k_layernorm.weight"},
            {2, dense::kO, "self_attn.out_proj.weight"}}}};
}

// A packed tiny family beside its checkpoint.
class Packed {
 public:
  explicit Packed(const std::string& family, const std::string& layers = "model.layers.")
      : layers_(layers), tensors_(ReadCheckpoint(TinyDir(family))) {
    const auto summary = PackModel(TinyDir(family), dir_.File("pack"), {}, nullptr, nullptr);
    EXPECT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(VerifyPack(dir_.File("pack"), nullptr, nullptr).ok());
    values_ = std::make_unique<PackValues>(PackValues::Of(dir_.File("pack")));
  }

  const ModelConfig& config() const { return values_->pack().config(); }
  const Tensor& Source(uint32_t layer, const std::string& name) const {
    return tensors_.at(absl::StrCat(layers_, layer, ".", name));
  }
  std::vector<float> Dense(uint32_t layer, std::string_view name) {
    return values_->Dense(dense::LayerName(layer, name));
  }
  uint32_t StreamsOf(uint32_t layer, uint32_t expert) const {
    return values_->pack().expert_extents(layer, expert).count;
  }
  std::vector<float> Expert(uint32_t layer, uint32_t expert, Part part) {
    return values_->Expert(layer, expert, part);
  }

 private:
  TempDir dir_;
  const std::string layers_;
  const Tensors tensors_;
  std::unique_ptr<PackValues> values_;
};

std::vector<float> Columns(const Tensor& tensor) {
  const size_t rows = tensor.shape[0];
  const size_t cols = tensor.shape[1];
  std::vector<float> out;
  for (size_t c = 0; c < cols; ++c) {
    for (size_t r = 0; r < rows; ++r) out.push_back(tensor.values[r * cols + c]);
  }
  return out;
}

std::vector<float> Expected(const Tensor& source, As as) {
  if (as == As::kTransposed) return Columns(source);
  std::vector<float> values = source.values;
  for (float& value : values) value += as == As::kPlusOne ? 1.0f : 0.0f;
  return values;
}

// An expert's part as the checkpoint holds it: [width, hidden], a row a neuron.
std::vector<float> ExpectedPart(const Packed& packed, const ExpertRow& row, uint32_t expert, Part part) {
  const std::string base = row.base;
  const char* const name = part == Part::kGate ? row.gate : part == Part::kUp ? row.up : row.down;
  if (row.as == Experts::kByName) {
    const Tensor& source = packed.Source(row.layer, absl::StrCat(base, expert, ".", name, ".weight"));
    return part == Part::kDown ? Columns(source) : source.values;
  }
  const uint64_t hidden = packed.config().hidden;
  const uint64_t width = packed.config().layers[row.layer].moe.expert_width;
  const std::vector<float>& values =
      packed.Source(row.layer, base + (part == Part::kDown ? row.down : row.gate)).values;
  const uint64_t up = part == Part::kUp ? 1 : 0;
  std::vector<float> out;
  for (uint64_t j = 0; j < width; ++j) {
    for (uint64_t c = 0; c < hidden; ++c) {
      uint64_t at = 0;
      if (row.as == Experts::kFusedLines) {
        at = part == Part::kDown ? (expert * hidden + c) * width + j
                                 : (expert * 2 * width + up * width + j) * hidden + c;
      } else if (part == Part::kDown) {
        at = (expert * width + j) * hidden + c;
      } else {
        at = (expert * hidden + c) * 2 * width +
             (row.as == Experts::kAlternatingColumns ? 2 * j + up : up * width + j);
      }
      out.push_back(values[at]);
    }
  }
  return out;
}

class PackFamilies : public ::testing::TestWithParam<FamilyCase> {};

TEST_P(PackFamilies, WeightsLieWhereTheirNamesSay) {
  const FamilyCase& family = GetParam();
  Packed packed(family.family, family.layers);
  for (const DenseRow& row : family.dense) {
    EXPECT_EQ(packed.Dense(row.layer, row.canonical), Expected(packed.Source(row.layer, row.source), row.as))
        << row.canonical << " of layer " << row.layer;
  }
  const uint32_t experts = packed.config().layers[family.experts.layer].moe.experts;
  ASSERT_GT(experts, 0u);
  for (uint32_t expert = 0; expert < experts; ++expert) {
    for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
      EXPECT_EQ(packed.Expert(family.experts.layer, expert, part),
                ExpectedPart(packed, family.experts, expert, part))
          << PartName(part) << " of expert " << expert;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PackFamilies, ::testing::ValuesIn(Families()),
                         [](const auto& info) { return std::string(info.param.family); });

TEST(PackFamiliesTest, LatentAttentionSplitsTheExpansionByHead) {
  const uint32_t heads = 4, nope = 16, value = 16, rank = 32;
  for (const char* family : {"deepseek_v2", "deepseek_v3"}) {
    Packed packed(family);
    const std::vector<float>& up = packed.Source(2, "self_attn.kv_b_proj.weight").values;
    const std::vector<float> k_up_t = packed.Dense(2, dense::kKUpT);
    const std::vector<float> v_up = packed.Dense(2, dense::kVUp);
    ASSERT_EQ(k_up_t.size(), heads * rank * nope);
    ASSERT_EQ(v_up.size(), heads * value * rank);
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t r = 0; r < rank; ++r) {
        for (uint32_t i = 0; i < nope; ++i) {
          ASSERT_EQ(k_up_t[(h * rank + r) * nope + i], up[(h * (nope + value) + i) * rank + r]);
        }
        for (uint32_t i = 0; i < value; ++i) {
          ASSERT_EQ(v_up[(h * value + i) * rank + r], up[(h * (nope + value) + nope + i) * rank + r]);
        }
      }
    }
  }
}

// Rows [first, first + count) of a matrix of `cols` columns.
std::vector<float> RowsOf(const Tensor& tensor, uint64_t cols, uint64_t first, uint64_t count) {
  const auto begin = tensor.values.begin() + static_cast<int64_t>(first * cols);
  return {begin, begin + static_cast<int64_t>(count * cols)};
}

TEST(PackFamiliesTest, Qwen3NextProjectionsAreUngroupedByKeyHead) {
  Packed packed("qwen3_next");
  const uint32_t heads = 2, keys = 16, sharers = 2, values = 32, hidden = 64;  // values: of a key head
  const Tensor& all = packed.Source(0, "linear_attn.in_proj_qkvz.weight");
  const Tensor& gates = packed.Source(0, "linear_attn.in_proj_ba.weight");
  std::vector<float> q, k, v, z, beta, decay;
  const auto append = [&](std::vector<float>* to, const Tensor& from, uint64_t first, uint64_t count) {
    const std::vector<float> rows = RowsOf(from, hidden, first, count);
    to->insert(to->end(), rows.begin(), rows.end());
  };
  for (uint32_t h = 0; h < heads; ++h) {
    const uint64_t first = uint64_t{h} * 2 * (keys + values);
    append(&q, all, first, keys);
    append(&k, all, first + keys, keys);
    append(&v, all, first + 2 * keys, values);
    append(&z, all, first + 2 * keys + values, values);
    append(&beta, gates, uint64_t{h} * 2 * sharers, sharers);
    append(&decay, gates, uint64_t{h} * 2 * sharers + sharers, sharers);
  }
  q.insert(q.end(), k.begin(), k.end());
  q.insert(q.end(), v.begin(), v.end());
  EXPECT_EQ(packed.Dense(0, dense::kDeltaQkv), q);
  EXPECT_EQ(packed.Dense(0, dense::kDeltaZ), z);
  EXPECT_EQ(packed.Dense(0, dense::kDeltaBeta), beta);
  EXPECT_EQ(packed.Dense(0, dense::kDeltaDecay), decay);
}

TEST(PackFamiliesTest, NemotronHPairsLayersAndStoresNoGates) {
  Packed packed("nemotron_h", "backbone.layers.");
  ASSERT_EQ(packed.config().layers.size(), 3u);
  const uint32_t hidden = 64, values = 128, conv_cols = 192;
  const Tensor& in = packed.Source(4, "mixer.in_proj.weight");  // the third mixer
  EXPECT_EQ(packed.Dense(2, dense::kMambaZ), RowsOf(in, hidden, 0, values));
  EXPECT_EQ(packed.Dense(2, dense::kMambaXbc), RowsOf(in, hidden, values, conv_cols));
  EXPECT_EQ(packed.Dense(2, dense::kMambaDt), RowsOf(in, hidden, values + conv_cols, 8));
  Tensor conv = packed.Source(0, "mixer.conv1d.weight");
  conv.shape = {conv_cols, 4};
  EXPECT_EQ(packed.Dense(0, dense::kMambaConv), Columns(conv));
  EXPECT_EQ(packed.Dense(1, dense::kAttnNorm), packed.Source(2, "norm.weight").values);
  EXPECT_EQ(packed.Dense(1, dense::kFfnNorm), packed.Source(3, "norm.weight").values);
  for (uint32_t expert = 0; expert < 12; ++expert) {
    const std::string base = absl::StrCat("mixer.experts.", expert, ".");
    const std::vector<float>& up = packed.Source(3, base + "up_proj.weight").values;
    EXPECT_EQ(packed.Expert(1, expert, Part::kUp), up);
    EXPECT_EQ(packed.Expert(1, expert, Part::kGate), up);
    EXPECT_EQ(packed.Expert(1, expert, Part::kDown), Columns(packed.Source(3, base + "down_proj.weight")));
  }
  EXPECT_EQ(packed.StreamsOf(1, 0), 2u);
}

TEST(PackFamiliesTest, Gemma4RoutersNormIsScaledByTheHiddenSize) {
  Packed packed("gemma4");
  std::vector<float> expected = packed.Source(1, "router.scale").values;
  for (float& value : expected) value *= 0.125f;  // 1 / sqrt(64)
  EXPECT_EQ(packed.Dense(1, dense::kRouterNorm), expected);
  EXPECT_EQ(packed.Dense(2, dense::kK), packed.Source(2, "self_attn.k_proj.weight").values);
}

TEST(PackFamiliesTest, GptOssBiasesAlternateBetweenGateAndUp) {
  Packed packed("gpt_oss");
  const std::vector<float>& biases = packed.Source(1, "mlp.experts.gate_up_proj_bias").values;
  const std::vector<float> gate = packed.Dense(1, dense::kExpertsGateBias);
  const std::vector<float> up = packed.Dense(1, dense::kExpertsUpBias);
  ASSERT_EQ(gate.size() + up.size(), biases.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    ASSERT_EQ(gate[i], biases[2 * i]);
    ASSERT_EQ(up[i], biases[2 * i + 1]);
  }
}

TEST(PackFamiliesTest, Qwen35MoeQueriesAndTheirGatesAreSplitByHead) {
  Packed packed("qwen3_5_moe");
  const uint32_t heads = 4, head_dim = 32, hidden = 64;
  const std::vector<float>& both = packed.Source(3, "self_attn.q_proj.weight").values;
  const std::vector<float> q = packed.Dense(3, dense::kQ);
  const std::vector<float> gate = packed.Dense(3, dense::kQGate);
  for (uint32_t h = 0; h < heads; ++h) {
    for (uint32_t i = 0; i < head_dim * hidden; ++i) {
      ASSERT_EQ(q[h * head_dim * hidden + i], both[2 * h * head_dim * hidden + i]);
      ASSERT_EQ(gate[h * head_dim * hidden + i], both[(2 * h + 1) * head_dim * hidden + i]);
    }
  }
}

}  // namespace
}  // namespace sluice
