#include "common/model/tensor_mapper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice {
namespace {

void Append(std::string* list, const std::string& item) {
  absl::StrAppend(list, list->empty() ? "" : ", ", item);
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// True for buffers that old checkpoints carry along; the forward pass computes them.
bool IsKnownBuffer(const std::string& name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") || absl::EndsWith(name, ".masked_bias");
}

}  // namespace

// Views of a tensor in its file: each changes the start, number and distance of lines, never the bytes. All
// counts are elements.
SourceMatrix SliceRows(SourceMatrix m, uint64_t first, uint32_t count) {
  m.first += first * (m.transposed ? 1 : m.line_stride);
  (m.transposed ? m.length : m.lines) = count;
  return m;
}

SourceMatrix EverySecondRow(SourceMatrix m, uint32_t offset) {
  if (m.transposed) return Transposed(EverySecondColumn(Transposed(m), offset));
  m.first += offset * m.line_stride;
  m.lines /= 2;
  m.line_stride *= 2;
  return m;
}

SourceMatrix Columns(SourceMatrix m, uint32_t first, uint32_t count) {
  return Transposed(SliceRows(Transposed(m), first, count));
}

SourceMatrix EverySecondColumn(SourceMatrix m, uint32_t offset) {
  if (m.transposed) return Transposed(EverySecondRow(Transposed(m), offset));
  m.first += offset;
  m.length /= 2;
  m.step = 2;
  return m;
}

SourceMatrix RowsOfBlocks(SourceMatrix m, uint32_t blocks, uint32_t first, uint32_t count) {
  m.blocks = blocks;
  m.block_stride = m.transposed ? m.length / blocks : m.lines / blocks * m.line_stride;
  return SliceRows(m, first, count);
}

SourceMatrix Transposed(SourceMatrix m) {
  m.transposed = !m.transposed;
  return m;
}

SourceMatrix PlusOne(SourceMatrix m) {
  m.add = 1;
  return m;
}

SourceMatrix Scaled(SourceMatrix m, float scale) {
  m.scale *= scale;
  return m;
}

SourceMatrix Stacked(SourceMatrix first, std::vector<SourceMatrix> others) {
  first.more_rows = std::move(others);
  return first;
}

SourceMatrix RowRange(const SourceMatrix& stacked, uint32_t first, uint32_t count) {
  SourceMatrix whole = stacked;
  whole.more_rows.clear();
  std::vector<SourceMatrix> parts;
  const auto take = [&](const SourceMatrix& part) {
    const uint32_t skipped = std::min(first, part.lines);
    const uint32_t taken = std::min(count, part.lines - skipped);
    if (taken > 0) parts.push_back(SliceRows(part, skipped, taken));
    first -= skipped;
    count -= taken;
  };
  take(whole);
  for (const SourceMatrix& part : stacked.more_rows) take(part);
  const SourceMatrix head = parts.empty() ? SliceRows(whole, 0, 0) : parts.front();
  if (!parts.empty()) parts.erase(parts.begin());
  return Stacked(head, std::move(parts));
}

namespace {

// Files in blocks do not tell [1, n] from [n].
std::vector<uint64_t> WithoutLeadingOnes(const std::vector<uint64_t>& shape) {
  const auto first = std::find_if(shape.begin(), shape.end(), [](uint64_t dim) { return dim != 1; });
  return {first, shape.end()};
}

bool IsShape(const CheckpointTensor& tensor, const std::vector<uint64_t>& shape) {
  return tensor.shape == shape || (tensor.decoded && !tensor.by_columns &&
                                   WithoutLeadingOnes(tensor.shape) == WithoutLeadingOnes(shape));
}

}  // namespace

// Errors are collected, so that one run names all missing or misshapen tensors together, up to kMaxErrors of
// them.
const CheckpointTensor* TensorMapper::Use(const std::string& name, const std::vector<uint64_t>& shape,
                                          bool numbers) {
  const CheckpointTensor* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) {
    Append(&missing_, name);
    ++errors_;
    return nullptr;
  }
  used_.insert(tensor);
  if (!IsShape(*tensor, shape)) {
    Append(&wrong_, absl::StrCat(name, " has shape ", ShapeText(tensor->shape), ", config.json needs ",
                                 ShapeText(shape)));
    ++errors_;
    return nullptr;
  }
  const bool whole = numbers && (tensor->type == ElementType::kI64 || tensor->type == ElementType::kI32);
  if (tensor->type != ElementType::kBf16 && tensor->type != ElementType::kF16 &&
      tensor->type != ElementType::kF32 && !whole) {
    Append(&unsupported_, absl::StrCat(name, " (", ElementTypeName(tensor->type), ")"));
    ++errors_;
    return nullptr;
  }
  return tensor;
}

SourceMatrix TensorMapper::Tensor(const std::string& name, const std::vector<uint64_t>& shape) {
  return MatrixOf(Use(name, shape, /*numbers=*/false), shape);
}

SourceMatrix TensorMapper::Numbers(const std::string& name, const std::vector<uint64_t>& shape) {
  return MatrixOf(Use(name, shape, /*numbers=*/true), shape);
}

SourceMatrix TensorMapper::MatrixOf(const CheckpointTensor* tensor, const std::vector<uint64_t>& shape) {
  SourceMatrix matrix;
  matrix.tensor = tensor;
  matrix.length = static_cast<uint32_t>(shape.back());
  matrix.lines = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) matrix.lines *= static_cast<uint32_t>(shape[i]);
  if (matrix.tensor != nullptr && matrix.tensor->by_columns) {
    std::swap(matrix.lines, matrix.length);
    matrix.transposed = true;
  }
  matrix.line_stride = matrix.length;
  return matrix;
}

void TensorMapper::Dense(const std::string& canonical, const SourceMatrix& matrix) {
  map_.dense.push_back({canonical, matrix});
}

void TensorMapper::AddExpert(uint32_t layer, const ExpertSource& expert) {
  if (map_.experts.size() <= layer) map_.experts.resize(layer + 1);
  map_.experts[layer].push_back(expert);
}

void TensorMapper::Ignore(const std::string& name) {
  if (const CheckpointTensor* tensor = checkpoint_.Find(name)) used_.insert(tensor);
}

void TensorMapper::IgnorePrefix(const std::string& prefix) {
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (absl::StartsWith(tensor.name, prefix)) used_.insert(&tensor);
  }
}

absl::StatusOr<SourceMap> TensorMapper::Finish() {
  const std::string more = ok() ? "" : " and more";
  if (!missing_.empty()) {
    return absl::NotFoundError(absl::StrCat("the checkpoint has no tensor ", missing_, more));
  }
  if (!wrong_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", wrong_, more));
  }
  if (!unsupported_.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("element type not supported (BF16, F16, F32 are): ", unsupported_, more));
  }
  // An unused tensor means an architecture that only resembles this one.
  std::string extra;
  int extras = 0;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (used_.contains(&tensor) || tensor.is_neutral || IsKnownBuffer(tensor.name)) continue;
    if (++extras <= kMaxErrors) Append(&extra, tensor.name);
  }
  if (extras > 0) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has ", extras,
                                                   " tensors that this architecture does not know: ", extra,
                                                   extras > kMaxErrors ? " and more" : ""));
  }
  return std::move(map_);
}

}  // namespace sluice
