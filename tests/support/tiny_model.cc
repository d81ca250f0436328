#include "tests/support/tiny_model.h"

#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "common/base/file_io.h"
#include "common/base/half.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

// splitmix64: the same numbers on every machine and library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  float Normal() {
    const double u = (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53;
    const double v = (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53;
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
  }

 private:
  uint64_t state_;
};

uint64_t NameSeed(const std::string& name, uint64_t seed) {
  uint64_t hash = seed * 0x100000001b3ull + 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return hash;
}

float Round(float value, ElementType type) {
  if (type == ElementType::kBf16) return Bf16ToFloat(FloatToBf16(value));
  if (type == ElementType::kF16) return F16ToFloat(FloatToF16(value));
  return value;
}

uint32_t HeadDim(const TinyModelSpec& spec) {
  return spec.head_dim != 0 ? spec.head_dim : spec.hidden / spec.heads;
}

// Every tensor's numbers come from its name, so that no tensor depends on the others.
TinyTensor Matrix(const TinyModelSpec& spec, const std::string& name, uint64_t rows, uint64_t cols) {
  Random random(NameSeed(name, spec.seed));
  const float scale = 1.0f / std::sqrt(static_cast<float>(cols));
  TinyTensor tensor{{rows, cols}, {}};
  for (uint64_t i = 0; i < rows * cols; ++i)
    tensor.values.push_back(Round(random.Normal() * scale, spec.type));
  return tensor;
}

TinyTensor Norm(const TinyModelSpec& spec, const std::string& name) {
  Random random(NameSeed(name, spec.seed));
  TinyTensor tensor{{spec.hidden}, {}};
  for (uint64_t i = 0; i < spec.hidden; ++i) {
    tensor.values.push_back(Round(1.0f + 0.1f * random.Normal(), spec.type));
  }
  return tensor;
}

void AppendValues(const TinyTensor& from, TinyTensor* to) {
  to->values.insert(to->values.end(), from.values.begin(), from.values.end());
}

void AddExperts(const TinyModelSpec& spec, const std::string& layer, TinyTensors* tensors) {
  TinyTensor gate_up{{spec.experts, 2 * spec.width, spec.hidden}, {}};
  TinyTensor downs{{spec.experts, spec.hidden, spec.width}, {}};
  for (uint32_t e = 0; e < spec.experts; ++e) {
    const std::string base = absl::StrCat(layer, "block_sparse_moe.experts.", e, ".");
    TinyTensor gate = Matrix(spec, base + "w1.weight", spec.width, spec.hidden);
    TinyTensor up = Matrix(spec, base + "w3.weight", spec.width, spec.hidden);
    TinyTensor down = Matrix(spec, base + "w2.weight", spec.hidden, spec.width);
    if (spec.stacked_experts) {
      AppendValues(gate, &gate_up);
      AppendValues(up, &gate_up);
      AppendValues(down, &downs);
    } else {
      (*tensors)[base + "w1.weight"] = std::move(gate);
      (*tensors)[base + "w3.weight"] = std::move(up);
      (*tensors)[base + "w2.weight"] = std::move(down);
    }
  }
  TinyTensor router = Matrix(spec, layer + "block_sparse_moe.gate.weight", spec.experts, spec.hidden);
  if (spec.stacked_experts) {
    (*tensors)[layer + "mlp.experts.gate_up_proj"] = std::move(gate_up);
    (*tensors)[layer + "mlp.experts.down_proj"] = std::move(downs);
    (*tensors)[layer + "mlp.gate.weight"] = std::move(router);
  } else {
    (*tensors)[layer + "block_sparse_moe.gate.weight"] = std::move(router);
  }
}

std::string ShardName(uint32_t shard, uint32_t shards) {
  const auto five = [](uint32_t n) {
    const std::string digits = std::to_string(n);
    return std::string(5 - digits.size(), '0') + digits;
  };
  return absl::StrCat("model-", five(shard + 1), "-of-", five(shards), ".safetensors");
}

absl::Status WriteShards(const TinyModelSpec& spec, const TinyTensors& tensors, const std::string& dir) {
  std::vector<TinyTensors> shards(spec.shards);
  json weight_map = json::object();
  uint32_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint32_t shard = next++ % spec.shards;
    shards[shard][name] = tensor;
    weight_map[name] = ShardName(shard, spec.shards);
  }
  for (uint32_t i = 0; i < spec.shards; ++i) {
    RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(dir, "/", ShardName(i, spec.shards)),
                                     SafetensorsBytes(shards[i], spec.type)));
  }
  const json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", std::move(weight_map)}};
  return WriteFileDurably(absl::StrCat(dir, "/model.safetensors.index.json"), index.dump(2));
}

}  // namespace

TinyTensors MakeTinyTensors(const TinyModelSpec& spec) {
  TinyTensors tensors;
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols) {
    tensors[name] = Matrix(spec, name, rows, cols);
  };
  const uint64_t q_rows = uint64_t{spec.heads} * HeadDim(spec);
  const uint64_t kv_rows = uint64_t{spec.kv_heads} * HeadDim(spec);
  matrix("model.embed_tokens.weight", spec.vocab, spec.hidden);
  for (uint32_t l = 0; l < spec.layers; ++l) {
    const std::string layer = absl::StrCat("model.layers.", l, ".");
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
      tensors[layer + norm] = Norm(spec, layer + norm);
    }
    matrix(layer + "self_attn.q_proj.weight", q_rows, spec.hidden);
    matrix(layer + "self_attn.k_proj.weight", kv_rows, spec.hidden);
    matrix(layer + "self_attn.v_proj.weight", kv_rows, spec.hidden);
    matrix(layer + "self_attn.o_proj.weight", spec.hidden, q_rows);
    AddExperts(spec, layer, &tensors);
  }
  tensors["model.norm.weight"] = Norm(spec, "model.norm.weight");
  if (!spec.tied) matrix("lm_head.weight", spec.vocab, spec.hidden);
  return tensors;
}

std::string TinyConfigJson(const TinyModelSpec& spec) {
  const char* dtype = spec.type == ElementType::kBf16  ? "bfloat16"
                      : spec.type == ElementType::kF16 ? "float16"
                                                       : "float32";
  json config = {{"architectures", {"MixtralForCausalLM"}},
                 {"model_type", "mixtral"},
                 {"vocab_size", spec.vocab},
                 {"hidden_size", spec.hidden},
                 {"intermediate_size", spec.width},
                 {"num_hidden_layers", spec.layers},
                 {"num_attention_heads", spec.heads},
                 {"num_key_value_heads", spec.kv_heads},
                 {"num_local_experts", spec.experts},
                 {"num_experts_per_tok", spec.top_k},
                 {"max_position_embeddings", spec.max_position},
                 {"rms_norm_eps", 1e-5},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", spec.tied},
                 {"bos_token_id", 1}};
  config["head_dim"] = spec.head_dim != 0 ? json(spec.head_dim) : json();
  config["sliding_window"] = spec.sliding_window != 0 ? json(spec.sliding_window) : json();
  config["eos_token_id"] = spec.eos.size() == 1 ? json(spec.eos[0]) : json(spec.eos);
  if (spec.new_config) {
    config["rope_parameters"] = {{"rope_theta", spec.rope_theta}, {"rope_type", "default"}};
    config["dtype"] = dtype;
  } else {
    config["rope_theta"] = spec.rope_theta;
    config["rope_scaling"] = nullptr;
    config["torch_dtype"] = dtype;
  }
  return config.dump(2);
}

std::string SafetensorsBytes(const TinyTensors& tensors, ElementType type) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    for (const float value : tensor.values) {
      uint32_t bits = 0;
      if (type == ElementType::kF32) {
        std::memcpy(&bits, &value, sizeof(bits));
      } else {
        bits = type == ElementType::kBf16 ? FloatToBf16(value) : FloatToF16(value);
      }
      data.append(reinterpret_cast<const char*>(&bits), ElementBytes(type));
    }
    header[name] = {
        {"dtype", ElementTypeName(type)}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + data;
}

absl::Status WriteModelFiles(const TinyModelSpec& spec, const TinyTensors& tensors,
                             const std::string& config_json, const std::string& dir) {
  mkdir(dir.c_str(), 0755);
  RETURN_IF_ERROR(WriteFileDurably(dir + "/config.json", config_json));
  RETURN_IF_ERROR(WriteFileDurably(dir + "/generation_config.json", R"({"bos_token_id": 1})"));
  if (spec.shards > 1) return WriteShards(spec, tensors, dir);
  return WriteFileDurably(dir + "/model.safetensors", SafetensorsBytes(tensors, spec.type));
}

absl::Status WriteTinyModel(const TinyModelSpec& spec, const std::string& dir) {
  return WriteModelFiles(spec, MakeTinyTensors(spec), TinyConfigJson(spec), dir);
}

}  // namespace sluice
