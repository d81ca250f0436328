#include "pack/in_place/file_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_blocks.h"
#include "common/base/vector_clones.h"
#include "common/model/gguf_blocks.h"
#include "pack/quant_row.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"
#include "pack/writer/matrix_reader.h"

namespace sluice {
namespace {

// Encodings of GGUF's blocks are numbered after the format's id (pack/FORMAT.md).
constexpr uint32_t kBlockEncodings = 64;

constexpr uint64_t kMxfp4BlockBytes = 17;
constexpr uint64_t kMxfp4BlockValues = 32;

std::optional<FileRows::Form> FormOf(const SourceMatrix& matrix, Encoding encoding) {
  const CheckpointTensor& tensor = *matrix.tensor;
  const bool same_values = (encoding == Encoding::kF32 && tensor.format == "F32") ||
                           (encoding == Encoding::kF16 && tensor.format == "F16") ||
                           (encoding == Encoding::kBf16 && tensor.format == "BF16");
  if (same_values) return FileRows::Form::kValues;
  if (encoding == Encoding::kMxfp4) {
    return tensor.mxfp4 ? std::optional(FileRows::Form::kMxfp4) : std::nullopt;
  }
  if (!IsBlockEncoding(encoding) || BlocksOf(matrix) != encoding) return std::nullopt;
  return IsFileBlock(encoding) ? FileRows::Form::kFileBlocks : FileRows::Form::kBlocks;
}

// True if the matrix consists of consecutive whole lines of its tensor, unchanged.
bool IsWholeLines(const SourceMatrix& matrix) {
  const uint64_t length = matrix.tensor->line_length();
  return !matrix.transposed && matrix.blocks == 1 && matrix.more_rows.empty() && matrix.step == 1 &&
         matrix.scale == 1 && matrix.add == 0 && matrix.length == length && matrix.first % length == 0 &&
         (matrix.line_stride == length || matrix.lines == 1);
}

bool IsFiniteHalf(uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }

absl::Status NotFinite(const FileRows& source, uint64_t row) {
  return absl::InvalidArgumentError(absl::StrCat(source.path, ": tensor ", source.name,
                                                 " holds NaN or Inf in row ", row, " of its matrix"));
}

SLUICE_VECTOR_CLONES
bool AllFiniteHalves(const std::byte* values, uint64_t count, uint16_t exponent) {
  uint32_t worst = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, values + 2 * i, 2);
    worst |= (bits & exponent) == exponent;
  }
  return worst == 0;
}

SLUICE_VECTOR_CLONES
bool AllFiniteFloats(const std::byte* values, uint64_t count) {
  uint32_t worst = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, values + 4 * i, 4);
    worst |= (bits & 0x7f800000u) == 0x7f800000u;
  }
  return worst == 0;
}

bool AreFiniteValues(Encoding encoding, const std::byte* row, uint64_t cols) {
  if (encoding == Encoding::kF32) return AllFiniteFloats(row, cols);
  return AllFiniteHalves(row, cols, encoding == Encoding::kBf16 ? 0x7f80 : 0x7c00);
}

bool AreFiniteFileBlocks(Encoding encoding, const std::byte* row, uint64_t bytes) {
  const RowTraits traits = TraitsOf(encoding);
  std::array<int8_t, kMaxBlockValues> codes;
  std::array<float, kMaxBlockValues / 16> scales;
  for (uint64_t at = 0; at < bytes; at += traits.block_bytes) {
    UnpackFileBlock(encoding, reinterpret_cast<const uint8_t*>(row + at), codes.data(), scales.data());
    for (uint32_t g = 0; g < traits.super_group; ++g) {
      if (!std::isfinite(scales[g])) return false;
    }
  }
  return true;
}

bool AreFiniteMxfp4(absl::Span<const uint8_t> codes, int scale) {
  constexpr int kAllFinite = 252;  // 6 * 2^125 is the largest value of such a block
  return scale <= kAllFinite || std::all_of(codes.begin(), codes.end(), [scale](uint8_t code) {
           return std::isfinite(Mxfp4Value(code, scale));
         });
}

// Converters of one row each; false: a number is not finite.
class RowConverter {
 public:
  explicit RowConverter(const FileRows& source) : source_(source) {
    if (source.form != FileRows::Form::kBlocks) return;
    format_ = FindGgufFormat(static_cast<uint32_t>(source.encoding.encoding) - kBlockEncodings);
    blocks_.resize(source.row_bytes / format_->bytes);
  }

  bool Convert(const std::byte* line, std::byte* row) {
    switch (source_.form) {
      case FileRows::Form::kValues:
        std::memcpy(row, line, source_.row_bytes);
        return AreFiniteValues(source_.encoding.encoding, line, source_.cols);
      case FileRows::Form::kFileBlocks:
        return CopyFileBlocks(line, row);
      case FileRows::Form::kBlocks:
        return ArrangeBlocks(line, row);
      case FileRows::Form::kMxfp4:
        return ArrangeMxfp4(line, row);
    }
    return false;
  }

 private:
  bool CopyFileBlocks(const std::byte* line, std::byte* row) {
    const Encoding encoding = source_.encoding.encoding;
    std::memcpy(row, line, source_.row_bytes);
    if (HasRowFactor(encoding)) std::memcpy(row + source_.row_bytes, &source_.factor, sizeof(float));
    return AreFiniteFileBlocks(encoding, line, source_.row_bytes);
  }

  bool ArrangeBlocks(const std::byte* line, std::byte* row) {
    uint32_t finite = 1;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      format_->unpack(reinterpret_cast<const uint8_t*>(line) + b * format_->bytes, &blocks_[b]);
      finite &= IsFiniteHalf(blocks_[b].d) & IsFiniteHalf(blocks_[b].dmin);
    }
    EncodeBlockRow(source_.encoding, blocks_, source_.cols, row);
    return finite != 0;
  }

  bool ArrangeMxfp4(const std::byte* line, std::byte* row) {
    codes_.resize(source_.cols);
    std::memset(row, 0, RowBytes(source_.encoding, source_.cols));
    std::byte* const scales = row + ScaleOffset(source_.encoding, source_.cols);
    bool finite = true;
    for (uint64_t b = 0; b < source_.cols / kMxfp4BlockValues; ++b, line += kMxfp4BlockBytes) {
      scales[b] = line[0];
      uint8_t* const codes = codes_.data() + b * kMxfp4BlockValues;
      for (uint32_t i = 0; i < kMxfp4BlockValues / 2; ++i) {
        const auto pair = static_cast<uint8_t>(line[1 + i]);
        codes[i] = pair & 15;
        codes[i + kMxfp4BlockValues / 2] = pair >> 4;
      }
      finite =
          finite && AreFiniteMxfp4(absl::MakeConstSpan(codes, kMxfp4BlockValues), static_cast<int>(line[0]));
    }
    StoreCodes(Encoding::kMxfp4, codes_, row);
    return finite;
  }

  const FileRows& source_;
  const GgufBlockFormat* format_ = nullptr;
  std::vector<CodeBlock> blocks_;
  std::vector<uint8_t> codes_;
};

}  // namespace

std::optional<FileRows> FindFileRows(const Checkpoint& checkpoint, const SourceMatrix& matrix,
                                     const EncodingDescriptor& encoding) {
  const std::optional<FileRows::Form> form = FormOf(matrix, encoding.encoding);
  if (!form.has_value() || !IsWholeLines(matrix)) return std::nullopt;
  std::optional<StoredLines> lines = checkpoint.LinesInFile(*matrix.tensor);
  // A factor is kept by the encodings that have a place for it; to others it would be a rounding.
  const bool has_place = HasRowFactor(encoding.encoding);
  if (!lines.has_value() || (lines->factor != 1 && !has_place)) return std::nullopt;
  return FileRows{.form = *form,
                  .encoding = encoding,
                  .cols = matrix.cols(),
                  .name = matrix.tensor->name,
                  .path = std::move(lines->path),
                  .offset = lines->offset + matrix.first / matrix.length * lines->line_bytes,
                  .row_bytes = lines->line_bytes,
                  .factor = lines->factor};
}

absl::Status ConvertRows(const FileRows& source, uint64_t first, uint32_t rows,
                         absl::Span<const std::byte> lines, uint64_t stride, absl::Span<std::byte> out) {
  RowConverter converter(source);
  for (uint32_t r = 0; r < rows; ++r) {
    if (!converter.Convert(lines.data() + r * source.row_bytes, out.data() + r * stride)) {
      return NotFinite(source, first + r);
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
