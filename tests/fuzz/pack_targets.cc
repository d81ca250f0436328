#include "tests/fuzz/pack_targets.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
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
#include "pack/writer/pack_writer.h"
#include "pack/writer/recipe.h"
#include "pack/writer/staging.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

using fuzz::Bytes;
using fuzz::ReadSeed;
using fuzz::Require;
using fuzz::Text;

// Returns a file whose digest is valid for any body.
std::string Sealed(std::string_view body) {
  return "{\"manifest\":" + std::string(body) + ",\n\"digest\":\"" + DigestOf(body).ToHex() + "\"}\n";
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

std::string MakePack(const TempDir& dir, const TinyModelSpec& spec, const PackOptions& options) {
  Require(WriteTinyModel(spec, dir.File("model")).ok(), "a model is written");
  Require(PackModel(dir.File("model"), dir.File("pack"), options, nullptr, nullptr).ok(),
          "a model is packed");
  return dir.File("pack");
}

std::vector<std::string> TableSeeds() {
  std::vector<std::string> seeds;
  for (const ExpertLayout layout : {ExpertLayout::kUpGateDown, ExpertLayout::kGateUpdown}) {
    TempDir dir;
    PackOptions options;
    options.recipe.layout = layout;
    options.recipe.parts[0].encoding = Encoding::kQ8;
    options.recipe.parts[1] = {Encoding::kQ2, 16, 8};
    const std::string pack = MakePack(dir, {.layers = 1, .experts = 2, .top_k = 1, .width = 8}, options);
    seeds.push_back(
        JoinTables(ManifestBody(ReadSeed(pack + "/manifest.json")), ReadSeed(pack + "/extents.bin")));
  }
  return seeds;
}

std::vector<std::string> BodySeeds() {
  std::vector<std::string> seeds = TableSeeds();
  for (std::string& seed : seeds) seed.resize(seed.find('\0'));
  return seeds;
}

std::vector<std::string> ExtentSeeds() {
  std::vector<std::string> seeds = TableSeeds();
  for (std::string& seed : seeds) seed.erase(0, seed.find('\0') + 1);
  return seeds;
}

std::vector<std::string> SafetensorsSeeds() {
  const TinyTensors tensors = {{"a", {{2, 3}, {1, 2, 3, 4, 5, 6}}}, {"b", {{0}, {}}}, {"c", {{1}, {1}}}};
  return {SafetensorsBytes(tensors, ElementType::kBf16), SafetensorsBytes(tensors, ElementType::kF32),
          ReadSeed("tests/data/tiny/mixtral/golden.safetensors")};
}

std::vector<std::string> ConfigSeeds() {
  std::vector<std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/tiny")) {
    seeds.push_back(ReadSeed(entry.path().string() + "/config.json"));
  }
  std::sort(seeds.begin(), seeds.end());
  seeds.push_back(TinyConfigJson({}));
  seeds.push_back(TinyConfigJson({.head_dim = 8, .sliding_window = 4, .eos = {2, 3}, .new_config = true}));
  return seeds;
}

std::vector<std::string> GenerationSeeds() {
  return {R"({"eos_token_id":[5,7],"temperature":0.7,"top_k":20,"top_p":0.8,"do_sample":true})"};
}

std::vector<std::string> ShardIndexSeeds() {
  return {
      R"({"metadata":{"total_size":4},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"m.safetensors"}})"};
}

std::vector<std::string> RecipeSeeds() {
  return {
      "bits = \"q4\"\ngroup = 32\ngate = { bits = \"q2\", meta_bits = 8 }\n",
      "name = \"x\"\nlayout = \"gate|up+down\"\nup = \"q3\"\ngate = \"q4\"\ndown = \"f16\"\ndense = \"q8\"\n"
      "[[rule]]\nlayers = [0, 3]\nusage = [0.0, 0.5]\nbits = \"q8\"\n"};
}

// Keys and tensor infos of a published file, rounded up; no multiple of 3: the target makes such files
// larger.
std::vector<std::string> GgufSeeds() {
  return {ReadSeed("tests/data/gguf/granitemoe-q5_k_m/model.gguf").substr(0, 13'400)};
}

std::vector<std::string> ManifestSeeds() {
  TempDir dir;
  return {ReadSeed(MakePack(dir, {.layers = 1}, {}) + "/manifest.json")};
}

std::vector<std::string> JournalSeeds() {
  TempDir dir;
  {
    auto journal = Journal::Open(dir.path(), {3, 4});
    Require(journal.ok(), "a journal opens");
    for (uint32_t unit = 0; unit < 3; ++unit) {
      Require((*journal)->Append({unit, {1, 2, unit}, {{unit, 6}}}).ok(), "a record is written");
    }
  }
  return {ReadSeed(dir.File("journal"))};
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

std::vector<FuzzTarget> PackTargets() {
  return {
      {"safetensors", FuzzSafetensors, SafetensorsSeeds, 10'000},
      {"shard_index", FuzzShardIndex, ShardIndexSeeds, 10'000},
      {"hf_config", FuzzHfConfig, ConfigSeeds, 45'000},
      {"generation", FuzzGeneration, GenerationSeeds, 5000},
      {"gguf", FuzzGgufHeader, GgufSeeds, 100'000},
      {"extent_table", FuzzExtentTable, ExtentSeeds, 15'000},
      {"manifest", FuzzManifest, ManifestSeeds, 2000},
      {"manifest_body", FuzzManifestBody, BodySeeds, 10'000},
      {"journal", FuzzJournal, JournalSeeds, 10'000},
      {"recipe", FuzzRecipe, RecipeSeeds, 5000},
      {"pack_tables", FuzzPackTables, TableSeeds, 15'000},
  };
}

}  // namespace sluice
