#include "tests/fuzz/pack_targets.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/checksum.h"
#include "common/base/json_reader.h"
#include "common/model/gguf_files.h"
#include "common/model/hf_config.h"
#include "common/model/model_config_json.h"
#include "common/model/model_limits.h"
#include "common/model/safetensors.h"
#include "pack/pack.h"
#include "pack/pack_tables.h"
#include "pack/row_layout.h"
#include "pack/writer/recipe.h"
#include "pack/writer/staging.h"

namespace sluice {
namespace {

// Returns a file whose digest is valid for any body.
std::string Sealed(std::string_view body) {
  return "{\"manifest\":" + std::string(body) + ",\n\"digest\":\"" + DigestOf(body).ToHex() + "\"}\n";
}

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz target: a parser broke its promise: %s\n", what);
  std::abort();
}

std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

absl::Span<const std::byte> Bytes(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// Checks that every location the pack returns lies inside its extent, and every extent inside its file.
void CheckPack(const Pack& pack) {
  for (uint32_t i = 0; i < pack.extent_count(); ++i) {
    const ExtentEntry& entry = pack.extents()[i];
    Require(entry.offset + entry.length <= pack.file_bytes(static_cast<PackFile>(entry.file)),
            "extent in file");
    Require(pack.checksums(i).size() == ChecksumChunkCount(entry.length), "checksums of an extent");
  }
  for (const DenseTensor& tensor : pack.dense_tensors()) {
    const uint64_t end = tensor.offset + static_cast<uint64_t>(tensor.rows) * tensor.stride;
    Require(tensor.extent < pack.dense_extent_count() && end <= pack.extents()[tensor.extent].length,
            "dense tensor in extent");
    Require(RowBytes(tensor.encoding, tensor.cols) <= tensor.stride, "dense row in stride");
  }
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      for (int p = 0; p < kPartCount; ++p) {
        const PartView view = pack.part(layer, expert, static_cast<Part>(p));
        const uint64_t rows_end = static_cast<uint64_t>(view.rows) * view.stride;
        Require(rows_end <= pack.extents()[view.extent].length, "part in extent");
        Require(view.base + RowBytes(view.encoding, view.cols) <= view.stride, "row in record");
      }
    }
  }
}

}  // namespace

std::string JoinTables(const std::string& manifest_body, const std::string& table) {
  return manifest_body + std::string(1, '\0') + table;
}

std::string ManifestBody(const std::string& manifest) {
  const size_t begin = std::string_view("{\"manifest\":").size();
  return manifest.substr(begin, manifest.rfind(",\n\"digest\"") - begin);
}

bool FuzzSafetensors(const uint8_t* data, size_t size) {
  // The parser never reads the data: the file size may be far larger than the input.
  const uint64_t file_bytes = size + (size % 3 == 0 ? 0 : uint64_t{1} << 40);
  const auto length = SafetensorsHeaderBytes(Bytes(data, size), file_bytes, "f");
  if (!length.ok() || *length > size - 8) return false;
  for (const uint64_t bytes : {file_bytes, static_cast<uint64_t>(size)}) {
    const auto tensors = ParseSafetensorsHeader(Text(data + 8, *length), bytes, "f");
    if (!tensors.ok()) continue;
    uint64_t position = 8 + *length;
    for (const TensorInfo& tensor : *tensors) {
      uint64_t elements = 1;
      for (const uint64_t dim : tensor.shape) elements *= dim;
      Require(tensor.offset == position && elements * ElementBytes(tensor.type) == tensor.bytes,
              "tensor bytes");
      position += tensor.bytes;
    }
    Require(position == bytes, "tensors fill the file");
    return true;
  }
  return false;
}

bool FuzzShardIndex(const uint8_t* data, size_t size) {
  const auto index = ParseShardIndex(Text(data, size), "f");
  if (!index.ok()) return false;
  for (const auto& [tensor, file] : index->file_of) Require(file < index->files.size(), "shard number");
  for (const std::string& file : index->files) Require(file.find('/') == std::string::npos, "shard name");
  return true;
}

bool FuzzHfConfig(const uint8_t* data, size_t size) {
  const auto config = ParseHfConfig(Text(data, size), "", "f");
  if (!config.ok()) return false;
  Require(ValidateModelConfig(config->config, "f").ok(), "config is valid");
  const auto text = ParseJson(ModelConfigToJson(config->config).dump(), "f");
  const auto object = JsonObject::Of(*text, "f");
  Require(*ModelConfigFromJson(*object) == config->config, "config comes back from JSON");
  return true;
}

bool FuzzGeneration(const uint8_t* data, size_t size) {
  constexpr std::string_view kConfig =
      R"({"architectures":["MixtralForCausalLM"],"model_type":"mixtral","vocab_size":64,"hidden_size":32,)"
      R"("intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,)"
      R"("num_local_experts":4,"num_experts_per_tok":2})";
  const auto config = ParseHfConfig(kConfig, Text(data, size), "f");
  if (!config.ok()) return false;
  for (const int32_t id : config->config.eos_ids) Require(id >= 0 && id < 64, "end id in vocabulary");
  return true;
}

bool FuzzGgufHeader(const uint8_t* data, size_t size) {
  // The parser never reads the tensors' data: zeros replace it.
  const uint64_t file_bytes = size + (size % 3 == 0 ? 0 : uint64_t{4} << 20);
  const auto header = ParseGgufHeader(
      file_bytes,
      [&](uint64_t offset, absl::Span<std::byte> bytes) {
        Require(offset + bytes.size() <= file_bytes, "a read within the file");
        std::fill(bytes.begin(), bytes.end(), std::byte{0});
        if (offset < size)
          std::memcpy(bytes.data(), data + offset, std::min<uint64_t>(bytes.size(), size - offset));
        return absl::OkStatus();
      },
      "f");
  if (!header.ok()) return false;
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const GgufTensorInfo& tensor : header->tensors) {
    uint64_t rows = 1;
    for (size_t i = 1; i < tensor.dims.size(); ++i) rows *= tensor.dims[i];
    Require(tensor.row_bytes() * rows == tensor.bytes, "rows fill a tensor");
    places.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  }
  std::sort(places.begin(), places.end());
  uint64_t end = 0;
  for (const auto& [first, last] : places) {
    Require(first >= end && last <= file_bytes, "tensors in file, apart");
    end = last;
  }
  return true;
}

bool FuzzExtentTable(const uint8_t* data, size_t size) {
  const auto table = ParseExtentTable(Bytes(data, size));
  if (!table.ok()) return false;
  Require(SerializeExtentTable(*table) == Text(data, size), "table is canonical");
  return true;
}

bool FuzzManifest(const uint8_t* data, size_t size) { return ParseManifest(Text(data, size)).ok(); }

bool FuzzManifestBody(const uint8_t* data, size_t size) {
  auto manifest = ParseManifest(Sealed(Text(data, size)));
  if (!manifest.ok()) return false;
  Require(ValidateModelConfig(manifest->config, "f").ok(), "config is valid");
  const std::string text = SerializeManifest(&*manifest);
  const auto again = ParseManifest(text);
  Require(again.ok() && again->model_id == manifest->model_id, "what was read can be written and read");
  return true;
}

bool FuzzJournal(const uint8_t* data, size_t size) {
  uint64_t valid = 0;
  const auto records = ParseJournal(Bytes(data, size), {3, 4}, &valid);
  Require(valid <= size && (valid != 0 || records.empty()), "valid bytes");
  return !records.empty();
}

bool FuzzRecipe(const uint8_t* data, size_t size) {
  const auto recipe = ParseRecipeToml(std::string(Text(data, size)), "f");
  if (!recipe.ok()) return false;
  Require(CheckRecipe(*recipe).ok(), "recipe is possible");
  for (const RowFormat& choice : recipe->parts) {
    for (const uint32_t columns : {1u, 100u, 20000u}) {
      Require(IsValidDescriptor(DescriptorOf(choice, columns)), "rows are defined");
    }
  }
  return !RecipeText(*recipe).empty();
}

bool FuzzPackTables(const uint8_t* data, size_t size) {
  const std::string_view all = Text(data, size);
  const size_t zero = all.find('\0');
  if (zero == std::string_view::npos) return false;
  auto manifest = ParseManifest(Sealed(all.substr(0, zero)));
  auto table = ParseExtentTable(Bytes(data + zero + 1, size - zero - 1));
  if (!manifest.ok() || !table.ok()) return false;
  const auto pack = Pack::FromTables("f", *std::move(manifest), *std::move(table));
  if (!pack.ok()) return false;
  CheckPack(**pack);
  return true;
}

}  // namespace sluice
