#include "common/model/source/model_source.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "common/file_io.h"
#include "common/model/formats/checkpoint_folder.h"
#include "common/model/gguf/gguf_checkpoint.h"
#include "common/status.h"

namespace sluice {
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
  RETURN_IF_ERROR(ReadTokenizer(dir, &source.tokenizer_files));
  return source;
}

absl::StatusOr<ModelSource> OpenGgufFile(const std::string& path) {
  ASSIGN_OR_RETURN(GgufModel gguf, OpenGguf(path));
  ModelSource source;
  // Messages about converted keys name the file and the hub's member.
  ASSIGN_OR_RETURN(source.hf, ParseHfConfig(gguf.config_json, gguf.generation_json, path));
  source.hf.chat_template = std::move(gguf.chat_template);
  source.checkpoint = std::move(gguf.checkpoint);
  source.tokenizer_files = std::move(gguf.tokenizer_files);
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
