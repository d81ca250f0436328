#include "pack/pack_plan.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// Maximum file size, far below the limits of off_t and of our sums.
constexpr uint64_t kMaxFileBytes = 1ull << 60;

class SpecList {
 public:
  SpecList(uint32_t layer, uint32_t group, bool by_outputs, std::vector<DenseSpec>* specs)
      : layer_(layer), group_(group), by_outputs_(by_outputs), specs_(specs) {}

  void Matrix(std::string_view name, uint32_t rows, uint32_t cols) {
    Add(name, rows, cols, DenseKind::kMatrix);
  }
  // The down matrix of an FFN of `width` neurons.
  void Down(std::string_view name, uint32_t width, uint32_t hidden) {
    by_outputs_ ? Add(name, hidden, width, DenseKind::kMatrix) : Add(name, width, hidden, DenseKind::kSummed);
  }
  void Vector(std::string_view name, uint32_t length) { Add(name, 1, length, DenseKind::kVector); }
  void Table(std::string_view name, uint32_t rows, uint32_t cols) {
    Add(name, rows, cols, DenseKind::kVector);
  }
  void Router(std::string_view name, uint32_t rows, uint32_t cols) {
    Add(name, rows, cols, DenseKind::kRouter);
  }
  void Rows(std::string_view name, uint64_t rows, uint32_t cols) {
    Add(name, static_cast<uint32_t>(rows), cols, DenseKind::kRows);
  }

 private:
  void Add(std::string_view name, uint32_t rows, uint32_t cols, DenseKind kind) {
    std::string full = layer_ == ExtentEntry::kNone ? std::string(name) : dense::LayerName(layer_, name);
    specs_->push_back({std::move(full), layer_, group_, rows, cols, kind});
  }
  const uint32_t layer_;
  const uint32_t group_;
  const bool by_outputs_;
  std::vector<DenseSpec>* const specs_;
};

void AddGroupedSpecs(const AttentionConfig& attention, uint32_t hidden, SpecList* list) {
  const uint32_t q_rows = attention.heads * attention.head_dim;
  const uint32_t kv_rows = attention.kv_heads * attention.head_dim;
  const uint32_t v_rows = attention.kv_heads * ValueDim(attention);
  const uint32_t out_cols = attention.heads * ValueDim(attention);
  list->Matrix(dense::kQ, q_rows, hidden);
  if (attention.output_gate) {
    list->Matrix(dense::kQGate, attention.gate_per_head ? attention.heads : out_cols, hidden);
  }
  list->Matrix(dense::kK, kv_rows, hidden);
  if (!attention.value_is_key) list->Matrix(dense::kV, v_rows, hidden);
  list->Matrix(dense::kO, hidden, out_cols);
  if (attention.qkv_bias) {
    list->Vector(dense::kQBias, q_rows);
    list->Vector(dense::kKBias, kv_rows);
    list->Vector(dense::kVBias, v_rows);
  }
  if (attention.output_bias) list->Vector(dense::kOBias, hidden);
  if (attention.qk_norm == QkNorm::kPerHead || attention.qk_norm == QkNorm::kWeightedAfterRope) {
    list->Vector(dense::kQNorm, attention.head_dim);
    list->Vector(dense::kKNorm, attention.head_dim);
  }
  if (attention.qk_norm == QkNorm::kAcrossHeads) {
    list->Vector(dense::kQNorm, q_rows);
    list->Vector(dense::kKNorm, kv_rows);
  }
  if (attention.sinks) list->Vector(dense::kSinks, attention.heads);
}

void AddLatentSpecs(const AttentionConfig& attention, uint32_t hidden, SpecList* list) {
  const LatentConfig& latent = attention.latent;
  if (latent.q_rank != 0) {
    list->Matrix(dense::kQDown, latent.q_rank, hidden);
    list->Vector(dense::kQDownNorm, latent.q_rank);
  }
  list->Matrix(dense::kQ, attention.heads * attention.head_dim, latent.q_rank != 0 ? latent.q_rank : hidden);
  list->Matrix(dense::kKvDown, latent.kv_rank + attention.rope.dimensions, hidden);
  list->Vector(dense::kKvDownNorm, latent.kv_rank);
  list->Matrix(dense::kKUpT, attention.heads * latent.kv_rank, latent.nope_dim);
  list->Matrix(dense::kVUp, attention.heads * latent.value_dim, latent.kv_rank);
  list->Matrix(dense::kO, hidden, attention.heads * latent.value_dim);
  if (attention.output_gate) {
    list->Matrix(dense::kQGate, attention.heads * (attention.gate_per_head ? 1 : latent.value_dim), hidden);
  }
}

void AddDeltaSpecs(const DeltaConfig& delta, uint32_t hidden, SpecList* list) {
  const uint32_t values = delta.value_heads * delta.value_dim;
  const uint32_t conv_cols = 2 * delta.key_heads * delta.key_dim + values;
  list->Matrix(dense::kDeltaQkv, conv_cols, hidden);
  const uint32_t gate_cols = delta.gate_rank > 0 ? delta.gate_rank : hidden;
  if (delta.gate_rank > 0) {
    list->Matrix(dense::kDeltaZDown, delta.gate_rank, hidden);
    list->Matrix(dense::kDeltaDecayDown, delta.gate_rank, hidden);
  }
  list->Matrix(dense::kDeltaZ, values, gate_cols);
  list->Router(dense::kDeltaBeta, delta.value_heads, hidden);
  const uint32_t decays = delta.value_heads * (delta.channel_decay ? delta.key_dim : 1);
  if (delta.channel_decay) {
    list->Matrix(dense::kDeltaDecay, decays, gate_cols);
  } else {
    list->Router(dense::kDeltaDecay, decays, hidden);
  }
  list->Table(dense::kDeltaConv, conv_cols, delta.conv_kernel);
  list->Vector(dense::kDeltaALog, delta.value_heads);
  list->Vector(dense::kDeltaDtBias, decays);
  list->Vector(dense::kDeltaNorm, delta.value_dim);
  list->Matrix(dense::kO, hidden, values);
}

void AddMambaSpecs(const MambaConfig& mamba, uint32_t hidden, SpecList* list) {
  const uint32_t values = mamba.heads * mamba.head_dim;
  const uint32_t conv_cols = values + 2 * mamba.groups * mamba.state;
  list->Matrix(dense::kMambaZ, values, hidden);
  list->Matrix(dense::kMambaXbc, conv_cols, hidden);
  list->Router(dense::kMambaDt, mamba.heads, hidden);
  list->Table(dense::kMambaConv, mamba.conv_kernel, conv_cols);
  list->Vector(dense::kMambaConvBias, conv_cols);
  list->Vector(dense::kMambaALog, mamba.heads);
  list->Vector(dense::kMambaDtBias, mamba.heads);
  list->Vector(dense::kMambaD, mamba.heads);
  list->Vector(dense::kMambaNorm, values);
  list->Matrix(dense::kO, hidden, values);
}

void AddSelectiveSpecs(const SelectiveConfig& selective, uint32_t hidden, SpecList* list) {
  const uint32_t channels = selective.channels;
  list->Matrix(dense::kSelectiveX, channels, hidden);
  list->Matrix(dense::kSelectiveZ, channels, hidden);
  list->Table(dense::kSelectiveConv, selective.conv_kernel, channels);
  list->Vector(dense::kSelectiveConvBias, channels);
  list->Matrix(dense::kSelectiveStepDown, selective.step_rank, channels);
  list->Matrix(dense::kSelectiveB, selective.state, channels);
  list->Matrix(dense::kSelectiveC, selective.state, channels);
  list->Vector(dense::kSelectiveStepNorm, selective.step_rank);
  list->Vector(dense::kSelectiveBNorm, selective.state);
  list->Vector(dense::kSelectiveCNorm, selective.state);
  list->Matrix(dense::kSelectiveStep, channels, selective.step_rank);
  list->Vector(dense::kSelectiveStepBias, channels);
  list->Table(dense::kSelectiveALog, selective.state, channels);
  list->Vector(dense::kSelectiveD, channels);
  list->Matrix(dense::kO, hidden, channels);
}

void AddShortConvSpecs(const AttentionConfig& attention, uint32_t hidden, SpecList* list) {
  const ShortConvConfig& conv = attention.conv;
  list->Matrix(dense::kConvIn, 3 * conv.width, hidden);
  list->Table(dense::kConvKernel, conv.kernel, conv.width);
  list->Matrix(dense::kO, hidden, conv.width);
  if (conv.bias) {
    list->Vector(dense::kConvInBias, 3 * conv.width);
    list->Vector(dense::kConvBias, conv.width);
  }
  if (attention.output_bias) list->Vector(dense::kOBias, hidden);
}

void AddCompressedSpecs(const AttentionConfig& attention, uint32_t hidden, SpecList* list) {
  const CompressConfig& compress = attention.compress;
  list->Matrix(dense::kQDown, compress.q_rank, hidden);
  list->Vector(dense::kQDownNorm, compress.q_rank);
  list->Matrix(dense::kQ, attention.heads * attention.head_dim, compress.q_rank);
  list->Matrix(dense::kK, attention.head_dim, hidden);
  list->Vector(dense::kKNorm, attention.head_dim);
  if (attention.sinks) list->Vector(dense::kSinks, attention.heads);
  list->Matrix(dense::kOGroups, compress.groups * compress.o_rank,
               attention.heads / compress.groups * attention.head_dim);
  list->Matrix(dense::kO, hidden, compress.groups * compress.o_rank);
  if (compress.rate == 0) return;
  const uint32_t width = CompressedWidth(attention);
  list->Router(dense::kEntryValues, width, hidden);
  list->Router(dense::kEntryGates, width, hidden);
  list->Table(dense::kEntryBias, compress.rate, width);
  list->Vector(dense::kEntryNorm, attention.head_dim);
}

void AddIndexSpecs(const AttentionConfig& attention, uint32_t hidden, SpecList* list) {
  const IndexConfig& index = attention.index;
  if (!HasIndexKeys(attention)) return;
  list->Matrix(dense::kIndexQ, index.heads * index.head_dim, IndexQueryWidth(attention, hidden));
  if (index.summed) {
    list->Router(dense::kIndexK, index.head_dim, hidden);
  } else if (index.pooled) {
    list->Router(dense::kIndexK, PooledWidth(attention), hidden);
    list->Router(dense::kIndexGates, PooledWidth(attention), hidden);
    list->Table(dense::kIndexBias, index.block, PooledWidth(attention));
  } else {
    list->Matrix(dense::kIndexK, index.head_dim, hidden);
  }
  list->Vector(dense::kIndexKNorm, index.head_dim);
  if (index.weighted) {
    if (HasIndexNormBias(attention)) list->Vector(dense::kIndexKNormBias, index.head_dim);
    list->Router(dense::kIndexWeights, index.heads, hidden);
  } else {
    list->Vector(dense::kIndexQNorm, index.head_dim);
  }
}

void AddAttentionSpecs(const AttentionConfig& attention, uint32_t hidden, SpecList* list) {
  AddIndexSpecs(attention, hidden, list);
  switch (attention.kind) {
    case AttentionKind::kGrouped:
      return AddGroupedSpecs(attention, hidden, list);
    case AttentionKind::kLatent:
      return AddLatentSpecs(attention, hidden, list);
    case AttentionKind::kGatedDelta:
      return AddDeltaSpecs(attention.delta, hidden, list);
    case AttentionKind::kMamba:
      return AddMambaSpecs(attention.mamba, hidden, list);
    case AttentionKind::kShortConv:
      return AddShortConvSpecs(attention, hidden, list);
    case AttentionKind::kSelective:
      return AddSelectiveSpecs(attention.selective, hidden, list);
    case AttentionKind::kCompressed:
      return AddCompressedSpecs(attention, hidden, list);
    case AttentionKind::kNone:
      return;
  }
}

// The mix of streams by `rows` values of a projection.
void AddStreamSpecs(const ModelConfig& config, uint32_t rows, uint32_t scales, std::string_view matrix,
                    std::string_view base, std::string_view scale, SpecList* list) {
  if (!HasStreams(config) || config.streams.rank > 0) return;
  list->Router(matrix, rows, config.streams.count * config.hidden);
  list->Vector(base, rows);
  list->Vector(scale, scales);
}

// The gates of a mix of streams; `add` is empty at the end.
void AddGatedStreamSpecs(const ModelConfig& config, std::string_view norm, std::string_view down,
                         std::string_view up, std::string_view add, SpecList* list) {
  const uint32_t all = config.streams.count * config.hidden;
  if (config.streams.rank == 0) return;
  list->Vector(norm, all);
  list->Matrix(down, config.streams.rank, all);
  list->Matrix(up, all, config.streams.rank);
  if (!add.empty()) list->Router(add, config.streams.count, all);
}

void AddNgramSpecs(const ModelConfig& config, const NgramConfig& ngrams, SpecList* list) {
  const uint32_t all = config.streams.count * config.hidden;
  list->Matrix(dense::kNgramKey, all, NgramWidth(ngrams));
  list->Matrix(dense::kNgramValue, config.hidden, NgramWidth(ngrams));
  list->Vector(dense::kNgramKeyNorm, all);
  list->Vector(dense::kNgramQueryNorm, all);
  list->Vector(dense::kNgramConvNorm, all);
  list->Table(dense::kNgramConv, ngrams.kernel, all);
}

void AddNormSpecs(const ModelConfig& config, std::string_view weight, std::string_view bias, SpecList* list) {
  list->Vector(weight, config.hidden);
  if (HasNormBias(config)) list->Vector(bias, config.hidden);
}

// The dense tensors of an FFN of `width` neurons, which may have no gates.
void AddWidthSpecs(uint32_t width, bool gates, uint32_t hidden, std::string_view up, std::string_view gate,
                   std::string_view down, SpecList* list) {
  list->Matrix(up, width, hidden);
  if (gates) list->Matrix(gate, width, hidden);
  list->Down(down, width, hidden);
}

void AddBesideSpecs(const MoeConfig& moe, uint32_t hidden, SpecList* list) {
  AddWidthSpecs(moe.dense_ffn_width, HasGates(moe.activation), hidden, dense::kParallelUp,
                dense::kParallelGate, dense::kParallelDown, list);
  list->Vector(dense::kParallelPostNorm, hidden);
  list->Vector(dense::kRouterNorm, hidden);
  list->Vector(dense::kExpertsNorm, hidden);
  list->Vector(dense::kExpertsPostNorm, hidden);
}

// The biases of a dense or shared FFN.
void AddWidthBiases(const MoeConfig& moe, uint32_t width, uint32_t hidden, std::string_view up,
                    std::string_view gate, std::string_view down, SpecList* list) {
  if (!moe.ffn_bias) return;
  list->Vector(up, width);
  if (HasGates(moe.activation)) list->Vector(gate, width);
  list->Vector(down, hidden);
}

void AddFfnSpecs(const MoeConfig& moe, uint32_t latent_width, uint32_t hidden, uint32_t vocab,
                 SpecList* list) {
  const bool gates = HasGates(moe.activation);
  if (moe.experts == 0) {
    AddWidthSpecs(moe.dense_width, gates, hidden, dense::kDenseUp, dense::kDenseGate, dense::kDenseDown,
                  list);
    AddWidthBiases(moe, moe.dense_width, hidden, dense::kDenseUpBias, dense::kDenseGateBias,
                   dense::kDenseDownBias, list);
    return;
  }
  if (latent_width > 0) {
    list->Matrix(dense::kLatentDown, latent_width, hidden);
    list->Matrix(dense::kLatentUp, hidden, latent_width);
  }
  const uint32_t routed = moe.experts + moe.zero_experts;
  if (moe.dense_ffn_width != 0) AddBesideSpecs(moe, hidden, list);
  list->Router(dense::kRouter, routed, hidden);
  if (moe.router_bias) list->Vector(dense::kRouterBias, routed);
  if (moe.router_correction) list->Vector(dense::kRouterCorrection, routed);
  if (moe.token_experts) list->Table(dense::kTokenExperts, vocab, moe.top_k);
  if (moe.expert_scale) list->Vector(dense::kExpertScale, moe.experts);
  if (moe.expert_bias) {
    list->Table(dense::kExpertsUpBias, moe.experts, moe.expert_width);
    list->Table(dense::kExpertsGateBias, moe.experts, moe.expert_width);
    list->Table(dense::kExpertsDownBias, moe.experts, hidden);
  }
  if (moe.shared_width != 0) {
    AddWidthSpecs(moe.shared_width, gates, hidden, dense::kSharedUp, dense::kSharedGate, dense::kSharedDown,
                  list);
    AddWidthBiases(moe, moe.shared_width, hidden, dense::kSharedUpBias, dense::kSharedGateBias,
                   dense::kSharedDownBias, list);
    if (moe.shared_gate) list->Router(dense::kSharedRouter, 1, hidden);
  }
}

// Tensors of a layer that drafts, beside those of the layer itself.
void AddMtpSpecs(uint32_t hidden, SpecList* list) {
  list->Vector(dense::kMtpEmbedNorm, hidden);
  list->Vector(dense::kMtpHiddenNorm, hidden);
  list->Matrix(dense::kMtpEmbed, hidden, hidden);
  list->Matrix(dense::kMtpHidden, hidden, hidden);
  list->Vector(dense::kMtpNorm, hidden);
}

void AddLayerSpecs(const ModelConfig& config, const LayerConfig& layer, SpecList* list) {
  const uint32_t hidden = config.hidden;
  if (HasNgrams(layer)) AddNgramSpecs(config, layer.ngrams, list);
  if (HasAttention(layer)) {
    AddGatedStreamSpecs(config, dense::kAttnStreamsNorm, dense::kAttnStreamsDown, dense::kAttnStreamsUp,
                        dense::kAttnStreamsAdd, list);
    AddStreamSpecs(config, StreamRaws(config.streams), 3, dense::kAttnStreams, dense::kAttnStreamsBase,
                   dense::kAttnStreamsScale, list);
    if (layer.pre_norms) AddNormSpecs(config, dense::kAttnNorm, dense::kAttnNormBias, list);
    AddAttentionSpecs(layer.attention, hidden, list);
    if (layer.post_norms) list->Vector(dense::kAttnPostNorm, hidden);
  }
  if (HasFfn(layer)) {
    AddGatedStreamSpecs(config, dense::kFfnStreamsNorm, dense::kFfnStreamsDown, dense::kFfnStreamsUp,
                        dense::kFfnStreamsAdd, list);
    AddStreamSpecs(config, StreamRaws(config.streams), 3, dense::kFfnStreams, dense::kFfnStreamsBase,
                   dense::kFfnStreamsScale, list);
    if (HasFfnNorm(layer)) AddNormSpecs(config, dense::kFfnNorm, dense::kFfnNormBias, list);
    AddFfnSpecs(layer.moe, config.latent_width, hidden, config.vocab, list);
    if (layer.post_norms) list->Vector(dense::kFfnPostNorm, hidden);
  }
  if (layer.layer_scale) list->Vector(dense::kLayerScale, 1);
}

}  // namespace

// Stores tensors in the order of the forward pass: a session that reads dense.bin from its beginning gets the
// tensors that it needs first.
std::vector<DenseSpec> DenseSpecs(const ModelConfig& config, bool by_outputs) {
  const uint32_t hidden = config.hidden;
  std::vector<DenseSpec> specs;
  SpecList(ExtentEntry::kNone, 0, by_outputs, &specs).Matrix(dense::kEmbed, config.vocab, hidden);
  uint32_t group = 0;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    SpecList list(layer, ++group, by_outputs, &specs);
    if (IsMtpLayer(config, layer)) AddMtpSpecs(hidden, &list);
    AddLayerSpecs(config, config.layers[layer], &list);
  }
  SpecList last(ExtentEntry::kNone, ++group, by_outputs, &specs);
  if (!config.streams.mean_output) {
    AddStreamSpecs(config, config.streams.count, 1, dense::kHeadStreams, dense::kHeadStreamsBase,
                   dense::kHeadStreamsScale, &last);
  }
  AddGatedStreamSpecs(config, dense::kHeadStreamsNorm, dense::kHeadStreamsDown, dense::kHeadStreamsUp, {},
                      &last);
  if (HasFinalNorm(config)) AddNormSpecs(config, dense::kFinalNorm, dense::kFinalNormBias, &last);
  if (!config.tied_embeddings) last.Matrix(dense::kHead, config.vocab, hidden);
  if (config.head_bias) last.Vector(dense::kHeadBias, config.vocab);
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const NgramConfig& ngrams = config.layers[layer].ngrams;
    if (!HasNgrams(config.layers[layer])) continue;
    SpecList(layer, ++group, by_outputs, &specs).Rows(dense::kNgramRows, ngrams.rows, ngrams.width);
  }
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
    case DenseKind::kRows:
      return !IsQuantized(encoding.encoding) && !IsBlockEncoding(encoding.encoding);
    case DenseKind::kSummed:
      return !IsBlockEncoding(encoding.encoding);
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
    if (specs[i].kind == DenseKind::kRows) {
      tensor.extent = ++extent;
      extent += (tensor.rows - 1) / RowsPerExtent(tensor.stride);
      tensors.push_back(std::move(tensor));
      continue;
    }
    const uint64_t bytes = static_cast<uint64_t>(tensor.rows) * tensor.stride;
    const uint64_t offset = AlignUp(end, kDenseTensorAlignment);
    // An extent holds tensors of one layer at most, so that a layer can be leased by itself; a tensor that
    // would exceed the size begins another extent.
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
  // Extents follow each other without gaps, and each one's checksums follow those of the one before: the
  // table's reader checks exactly that.
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
  for (size_t i = 0; i < specs.size() && specs[i].kind != DenseKind::kRows;) {
    const uint32_t extent = tensors[i].extent;
    uint64_t end = 0;
    size_t last = i;
    for (; last < specs.size() && specs[last].kind != DenseKind::kRows && tensors[last].extent == extent;
         ++last) {
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

absl::Status ExtentPlanner::AddRows(const std::vector<DenseSpec>& specs,
                                    const std::vector<DenseTensor>& tensors) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind != DenseKind::kRows) continue;
    const DenseTensor& tensor = tensors[i];
    if (tensor.extent != extents_.size() || tensor.offset != 0) {
      return absl::DataLossError(absl::StrCat("rows ", tensor.name, " are at offset ", tensor.offset,
                                              " of extent ", tensor.extent, ", expected ", extents_.size()));
    }
    const uint32_t each = RowsPerExtent(tensor.stride);
    for (uint32_t first = 0, number = 0; first < tensor.rows; first += each, ++number) {
      ExtentEntry entry;
      entry.kind = ExtentKind::kRows;
      entry.file = static_cast<uint8_t>(PackFile::kRows);
      entry.layer = specs[i].layer;
      entry.expert = number;
      RETURN_IF_ERROR(Add(entry, uint64_t{std::min(each, tensor.rows - first)} * tensor.stride));
      if (tensor.rows - first <= each) break;  // the sum could wrap around
    }
  }
  return absl::OkStatus();
}

absl::Status ExtentPlanner::AddExpert(uint32_t layer, uint32_t expert, uint32_t format,
                                      const ExpertPlan& plan) {
  for (uint32_t stream = 0; stream < plan.streams; ++stream) {
    ExtentEntry entry;
    entry.kind = ExtentKind::kExpert;
    entry.file = static_cast<uint8_t>(PackFile::kExperts);
    entry.stream = static_cast<uint16_t>(stream);
    entry.layer = layer;
    entry.expert = expert;
    entry.format = format;
    RETURN_IF_ERROR(Add(entry, uint64_t{plan.stream_rows[stream]} * plan.stream_stride[stream]));
  }
  return absl::OkStatus();
}

}  // namespace sluice
