// Quantized layers: reads of codes and scales, layers output-major (FP8, INT4, MXFP4, NVFP4) and
// input-major (AWQ, GPTQ), and the search for the tensors of a layer.

#include "common/model/quantized_layers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/model/safetensors.h"
#include "common/model/small_float.h"

namespace sluice {

// Reads of parts of the tensors that make up a quantized layer.
//
// Private to common/model. Thread safety: free functions.

// Reads bytes [first, first + count) of each of `lines` lines of `line_bytes` from line `line` on, without
// gaps.
absl::Status ReadLineBytes(const TensorFolder& folder, const TensorInfo& tensor, uint64_t line_bytes,
                           uint64_t line, uint64_t lines, uint64_t first, uint64_t count,
                           std::vector<uint8_t>* out);

// Reads values [first, first + count) of a tensor of scales: BF16, F16, F32, F8_E4M3, or U8 for powers of
// two.
absl::Status ReadScales(const TensorFolder& folder, const TensorInfo& tensor, uint64_t first, uint64_t count,
                        std::vector<float>* out);

// True if ReadScales supports the type.
bool IsScaleType(ElementType type);

// Layers stored output-major: F8_E4M3 values with a scale per block, and four-bit codes in groups along a row
// (int4, MXFP4, NVFP4).
//
// Private to common/model. Thread safety: immutable after construction.

// Codes are F8_E4M3 [rows, cols]; a value is its code times the scale of its block.
class Fp8BlockLayer final : public QuantizedLayer {
 public:
  struct Parts {
    const TensorInfo* codes = nullptr;
    const TensorInfo* scales = nullptr;  // [ceil(rows / block_rows), ceil(cols / block_cols)]
    uint64_t cols = 0;
    uint64_t block_rows = 0;
    uint64_t block_cols = 0;
  };
  Fp8BlockLayer(const TensorFolder& folder, const Parts& parts) : folder_(folder), parts_(parts) {}
  absl::Status Read(const TensorRect& rect, absl::Span<float> out) const override;

 private:
  const TensorFolder& folder_;
  const Parts parts_;
};

// Two codes a byte, the even column in the low half. A value is (values[code] - zero) times the scale of its
// group and of the layer.
class NibbleLayer final : public QuantizedLayer {
 public:
  struct Parts {
    const TensorInfo* codes = nullptr;   // `row_bytes` a row
    const TensorInfo* scales = nullptr;  // [rows, groups]
    const TensorInfo* zeros = nullptr;   // [ceil(rows / 8), groups] words of eight rows' zeros; null: none
    const TensorInfo* layer_scale = nullptr;  // one value; null: none
    bool divides = false;                     // true: divide by the layer's scale
    uint64_t row_bytes = 0;
    uint64_t groups = 0;
    uint64_t group = 0;             // values of a row that share a scale
    const float* values = nullptr;  // [16], by code; int4 codes are the values plus 8
  };
  NibbleLayer(const TensorFolder& folder, const Parts& parts) : folder_(folder), parts_(parts) {}
  absl::Status Read(const TensorRect& rect, absl::Span<float> out) const override;

 private:
  absl::Status ReadZeros(const TensorRect& rect, std::vector<float>* zeros) const;
  absl::StatusOr<float> LayerScale() const;

  const TensorFolder& folder_;
  const Parts parts_;
};

// Values of int4 codes.
inline constexpr float kInt4Values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

// Layers stored input-major: AWQ and GPTQ, four-bit codes in 32-bit words, a zero and a scale for each output
// and group of inputs. A line is one input's weights for all outputs.
//
// Private to common/model. Thread safety: immutable after construction.

class InputMajorLayer final : public QuantizedLayer {
 public:
  struct Parts {
    bool awq = false;  // words hold eight outputs, interleaved; otherwise (GPTQ) eight inputs, in order
    const TensorInfo* codes = nullptr;     // I32: AWQ [inputs, outputs / 8], GPTQ [inputs / 8, outputs]
    const TensorInfo* zeros = nullptr;     // I32 [groups, outputs / 8]; null: 8 for all
    const TensorInfo* scales = nullptr;    // [groups, outputs]
    const TensorInfo* group_of = nullptr;  // I32 [inputs]; null: input / group
    uint64_t inputs = 0;
    uint64_t outputs = 0;
    uint64_t groups = 0;
    uint64_t group = 0;
    uint32_t zero_offset = 0;  // added to stored zeros
  };
  InputMajorLayer(const TensorFolder& folder, const Parts& parts) : folder_(folder), parts_(parts) {}
  absl::Status Read(const TensorRect& rect, absl::Span<float> out) const override;

 private:
  absl::Status ReadGroupsOf(const TensorRect& rect, std::vector<uint64_t>* groups) const;
  // Reads scales and zeros of one group for the rect's outputs.
  absl::Status ReadGroup(uint64_t group, const TensorRect& rect, std::vector<float>* scales,
                         std::vector<float>* zeros) const;
  // Reads the codes of input `line` for the rect's outputs; `words` caches the words that the next line
  // shares.
  absl::Status ReadCodes(uint64_t line, const TensorRect& rect, std::vector<uint8_t>* words,
                         uint64_t* words_line) const;
  uint32_t CodeOf(uint64_t line, uint64_t output, const TensorRect& rect,
                  const std::vector<uint8_t>& words) const;

  const TensorFolder& folder_;
  const Parts parts_;
};

absl::Status ReadLineBytes(const TensorFolder& folder, const TensorInfo& tensor, uint64_t line_bytes,
                           uint64_t line, uint64_t lines, uint64_t first, uint64_t count,
                           std::vector<uint8_t>* out) {
  out->resize(lines * count);
  const absl::Span<std::byte> bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(out->data()), out->size());
  if (count == line_bytes) return folder.Read(tensor, line * line_bytes, bytes);
  for (uint64_t i = 0; i < lines; ++i) {
    RETURN_IF_ERROR(folder.Read(tensor, (line + i) * line_bytes + first, bytes.subspan(i * count, count)));
  }
  return absl::OkStatus();
}

bool IsScaleType(ElementType type) {
  return type == ElementType::kBf16 || type == ElementType::kF16 || type == ElementType::kF32 ||
         type == ElementType::kF8E4m3 || type == ElementType::kU8;
}

absl::Status ReadScales(const TensorFolder& folder, const TensorInfo& tensor, uint64_t first, uint64_t count,
                        std::vector<float>* out) {
  const uint64_t width = ElementBytes(tensor.type);
  std::vector<uint8_t> raw(count * width);
  RETURN_IF_ERROR(folder.Read(tensor, first * width,
                              absl::MakeSpan(reinterpret_cast<std::byte*>(raw.data()), raw.size())));
  out->resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t half = 0;
    switch (tensor.type) {
      case ElementType::kF32:
        std::memcpy(&(*out)[i], raw.data() + 4 * i, 4);
        break;
      case ElementType::kBf16:
        std::memcpy(&half, raw.data() + 2 * i, 2);
        (*out)[i] = Bf16ToFloat(half);
        break;
      case ElementType::kF16:
        std::memcpy(&half, raw.data() + 2 * i, 2);
        (*out)[i] = F16ToFloat(half);
        break;
      case ElementType::kF8E4m3:
        (*out)[i] = E4m3ToFloat(raw[i]);
        break;
      case ElementType::kU8:
        (*out)[i] = E8m0ToFloat(raw[i]);
        break;
      default:
        return absl::InternalError(absl::StrCat(tensor.name, ": no type of scales"));
    }
  }
  return absl::OkStatus();
}

absl::Status Fp8BlockLayer::Read(const TensorRect& rect, absl::Span<float> out) const {
  std::vector<uint8_t> codes;
  RETURN_IF_ERROR(ReadLineBytes(folder_, *parts_.codes, parts_.cols, rect.line, rect.lines, rect.column,
                                rect.columns, &codes));
  const uint64_t scale_cols = (parts_.cols + parts_.block_cols - 1) / parts_.block_cols;
  const uint64_t first_band = rect.line / parts_.block_rows;
  const uint64_t bands = (rect.line + rect.lines - 1) / parts_.block_rows - first_band + 1;
  std::vector<float> scales;
  RETURN_IF_ERROR(ReadScales(folder_, *parts_.scales, first_band * scale_cols, bands * scale_cols, &scales));
  for (uint64_t i = 0; i < rect.lines; ++i) {
    const float* const row = scales.data() + ((rect.line + i) / parts_.block_rows - first_band) * scale_cols;
    const uint8_t* const code = codes.data() + i * rect.columns;
    float* const to = out.data() + i * rect.columns;
    for (uint64_t c = 0; c < rect.columns;) {
      const uint64_t block = (rect.column + c) / parts_.block_cols;
      const uint64_t end = std::min(rect.columns, (block + 1) * parts_.block_cols - rect.column);
      ScaleE4m3({code + c, end - c}, row[block], to + c);
      c = end;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<float> NibbleLayer::LayerScale() const {
  if (parts_.layer_scale == nullptr) return 1.0f;
  std::vector<float> value;
  RETURN_IF_ERROR(ReadScales(folder_, *parts_.layer_scale, 0, 1, &value));
  if (!std::isfinite(value[0]) || value[0] == 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", parts_.layer_scale->name, " holds ", value[0]));
  }
  return value[0];
}

// Reads the zeros of the rect's lines, [lines][groups]: a word holds those of eight lines.
absl::Status NibbleLayer::ReadZeros(const TensorRect& rect, std::vector<float>* zeros) const {
  const uint64_t first = rect.line / 8;
  const uint64_t words = (rect.line + rect.lines - 1) / 8 - first + 1;
  std::vector<uint8_t> raw;
  RETURN_IF_ERROR(
      ReadLineBytes(folder_, *parts_.zeros, 4 * parts_.groups, first, words, 0, 4 * parts_.groups, &raw));
  zeros->resize(rect.lines * parts_.groups);
  for (uint64_t i = 0; i < rect.lines; ++i) {
    const uint64_t line = rect.line + i;
    for (uint64_t g = 0; g < parts_.groups; ++g) {
      const uint8_t byte = raw[((line / 8 - first) * parts_.groups + g) * 4 + line % 8 / 2];
      (*zeros)[i * parts_.groups + g] = parts_.values[line % 2 == 0 ? byte & 15 : byte >> 4];
    }
  }
  return absl::OkStatus();
}

absl::Status NibbleLayer::Read(const TensorRect& rect, absl::Span<float> out) const {
  const uint64_t first_byte = rect.column / 2;
  const uint64_t bytes = (rect.column + rect.columns + 1) / 2 - first_byte;
  std::vector<uint8_t> codes;
  RETURN_IF_ERROR(ReadLineBytes(folder_, *parts_.codes, parts_.row_bytes, rect.line, rect.lines, first_byte,
                                bytes, &codes));
  std::vector<float> scales;
  RETURN_IF_ERROR(
      ReadScales(folder_, *parts_.scales, rect.line * parts_.groups, rect.lines * parts_.groups, &scales));
  ASSIGN_OR_RETURN(const float layer_scale, LayerScale());
  std::vector<float> zeros;
  if (parts_.zeros != nullptr) RETURN_IF_ERROR(ReadZeros(rect, &zeros));
  for (uint64_t i = 0; i < rect.lines; ++i) {
    const uint8_t* const row = codes.data() + i * bytes;
    float* const to = out.data() + i * rect.columns;
    for (uint64_t c = 0; c < rect.columns;) {
      const uint64_t group = (rect.column + c) / parts_.group;
      const uint64_t end = std::min(rect.columns, (group + 1) * parts_.group - rect.column);
      float scale = scales[i * parts_.groups + group];
      if (parts_.layer_scale != nullptr) scale = parts_.divides ? scale / layer_scale : scale * layer_scale;
      const float zero = zeros.empty() ? 0 : zeros[i * parts_.groups + group];
      for (; c < end; ++c) {
        const uint8_t byte = row[(rect.column + c) / 2 - first_byte];
        const float value = parts_.values[(rect.column + c) % 2 == 0 ? byte & 15 : byte >> 4];
        // Subtracting a zero of 0 would lose the sign of a negative zero.
        to[c] = (zeros.empty() ? value : value - zero) * scale;
      }
    }
  }
  return absl::OkStatus();
}

namespace {

constexpr uint64_t kPerWord = 8;
constexpr uint64_t kNoLine = ~uint64_t{0};
constexpr float kMiddle = 8;  // the zero of symmetric layers
// AWQ: nibble of a word that holds output k of its eight (nibble i holds output 0, 2, 4, 6, 1, 3, 5, 7 [i]).
constexpr uint32_t kAwqNibble[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};

// Returns nibble `n` of the word at `bytes`.
uint32_t Nibble(const uint8_t* bytes, uint32_t n) {
  return n % 2 == 0 ? bytes[n / 2] & 15u : bytes[n / 2] >> 4;
}

}  // namespace

absl::Status InputMajorLayer::ReadGroupsOf(const TensorRect& rect, std::vector<uint64_t>* groups) const {
  groups->resize(rect.lines);
  std::vector<uint8_t> raw;
  if (parts_.group_of != nullptr) {
    RETURN_IF_ERROR(ReadLineBytes(folder_, *parts_.group_of, 4 * parts_.inputs, 0, 1, 4 * rect.line,
                                  4 * rect.lines, &raw));
  }
  for (uint64_t i = 0; i < rect.lines; ++i) {
    int32_t group = 0;
    if (parts_.group_of == nullptr) {
      (*groups)[i] = (rect.line + i) / parts_.group;
      continue;
    }
    std::memcpy(&group, raw.data() + 4 * i, 4);
    if (group < 0 || static_cast<uint64_t>(group) >= parts_.groups) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", parts_.group_of->name, " holds ", group,
                                                     " at [", rect.line + i, "]; there are ", parts_.groups,
                                                     " groups"));
    }
    (*groups)[i] = static_cast<uint64_t>(group);
  }
  return absl::OkStatus();
}

absl::Status InputMajorLayer::ReadGroup(uint64_t group, const TensorRect& rect, std::vector<float>* scales,
                                        std::vector<float>* zeros) const {
  RETURN_IF_ERROR(
      ReadScales(folder_, *parts_.scales, group * parts_.outputs + rect.column, rect.columns, scales));
  zeros->assign(rect.columns, kMiddle);
  if (parts_.zeros == nullptr) return absl::OkStatus();
  const uint64_t first_word = rect.column / kPerWord;
  const uint64_t words = (rect.column + rect.columns + kPerWord - 1) / kPerWord - first_word;
  std::vector<uint8_t> raw;
  RETURN_IF_ERROR(
      ReadLineBytes(folder_, *parts_.zeros, parts_.outputs / 2, group, 1, 4 * first_word, 4 * words, &raw));
  for (uint64_t c = 0; c < rect.columns; ++c) {
    const uint64_t output = rect.column + c;
    const uint32_t in_word = static_cast<uint32_t>(output % kPerWord);
    const uint32_t stored =
        Nibble(raw.data() + 4 * (output / kPerWord - first_word), parts_.awq ? kAwqNibble[in_word] : in_word);
    (*zeros)[c] = static_cast<float>(stored + parts_.zero_offset);
  }
  return absl::OkStatus();
}

absl::Status InputMajorLayer::ReadCodes(uint64_t line, const TensorRect& rect, std::vector<uint8_t>* words,
                                        uint64_t* words_line) const {
  const uint64_t stored = parts_.awq ? line : line / kPerWord;
  if (stored == *words_line) return absl::OkStatus();
  *words_line = stored;
  const uint64_t line_words = parts_.awq ? parts_.outputs / kPerWord : parts_.outputs;
  const uint64_t first = parts_.awq ? rect.column / kPerWord : rect.column;
  const uint64_t count =
      parts_.awq ? (rect.column + rect.columns + kPerWord - 1) / kPerWord - first : rect.columns;
  return ReadLineBytes(folder_, *parts_.codes, 4 * line_words, stored, 1, 4 * first, 4 * count, words);
}

uint32_t InputMajorLayer::CodeOf(uint64_t line, uint64_t output, const TensorRect& rect,
                                 const std::vector<uint8_t>& words) const {
  if (parts_.awq) {
    return Nibble(words.data() + 4 * (output / kPerWord - rect.column / kPerWord),
                  kAwqNibble[output % kPerWord]);
  }
  return Nibble(words.data() + 4 * (output - rect.column), static_cast<uint32_t>(line % kPerWord));
}

absl::Status InputMajorLayer::Read(const TensorRect& rect, absl::Span<float> out) const {
  std::vector<uint64_t> groups;
  RETURN_IF_ERROR(ReadGroupsOf(rect, &groups));
  std::vector<float> scales;
  std::vector<float> zeros;
  std::vector<uint8_t> words;
  uint64_t words_line = kNoLine;
  for (uint64_t i = 0; i < rect.lines; ++i) {
    if (i == 0 || groups[i] != groups[i - 1]) RETURN_IF_ERROR(ReadGroup(groups[i], rect, &scales, &zeros));
    RETURN_IF_ERROR(ReadCodes(rect.line + i, rect, &words, &words_line));
    float* const to = out.data() + i * rect.columns;
    for (uint64_t c = 0; c < rect.columns; ++c) {
      const uint32_t code = CodeOf(rect.line + i, rect.column + c, rect, words);
      to[c] = (static_cast<float>(code) - zeros[c]) * scales[c];
    }
  }
  return absl::OkStatus();
}

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
