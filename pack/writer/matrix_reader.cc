#include "pack/writer/matrix_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "common/base/encoding.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/base/vector_clones.h"

namespace sluice {
namespace {

// Converts whole numbers; those that are not below 2^24 become Inf, which the reader refuses.
template <typename Int>
void FloatsOf(const std::byte* raw, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) {
    Int value = 0;
    std::memcpy(&value, raw + sizeof(Int) * i, sizeof(Int));
    const bool exact = value > -(Int{1} << 24) && value < (Int{1} << 24);
    out[i] = exact ? static_cast<float>(value) : std::numeric_limits<float>::infinity();
  }
}

// Widens `count` elements at `raw`; exact for all three types of values.
SLUICE_VECTOR_CLONES
void Widen(ElementType type, const std::byte* raw, size_t count, float* out) {
  if (type == ElementType::kF32) {
    std::memcpy(out, raw, count * sizeof(float));
    return;
  }
  if (type == ElementType::kI64) return FloatsOf<int64_t>(raw, count, out);
  if (type == ElementType::kI32) return FloatsOf<int32_t>(raw, count, out);
  const bool bf16 = type == ElementType::kBf16;
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, raw + 2 * i, 2);
    out[i] = bf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
  }
}

bool IsFinite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u; }

// The integer comparison of bits has no branch in the loop and becomes vector code. It is correct because the
// bits of positive floats are ordered as their values are, with Inf and NaN above them.
SLUICE_VECTOR_CLONES
bool AllFinite(absl::Span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  return largest < 0x7f800000u;
}

// Names a value that is not finite: its position in the whole tensor, from its flat element number.
absl::Status NotFinite(const Checkpoint& checkpoint, const SourceMatrix& matrix, uint64_t element,
                       float value) {
  const CheckpointTensor& tensor = *matrix.tensor;
  std::vector<uint64_t> shape = tensor.shape;
  if (tensor.by_columns) std::swap(shape[0], shape[1]);
  std::vector<uint64_t> index(shape.size());
  for (size_t dim = shape.size(); dim-- > 0; element /= shape[dim]) index[dim] = element % shape[dim];
  if (tensor.by_columns) std::swap(index[0], index[1]);
  return absl::InvalidArgumentError(absl::StrCat(checkpoint.PathOf(tensor), ": tensor ", tensor.name,
                                                 " holds ", std::isnan(value) ? "NaN" : "Inf", " at [",
                                                 absl::StrJoin(index, ", "), "]"));
}

// Applies the map to every value. A sum with 0 would lose the sign of a negative zero.
void Adjust(const SourceMatrix& matrix, absl::Span<float> values) {
  if (matrix.scale != 1) {
    for (float& value : values) value *= matrix.scale;
  }
  if (matrix.add != 0) {
    for (float& value : values) value += matrix.add;
  }
}

// Values that one read takes: a MiB as float32, a decoder's working set beside its output.
constexpr uint64_t kSpanValues = 256 * 1024;

// Bytes of a block's columns that a reader of decoded tensors keeps: a strip, read from every line in turn.
constexpr uint64_t kStripBytes = 16ull << 20;
// Strips begin at block boundaries of every format.
constexpr uint64_t kStripColumns = 256;

uint64_t ElementOf(const SourceMatrix& matrix, uint32_t block, uint64_t line) {
  return matrix.first + block * matrix.block_stride + line * matrix.line_stride;
}

// Columns of a transposed matrix that are kept at once. Plain tensors are kept whole: their digest follows
// the source's lines.
uint32_t StripColumns(const SourceMatrix& matrix) {
  if (!matrix.tensor->decoded) return matrix.length;
  const uint64_t line_bytes = uint64_t{matrix.lines} * ElementBytes(matrix.tensor->type);
  const uint64_t columns = kStripBytes / line_bytes / kStripColumns * kStripColumns;
  return static_cast<uint32_t>(std::min<uint64_t>(matrix.length, std::max(columns, kStripColumns)));
}

// Copies columns of kLines lines, `stride` apart, to rows `row_stride` apart.
template <uint32_t kLines>
void TurnTile(const float* lines, uint32_t stride, uint32_t width, uint64_t row_stride, float* out) {
  for (uint32_t column = 0; column < width; ++column) {
    for (uint32_t i = 0; i < kLines; ++i) out[column * row_stride + i] = lines[i * stride + column];
  }
}

// Reads lines of a matrix, packed.
class LineReader {
 public:
  LineReader(const Checkpoint& checkpoint, const SourceMatrix& matrix)
      : checkpoint_(checkpoint), matrix_(matrix), width_(ElementBytes(matrix.tensor->type)) {}

  // Reads values [column, column + columns) of lines [first, first + count) of `block` into `out`, without
  // the values between them.
  absl::Status Read(uint32_t block, uint32_t first, uint32_t count, uint32_t column, uint32_t columns,
                    std::byte* out) {
    const uint64_t line_bytes = columns * width_;
    const uint64_t span = (columns - 1) * uint64_t{matrix_.step} + 1;
    const uint64_t at_once = std::clamp<uint64_t>(kSpanValues / span, 1, count);
    for (uint64_t done = 0; done < count;) {
      // Adjacent lines of the tensor are one read.
      const bool adjacent = matrix_.line_stride == matrix_.tensor->line_length();
      const uint64_t lines = adjacent ? std::min(at_once, count - done) : 1;
      RETURN_IF_ERROR(ReadLines(ElementOf(matrix_, block, first + done) + column * uint64_t{matrix_.step},
                                lines, span, out + done * line_bytes));
      done += lines;
    }
    // The source's digest covers the values alone, as they are read, so that it does not depend on a
    // checkpoint's arrangement in files.
    if (!matrix_.tensor->decoded) hasher_.Update(absl::MakeConstSpan(out, count * line_bytes));
    return absl::OkStatus();
  }

  // Reads the blocks of lines [first, first + count) of `block`, which a read of their values would span.
  absl::Status ReadBlocks(uint32_t block, uint32_t first, uint32_t count, absl::Span<CodeBlock> out) {
    const uint64_t length = matrix_.tensor->line_length();
    const uint64_t of_line = matrix_.length / ValuesPerBlock(matrix_.tensor->blocks);
    for (uint32_t done = 0; done < count; ++done) {
      const uint64_t element = ElementOf(matrix_, block, first + done);
      const TensorRect rect{
          .line = element / length, .lines = 1, .column = element % length, .columns = matrix_.length};
      RETURN_IF_ERROR(checkpoint_.ReadBlocks(*matrix_.tensor, rect, out.subspan(done * of_line, of_line)));
    }
    return absl::OkStatus();
  }

  // Reads the rows made of decoded values.
  void AddRows(absl::Span<const float> rows) {
    if (!matrix_.tensor->decoded) return;
    hasher_.Update(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(rows.data()), rows.size() * sizeof(float)));
  }

  Digest128 digest() const { return hasher_.Finish(); }

 private:
  // Reads `span` values from `element` on, of `lines` lines of the tensor; keeps every step-th.
  absl::Status ReadLines(uint64_t element, uint64_t lines, uint64_t span, std::byte* out) {
    const uint64_t length = matrix_.tensor->line_length();
    const TensorRect rect{
        .line = element / length, .lines = lines, .column = element % length, .columns = span};
    if (matrix_.step == 1) {
      return checkpoint_.Read(*matrix_.tensor, rect, absl::MakeSpan(out, lines * span * width_));
    }
    span_.resize(lines * span * width_);
    RETURN_IF_ERROR(checkpoint_.Read(*matrix_.tensor, rect, absl::MakeSpan(span_)));
    for (uint64_t line = 0; line < lines; ++line) {
      const std::byte* const from = span_.data() + line * span * width_;
      for (uint64_t i = 0; i < span; i += matrix_.step, out += width_) {
        std::memcpy(out, from + i * width_, width_);
      }
    }
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const SourceMatrix matrix_;
  const uint64_t width_;  // bytes of a value
  std::vector<std::byte> span_;
  Hasher128 hasher_;
};

// Rows stored as lines of the source. Memory: the rows of one call.
class StraightReader final : public RowReader {
 public:
  StraightReader(const Checkpoint& checkpoint, const SourceMatrix& matrix)
      : checkpoint_(checkpoint), matrix_(matrix), lines_(checkpoint, matrix) {}

  absl::Status Next(uint32_t count, absl::Span<float> out) override {
    return Read(count, out, [&](uint32_t block, uint32_t line, uint32_t rows, absl::Span<float> to) {
      const ElementType type = matrix_.tensor->type;
      if (type == ElementType::kF32) {
        return lines_.Read(block, line, rows, 0, matrix_.length, reinterpret_cast<std::byte*>(to.data()));
      }
      raw_.resize(to.size() * ElementBytes(type));
      RETURN_IF_ERROR(lines_.Read(block, line, rows, 0, matrix_.length, raw_.data()));
      Widen(type, raw_.data(), to.size(), to.data());
      return absl::OkStatus();
    });
  }

  absl::Status NextBlocks(uint32_t count, absl::Span<float> out, absl::Span<CodeBlock> blocks) override {
    const Encoding encoding = matrix_.tensor->blocks;
    const uint32_t block_values = ValuesPerBlock(encoding);
    return Read(count, out, [&](uint32_t block, uint32_t line, uint32_t rows, absl::Span<float> to) {
      const absl::Span<CodeBlock> read = blocks.first(to.size() / block_values);
      blocks.remove_prefix(read.size());
      RETURN_IF_ERROR(lines_.ReadBlocks(block, line, rows, read));
      for (size_t b = 0; b < read.size(); ++b) DecodeCodeBlock(encoding, read[b], &to[b * block_values]);
      return absl::OkStatus();
    });
  }

  Digest128 digest() const override { return lines_.digest(); }

 private:
  // Reads the next `count` rows; fill(block, first line, lines, values) reads lines of one block.
  template <typename Fill>
  absl::Status Read(uint32_t count, absl::Span<float> out, const Fill& fill) {
    while (count > 0) {
      const uint32_t block = next_row_ / matrix_.lines;
      const uint32_t line = next_row_ % matrix_.lines;
      const uint32_t rows = std::min(count, matrix_.lines - line);
      const uint64_t values = uint64_t{rows} * matrix_.length;
      const absl::Span<float> to = out.first(values);
      RETURN_IF_ERROR(fill(block, line, rows, to));
      if (!AllFinite(to)) {
        const auto bad = std::find_if_not(to.begin(), to.end(), IsFinite);
        const uint64_t at = static_cast<uint64_t>(bad - to.begin());
        return NotFinite(
            checkpoint_, matrix_,
            ElementOf(matrix_, block, line + at / matrix_.length) + at % matrix_.length * matrix_.step, *bad);
      }
      Adjust(matrix_, to);
      lines_.AddRows(to);
      next_row_ += rows;
      count -= rows;
      out.remove_prefix(values);
    }
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const SourceMatrix matrix_;
  LineReader lines_;
  uint32_t next_row_ = 0;
  std::vector<std::byte> raw_;
};

// Columns of the source as rows. Memory: a strip of a block of the matrix, while its rows are read.
class TransposedReader final : public RowReader {
 public:
  TransposedReader(const Checkpoint& checkpoint, const SourceMatrix& matrix)
      : checkpoint_(checkpoint),
        matrix_(matrix),
        strip_columns_(StripColumns(matrix)),
        lines_(checkpoint, matrix) {}

  absl::Status Next(uint32_t count, absl::Span<float> out) override {
    while (count > 0) {
      if (next_column_ == strip_ + width_) RETURN_IF_ERROR(ReadStrip());
      const uint32_t rows = std::min(count, strip_ + width_ - next_column_);
      RETURN_IF_ERROR(Turn(rows, out));
      lines_.AddRows(out.first(uint64_t{rows} * matrix_.lines));
      next_column_ += rows;
      count -= rows;
      out.remove_prefix(uint64_t{rows} * matrix_.lines);
      if (next_column_ == matrix_.length) {
        next_column_ = strip_ = width_ = 0;
        // clear() would keep the memory, the largest buffer of a worker.
        if (++block_ == matrix_.blocks) std::vector<std::byte>().swap(raw_);
      }
    }
    return absl::OkStatus();
  }

  absl::Status NextBlocks(uint32_t /*count*/, absl::Span<float> /*out*/,
                          absl::Span<CodeBlock> /*blocks*/) override {
    return absl::InternalError(absl::StrCat("tensor ", matrix_.tensor->name, ": blocks of columns"));
  }

  Digest128 digest() const override { return lines_.digest(); }

 private:
  absl::Status ReadStrip() {
    strip_ = next_column_;
    width_ = std::min(strip_columns_, matrix_.length - strip_);
    raw_.resize(uint64_t{matrix_.lines} * width_ * ElementBytes(matrix_.tensor->type));
    return lines_.Read(block_, 0, matrix_.lines, strip_, width_, raw_.data());
  }

  // Writes columns next_column_ to next_column_ + count as rows. A tile's lines and columns are cache lines
  // of the source and the destination, so that neither depends on a cache's associativity.
  absl::Status Turn(uint32_t count, absl::Span<float> out) {
    constexpr uint32_t kLines = 16;
    constexpr uint32_t kColumns = 32;
    const ElementType type = matrix_.tensor->type;
    const uint64_t element_bytes = ElementBytes(type);
    float tile[kLines][kColumns];
    for (uint32_t first = 0; first < count; first += kColumns) {
      const uint32_t width = std::min(kColumns, count - first);
      for (uint32_t line = 0; line < matrix_.lines; line += kLines) {
        const uint32_t lines = std::min(kLines, matrix_.lines - line);
        for (uint32_t i = 0; i < lines; ++i) {
          const uint64_t at = (line + uint64_t{i}) * width_ + (next_column_ - strip_) + first;
          Widen(type, raw_.data() + at * element_bytes, width, tile[i]);
        }
        float* const to = out.data() + uint64_t{first} * matrix_.lines + line;
        if (lines == kLines) {
          TurnTile<kLines>(tile[0], kColumns, width, matrix_.lines, to);
        } else {
          for (uint32_t i = 0; i < lines; ++i) {
            TurnTile<1>(tile[i], kColumns, width, matrix_.lines, to + i);
          }
        }
      }
    }
    const absl::Span<float> rows = out.first(uint64_t{count} * matrix_.lines);
    if (!AllFinite(rows)) {
      const auto bad = std::find_if_not(rows.begin(), rows.end(), IsFinite);
      const uint64_t at = static_cast<uint64_t>(bad - rows.begin());
      const uint64_t column = next_column_ + at / matrix_.lines;
      return NotFinite(checkpoint_, matrix_,
                       ElementOf(matrix_, block_, at % matrix_.lines) + column * matrix_.step, *bad);
    }
    Adjust(matrix_, rows);
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const SourceMatrix matrix_;
  const uint32_t strip_columns_;
  LineReader lines_;
  uint32_t block_ = 0;
  uint32_t next_column_ = 0;
  uint32_t strip_ = 0;          // first column in raw_
  uint32_t width_ = 0;          // number of columns in raw_
  std::vector<std::byte> raw_;  // [lines][width_] of the block
};

// The rows of several matrices, one matrix after the other.
class StackedReader final : public RowReader {
 public:
  StackedReader(const Checkpoint& checkpoint, SourceMatrix first) {
    const std::vector<SourceMatrix> others = std::move(first.more_rows);
    first.more_rows.clear();
    Add(checkpoint, first);
    for (const SourceMatrix& matrix : others) Add(checkpoint, matrix);
  }

  absl::Status Next(uint32_t count, absl::Span<float> out) override { return Read(count, out, {}); }

  absl::Status NextBlocks(uint32_t count, absl::Span<float> out, absl::Span<CodeBlock> blocks) override {
    return Read(count, out, blocks);
  }

  Digest128 digest() const override {
    Hasher128 hasher;
    for (const std::unique_ptr<RowReader>& reader : readers_) {
      hasher.UpdateU64(reader->digest().high);
      hasher.UpdateU64(reader->digest().low);
    }
    return hasher.Finish();
  }

 private:
  // Reads values alone if `blocks` is null.
  absl::Status Read(uint32_t count, absl::Span<float> out, absl::Span<CodeBlock> blocks) {
    const uint64_t of_row = blocks.size() / count;
    while (count > 0) {
      if (left_[current_] == 0) ++current_;
      const uint32_t rows = std::min(count, left_[current_]);
      RETURN_IF_ERROR(of_row == 0 ? readers_[current_]->Next(rows, out)
                                  : readers_[current_]->NextBlocks(rows, out, blocks.first(rows * of_row)));
      blocks.remove_prefix(rows * of_row);
      left_[current_] -= rows;
      count -= rows;
      out.remove_prefix(uint64_t{rows} * cols_);
    }
    return absl::OkStatus();
  }

  void Add(const Checkpoint& checkpoint, const SourceMatrix& matrix) {
    cols_ = matrix.cols();
    left_.push_back(matrix.rows());
    readers_.push_back(MakeRowReader(checkpoint, matrix));
  }

  std::vector<std::unique_ptr<RowReader>> readers_;
  std::vector<uint32_t> left_;  // unread rows of each
  size_t current_ = 0;
  uint64_t cols_ = 0;
};

}  // namespace

std::unique_ptr<RowReader> MakeRowReader(const Checkpoint& checkpoint, const SourceMatrix& matrix) {
  if (!matrix.more_rows.empty()) return std::make_unique<StackedReader>(checkpoint, matrix);
  if (matrix.transposed) return std::make_unique<TransposedReader>(checkpoint, matrix);
  return std::make_unique<StraightReader>(checkpoint, matrix);
}

Encoding BlocksOf(const SourceMatrix& matrix) {
  const Encoding encoding = matrix.tensor->blocks;
  if (!IsBlockEncoding(encoding) || matrix.transposed || matrix.step != 1 || matrix.scale != 1 ||
      matrix.add != 0) {
    return Encoding::kInvalid;
  }
  const uint64_t values = ValuesPerBlock(encoding);
  // Lines are whole blocks, and so are parts of them that begin and end between blocks.
  if (matrix.first % values != 0 || matrix.block_stride % values != 0 || matrix.line_stride % values != 0 ||
      matrix.length % values != 0) {
    return Encoding::kInvalid;
  }
  const bool alike = std::all_of(matrix.more_rows.begin(), matrix.more_rows.end(),
                                 [encoding](const SourceMatrix& next) { return BlocksOf(next) == encoding; });
  return alike ? encoding : Encoding::kInvalid;
}

uint64_t MatrixMemory(const SourceMatrix& matrix) {
  uint64_t max_bytes = 0;
  for (const SourceMatrix& next : matrix.more_rows) max_bytes = std::max(max_bytes, MatrixMemory(next));
  if (!matrix.transposed) return max_bytes;
  return std::max(max_bytes,
                  uint64_t{matrix.lines} * StripColumns(matrix) * ElementBytes(matrix.tensor->type));
}

const std::string& SourceTypeName(const SourceMatrix& matrix) { return matrix.tensor->format; }

}  // namespace sluice
