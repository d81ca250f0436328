#include "pack/writer/matrix_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "common/half.h"
#include "common/status.h"
#include "pack/mxfp4_row.h"

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

// The integer comparison of bits has no branch in the loop and becomes vector code. It holds because the bits
// of positive floats are ordered as their values are, with Inf and NaN above them.
bool AllFinite(absl::Span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  return largest < 0x7f800000u;
}

// Names a value that is not finite: its place in the whole tensor, from its flat element number.
absl::Status NotFinite(const TensorFolder& folder, const SourceMatrix& matrix, uint64_t element,
                       float value) {
  const TensorInfo& tensor = *matrix.tensor;
  std::string index;
  if (matrix.scales != nullptr) {
    index = absl::StrCat("value ", element);
  } else {
    for (size_t dim = tensor.shape.size(); dim-- > 0; element /= tensor.shape[dim]) {
      index = absl::StrCat(element % tensor.shape[dim], index.empty() ? "" : ", ", index);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(folder.files()[tensor.file].path(), ": tensor ", tensor.name,
                                                 " holds ", std::isnan(value) ? "NaN" : "Inf", " at [", index,
                                                 "]"));
}

// Where the values wanted do not follow each other, a read takes this many bytes of the source, the gaps
// included: a few system calls a MiB instead of one for each line.
constexpr uint64_t kSpanBytes = 1 << 20;

// The element type that lines are kept in: the source's own, or for MXFP4 bf16, which holds each of its
// values exactly at half the memory of float32.
ElementType KeptType(const SourceMatrix& matrix) {
  return matrix.scales != nullptr ? ElementType::kBf16 : matrix.tensor->type;
}

uint64_t ElementOf(const SourceMatrix& matrix, uint32_t block, uint64_t line) {
  return matrix.first + block * matrix.block_stride + line * matrix.line_stride;
}

// Reads lines of a matrix, packed.
class LineReader {
 public:
  LineReader(const TensorFolder& folder, const SourceMatrix& matrix) : folder_(folder), matrix_(matrix) {}

  // Lines [first, first + count) of `block` into `out`, without what lies between their values.
  absl::Status Read(uint32_t block, uint32_t first, uint32_t count, std::byte* out) {
    if (matrix_.scales != nullptr) return ReadMxfp4(block, first, count, out);
    const uint64_t bytes = ElementBytes(matrix_.tensor->type);
    const uint64_t line_bytes = matrix_.length * bytes;
    const bool dense = matrix_.step == 1 && matrix_.line_stride == matrix_.length;
    if (dense) {
      RETURN_IF_ERROR(folder_.Read(*matrix_.tensor, ElementOf(matrix_, block, first) * bytes,
                                   absl::MakeSpan(out, count * line_bytes)));
    } else {
      const uint64_t at_once = std::clamp<uint64_t>(kSpanBytes / (matrix_.line_stride * bytes), 1, count);
      for (uint32_t done = 0; done < count; done += static_cast<uint32_t>(at_once)) {
        const uint32_t lines = static_cast<uint32_t>(std::min<uint64_t>(at_once, count - done));
        RETURN_IF_ERROR(Gather(block, first + done, lines, out + done * line_bytes));
      }
    }
    // The source's digest goes over the values alone, as they are read, so that it does not depend on how a
    // checkpoint arranges them in files.
    hasher_.Update(absl::MakeConstSpan(out, count * line_bytes));
    return absl::OkStatus();
  }

  Digest128 digest() const { return hasher_.Finish(); }

 private:
  absl::Status Gather(uint32_t block, uint32_t first, uint32_t count, std::byte* out) {
    const uint64_t bytes = ElementBytes(matrix_.tensor->type);
    const uint64_t line_span = (matrix_.length - 1) * uint64_t{matrix_.step} + 1;
    span_.resize(((count - 1) * matrix_.line_stride + line_span) * bytes);
    RETURN_IF_ERROR(
        folder_.Read(*matrix_.tensor, ElementOf(matrix_, block, first) * bytes, absl::MakeSpan(span_)));
    for (uint32_t line = 0; line < count; ++line) {
      const std::byte* from = span_.data() + line * matrix_.line_stride * bytes;
      for (uint32_t i = 0; i < matrix_.length; ++i, out += bytes, from += matrix_.step * bytes) {
        std::memcpy(out, from, bytes);
      }
    }
    return absl::OkStatus();
  }

  // Codes are taken to bf16, which holds every E2M1 value times a power of two exactly.
  absl::Status ReadMxfp4(uint32_t block, uint32_t first, uint32_t count, std::byte* out) {
    const uint32_t groups = matrix_.length / kMxfp4BlockValues;
    span_.resize(groups * kMxfp4BlockBytes);
    scale_bytes_.resize(groups);
    for (uint32_t line = first; line < first + count; ++line) {
      const uint64_t element = ElementOf(matrix_, block, line);
      RETURN_IF_ERROR(folder_.Read(*matrix_.tensor, element / 2, absl::MakeSpan(span_)));
      RETURN_IF_ERROR(
          folder_.Read(*matrix_.scales, element / kMxfp4BlockValues, absl::MakeSpan(scale_bytes_)));
      hasher_.Update(absl::MakeConstSpan(span_));
      hasher_.Update(absl::MakeConstSpan(scale_bytes_));
      for (uint32_t i = 0; i < matrix_.length; ++i, out += sizeof(uint16_t)) {
        const uint8_t pair = static_cast<uint8_t>(span_[i / 2]);
        const int scale = static_cast<uint8_t>(scale_bytes_[i / kMxfp4BlockValues]);
        const uint16_t bits = FloatToBf16(Mxfp4Value(i % 2 == 0 ? pair & 15 : pair >> 4, scale));
        std::memcpy(out, &bits, sizeof(bits));
      }
    }
    return absl::OkStatus();
  }

  const TensorFolder& folder_;
  const SourceMatrix matrix_;
  std::vector<std::byte> span_;
  std::vector<std::byte> scale_bytes_;
  Hasher128 hasher_;
};

// Rows as they stand in the source. Memory: the rows of one call.
class StraightReader final : public RowReader {
 public:
  StraightReader(const TensorFolder& folder, const SourceMatrix& matrix)
      : folder_(folder), matrix_(matrix), lines_(folder, matrix) {}

  absl::Status Next(uint32_t count, absl::Span<float> out) override {
    const ElementType type = KeptType(matrix_);
    while (count > 0) {
      const uint32_t block = next_row_ / matrix_.lines;
      const uint32_t line = next_row_ % matrix_.lines;
      const uint32_t rows = std::min(count, matrix_.lines - line);
      const uint64_t values = uint64_t{rows} * matrix_.length;
      raw_.resize(values * ElementBytes(type));
      RETURN_IF_ERROR(lines_.Read(block, line, rows, raw_.data()));
      const absl::Span<float> to = out.first(values);
      Widen(type, raw_.data(), values, to.data());
      if (!AllFinite(to)) {
        const auto bad = std::find_if_not(to.begin(), to.end(), IsFinite);
        const uint64_t at = static_cast<uint64_t>(bad - to.begin());
        return NotFinite(
            folder_, matrix_,
            ElementOf(matrix_, block, line + at / matrix_.length) + at % matrix_.length * matrix_.step, *bad);
      }
      if (matrix_.add != 0) {
        for (float& value : to) value += matrix_.add;
      }
      next_row_ += rows;
      count -= rows;
      out.remove_prefix(values);
    }
    return absl::OkStatus();
  }

  Digest128 digest() const override { return lines_.digest(); }

 private:
  const TensorFolder& folder_;
  const SourceMatrix matrix_;
  LineReader lines_;
  uint32_t next_row_ = 0;
  std::vector<std::byte> raw_;
};

// Columns of the source as rows. Memory: one block of the matrix, while its rows are read.
class TransposedReader final : public RowReader {
 public:
  TransposedReader(const TensorFolder& folder, const SourceMatrix& matrix)
      : folder_(folder), matrix_(matrix), lines_(folder, matrix) {}

  absl::Status Next(uint32_t count, absl::Span<float> out) override {
    while (count > 0) {
      if (next_column_ == 0) {
        raw_.resize(MatrixMemory(matrix_));
        RETURN_IF_ERROR(lines_.Read(block_, 0, matrix_.lines, raw_.data()));
      }
      const uint32_t rows = std::min(count, matrix_.length - next_column_);
      RETURN_IF_ERROR(Turn(rows, out));
      next_column_ += rows;
      count -= rows;
      out.remove_prefix(uint64_t{rows} * matrix_.lines);
      if (next_column_ == matrix_.length) {
        next_column_ = 0;
        // clear() would keep the memory, which is the largest that a worker has.
        if (++block_ == matrix_.blocks) std::vector<std::byte>().swap(raw_);
      }
    }
    return absl::OkStatus();
  }

  Digest128 digest() const override { return lines_.digest(); }

 private:
  absl::Status Turn(uint32_t count, absl::Span<float> out) {
    // A tile of 16 source columns by all lines: 16 values are a cache line of the source's 16-bit types or
    // two, and 16 destination rows stay in the first-level cache's associativity.
    constexpr uint32_t kTile = 16;
    const ElementType type = KeptType(matrix_);
    const uint64_t element_bytes = ElementBytes(type);
    float tile[kTile];
    for (uint32_t first = 0; first < count; first += kTile) {
      const uint32_t width = std::min(kTile, count - first);
      for (uint64_t line = 0; line < matrix_.lines; ++line) {
        const uint64_t at = line * matrix_.length + next_column_ + first;
        Widen(type, raw_.data() + at * element_bytes, width, tile);
        for (uint32_t i = 0; i < width; ++i) {
          if (!IsFinite(tile[i])) {
            const uint64_t column = next_column_ + first + i;
            return NotFinite(folder_, matrix_, ElementOf(matrix_, block_, line) + column * matrix_.step,
                             tile[i]);
          }
          // A sum with 0 would lose the sign of a negative zero.
          const float value = matrix_.add == 0 ? tile[i] : tile[i] + matrix_.add;
          out[static_cast<uint64_t>(first + i) * matrix_.lines + line] = value;
        }
      }
    }
    return absl::OkStatus();
  }

  const TensorFolder& folder_;
  const SourceMatrix matrix_;
  LineReader lines_;
  uint32_t block_ = 0;
  uint32_t next_column_ = 0;
  std::vector<std::byte> raw_;  // [lines][length] of the block
};

}  // namespace

std::unique_ptr<RowReader> MakeRowReader(const TensorFolder& folder, const SourceMatrix& matrix) {
  if (matrix.transposed) return std::make_unique<TransposedReader>(folder, matrix);
  return std::make_unique<StraightReader>(folder, matrix);
}

uint64_t MatrixMemory(const SourceMatrix& matrix) {
  return matrix.transposed ? uint64_t{matrix.lines} * matrix.length * ElementBytes(KeptType(matrix)) : 0;
}

const char* SourceTypeName(const SourceMatrix& matrix) {
  return matrix.scales != nullptr ? "MXFP4" : ElementTypeName(matrix.tensor->type);
}

}  // namespace sluice
