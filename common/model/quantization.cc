#include "common/model/quantization.h"

#include "common/base/json_reader.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxGroup = 1 << 20;
constexpr char kInstead[] =
    "; pack the model's bf16 folder, or one quantized as fp8, AWQ, GPTQ, MXFP4, NVFP4 or compressed-tensors";

absl::Status Refused(const JsonObject& object, std::string_view key) {
  const json* value = object.Find(key);
  return absl::UnimplementedError(absl::StrCat(object.subject(), ": ", std::string(key), " ",
                                               value == nullptr ? "(absent)" : JsonExcerpt(*value),
                                               " is not supported", kInstead));
}

// Requires the member, or `fallback` if it is absent, to be one of `words`.
absl::Status OneOf(const JsonObject& object, std::string_view key, const char* fallback,
                   absl::Span<const std::string_view> words) {
  const absl::StatusOr<std::string> value = object.StringOr(key, fallback);
  if (!value.ok()) return value.status();
  for (const std::string_view word : words) {
    if (*value == word) return absl::OkStatus();
  }
  return Refused(object, key);
}

absl::Status RequireNumber(const JsonObject& object, std::string_view key, uint64_t number) {
  ASSIGN_OR_RETURN(const uint64_t value, object.UintOr(key, 0, kMaxGroup, number));
  return value == number ? absl::OkStatus() : Refused(object, key);
}

// Activation schemes select kernels; they do not change weights.
absl::StatusOr<Quantization> ReadFp8(const JsonObject& object) {
  Quantization result{.method = QuantMethod::kFp8};
  RETURN_IF_ERROR(OneOf(object, "fmt", "e4m3", {"e4m3", "float8_e4m3fn"}));
  if (!object.Has("weight_block_size")) return result;
  ASSIGN_OR_RETURN(const json* block, object.Array("weight_block_size"));
  if (block->size() != 2 || !(*block)[0].is_number_unsigned() || !(*block)[1].is_number_unsigned()) {
    return object.Error("weight_block_size", "is not two whole numbers");
  }
  const uint64_t rows = (*block)[0].get<uint64_t>();
  const uint64_t cols = (*block)[1].get<uint64_t>();
  if (rows == 0 || cols == 0 || rows > kMaxGroup || cols > kMaxGroup) {
    return object.Error("weight_block_size", absl::StrCat("is [", rows, ", ", cols, "]"));
  }
  result.block_rows = static_cast<uint32_t>(rows);
  result.block_cols = static_cast<uint32_t>(cols);
  return result;
}

// Checks the weights of one config group: four bits as int or float, or floats of eight. The tensors
// determine the rest of their layout.
absl::Status CheckGroup(const JsonObject& group) {
  if (!group.Has("weights")) return Refused(group, "weights");
  ASSIGN_OR_RETURN(const JsonObject weights, group.Object("weights"));
  RETURN_IF_ERROR(OneOf(weights, "type", "int", {"int", "float"}));
  ASSIGN_OR_RETURN(const uint64_t bits, weights.UintOr("num_bits", 1, 64, 8));
  const bool is_float = weights.Has("type") && *weights.Find("type") == "float";
  if (bits != 4 && !(is_float && bits == 8)) return Refused(weights, "num_bits");
  return absl::OkStatus();
}

absl::Status CheckFormat(const JsonObject& object) {
  return OneOf(object, "format", "pack-quantized",
               {"pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "float-quantized",
                "mixed-precision"});
}

absl::StatusOr<Quantization> ReadCompressedTensors(const JsonObject& object) {
  RETURN_IF_ERROR(CheckFormat(object));
  RETURN_IF_ERROR(OneOf(object, "quantization_status", "compressed", {"compressed"}));
  if (object.Has("sparsity_config")) {
    ASSIGN_OR_RETURN(const JsonObject sparsity, object.Object("sparsity_config"));
    if (!sparsity.value().empty()) RETURN_IF_ERROR(OneOf(sparsity, "format", "dense", {"dense"}));
  }
  if (object.Has("transform_config")) {
    ASSIGN_OR_RETURN(const JsonObject transform, object.Object("transform_config"));
    if (!transform.value().empty()) return Refused(object, "transform_config");
  }
  ASSIGN_OR_RETURN(const JsonObject groups, object.Object("config_groups"));
  for (const auto& [name, value] : groups.value().items()) {
    ASSIGN_OR_RETURN(const JsonObject group,
                     JsonObject::Of(value, absl::StrCat(groups.subject(), ": ", name.substr(0, 60))));
    RETURN_IF_ERROR(CheckFormat(group));
    RETURN_IF_ERROR(CheckGroup(group));
  }
  return Quantization{.method = QuantMethod::kCompressedTensors};
}

absl::StatusOr<Quantization> ReadModelopt(const JsonObject& object) {
  RETURN_IF_ERROR(OneOf(object, "quant_algo", "", {"NVFP4", "W4A16_NVFP4"}));
  RETURN_IF_ERROR(RequireNumber(object, "group_size", 16));
  return Quantization{.method = QuantMethod::kModelopt};
}

// -1 is one group for all inputs.
absl::Status ReadGroupSize(const JsonObject& object, uint32_t* group) {
  const json* value = object.Find("group_size");
  if (value != nullptr && *value == -1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint64_t size, object.UintOr("group_size", 1, kMaxGroup, 128));
  *group = static_cast<uint32_t>(size);
  return absl::OkStatus();
}

absl::StatusOr<Quantization> ReadAwq(const JsonObject& object) {
  Quantization result{.method = QuantMethod::kAwq};
  RETURN_IF_ERROR(RequireNumber(object, "bits", 4));
  RETURN_IF_ERROR(OneOf(object, "version", "gemm", {"gemm", "GEMM"}));
  ASSIGN_OR_RETURN(const bool zeros, object.BoolOr("zero_point", true));
  if (!zeros) return Refused(object, "zero_point");
  RETURN_IF_ERROR(ReadGroupSize(object, &result.group));
  return result;
}

absl::StatusOr<Quantization> ReadGptq(const JsonObject& object) {
  Quantization result{.method = QuantMethod::kGptq};
  RETURN_IF_ERROR(RequireNumber(object, "bits", 4));
  RETURN_IF_ERROR(OneOf(object, "pack_dtype", "int32", {"int32"}));
  RETURN_IF_ERROR(OneOf(object, "checkpoint_format", "gptq", {"gptq", "gptq_v2"}));
  result.zeros_minus_one = !object.Has("checkpoint_format") || *object.Find("checkpoint_format") == "gptq";
  ASSIGN_OR_RETURN(result.symmetric, object.BoolOr("sym", false));
  RETURN_IF_ERROR(ReadGroupSize(object, &result.group));
  if (!object.Has("dynamic")) return result;
  ASSIGN_OR_RETURN(const JsonObject dynamic, object.Object("dynamic"));
  for (const auto& [rule, value] : dynamic.value().items()) {
    // "-:" excludes modules, which is visible from their tensors; any other rule gives modules other numbers.
    if (!rule.starts_with("-:")) return Refused(dynamic, rule);
  }
  return result;
}

}  // namespace

absl::StatusOr<Quantization> ReadQuantization(const JsonObject& config) {
  if (!config.Has("quantization_config")) return Quantization{};
  ASSIGN_OR_RETURN(const JsonObject object, config.Object("quantization_config"));
  using Reader = absl::StatusOr<Quantization> (*)(const JsonObject& object);
  const auto mxfp4 = [](const JsonObject&) -> absl::StatusOr<Quantization> {
    return Quantization{.method = QuantMethod::kMxfp4};
  };
  const std::pair<const char*, Reader> kMethods[] = {
      {"fp8", &ReadFp8},           {"compressed-tensors", &ReadCompressedTensors},
      {"modelopt", &ReadModelopt}, {"modelopt_fp4", &ReadModelopt},
      {"awq", &ReadAwq},           {"gptq", &ReadGptq},
      {"mxfp4", +mxfp4},
  };
  for (const auto& [method, read] : kMethods) {
    if (object.Has("quant_method") && *object.Find("quant_method") == method) return read(object);
  }
  return Refused(object, "quant_method");
}

absl::StatusOr<Quantization> ParseModeloptQuantization(std::string_view text, const std::string& subject) {
  ASSIGN_OR_RETURN(const json root, ParseJson(text, subject));
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, subject));
  ASSIGN_OR_RETURN(const JsonObject quantization, object.Object("quantization"));
  return ReadModelopt(quantization);
}

}  // namespace sluice
