// Which source tensor holds what: a checkpoint's names -> the canonical dense tensors and expert matrices.
//
// Thread safety: SourceMap is plain data; MapTensors is a free function on immutable input. A TensorMapper is
// used by one thread.
#ifndef SLUICE_COMMON_MODEL_HF_TENSORS_H_
#define SLUICE_COMMON_MODEL_HF_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"

namespace sluice {

// A matrix in the source: `rows` rows of `cols` elements, contiguous, from byte `offset` of the tensor.
struct SourceMatrix {
  const TensorInfo* tensor = nullptr;
  uint64_t offset = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
};

// A dense tensor under its canonical name (common/pack/dense_names.h).
struct DenseSource {
  std::string name;
  SourceMatrix matrix;
};

// One expert: up and gate are [neurons, hidden]; down is [hidden, neurons], as checkpoints store it.
struct ExpertSource {
  SourceMatrix up;
  SourceMatrix gate;
  SourceMatrix down;
};

struct SourceMap {
  std::vector<DenseSource> dense;                  // any order
  std::vector<std::vector<ExpertSource>> experts;  // [layer][expert]
};

// Finds every tensor that `config` needs in `folder`. NotFound naming missing tensors, InvalidArgument naming
// those that are not known or have another shape (with both shapes), Unimplemented naming an element type
// that is no float of 16 or 32 bits. The map points into `folder`.
absl::StatusOr<SourceMap> MapTensors(const ModelConfig& config, const TensorFolder& folder);

// What a family's mapper calls for each tensor: collects places, and errors of several tensors into one.
class TensorMapper {
 public:
  explicit TensorMapper(const TensorFolder& folder) : folder_(folder) {}

  bool Has(const std::string& name) const { return folder_.Find(name) != nullptr; }

  // The whole tensor `name` of shape [length], as dense tensor `canonical` of one row.
  void Vector(const std::string& canonical, const std::string& name, uint32_t length);

  // The whole tensor `name` of shape [rows, cols], as dense tensor `canonical`.
  void Dense(const std::string& canonical, const std::string& name, uint32_t rows, uint32_t cols);

  // The whole tensor `name` of shape [rows, cols].
  SourceMatrix Matrix(const std::string& name, uint32_t rows, uint32_t cols);

  // Matrix `index` of `count` stacked ones, rows [first, first + rows) of its `stack_rows`: the tensor has
  // shape [count, stack_rows, cols].
  SourceMatrix Slice(const std::string& name, uint32_t count, uint32_t index, uint32_t stack_rows,
                     uint32_t first, uint32_t rows, uint32_t cols);

  void AddExpert(uint32_t layer, const ExpertSource& expert);

  // A tensor that may be there and is not needed.
  void Ignore(const std::string& name);

  // False once enough errors are collected: a mapper's loops end early.
  bool ok() const { return errors_ < kMaxErrors; }

  // The map, or the collected errors; also refuses tensors that nobody asked for.
  absl::StatusOr<SourceMap> Finish();

 private:
  static constexpr int kMaxErrors = 8;

  const TensorInfo* Use(const std::string& name, const std::vector<uint64_t>& shape);

  const TensorFolder& folder_;
  SourceMap map_;
  absl::flat_hash_set<const TensorInfo*> used_;
  std::string missing_;
  std::string wrong_;
  std::string unsupported_;
  int errors_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_MODEL_HF_TENSORS_H_
