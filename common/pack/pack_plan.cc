#include "common/pack/pack_plan.h"

#include <limits>
#include <utility>

#include "common/pack/dense_names.h"
#include "common/pack/row_layout.h"
#include "common/status.h"

namespace sluice {
namespace {

// Files stay far below what off_t and our sums can hold.
constexpr uint64_t kMaxFileBytes = 1ull << 60;

class SpecList {
 public:
  SpecList(uint32_t layer, uint32_t group, std::vector<DenseSpec>* specs)
      : layer_(layer), group_(group), specs_(specs) {}

  void Matrix(std::string_view name, uint32_t rows, uint32_t cols) {
    Add(name, rows, cols, DenseKind::kMatrix);
  }
  void Vector(std::string_view name, uint32_t length) { Add(name, 1, length, DenseKind::kVector); }
  void Router(std::string_view name, uint32_t rows, uint32_t cols) {
    Add(name, rows, cols, DenseKind::kRouter);
  }

 private:
  void Add(std::string_view name, uint32_t rows, uint32_t cols, DenseKind kind) {
    std::string full = layer_ == ExtentEntry::kNone ? std::string(name) : dense::LayerName(layer_, name);
    specs_->push_back({std::move(full), layer_, group_, rows, cols, kind});
  }
  const uint32_t layer_;
  const uint32_t group_;
  std::vector<DenseSpec>* const specs_;
};

absl::Status AddAttentionSpecs(const AttentionConfig& attention, uint32_t hidden, SpecList* list) {
  if (attention.kind != AttentionKind::kGrouped) {
    return absl::UnimplementedError("packs of latent or gated-delta attention are not supported");
  }
  const uint32_t q_rows = attention.heads * attention.head_dim;
  const uint32_t kv_rows = attention.kv_heads * attention.head_dim;
  list->Vector(dense::kAttnNorm, hidden);
  list->Matrix(dense::kQ, q_rows, hidden);
  list->Matrix(dense::kK, kv_rows, hidden);
  list->Matrix(dense::kV, kv_rows, hidden);
  list->Matrix(dense::kO, hidden, q_rows);
  if (attention.qkv_bias) {
    list->Vector(dense::kQBias, q_rows);
    list->Vector(dense::kKBias, kv_rows);
    list->Vector(dense::kVBias, kv_rows);
  }
  if (attention.output_bias) list->Vector(dense::kOBias, hidden);
  if (attention.qk_norm != QkNorm::kNone) {
    list->Vector(dense::kQNorm, attention.head_dim);
    list->Vector(dense::kKNorm, attention.head_dim);
  }
  return absl::OkStatus();
}

void AddFfnSpecs(const MoeConfig& moe, uint32_t hidden, SpecList* list) {
  list->Vector(dense::kFfnNorm, hidden);
  if (moe.experts == 0) {
    list->Matrix(dense::kDenseUp, moe.dense_width, hidden);
    list->Matrix(dense::kDenseGate, moe.dense_width, hidden);
    list->Matrix(dense::kDenseDown, moe.dense_width, hidden);
    return;
  }
  list->Router(dense::kRouter, moe.experts, hidden);
  if (moe.router == RouterKind::kSigmoidTopK) list->Vector(dense::kRouterCorrection, moe.experts);
  if (moe.shared_width != 0) {
    list->Matrix(dense::kSharedUp, moe.shared_width, hidden);
    list->Matrix(dense::kSharedGate, moe.shared_width, hidden);
    list->Matrix(dense::kSharedDown, moe.shared_width, hidden);
    if (moe.shared_gate) list->Router(dense::kSharedRouter, 1, hidden);
  }
}

}  // namespace

absl::StatusOr<std::vector<DenseSpec>> DenseSpecs(const ModelConfig& config) {
  if (config.norm != NormKind::kRms) {
    return absl::UnimplementedError("packs of models with layer norm are not supported");
  }
  std::vector<DenseSpec> specs;
  SpecList(ExtentEntry::kNone, 0, &specs).Matrix(dense::kEmbed, config.vocab, config.hidden);
  uint32_t group = 0;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    SpecList list(layer, ++group, &specs);
    RETURN_IF_ERROR(AddAttentionSpecs(config.layers[layer].attention, config.hidden, &list));
    AddFfnSpecs(config.layers[layer].moe, config.hidden, &list);
  }
  SpecList last(ExtentEntry::kNone, ++group, &specs);
  last.Vector(dense::kFinalNorm, config.hidden);
  if (!config.tied_embeddings) last.Matrix(dense::kHead, config.vocab, config.hidden);
  return specs;
}

bool DenseEncodingAllowed(DenseKind kind, const EncodingDescriptor& encoding) {
  switch (kind) {
    case DenseKind::kVector:
      return encoding.encoding == Encoding::kF32;
    case DenseKind::kRouter:
      return encoding.encoding == Encoding::kBf16 || encoding.encoding == Encoding::kF32;
    case DenseKind::kMatrix:
      return true;
  }
  return false;
}

std::vector<DenseTensor> PlaceDense(const std::vector<DenseSpec>& specs,
                                    const std::vector<EncodingDescriptor>& encodings, uint64_t extent_bytes) {
  std::vector<DenseTensor> tensors;
  uint32_t extent = 0;
  uint64_t end = 0;  // within the extent
  for (size_t i = 0; i < specs.size(); ++i) {
    DenseTensor tensor{specs[i].name, specs[i].rows, specs[i].cols, encodings[i], 0, 0, 0};
    tensor.stride = static_cast<uint32_t>(RoundStride(RowBytes(encodings[i], tensor.cols)));
    const uint64_t bytes = static_cast<uint64_t>(tensor.rows) * tensor.stride;
    const uint64_t offset = AlignUp(end, kDenseTensorAlignment);
    const bool new_group = i > 0 && specs[i].group != specs[i - 1].group;
    if (new_group || (end > 0 && offset + bytes > extent_bytes)) {
      ++extent;
      tensor.offset = 0;
    } else {
      tensor.offset = offset;
    }
    tensor.extent = extent;
    end = tensor.offset + bytes;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::Status ExtentPlanner::Add(ExtentEntry entry, uint64_t used_bytes) {
  uint64_t& end = file_bytes_[entry.file];
  entry.offset = end;
  entry.length = AlignUp(used_bytes, kExtentAlignment);
  entry.first_checksum = checksum_count_;
  if (entry.length > kMaxFileBytes - end || extents_.size() >= ExtentEntry::kNone - 1) {
    return absl::ResourceExhaustedError(absl::StrCat(kPackFileNames[entry.file], " would pass ",
                                                     kMaxFileBytes, " bytes or ", ExtentEntry::kNone,
                                                     " extents"));
  }
  end += entry.length;
  checksum_count_ += ChecksumChunkCount(entry.length);
  extents_.push_back(entry);
  return absl::OkStatus();
}

absl::Status ExtentPlanner::AddDense(const std::vector<DenseSpec>& specs,
                                     const std::vector<DenseTensor>& tensors) {
  if (specs.size() != tensors.size()) {
    return absl::DataLossError(
        absl::StrCat(tensors.size(), " dense tensors, but the model has ", specs.size()));
  }
  uint16_t number = 0;  // of the extent within its group
  for (size_t i = 0; i < specs.size();) {
    const uint32_t extent = tensors[i].extent;
    uint64_t end = 0;
    size_t last = i;
    for (; last < specs.size() && tensors[last].extent == extent; ++last) {
      const DenseTensor& tensor = tensors[last];
      if (specs[last].group != specs[i].group || tensor.offset < end ||
          tensor.offset % kDenseTensorAlignment != 0 || tensor.offset > kMaxFileBytes) {
        return absl::DataLossError(absl::StrCat("dense tensor ", tensor.name, " at offset ", tensor.offset,
                                                " of extent ", extent, " is out of place"));
      }
      end = tensor.offset + static_cast<uint64_t>(tensor.rows) * tensor.stride;
    }
    if (extent != extents_.size()) {
      return absl::DataLossError(absl::StrCat("dense tensor ", tensors[i].name, " is in extent ", extent,
                                              ", expected ", extents_.size()));
    }
    number = i > 0 && specs[i].group == specs[i - 1].group ? number + 1 : 0;
    ExtentEntry entry;
    entry.kind = ExtentKind::kDense;
    entry.file = static_cast<uint8_t>(PackFile::kDense);
    entry.stream = number;
    entry.layer = specs[i].layer;
    RETURN_IF_ERROR(Add(entry, end));
    i = last;
  }
  return absl::OkStatus();
}

absl::Status ExtentPlanner::AddExpert(uint32_t layer, uint32_t expert, uint32_t format,
                                      const ExpertPlan& plan, uint32_t rows) {
  for (uint32_t stream = 0; stream < plan.streams; ++stream) {
    ExtentEntry entry;
    entry.kind = ExtentKind::kExpert;
    entry.file = static_cast<uint8_t>(PackFile::kExperts);
    entry.stream = static_cast<uint16_t>(stream);
    entry.layer = layer;
    entry.expert = expert;
    entry.format = format;
    RETURN_IF_ERROR(Add(entry, static_cast<uint64_t>(rows) * plan.stream_stride[stream]));
  }
  return absl::OkStatus();
}

}  // namespace sluice
