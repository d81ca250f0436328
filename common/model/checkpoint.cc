#include "common/model/checkpoint.h"

#include <algorithm>
#include <utility>

#include "common/status.h"

namespace sluice {

absl::Status Checkpoint::ReadBlocks(const CheckpointTensor& tensor, const TensorRect& /*rect*/,
                                    absl::Span<CodeBlock> /*out*/) const {
  return absl::UnimplementedError(
      absl::StrCat(PathOf(tensor), ": tensor ", tensor.name, " is not kept in blocks"));
}

absl::Status Checkpoint::SetTensors(std::vector<CheckpointTensor> tensors) {
  tensors_ = std::move(tensors);
  std::sort(tensors_.begin(), tensors_.end(),
            [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name < b.name; });
  by_name_.clear();
  by_name_.reserve(tensors_.size());
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    if (!by_name_.emplace(tensors_[i].name, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(PathOf(tensors_[i]), ": tensor ", tensors_[i].name, " is there twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
