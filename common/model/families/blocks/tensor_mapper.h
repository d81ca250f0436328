// What a family's tensor map is written with: views of a checkpoint's tensors, and who collects them under
// the canonical names.
//
// Thread safety: SourceMap is plain data; a TensorMapper is used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"

namespace sluice {

// A matrix somewhere in a source tensor, as `blocks` stacked pieces of `lines` lines of `length` values. The
// pack's rows are the lines or, if `transposed`, each piece's columns. Numbers of elements, not of bytes; a
// matrix's line lies within one of the tensor's lines.
struct SourceMatrix {
  const CheckpointTensor* tensor = nullptr;
  uint64_t first = 0;  // where the first value is in the tensor
  uint32_t blocks = 1;
  uint64_t block_stride = 0;
  uint32_t lines = 0;
  uint64_t line_stride = 0;
  uint32_t length = 0;
  uint32_t step = 1;  // from a line's value to its next
  bool transposed = false;
  float scale = 1;                 // of every value
  float add = 0;                   // to every value, behind the scale
  std::vector<SourceMatrix> then;  // matrices of as many columns whose rows follow

  uint32_t rows() const {
    uint32_t all = blocks * (transposed ? length : lines);
    for (const SourceMatrix& next : then) all += next.rows();
    return all;
  }
  uint32_t cols() const { return transposed ? lines : length; }
};

// Parts of a matrix of one block, by the rows and columns that its name promises; where a checkpoint keeps it
// by its columns, `transposed` is set from the start.
SourceMatrix Rows(SourceMatrix m, uint64_t first, uint32_t count);     // rows [first, first + count)
SourceMatrix EverySecondRow(SourceMatrix m, uint32_t offset);          // rows offset, offset + 2, ...
SourceMatrix Columns(SourceMatrix m, uint32_t first, uint32_t count);  // values [first, first + count)
SourceMatrix EverySecondColumn(SourceMatrix m, uint32_t offset);       // values offset, offset + 2, ...
// Rows [first, first + count) of each of `blocks` equal parts.
SourceMatrix RowsOfBlocks(SourceMatrix m, uint32_t blocks, uint32_t first, uint32_t count);
SourceMatrix Transposed(SourceMatrix m);
SourceMatrix PlusOne(SourceMatrix m);
SourceMatrix Scaled(SourceMatrix m, float scale);
// The rows of one after those of the other, each of them of one or more blocks.
SourceMatrix Stacked(SourceMatrix first, std::vector<SourceMatrix> others);

// A dense tensor under its canonical name (common/model/dense_names.h).
struct DenseSource {
  std::string name;
  SourceMatrix matrix;
};

// One expert, every part as the pack's rows want it: [neurons, hidden].
struct ExpertSource {
  SourceMatrix up;
  SourceMatrix gate;  // without a tensor where experts have no gates
  SourceMatrix down;
};

struct SourceMap {
  std::vector<DenseSource> dense;                  // any order
  std::vector<std::vector<ExpertSource>> experts;  // [layer][expert]
};

// What a family's mapper calls for each tensor: collects places, and errors of several tensors into one.
class TensorMapper {
 public:
  explicit TensorMapper(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  bool Has(const std::string& name) const { return checkpoint_.Find(name) != nullptr; }

  // Whether the tensor is there and has this shape.
  bool HasShape(const std::string& name, const std::vector<uint64_t>& shape) const {
    const CheckpointTensor* tensor = checkpoint_.Find(name);
    return tensor != nullptr && tensor->shape == shape;
  }

  // Whether the tensor is there in MXFP4.
  bool IsMxfp4(const std::string& name) const {
    const CheckpointTensor* tensor = checkpoint_.Find(name);
    return tensor != nullptr && tensor->mxfp4;
  }

  // The tensor `name`, which must have this shape: its last dimension makes the columns.
  SourceMatrix Tensor(const std::string& name, const std::vector<uint64_t>& shape);

  // `matrix` as dense tensor `canonical`.
  void Dense(const std::string& canonical, const SourceMatrix& matrix);
  void AddExpert(uint32_t layer, const ExpertSource& expert);

  // A tensor that may be there and is not needed; all tensors whose names begin so.
  void Ignore(const std::string& name);
  void IgnorePrefix(const std::string& prefix);

  // False once enough errors are collected: a mapper's loops end early.
  bool ok() const { return errors_ < kMaxErrors; }

  // The map, or the collected errors; also refuses tensors that nobody asked for.
  absl::StatusOr<SourceMap> Finish();

 private:
  static constexpr int kMaxErrors = 8;

  const CheckpointTensor* Use(const std::string& name, const std::vector<uint64_t>& shape);

  const Checkpoint& checkpoint_;
  SourceMap map_;
  absl::flat_hash_set<const CheckpointTensor*> used_;
  std::string missing_;
  std::string wrong_;
  std::string unsupported_;
  int errors_ = 0;
};

}  // namespace sluice
