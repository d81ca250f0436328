#include "common/model/checkpoint.h"

#include <algorithm>
#include <utility>

#include "common/base/encoding.h"
#include "common/base/file_blocks.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/base/vector_clones.h"

namespace sluice {

namespace {

// Decodes the values of one group; its codes all follow the same rule.
SLUICE_ALWAYS_INLINE void DecodeGroup(const RowTraits& traits, bool is_iq4, float scale, float min,
                                      const uint8_t* codes, float* out) {
  const auto zero = static_cast<float>(traits.zero);
  if (HasMins(traits.meta)) {
    for (uint32_t i = 0; i < traits.group; ++i) out[i] = scale * static_cast<float>(codes[i]) - min;
  } else if (is_iq4) {
    for (uint32_t i = 0; i < traits.group; ++i) {
      out[i] = scale * (static_cast<float>(kIq4Codes[codes[i]]) - zero);
    }
  } else {
    for (uint32_t i = 0; i < traits.group; ++i) out[i] = scale * (static_cast<float>(codes[i]) - zero);
  }
}

SLUICE_VECTOR_CLONES
void DecodeGroups(const RowTraits& traits, bool is_iq4, const CodeBlock& block, float* out) {
  const float d = F16ToFloat(block.d);
  const float dmin = F16ToFloat(block.dmin);
  const uint32_t groups = std::max<uint32_t>(1, traits.super_group);
  for (uint32_t g = 0, first = 0; g < groups; ++g, first += traits.group) {
    float scale = d;
    float min = dmin;
    if (traits.super_group != 0) {
      scale *= traits.meta == RowMeta::kSuperScale ? static_cast<float>(static_cast<int8_t>(block.scales[g]))
                                                   : static_cast<float>(block.scales[g]);
      min *= static_cast<float>(block.mins[g]);
    }
    DecodeGroup(traits, is_iq4, scale, min, block.codes + first, out + first);
  }
}

// Multiplies scales with the factor first, as kernels do.
SLUICE_VECTOR_CLONES
void DecodeFileBlock(Encoding encoding, const CodeBlock& block, float* out) {
  const RowTraits traits = TraitsOf(encoding);
  int8_t codes[kMaxBlockValues];
  float scales[kMaxBlockValues / 16];
  UnpackFileBlock(encoding, block.codes, codes, scales);
  for (uint32_t g = 0, i = 0; g < traits.super_group; ++g) {
    const float scale = scales[g] * block.factor;
    for (uint32_t end = i + traits.group; i < end; ++i) out[i] = scale * static_cast<float>(codes[i]);
  }
}

}  // namespace

uint32_t ValuesPerBlock(Encoding encoding) {
  const RowTraits traits = TraitsOf(encoding);
  return uint32_t{traits.group} * std::max<uint32_t>(1, traits.super_group);
}

void DecodeCodeBlock(Encoding encoding, const CodeBlock& block, float* out) {
  if (IsFileBlock(encoding)) return DecodeFileBlock(encoding, block, out);
  DecodeGroups(TraitsOf(encoding), IsIq4(encoding), block, out);
}

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
