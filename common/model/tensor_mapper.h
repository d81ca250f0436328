// TensorMapper and SourceMatrix: views of a checkpoint's tensors, and their collection under canonical names.
// Every family's tensor map uses them.
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

// A matrix within a source tensor: `blocks` stacked pieces of `lines` lines of `length` values. The rows of
// the pack are the lines or, if `transposed`, the columns of each piece. All counts are elements, not bytes;
// a line of the matrix lies within one line of the tensor.
struct SourceMatrix {
  const CheckpointTensor* tensor = nullptr;
  uint64_t first = 0;  // index of the first value in the tensor
  uint32_t blocks = 1;
  uint64_t block_stride = 0;
  uint32_t lines = 0;
  uint64_t line_stride = 0;
  uint32_t length = 0;
  uint32_t step = 1;  // distance from a value of a line to the next
  bool transposed = false;
  float scale = 1;                      // factor of every value
  float add = 0;                        // added to every value after scaling
  std::vector<SourceMatrix> more_rows;  // matrices of as many columns whose rows follow

  uint32_t rows() const {
    uint32_t all = blocks * (transposed ? length : lines);
    for (const SourceMatrix& next : more_rows) all += next.rows();
    return all;
  }
  uint32_t cols() const { return transposed ? lines : length; }
};

// Parts of a matrix of one block, by its logical rows and columns; if the checkpoint stores it by columns,
// `transposed` is already set.
SourceMatrix SliceRows(SourceMatrix m, uint64_t first, uint32_t count);  // rows [first, first + count)
SourceMatrix EverySecondRow(SourceMatrix m, uint32_t offset);            // rows offset, offset + 2, ...
SourceMatrix Columns(SourceMatrix m, uint32_t first, uint32_t count);    // values [first, first + count)
SourceMatrix EverySecondColumn(SourceMatrix m, uint32_t offset);         // values offset, offset + 2, ...
// Returns rows [first, first + count) of each of `blocks` equal parts.
SourceMatrix RowsOfBlocks(SourceMatrix m, uint32_t blocks, uint32_t first, uint32_t count);
SourceMatrix Transposed(SourceMatrix m);
SourceMatrix PlusOne(SourceMatrix m);
SourceMatrix Scaled(SourceMatrix m, float scale);
// Returns rows [first, first + count) of matrices of one block each that are stacked. REQUIRES: not
// transposed.
SourceMatrix RowRange(const SourceMatrix& stacked, uint32_t first, uint32_t count);
// Returns the rows of `first` followed by those of the others; each matrix has one or more blocks.
SourceMatrix Stacked(SourceMatrix first, std::vector<SourceMatrix> others);

// Dense tensor under its canonical name (common/model/dense_names.h).
struct DenseSource {
  std::string name;
  SourceMatrix matrix;
};

// One expert; every part has the shape of the pack's rows: [neurons, hidden].
struct ExpertSource {
  SourceMatrix up;
  SourceMatrix gate;  // no tensor if experts have no gates
  SourceMatrix down;
};

struct SourceMap {
  std::vector<DenseSource> dense;                  // any order
  std::vector<std::vector<ExpertSource>> experts;  // [layer][expert]
};

// TensorMapper: resolves a family's tensor names, collects their matrices, and joins the errors of several
// tensors into one.
class TensorMapper {
 public:
  explicit TensorMapper(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  bool Has(const std::string& name) const { return checkpoint_.Find(name) != nullptr; }

  // True if the tensor is present and has this shape.
  bool HasShape(const std::string& name, const std::vector<uint64_t>& shape) const {
    const CheckpointTensor* tensor = checkpoint_.Find(name);
    return tensor != nullptr && tensor->shape == shape;
  }

  // True if the tensor is present and stored in MXFP4.
  bool IsMxfp4(const std::string& name) const {
    const CheckpointTensor* tensor = checkpoint_.Find(name);
    return tensor != nullptr && tensor->mxfp4;
  }

  // Returns the tensor `name`, which must have this shape: its last dimension makes the columns.
  SourceMatrix Tensor(const std::string& name, const std::vector<uint64_t>& shape);

  // The same for a tensor that may hold whole numbers of 32 or 64 bits. Those that float32 cannot hold are
  // refused when they are read.
  SourceMatrix Numbers(const std::string& name, const std::vector<uint64_t>& shape);

  // Adds `matrix` as dense tensor `canonical`.
  void Dense(const std::string& canonical, const SourceMatrix& matrix);
  void AddExpert(uint32_t layer, const ExpertSource& expert);

  // Ignores an optional tensor that is not needed, or all tensors with this name prefix.
  void Ignore(const std::string& name);
  void IgnorePrefix(const std::string& prefix);

  // False once enough errors are collected: a mapper's loops end early.
  bool ok() const { return errors_ < kMaxErrors; }

  // Returns the map, or the collected errors; also refuses tensors that were never used.
  absl::StatusOr<SourceMap> Finish();

 private:
  static constexpr int kMaxErrors = 8;

  const CheckpointTensor* Use(const std::string& name, const std::vector<uint64_t>& shape, bool numbers);
  SourceMatrix MatrixOf(const CheckpointTensor* tensor, const std::vector<uint64_t>& shape);

  const Checkpoint& checkpoint_;
  SourceMap map_;
  absl::flat_hash_set<const CheckpointTensor*> used_;
  std::string missing_;
  std::string wrong_;
  std::string unsupported_;
  int errors_ = 0;
};

}  // namespace sluice
