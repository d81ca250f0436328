#include "pack/writer/pack_inspect.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/file_io.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "pack/pack.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

constexpr double kBf16Bits = 16;

uint64_t PartParameters(const Pack& pack, uint32_t layer) {
  const MoeConfig& moe = pack.config().layers[layer].moe;
  return uint64_t{HasGates(moe.activation) ? 3u : 2u} * moe.expert_width * ExpertHidden(pack.config());
}

void AddRows(const EncodingDescriptor& encoding, uint64_t rows, uint64_t cols, std::vector<StoredRows>* to) {
  const auto it = std::find_if(to->begin(), to->end(),
                               [&](const StoredRows& stored) { return stored.encoding == encoding; });
  (it != to->end() ? *it : to->emplace_back()).Add(encoding, rows, cols);
}

// Neighbouring layers of the same formats are shown as one range.
void CountLayer(const Pack& pack, uint32_t layer, PackInspection* result) {
  LayerFormats here{layer, layer, std::vector<uint32_t>(result->manifest.expert_formats.size())};
  for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
    ++here.experts[pack.extents()[pack.expert_extents(layer, expert).first].format];
    for (int p = 0; p < kPartCount; ++p) {
      const Part part = static_cast<Part>(p);
      if ((StoredParts(pack.expert_format(layer, expert)) & PartBit(part)) == 0) continue;
      const PartView view = pack.part(layer, expert, part);
      AddRows(view.encoding, view.rows, view.cols, &result->parts[p]);
    }
  }
  std::vector<LayerFormats>& layers = result->layers;
  if (!layers.empty() && layers.back().last + 1 == layer && layers.back().experts == here.experts) {
    layers.back().last = layer;
  } else {
    layers.push_back(std::move(here));
  }
}

void CountRows(const Pack& pack, PackInspection* result) {
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    if (pack.expert_count(layer) > 0) CountLayer(pack, layer, result);
  }
  for (const DenseTensor& tensor : pack.dense_tensors()) {
    if (tensor.rows > 1) AddRows(tensor.encoding, tensor.rows, tensor.cols, &result->dense);
  }
  const auto more = [](const StoredRows& a, const StoredRows& b) { return a.weights > b.weights; };
  for (std::vector<StoredRows>& part : result->parts) std::stable_sort(part.begin(), part.end(), more);
  std::stable_sort(result->dense.begin(), result->dense.end(), more);
}

nlohmann::json FormatJson(const ExpertFormat& format) {
  nlohmann::json parts = nlohmann::json::object();
  for (int p = 0; p < kPartCount; ++p) {
    parts[PartName(static_cast<Part>(p))] = DescribeEncoding(format.parts[p]);
  }
  return {{"layout", ExpertLayoutName(format.layout)}, {"parts", std::move(parts)}};
}

nlohmann::json FormatsJson(const Manifest& manifest) {
  nlohmann::json formats = nlohmann::json::array();
  for (const ExpertFormat& format : manifest.expert_formats) formats.push_back(FormatJson(format));
  return formats;
}

nlohmann::json RowsJson(const std::vector<StoredRows>& rows) {
  nlohmann::json stored = nlohmann::json::array();
  for (const StoredRows& alike : rows) {
    stored.push_back({{"encoding", EncodingName(alike.encoding.encoding)},
                      {"group", alike.encoding.group},
                      {"meta_bits", alike.encoding.meta_bits},
                      {"super_group", alike.encoding.super_group},
                      {"matrices", alike.matrices},
                      {"weights", alike.weights},
                      {"bits_per_weight", BitsPerWeight({alike})}});
  }
  const double bits = BitsPerWeight(rows);
  return {{"bits_per_weight", bits}, {"ratio_to_bf16", bits / kBf16Bits}, {"stored", std::move(stored)}};
}

nlohmann::json PartsJson(const PackInspection& pack) {
  nlohmann::json parts = nlohmann::json::object();
  for (int p = 0; p < kPartCount; ++p) parts[PartName(static_cast<Part>(p))] = RowsJson(pack.parts[p]);
  return parts;
}

nlohmann::json LayersJson(const PackInspection& pack) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerFormats& range : pack.layers) {
    nlohmann::json formats = nlohmann::json::array();
    for (size_t f = 0; f < range.experts.size(); ++f) {
      if (range.experts[f] == 0) continue;
      nlohmann::json format = FormatJson(pack.manifest.expert_formats[f]);
      format["experts"] = range.experts[f];
      formats.push_back(std::move(format));
    }
    layers.push_back({{"first", range.first}, {"last", range.last}, {"formats", std::move(formats)}});
  }
  return layers;
}

std::string DenseEncodingText(const Manifest& manifest) {
  return manifest.dense_tensors.empty() ? "none" : DescribeEncoding(manifest.dense_tensors[0].encoding);
}

std::string BitsText(double bits) {
  return absl::StrFormat("%.3f bits a weight, %.3f of bf16", bits, bits / kBf16Bits);
}

// "q4 g64 (24), q2 g16 (24): 4.250 bits a weight, 0.266 of bf16"; matrices counted where they differ.
std::string RowsText(const std::vector<StoredRows>& rows) {
  std::string text;
  for (const StoredRows& alike : rows) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", DescribeEncoding(alike.encoding));
    if (rows.size() > 1) absl::StrAppend(&text, " (", alike.matrices, ")");
  }
  return absl::StrCat(text, ": ", BitsText(BitsPerWeight(rows)));
}

// Adds a line for each format of these layers.
std::string LayersText(const LayerFormats& range, const Manifest& manifest) {
  std::string text;
  for (size_t f = 0; f < range.experts.size(); ++f) {
    if (range.experts[f] == 0) continue;
    const ExpertFormat& format = manifest.expert_formats[f];
    absl::StrAppendFormat(&text, "  layers %d-%d: %d experts each, %s: up %s, gate %s, down %s\n",
                          range.first, range.last, range.experts[f], ExpertLayoutName(format.layout),
                          DescribeEncoding(format.parts[0]), DescribeEncoding(format.parts[1]),
                          DescribeEncoding(format.parts[2]));
  }
  return text;
}

}  // namespace

void StoredRows::Add(const EncodingDescriptor& of, uint64_t rows, uint64_t cols) {
  encoding = of;
  ++matrices;
  weights += rows * cols;
  row_bytes += rows * RowBytes(of, cols);
}

double BitsPerWeight(const std::vector<StoredRows>& rows) {
  uint64_t bytes = 0;
  uint64_t weights = 0;
  for (const StoredRows& alike : rows) {
    bytes += alike.row_bytes;
    weights += alike.weights;
  }
  return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

double PackInspection::ExpertBitsPerWeight() const {
  std::vector<StoredRows> all;
  for (const std::vector<StoredRows>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return BitsPerWeight(all);
}

double PackInspection::StoredBitsPerWeight() const {
  uint64_t weights = 0;
  for (const std::vector<StoredRows>& part : parts) {
    for (const StoredRows& alike : part) weights += alike.weights;
  }
  return weights == 0 ? 0 : 8 * static_cast<double>(expert_bytes) / static_cast<double>(weights);
}

absl::StatusOr<PackInspection> InspectPack(const std::string& dir) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(dir));
  PackInspection result;
  result.manifest = pack->manifest();
  result.dense_extents = pack->dense_extent_count();
  result.expert_extents = pack->extent_count() - pack->first_expert_extent();
  for (const ExtentEntry& entry : pack->extents()) result.checksums += ChecksumChunkCount(entry.length);
  result.dense_bytes = pack->dense_bytes();
  result.expert_bytes = pack->total_expert_bytes();
  result.experts = pack->expert_total();
  result.largest_expert_bytes = pack->largest_expert_bytes();
  result.row_bytes = pack->row_bytes();
  result.total_bytes =
      result.dense_bytes + result.row_bytes + result.expert_bytes + result.manifest.extent_table.bytes;
  for (const auto& [name, file] : result.manifest.tokenizer_files) result.total_bytes += file.bytes;
  ASSIGN_OR_RETURN(const File manifest_file, File::OpenForRead(absl::StrCat(dir, "/", kManifestName)));
  ASSIGN_OR_RETURN(const uint64_t manifest_bytes, manifest_file.Size());
  result.total_bytes += manifest_bytes;
  for (const DenseTensor& tensor : pack->dense_tensors()) {
    result.parameters += static_cast<uint64_t>(tensor.rows) * tensor.cols;
  }
  CountRows(*pack, &result);
  // Every token uses all dense parameters, a few of the tables' rows and top_k experts of each layer.
  result.active_parameters = result.parameters;
  for (const LayerConfig& layer : pack->config().layers) {
    const NgramConfig& ngrams = layer.ngrams;
    result.active_parameters -= ngrams.rows * ngrams.width - NgramWidth(ngrams);
  }
  for (uint32_t layer = 0; layer < pack->config().layers.size(); ++layer) {
    result.parameters += pack->expert_count(layer) * PartParameters(*pack, layer);
    if (IsMtpLayer(pack->config(), layer)) continue;
    result.active_parameters += pack->config().layers[layer].moe.top_k * PartParameters(*pack, layer);
  }
  result.has_profile = FileExists(absl::StrCat(dir, "/", kProfileFolder));
  return result;
}

std::string PackInspection::ToJson() const {
  const ModelConfig& config = manifest.config;
  const LayerConfig& layer = config.layers[ModelLayers(config) - 1];
  nlohmann::json tokenizer = nlohmann::json::array();
  for (const auto& [name, file] : manifest.tokenizer_files) tokenizer.push_back(name);
  const nlohmann::json object = {
      {"model_id", manifest.model_id},
      {"format_version", manifest.format_version},
      {"family", config.family},
      {"hidden", config.hidden},
      {"vocab", config.vocab},
      {"layers", ModelLayers(config)},
      {"mtp_layers", config.mtp_layers},
      {"experts_per_layer", layer.moe.experts},
      {"top_k", layer.moe.top_k},
      {"expert_width", layer.moe.expert_width},
      {"heads", layer.attention.heads},
      {"kv_heads", layer.attention.kv_heads},
      {"head_dim", layer.attention.head_dim},
      {"sliding_window", layer.attention.sliding_window},
      {"max_position", config.max_position},
      {"parameters", parameters},
      {"active_parameters", active_parameters},
      {"bytes", total_bytes},
      {"dense_bytes", dense_bytes},
      {"expert_bytes", expert_bytes},
      {"row_bytes", row_bytes},
      {"experts", experts},
      {"largest_expert_bytes", largest_expert_bytes},
      {"dense_extents", dense_extents},
      {"expert_extents", expert_extents},
      {"checksums", checksums},
      {"expert_formats", FormatsJson(manifest)},
      {"expert_bits_per_weight", ExpertBitsPerWeight()},
      {"expert_ratio_to_bf16", ExpertBitsPerWeight() / kBf16Bits},
      {"expert_stored_bits_per_weight", StoredBitsPerWeight()},
      {"parts", PartsJson(*this)},
      {"expert_layers", LayersJson(*this)},
      {"dense_encoding", DenseEncodingText(manifest)},
      {"dense", RowsJson(dense)},
      {"tokenizer_files", std::move(tokenizer)},
      {"chat_template", !manifest.chat_template.empty()},
      {"profile", has_profile},
      {"source_digest", manifest.provenance.source_digest},
      {"options", manifest.provenance.options},
      {"generator", manifest.provenance.generator},
  };
  return object.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

std::string PackInspection::ToText() const {
  const ModelConfig& config = manifest.config;
  const LayerConfig& layer = config.layers[ModelLayers(config) - 1];
  const auto mib = [](uint64_t bytes) {
    return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  };
  std::string text;
  absl::StrAppendFormat(&text, "model        %s %s\n", config.family, manifest.model_id);
  absl::StrAppendFormat(
      &text, "shape        %d layers, hidden %d, %d experts of %d, top-%d, %d heads of %d over %d\n",
      ModelLayers(config), config.hidden, layer.moe.experts, layer.moe.expert_width, layer.moe.top_k,
      layer.attention.heads, layer.attention.head_dim, layer.attention.kv_heads);
  if (config.mtp_layers > 0) {
    absl::StrAppendFormat(&text, "drafts       %d MTP layers\n", config.mtp_layers);
  }
  absl::StrAppendFormat(&text, "parameters   %.1f M, %.1f M active per token\n",
                        static_cast<double>(parameters) / 1e6, static_cast<double>(active_parameters) / 1e6);
  absl::StrAppendFormat(&text, "size         %s: dense %s in %d extents, experts %s in %d\n",
                        mib(total_bytes), mib(dense_bytes), dense_extents, mib(expert_bytes), expert_extents);
  if (experts > 0) {
    absl::StrAppendFormat(&text, "experts      %d, at most %s each, %s\n", experts, mib(largest_expert_bytes),
                          BitsText(ExpertBitsPerWeight()));
    for (int p = 0; p < kPartCount; ++p) {
      absl::StrAppendFormat(&text, "  %-11s%s\n", PartName(static_cast<Part>(p)), RowsText(parts[p]));
    }
    absl::StrAppendFormat(&text, "  %-11s%.3f bits a weight, with the gaps between rows and extents\n",
                          "on disk", StoredBitsPerWeight());
    for (const LayerFormats& range : layers) text += LayersText(range, manifest);
  }
  absl::StrAppendFormat(&text, "dense        %s\n", RowsText(dense));
  absl::StrAppendFormat(&text, "vocabulary   %d, tokenizer files %d, chat template %s\n", config.vocab,
                        manifest.tokenizer_files.size(), manifest.chat_template.empty() ? "no" : "yes");
  absl::StrAppendFormat(&text, "checksums    %d\n", checksums);
  absl::StrAppendFormat(&text, "made by      %s; %s; source %s\n", manifest.provenance.generator,
                        manifest.provenance.options, manifest.provenance.source_digest);
  absl::StrAppendFormat(&text, "profile      %s\n", has_profile ? "yes" : "no");
  return text;
}

}  // namespace sluice
