#include "common/model/model_source.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "common/base/file_io.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/model/gguf_checkpoint.h"
#include "common/model/mtp_layers.h"
#include "common/model/quantized_layers.h"
#include "common/model/safetensors.h"

namespace sluice {
namespace {

// Part of the fingerprint: changes when layers are decoded to other values.
constexpr char kFolderDecoderVersion[] = "decoded 1\n";

class CheckpointFolder final : public Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& dir,
                                                          const Quantization& quantization) {
    auto checkpoint = std::make_unique<CheckpointFolder>();
    ASSIGN_OR_RETURN(checkpoint->folder_, TensorFolder::Open(dir));
    RETURN_IF_ERROR(checkpoint->AddTensors(quantization));
    return checkpoint;
  }

  absl::Status Read(const CheckpointTensor& tensor, const TensorRect& rect,
                    absl::Span<std::byte> out) const override {
    if (!tensor.decoded) return ReadPlain(tensor, rect, out);
    const absl::Status status = ReadDecoded(tensor, rect, out);
    // Errors about a layer get the tensor's name; read errors already name the file.
    return absl::IsInvalidArgument(status) ? Annotate(status, PathOf(tensor)) : status;
  }

  std::optional<StoredLines> LinesInFile(const CheckpointTensor& tensor) const override {
    if (tensor.decoded) return std::nullopt;
    const TensorInfo& info = folder_->tensors()[tensor.source_index];
    return StoredLines{.path = PathOf(tensor),
                       .offset = info.offset,
                       .line_bytes = tensor.line_length() * ElementBytes(info.type)};
  }

  const std::string& PathOf(const CheckpointTensor& tensor) const override {
    const TensorInfo* info =
        tensor.decoded ? layer_codes_[tensor.source_index] : &folder_->tensors()[tensor.source_index];
    return folder_->files()[info->file].path();
  }

  std::string fingerprint() const override {
    return absl::StrCat(folder_->fingerprint(), layers_.empty() ? "" : kFolderDecoderVersion);
  }

 private:
  absl::Status AddTensors(const Quantization& quantization) {
    std::vector<CheckpointTensor> tensors;
    absl::flat_hash_set<const TensorInfo*> used;
    for (const TensorInfo& info : folder_->tensors()) {
      absl::StatusOr<LayerParts> parts = FindQuantizedLayer(*folder_, quantization, info);
      if (!parts.ok()) return Annotate(parts.status(), folder_->files()[info.file].path());
      if (parts->layer == nullptr) continue;
      used.insert(parts->used.begin(), parts->used.end());
      parts->tensor.source_index = static_cast<uint32_t>(layers_.size());
      layers_.push_back(std::move(parts->layer));
      layer_codes_.push_back(&info);
      tensors.push_back(std::move(parts->tensor));
    }
    for (uint32_t i = 0; i < folder_->tensors().size(); ++i) {
      const TensorInfo& info = folder_->tensors()[i];
      if (used.contains(&info) || IsActivationScale(quantization, info)) continue;
      CheckpointTensor tensor{.name = info.name, .shape = info.shape, .type = info.type};
      tensor.format = ElementTypeName(info.type);
      tensor.source_index = i;
      ASSIGN_OR_RETURN(tensor.is_neutral, IsZeroBias(quantization, info));
      tensors.push_back(std::move(tensor));
    }
    return SetTensors(std::move(tensors));
  }

  // AutoGPTQ writes a bias of zeros beside every layer, even if the family has none.
  absl::StatusOr<bool> IsZeroBias(const Quantization& quantization, const TensorInfo& info) const {
    constexpr uint64_t kMaxBiasBytes = 1 << 20;
    if (quantization.method != QuantMethod::kGptq || !absl::EndsWith(info.name, ".bias")) return false;
    const std::string base = info.name.substr(0, info.name.size() - std::string_view(".bias").size());
    if (folder_->Find(base + ".qweight") == nullptr || info.bytes > kMaxBiasBytes) return false;
    std::vector<std::byte> bytes(info.bytes);
    RETURN_IF_ERROR(folder_->Read(info, 0, absl::MakeSpan(bytes)));
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
  }

  absl::Status ReadPlain(const CheckpointTensor& tensor, const TensorRect& rect,
                         absl::Span<std::byte> out) const {
    const TensorInfo& info = folder_->tensors()[tensor.source_index];
    const uint64_t width = ElementBytes(info.type);
    const uint64_t line_bytes = tensor.line_length() * width;
    const uint64_t bytes = rect.columns * width;
    if (bytes == line_bytes) return folder_->Read(info, rect.line * line_bytes, out);
    for (uint64_t i = 0; i < rect.lines; ++i) {
      RETURN_IF_ERROR(folder_->Read(info, (rect.line + i) * line_bytes + rect.column * width,
                                    out.subspan(i * bytes, bytes)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadDecoded(const CheckpointTensor& tensor, const TensorRect& rect,
                           absl::Span<std::byte> out) const {
    const QuantizedLayer& layer = *layers_[tensor.source_index];
    const uint64_t values = rect.lines * rect.columns;
    if (tensor.type == ElementType::kF32) {
      return layer.Read(rect, absl::MakeSpan(reinterpret_cast<float*>(out.data()), values));
    }
    std::vector<float> floats(values);
    RETURN_IF_ERROR(layer.Read(rect, absl::MakeSpan(floats)));
    for (uint64_t i = 0; i < values; ++i) {
      const uint16_t bits = FloatToBf16(floats[i]);
      std::memcpy(out.data() + 2 * i, &bits, 2);
    }
    return absl::OkStatus();
  }

  std::unique_ptr<TensorFolder> folder_;
  std::vector<std::unique_ptr<QuantizedLayer>>
      layers_;                                  // by CheckpointTensor::source_index of decoded tensors
  std::vector<const TensorInfo*> layer_codes_;  // same index; points into folder_
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpointFolder(const std::string& dir,
                                                                 const Quantization& quantization) {
  return CheckpointFolder::Open(dir, quantization);
}

namespace {

constexpr uint64_t kMaxTokenizerFileBytes = 256ull << 20;
constexpr uint64_t kMaxConfigFileBytes = 16ull << 20;
constexpr const char* kTokenizerFileNames[] = {
    "tokenizer.json",        "tokenizer.model",         "vocab.json",        "merges.txt",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
};

absl::Status ReadTokenizer(const std::string& dir, std::map<std::string, std::string>* files) {
  for (const char* name : kTokenizerFileNames) {
    const std::string path = absl::StrCat(dir, "/", name);
    if (!FileExists(path)) continue;
    ASSIGN_OR_RETURN((*files)[name], ReadFile(path, kMaxTokenizerFileBytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSource> OpenFolder(const std::string& dir) {
  ModelSource source;
  ASSIGN_OR_RETURN(source.hf, ReadHfConfig(dir));
  ASSIGN_OR_RETURN(source.checkpoint, OpenCheckpointFolder(dir, source.hf.quantization));
  RETURN_IF_ERROR(AddMtpLayers(*source.checkpoint, &source.hf.config, &source.no_mtp));
  RETURN_IF_ERROR(ReadTokenizer(dir, &source.tokenizer_files));
  return source;
}

// `*had_mtp`: true if the file's MTP layers were looked at.
absl::StatusOr<ModelSource> OpenGgufWith(const std::string& path, bool mtp_layers, bool* had_mtp) {
  ASSIGN_OR_RETURN(GgufModel gguf, OpenGguf(path, mtp_layers));
  *had_mtp = gguf.mtp_layers;
  ModelSource source;
  // Messages about converted keys name the file and the hub's member.
  ASSIGN_OR_RETURN(source.hf, ParseHfConfig(gguf.config_json, gguf.generation_json, path));
  source.hf.chat_template = std::move(gguf.chat_template);
  source.checkpoint = std::move(gguf.checkpoint);
  source.tokenizer_files = std::move(gguf.tokenizer_files);
  if (gguf.mtp_layers) {
    RETURN_IF_ERROR(AddMtpLayers(*source.checkpoint, &source.hf.config, &source.no_mtp));
  }
  return source;
}

// Opens the file without its MTP layers if something is wrong with them: the model does without.
absl::StatusOr<ModelSource> OpenGgufFile(const std::string& path) {
  bool had_mtp = false;
  absl::StatusOr<ModelSource> source = OpenGgufWith(path, /*mtp_layers=*/true, &had_mtp);
  if (source.ok() && (!had_mtp || source->hf.config.mtp_layers > 0)) return source;
  std::string why = !source.ok() ? std::string(source.status().message()) : source->no_mtp;
  source = OpenGgufWith(path, /*mtp_layers=*/false, &had_mtp);
  if (source.ok()) {
    source->no_mtp = why.empty() ? "MTP layers are left out: of no known family" : std::move(why);
  }
  return source;
}

enum class SourceKind : uint8_t { kFolder, kGguf };

// Detects the kind by content, not by name: downloads lose their extensions. A missing path counts as a
// folder without files.
absl::StatusOr<SourceKind> KindOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (absl::EndsWith(path, ".gguf") && status.type() != std::filesystem::file_type::directory) {
    return SourceKind::kGguf;
  }
  if (error || status.type() == std::filesystem::file_type::directory) {
    return SourceKind::kFolder;
  }
  constexpr char kMagic[] = "GGUF";
  char magic[sizeof(kMagic) - 1] = {};
  if (status.type() == std::filesystem::file_type::regular) {
    std::ifstream(path, std::ios::binary).read(magic, sizeof(magic));
  }
  if (std::equal(std::begin(magic), std::end(magic), kMagic)) {
    return SourceKind::kGguf;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, " is a file, and no GGUF file: a model is a folder with config.json, a GGUF file, or a pack",
      absl::EndsWith(path, ".safetensors") ? "; give the folder that this file lies in" : ""));
}

}  // namespace

absl::StatusOr<ModelSource> OpenModelSource(const std::string& path) {
  ASSIGN_OR_RETURN(const SourceKind kind, KindOf(path));
  return kind == SourceKind::kGguf ? OpenGgufFile(path) : OpenFolder(path);
}

absl::StatusOr<HfConfig> ReadModelConfig(const std::string& path) {
  if (absl::EndsWith(path, ".json")) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
    return ParseHfConfig(text, "", path);
  }
  ASSIGN_OR_RETURN(const SourceKind kind, KindOf(path));
  if (kind == SourceKind::kFolder) return ReadHfConfig(path);
  ASSIGN_OR_RETURN(const GgufModel gguf, ReadGgufMetadata(path));
  return ParseHfConfig(gguf.config_json, gguf.generation_json, path);
}

}  // namespace sluice
