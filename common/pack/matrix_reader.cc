#include "common/pack/matrix_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "common/half.h"
#include "common/status.h"

namespace sluice {
namespace {

// Widens `count` elements at `raw`; exact for all three types.
void Widen(ElementType type, const std::byte* raw, size_t count, float* out) {
  if (type == ElementType::kF32) {
    std::memcpy(out, raw, count * sizeof(float));
    return;
  }
  const bool bf16 = type == ElementType::kBf16;
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, raw + 2 * i, 2);
    out[i] = bf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
  }
}

bool IsFinite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u; }

bool AllFinite(absl::Span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  return largest < 0x7f800000u;
}

// Names the first value that is not finite: its place in the whole tensor, from its flat element number.
absl::Status NotFinite(const TensorFolder& folder, const TensorInfo& tensor, uint64_t element, float value) {
  std::string index;
  for (size_t dim = tensor.shape.size(); dim-- > 0; element /= tensor.shape[dim]) {
    index = absl::StrCat(element % tensor.shape[dim], index.empty() ? "" : ", ", index);
  }
  return absl::InvalidArgumentError(absl::StrCat(folder.files()[tensor.file].path(), ": tensor ", tensor.name,
                                                 " holds ", std::isnan(value) ? "NaN" : "Inf", " at [", index,
                                                 "]"));
}

}  // namespace

absl::Status StraightReader::Next(uint32_t count, absl::Span<float> out) {
  const TensorInfo& tensor = *matrix_.tensor;
  const uint64_t values = static_cast<uint64_t>(count) * matrix_.cols;
  const uint64_t element_bytes = ElementBytes(tensor.type);
  const uint64_t offset = matrix_.offset + next_row_ * matrix_.cols * element_bytes;
  raw_.resize(values * element_bytes);
  RETURN_IF_ERROR(folder_.Read(tensor, offset, absl::MakeSpan(raw_)));
  hasher_.Update(absl::MakeConstSpan(raw_));
  Widen(tensor.type, raw_.data(), values, out.data());
  if (!AllFinite(out.first(values))) {
    const auto bad = std::find_if_not(out.begin(), out.end(), IsFinite);
    return NotFinite(folder_, tensor, offset / element_bytes + static_cast<uint64_t>(bad - out.begin()),
                     *bad);
  }
  next_row_ += count;
  return absl::OkStatus();
}

absl::Status TransposedReader::Load() {
  const uint64_t element_bytes = ElementBytes(matrix_.tensor->type);
  raw_.resize(static_cast<uint64_t>(matrix_.rows) * matrix_.cols * element_bytes);
  RETURN_IF_ERROR(folder_.Read(*matrix_.tensor, matrix_.offset, absl::MakeSpan(raw_)));
  digest_ = DigestOf(absl::MakeConstSpan(raw_));
  return absl::OkStatus();
}

absl::Status TransposedReader::Next(uint32_t count, absl::Span<float> out) {
  // A tile of 16 source columns by all rows: 16 values are a cache line of the source's 16-bit types or two,
  // and 16 destination rows stay in the first-level cache's associativity.
  constexpr uint32_t kTile = 16;
  const TensorInfo& tensor = *matrix_.tensor;
  const uint64_t element_bytes = ElementBytes(tensor.type);
  float line[kTile];
  for (uint32_t first = 0; first < count; first += kTile) {
    const uint32_t width = std::min(kTile, count - first);
    for (uint64_t row = 0; row < matrix_.rows; ++row) {
      const uint64_t element = row * matrix_.cols + next_column_ + first;
      Widen(tensor.type, raw_.data() + element * element_bytes, width, line);
      for (uint32_t i = 0; i < width; ++i) {
        if (!IsFinite(line[i])) {
          return NotFinite(folder_, tensor, matrix_.offset / element_bytes + element + i, line[i]);
        }
        out[static_cast<uint64_t>(first + i) * matrix_.rows + row] = line[i];
      }
    }
  }
  next_column_ += count;
  return absl::OkStatus();
}

}  // namespace sluice
