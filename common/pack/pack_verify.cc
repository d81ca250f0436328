// VerifyPack and InspectPack.
#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/checksum.h"
#include "common/file_io.h"
#include "common/pack/checksum.h"
#include "common/pack/pack.h"
#include "common/pack/pack_writer.h"
#include "common/pack/progress_meter.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
namespace {

// Bytes read and checked at once: whole chunks.
constexpr uint64_t kReadBytes = 8 * kChecksumChunkBytes;

absl::Status VerifyPayload(const Pack& pack, uint32_t first, uint32_t last, PackFile which,
                           ProgressMeter* meter) {
  ASSIGN_OR_RETURN(const File file, File::OpenForRead(pack.file_path(which)));
  std::vector<std::byte> buffer;
  Hasher128 hasher;
  for (uint32_t extent = first; extent < last; ++extent) {
    const ExtentEntry& entry = pack.extents()[extent];
    for (uint64_t at = 0; at < entry.length; at += kReadBytes) {
      buffer.resize(std::min(kReadBytes, entry.length - at));
      const absl::Status read = file.ReadAt(entry.offset + at, absl::MakeSpan(buffer));
      if (!read.ok()) return Annotate(read, pack.ExtentName(extent));
      RETURN_IF_ERROR(VerifyChunks(pack, extent, at, buffer));
      RETURN_IF_ERROR(meter->Add(buffer.size()));
    }
    const absl::Span<const uint64_t> checksums = pack.checksums(extent);
    hasher.Update(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(checksums.data()), checksums.size() * 8));
  }
  if (hasher.Finish() != pack.manifest().payload[static_cast<size_t>(which)].digest) {
    return absl::DataLossError(
        absl::StrCat(file.path(), ": the digest of its checksums is not that of the manifest"));
  }
  return absl::OkStatus();
}

uint64_t PartParameters(const Pack& pack, uint32_t layer) {
  return uint64_t{kPartCount} * pack.config().layers[layer].moe.expert_width * pack.config().hidden;
}

nlohmann::json FormatsJson(const Manifest& manifest) {
  nlohmann::json formats = nlohmann::json::array();
  for (const ExpertFormat& format : manifest.expert_formats) {
    nlohmann::json parts = nlohmann::json::object();
    for (int p = 0; p < kPartCount; ++p) {
      parts[PartName(static_cast<Part>(p))] = DescribeEncoding(format.parts[p]);
    }
    formats.push_back({{"layout", ExpertLayoutName(format.layout)}, {"parts", std::move(parts)}});
  }
  return formats;
}

std::string DenseEncodingText(const Manifest& manifest) {
  return manifest.dense_tensors.empty() ? "none" : DescribeEncoding(manifest.dense_tensors[0].encoding);
}

}  // namespace

absl::Status VerifyPack(const std::string& dir, const PackProgressFn& progress,
                        const std::atomic<bool>* cancel) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(dir));
  RETURN_IF_ERROR(pack->ReadTokenizerFiles().status());
  ProgressMeter meter(progress, cancel, "verifying", pack->dense_bytes() + pack->total_expert_bytes());
  RETURN_IF_ERROR(VerifyPayload(*pack, 0, pack->dense_extent_count(), PackFile::kDense, &meter));
  return VerifyPayload(*pack, pack->dense_extent_count(), pack->extent_count(), PackFile::kExperts, &meter);
}

absl::StatusOr<PackInspection> InspectPack(const std::string& dir) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(dir));
  PackInspection result;
  result.manifest = pack->manifest();
  result.dense_extents = pack->dense_extent_count();
  result.expert_extents = pack->extent_count() - pack->dense_extent_count();
  for (const ExtentEntry& entry : pack->extents()) result.checksums += ChecksumChunkCount(entry.length);
  result.dense_bytes = pack->dense_bytes();
  result.expert_bytes = pack->total_expert_bytes();
  result.experts = pack->expert_total();
  result.largest_expert_bytes = pack->largest_expert_bytes();
  result.total_bytes = result.dense_bytes + result.expert_bytes + result.manifest.extent_table.bytes;
  for (const auto& [name, file] : result.manifest.tokenizer_files) result.total_bytes += file.bytes;
  ASSIGN_OR_RETURN(const File manifest_file, File::OpenForRead(absl::StrCat(dir, "/", kManifestName)));
  ASSIGN_OR_RETURN(const uint64_t manifest_bytes, manifest_file.Size());
  result.total_bytes += manifest_bytes;
  for (const DenseTensor& tensor : pack->dense_tensors()) {
    result.parameters += static_cast<uint64_t>(tensor.rows) * tensor.cols;
  }
  result.active_parameters = result.parameters;
  for (uint32_t layer = 0; layer < pack->config().layers.size(); ++layer) {
    result.parameters += pack->expert_count(layer) * PartParameters(*pack, layer);
    result.active_parameters += pack->config().layers[layer].moe.top_k * PartParameters(*pack, layer);
  }
  result.has_profile = FileExists(absl::StrCat(dir, "/", kProfileFolder));
  return result;
}

std::string PackInspection::ToJson() const {
  const ModelConfig& config = manifest.config;
  const LayerConfig& layer = config.layers.back();
  nlohmann::json tokenizer = nlohmann::json::array();
  for (const auto& [name, file] : manifest.tokenizer_files) tokenizer.push_back(name);
  const nlohmann::json object = {
      {"model_id", manifest.model_id},
      {"format_version", manifest.format_version},
      {"family", config.family},
      {"hidden", config.hidden},
      {"vocab", config.vocab},
      {"layers", config.layers.size()},
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
      {"experts", experts},
      {"largest_expert_bytes", largest_expert_bytes},
      {"dense_extents", dense_extents},
      {"expert_extents", expert_extents},
      {"checksums", checksums},
      {"expert_formats", FormatsJson(manifest)},
      {"dense_encoding", DenseEncodingText(manifest)},
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
  const LayerConfig& layer = config.layers.back();
  const auto mib = [](uint64_t bytes) {
    return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  };
  std::string text;
  absl::StrAppendFormat(&text, "model        %s %s\n", config.family, manifest.model_id);
  absl::StrAppendFormat(
      &text, "shape        %d layers, hidden %d, %d experts of %d, top-%d, %d heads of %d over %d\n",
      config.layers.size(), config.hidden, layer.moe.experts, layer.moe.expert_width, layer.moe.top_k,
      layer.attention.heads, layer.attention.head_dim, layer.attention.kv_heads);
  absl::StrAppendFormat(&text, "parameters   %.1f M, %.1f M active per token\n",
                        static_cast<double>(parameters) / 1e6, static_cast<double>(active_parameters) / 1e6);
  absl::StrAppendFormat(&text, "size         %s: dense %s in %d extents, experts %s in %d\n",
                        mib(total_bytes), mib(dense_bytes), dense_extents, mib(expert_bytes), expert_extents);
  for (const ExpertFormat& format : manifest.expert_formats) {
    absl::StrAppendFormat(&text, "experts      %d, at most %s each; %s: up %s, gate %s, down %s\n", experts,
                          mib(largest_expert_bytes), ExpertLayoutName(format.layout),
                          DescribeEncoding(format.parts[0]), DescribeEncoding(format.parts[1]),
                          DescribeEncoding(format.parts[2]));
  }
  absl::StrAppendFormat(&text, "dense        %s\n", DenseEncodingText(manifest));
  absl::StrAppendFormat(&text, "vocabulary   %d, tokenizer files %d, chat template %s\n", config.vocab,
                        manifest.tokenizer_files.size(), manifest.chat_template.empty() ? "no" : "yes");
  absl::StrAppendFormat(&text, "checksums    %d\n", checksums);
  absl::StrAppendFormat(&text, "made by      %s; %s; source %s\n", manifest.provenance.generator,
                        manifest.provenance.options, manifest.provenance.source_digest);
  absl::StrAppendFormat(&text, "profile      %s\n", has_profile ? "yes" : "no");
  return text;
}

}  // namespace sluice
