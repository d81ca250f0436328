#include "common/model/formats/row_layers.h"

#include <algorithm>
#include <cmath>

#include "common/model/formats/layer_reads.h"
#include "common/model/formats/small_float.h"
#include "common/status.h"

namespace sluice {

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

}  // namespace sluice
