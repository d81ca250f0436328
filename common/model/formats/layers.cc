#include "common/model/formats/layers.h"

#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/model/formats/input_layers.h"
#include "common/model/formats/layer_reads.h"
#include "common/model/formats/row_layers.h"
#include "common/model/formats/small_float.h"
#include "common/status.h"

namespace sluice {
namespace {

using Shape = std::vector<uint64_t>;

constexpr uint64_t kMxfp4Group = 32;
constexpr uint64_t kNvfp4Group = 16;

absl::Status InvalidTensor(const TensorInfo& tensor, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " (", ElementTypeName(tensor.type),
                                                 " [", absl::StrJoin(tensor.shape, ", "), "]) ", what));
}

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Gatherer: finds the tensors of one layer by the suffixes of their names. Keeps the first error.
class Gatherer {
 public:
  Gatherer(const TensorFolder& folder, const TensorInfo& codes, std::string_view suffix)
      : folder_(folder), base_(codes.name.substr(0, codes.name.size() - suffix.size())), codes_(codes) {
    used_.push_back(&codes);
  }

  const std::string& base() const { return base_; }

  const TensorInfo* Optional(const std::string& suffix) {
    const TensorInfo* tensor = folder_.Find(base_ + suffix);
    if (tensor != nullptr) used_.push_back(tensor);
    return tensor;
  }
  const TensorInfo* Need(const std::string& suffix) {
    const TensorInfo* tensor = Optional(suffix);
    if (tensor == nullptr) Keep(InvalidTensor(codes_, absl::StrCat("has no ", base_, suffix, " beside it")));
    return tensor == nullptr ? &codes_ : tensor;
  }
  const TensorInfo* NeedScales(const std::string& suffix) {
    const TensorInfo* tensor = Need(suffix);
    if (!IsScaleType(tensor->type)) Keep(InvalidTensor(*tensor, "has a type that is no scale's"));
    return tensor;
  }
  // Returns an optional word tensor of this shape.
  const TensorInfo* OptionalWords(const std::string& suffix, const Shape& shape) {
    const TensorInfo* tensor = Optional(suffix);
    if (tensor != nullptr) Expect(*tensor, ElementType::kI32, shape);
    return tensor;
  }
  void Expect(const TensorInfo& tensor, ElementType type, const Shape& shape) {
    if (tensor.type != type || tensor.shape != shape) {
      Keep(InvalidTensor(
          tensor, absl::StrCat("should be ", ElementTypeName(type), " [", absl::StrJoin(shape, ", "), "]")));
    }
  }
  void Require(bool condition, const TensorInfo& tensor, const std::string& what) {
    if (!condition) Keep(InvalidTensor(tensor, what));
  }
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  const absl::Status& status() const { return status_; }

  LayerParts Finish(const std::string& suffix, const Shape& shape, const char* format,
                    std::unique_ptr<QuantizedLayer> layer) {
    LayerParts parts;
    parts.tensor.name = base_ + suffix;
    parts.tensor.shape = shape;
    parts.tensor.type = ElementType::kF32;
    parts.tensor.format = format;
    parts.tensor.decoded = true;
    parts.layer = std::move(layer);
    parts.used = std::move(used_);
    return parts;
  }

 private:
  const TensorFolder& folder_;
  const std::string base_;
  const TensorInfo& codes_;
  std::vector<const TensorInfo*> used_;
  absl::Status status_;
};

// Returns the number of values per scale for `size` values in `scales` parts, or 0 if the config's `wanted`
// (0: any divisor) does not fit.
uint64_t BlockOf(uint64_t size, uint64_t scales, uint64_t wanted) {
  if (scales == 0) return 0;
  if (scales == 1) return std::max<uint64_t>(size, 1);
  if (wanted != 0) return CeilDiv(size, wanted) == scales ? wanted : 0;
  return size % scales == 0 ? size / scales : 0;
}

// Makes a layer of P.weight F8_E4M3 with P.weight_scale_inv, or compressed-tensors' P.weight_scale.
absl::StatusOr<LayerParts> Fp8Of(const TensorFolder& folder, const Quantization& quantization,
                                 const TensorInfo& codes) {
  constexpr std::string_view kSuffix = ".weight";
  Gatherer gather(folder, codes, kSuffix);
  const bool inverse = folder.Find(gather.base() + ".weight_scale_inv") != nullptr;
  const TensorInfo* scales = gather.NeedScales(inverse ? ".weight_scale_inv" : ".weight_scale");
  gather.Require(codes.shape.size() == 2, codes, "is no matrix");
  RETURN_IF_ERROR(gather.status());
  Shape by = scales->shape;  // one scale, one per row, or one per block
  while (by.size() < 2) by.push_back(1);
  Fp8BlockLayer::Parts parts{.codes = &codes, .scales = scales, .cols = codes.shape[1]};
  parts.block_rows = BlockOf(codes.shape[0], by[0], quantization.block_rows);
  parts.block_cols = BlockOf(codes.shape[1], by[1], quantization.block_cols);
  gather.Require(by.size() == 2 && parts.block_rows != 0 && parts.block_cols != 0, *scales,
                 absl::StrCat("does not fit ", codes.name, " [", absl::StrJoin(codes.shape, ", "),
                              "] in blocks of ", quantization.block_rows, " x ", quantization.block_cols));
  RETURN_IF_ERROR(gather.status());
  return gather.Finish(".weight", codes.shape, "F8_E4M3", std::make_unique<Fp8BlockLayer>(folder, parts));
}

// Returns the true shape of a packed layer; it is read from a tensor, because padding can make the words'
// shape differ.
absl::StatusOr<Shape> PackedShape(const TensorFolder& folder, const TensorInfo& codes,
                                  const TensorInfo& shape) {
  uint64_t dims[2] = {};
  if (shape.shape == Shape{2} && shape.type == ElementType::kI64) {
    RETURN_IF_ERROR(folder.Read(shape, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(dims), 16)));
  } else if (shape.shape == Shape{2} && shape.type == ElementType::kI32) {
    uint32_t narrow[2] = {};
    RETURN_IF_ERROR(folder.Read(shape, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(narrow), 8)));
    dims[0] = narrow[0];
    dims[1] = narrow[1];
  }
  if (codes.shape.size() != 2 || dims[0] != codes.shape[0] || dims[1] == 0 ||
      CeilDiv(dims[1], 8) != codes.shape[1]) {
    return InvalidTensor(codes,
                         absl::StrCat("does not hold the [", dims[0], ", ", dims[1], "] of ", shape.name));
  }
  return Shape{dims[0], dims[1]};
}

// Makes a layer of P.weight_packed I32 [out, in / 8] with P.weight_scale [out, groups], P.weight_shape and,
// for asymmetric layers, P.weight_zero_point I32 [out / 8, groups].
absl::StatusOr<LayerParts> PackedInt4Of(const TensorFolder& folder, const TensorInfo& codes) {
  Gatherer gather(folder, codes, ".weight_packed");
  const TensorInfo* scales = gather.NeedScales(".weight_scale");
  const TensorInfo* true_shape = gather.Need(".weight_shape");
  RETURN_IF_ERROR(gather.status());
  ASSIGN_OR_RETURN(const Shape shape, PackedShape(folder, codes, *true_shape));
  if (folder.Find(gather.base() + ".weight_g_idx") != nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", gather.base(),
                     ".weight_g_idx: groups of reordered inputs are not supported; "
                     "pack a folder that was quantized without activation ordering"));
  }
  gather.Require(scales->shape.size() == 2 && scales->shape[0] == shape[0], *scales, "has other rows");
  RETURN_IF_ERROR(gather.status());
  NibbleLayer::Parts parts{.codes = &codes, .scales = scales, .values = kInt4Values};
  parts.row_bytes = 4 * codes.shape[1];
  parts.groups = scales->shape[1];
  parts.group = BlockOf(shape[1], parts.groups, 0);
  parts.zeros = gather.OptionalWords(".weight_zero_point", {CeilDiv(shape[0], 8), parts.groups});
  gather.Require(parts.group != 0, *scales, absl::StrCat("does not divide rows of ", shape[1]));
  RETURN_IF_ERROR(gather.status());
  return gather.Finish(".weight", shape, "INT4", std::make_unique<NibbleLayer>(folder, parts));
}

// Makes a layer of rows of E2M1 codes in groups of `group` values per scale; `suffix` ends the codes' name.
absl::StatusOr<LayerParts> Fp4Of(const TensorFolder& folder, const TensorInfo& codes,
                                 std::string_view suffix) {
  Gatherer gather(folder, codes, suffix);
  const TensorInfo* scales = gather.NeedScales(".weight_scale");
  gather.Require(codes.type == ElementType::kU8 && codes.shape.size() == 2, codes, "is no matrix of codes");
  RETURN_IF_ERROR(gather.status());
  const bool mxfp4 = scales->type == ElementType::kU8;
  const Shape shape = {codes.shape[0], 2 * codes.shape[1]};
  NibbleLayer::Parts parts{.codes = &codes, .scales = scales, .values = kE2m1Values};
  parts.row_bytes = codes.shape[1];
  parts.group = mxfp4 ? kMxfp4Group : kNvfp4Group;
  parts.groups = CeilDiv(shape[1], parts.group);
  gather.Expect(*scales, mxfp4 ? ElementType::kU8 : ElementType::kF8E4m3, {shape[0], parts.groups});
  if (!mxfp4) {
    // compressed-tensors stores the inverse of modelopt's scale.
    parts.divides = suffix == ".weight_packed";
    const TensorInfo* all = gather.NeedScales(parts.divides ? ".weight_global_scale" : ".weight_scale_2");
    gather.Require(all->bytes == ElementBytes(all->type), *all, "is not one value");
    parts.layer_scale = all;
  }
  RETURN_IF_ERROR(gather.status());
  LayerParts result = gather.Finish(".weight", shape, mxfp4 ? "MXFP4" : "NVFP4",
                                    std::make_unique<NibbleLayer>(folder, parts));
  // Products of a power of two and an E2M1 value fit bf16.
  if (mxfp4) result.tensor.type = ElementType::kBf16;
  result.tensor.mxfp4 = mxfp4 && shape[1] % kMxfp4Group == 0;
  return result;
}

// Makes a layer of P_blocks U8 [.., groups, 16] with P_scales U8 [.., groups].
absl::StatusOr<LayerParts> BlocksOf(const TensorFolder& folder, const TensorInfo& codes) {
  Gatherer gather(folder, codes, "_blocks");
  const TensorInfo* scales = gather.Need("_scales");
  RETURN_IF_ERROR(gather.status());
  Shape shape = codes.shape;
  gather.Require(codes.type == ElementType::kU8 && shape.size() >= 3 && shape.back() == kMxfp4Group / 2,
                 codes, "is no tensor of MXFP4 blocks");
  RETURN_IF_ERROR(gather.status());
  shape.pop_back();
  gather.Expect(*scales, ElementType::kU8, shape);
  RETURN_IF_ERROR(gather.status());
  NibbleLayer::Parts parts{.codes = &codes, .scales = scales, .values = kE2m1Values};
  parts.groups = shape.back();
  parts.group = kMxfp4Group;
  parts.row_bytes = parts.groups * (kMxfp4Group / 2);
  shape.back() *= kMxfp4Group;
  LayerParts result = gather.Finish("", shape, "MXFP4", std::make_unique<NibbleLayer>(folder, parts));
  result.tensor.type = ElementType::kBf16;
  result.tensor.mxfp4 = true;
  return result;
}

// Makes a layer of P.qweight with P.qzeros I32 [groups, out / 8], P.scales [groups, out], and GPTQ's P.g_idx
// [in].
absl::StatusOr<LayerParts> InputsOf(const TensorFolder& folder, const Quantization& quantization,
                                    const TensorInfo& codes) {
  Gatherer gather(folder, codes, ".qweight");
  const bool awq = quantization.method == QuantMethod::kAwq;
  const TensorInfo* scales = gather.NeedScales(".scales");
  gather.Require(codes.shape.size() == 2 && codes.type == ElementType::kI32, codes, "is no matrix of words");
  gather.Require(scales->shape.size() == 2 && scales->shape[0] > 0, *scales, "is no matrix");
  RETURN_IF_ERROR(gather.status());
  InputMajorLayer::Parts parts{.awq = awq, .codes = &codes, .scales = scales};
  parts.inputs = codes.shape[0] * (awq ? 1 : 8);
  parts.outputs = codes.shape[1] * (awq ? 8 : 1);
  parts.groups = scales->shape[0];
  parts.group = quantization.group != 0 ? quantization.group : parts.inputs;
  gather.Require(scales->shape[1] == parts.outputs && CeilDiv(parts.inputs, parts.group) == parts.groups,
                 *scales,
                 absl::StrCat("does not fit ", parts.outputs, " outputs of ", parts.inputs,
                              " inputs in groups of ", parts.group));
  gather.Require(parts.outputs % 8 == 0, codes, "has outputs that are no multiple of 8");
  const Shape zeros = {parts.groups, parts.outputs / 8};
  if (awq) {
    gather.Need(".qzeros");
  } else {
    parts.group_of = gather.OptionalWords(".g_idx", {parts.inputs});
    parts.zero_offset = quantization.zeros_minus_one ? 1 : 0;
  }
  const TensorInfo* stored_zeros = gather.OptionalWords(".qzeros", zeros);
  // Folders differ in their stored zeros of symmetric layers; the true zeros are the same.
  parts.zeros = awq || !quantization.symmetric ? stored_zeros : nullptr;
  gather.Require(quantization.symmetric || stored_zeros != nullptr, codes, "has no .qzeros beside it");
  RETURN_IF_ERROR(gather.status());
  LayerParts result = gather.Finish(".weight", {parts.outputs, parts.inputs}, awq ? "AWQ" : "GPTQ",
                                    std::make_unique<InputMajorLayer>(folder, parts));
  result.tensor.by_columns = true;
  return result;
}

}  // namespace

bool IsActivationScale(const Quantization& quantization, const TensorInfo& tensor) {
  if (quantization.method == QuantMethod::kNone) return false;
  for (const char* suffix : {".input_scale", ".input_global_scale", ".activation_scale", ".k_scale",
                             ".v_scale", ".q_scale", ".output_scale"}) {
    if (absl::EndsWith(tensor.name, suffix) && tensor.shape.size() <= 1) return true;
  }
  return false;
}

absl::StatusOr<LayerParts> FindQuantizedLayer(const TensorFolder& folder, const Quantization& quantization,
                                              const TensorInfo& codes) {
  const auto is = [&](const char* suffix) { return absl::EndsWith(codes.name, suffix); };
  const bool has_fp8 = is(".weight") && codes.type == ElementType::kF8E4m3;
  switch (quantization.method) {
    case QuantMethod::kNone:
      break;
    case QuantMethod::kFp8:
      if (has_fp8) return Fp8Of(folder, quantization, codes);
      break;
    case QuantMethod::kCompressedTensors:
      if (has_fp8) return Fp8Of(folder, quantization, codes);
      if (is(".weight_packed") && codes.type == ElementType::kI32) return PackedInt4Of(folder, codes);
      if (is(".weight_packed")) return Fp4Of(folder, codes, ".weight_packed");
      break;
    case QuantMethod::kModelopt:
      if (is(".weight") && codes.type == ElementType::kU8) return Fp4Of(folder, codes, ".weight");
      break;
    case QuantMethod::kAwq:
    case QuantMethod::kGptq:
      if (is(".qweight")) return InputsOf(folder, quantization, codes);
      break;
    case QuantMethod::kMxfp4:
      if (is("_blocks")) return BlocksOf(folder, codes);
      break;
  }
  return LayerParts{};
}

}  // namespace sluice
