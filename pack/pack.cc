#include "pack/pack.h"

#include <algorithm>
#include <utility>

#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "pack/pack_plan.h"
#include "pack/pack_tables.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxManifestBytes = 256ull << 20;
constexpr uint64_t kMaxTableBytes = 64ull << 30;
constexpr uint64_t kMaxTokenizerFileBytes = 256ull << 20;

absl::Status CheckFile(const std::string& path, const StoredFile& expected) {
  absl::StatusOr<File> file = File::OpenForRead(path);
  if (absl::IsNotFound(file.status())) return absl::DataLossError(absl::StrCat(path, ": is missing"));
  RETURN_IF_ERROR(file.status());
  ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size != expected.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": has ", size, " bytes, the manifest says ", expected.bytes));
  }
  return absl::OkStatus();
}

// Reads a whole small file whose digest the manifest holds.
absl::StatusOr<std::string> ReadStored(const std::string& path, const StoredFile& expected,
                                       uint64_t max_bytes) {
  RETURN_IF_ERROR(CheckFile(path, expected));
  ASSIGN_OR_RETURN(std::string content, ReadFile(path, max_bytes));
  const Digest128 digest = DigestOf(std::string_view(content));
  if (digest != expected.digest) {
    return absl::DataLossError(absl::StrCat(path, ": its digest is ", digest.ToHex(), ", the manifest says ",
                                            expected.digest.ToHex()));
  }
  return content;
}

// Tensors are found by their index in the list, so each must be the one that the architecture puts there. A
// list of another length is refused by the planner.
absl::Status CheckDenseTensors(const std::vector<DenseSpec>& specs, const std::vector<DenseTensor>& tensors) {
  for (size_t i = 0; i < specs.size() && i < tensors.size(); ++i) {
    const DenseSpec& spec = specs[i];
    const DenseTensor& tensor = tensors[i];
    if (tensor.name != spec.name || tensor.rows != spec.rows || tensor.cols != spec.cols ||
        !DenseEncodingAllowed(spec.kind, tensor.encoding)) {
      return absl::DataLossError(absl::StrCat(kManifestName, ": dense tensor ", i, " is ",
                                              tensor.name.substr(0, 80), " [", tensor.rows, ", ", tensor.cols,
                                              "] ", DescribeEncoding(tensor.encoding), ", the model needs ",
                                              spec.name, " [", spec.rows, ", ", spec.cols, "]"));
    }
  }
  return absl::OkStatus();
}

uint64_t ExpertTotal(const ModelConfig& config) {
  uint64_t total = 0;
  for (const LayerConfig& layer : config.layers) total += layer.moe.experts;
  return total;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pack>> Pack::Open(const std::string& dir) {
  const std::string manifest_path = absl::StrCat(dir, "/", kManifestName);
  if (!FileExists(manifest_path)) {
    return absl::NotFoundError(absl::StrCat(dir, ": no pack there (", kManifestName, " is missing)"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadFile(manifest_path, kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return Annotate(manifest.status(), absl::StrCat("pack ", dir));
  ASSIGN_OR_RETURN(const std::string table_bytes, ReadStored(absl::StrCat(dir, "/", kExtentTableName),
                                                             manifest->extent_table, kMaxTableBytes));
  for (int f = 0; f < kPackFileCount && !manifest->in_place.has_value(); ++f) {
    if (!HasFile(*manifest, static_cast<PackFile>(f))) continue;
    RETURN_IF_ERROR(CheckFile(absl::StrCat(dir, "/", kPackFileNames[f]), manifest->payload[f]));
  }
  absl::StatusOr<ExtentTable> table = ParseExtentTable(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(table_bytes.data()), table_bytes.size()));
  if (!table.ok()) return Annotate(table.status(), absl::StrCat("pack ", dir));
  return FromTables(dir, *std::move(manifest), *std::move(table));
}

absl::StatusOr<std::unique_ptr<Pack>> Pack::FromTables(const std::string& dir, Manifest manifest,
                                                       ExtentTable table) {
  auto pack = std::unique_ptr<Pack>(new Pack());
  pack->dir_ = dir;
  pack->manifest_ = std::move(manifest);
  pack->table_ = std::move(table);
  const absl::Status status = pack->Index();
  if (!status.ok()) return Annotate(status, absl::StrCat("pack ", dir));
  return pack;
}

absl::Status Pack::IndexExperts(ExtentPlanner* planner) {
  const ModelConfig& config = manifest_.config;
  expert_total_ = ExpertTotal(config);
  // Every expert has at least two extents, which bounds the manifest's numbers before they size any
  // allocation.
  if (expert_total_ > table_.entries.size() / 2 || (expert_total_ > 0 && manifest_.expert_formats.empty())) {
    return absl::DataLossError(absl::StrCat(kExtentTableName, ": ", table_.entries.size(), " entries and ",
                                            manifest_.expert_formats.size(), " formats are too few for ",
                                            expert_total_, " experts"));
  }
  plans_ = ExpertPlans(config, manifest_.expert_formats);
  expert_first_extent_.reserve(expert_total_);
  uint64_t number = 0;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    layer_first_expert_.push_back(number);
    for (uint32_t expert = 0; expert < moe.experts; ++expert, ++number) {
      const size_t first = planner->extents().size();
      const uint32_t format = first < table_.entries.size() ? table_.entries[first].format : 0;
      if (format >= manifest_.expert_formats.size()) {
        return absl::DataLossError(absl::StrCat(kExtentTableName, ": entry ", first, ": format ", format,
                                                " of ", manifest_.expert_formats.size()));
      }
      if (manifest_.expert_formats[format].gates != HasGates(moe.activation)) {
        return absl::DataLossError(absl::StrCat(kExtentTableName, ": entry ", first, ": format ", format,
                                                manifest_.expert_formats[format].gates ? " has" : " has no",
                                                " gates, the experts of layer ", layer, " otherwise"));
      }
      expert_first_extent_.push_back(static_cast<uint32_t>(first));
      RETURN_IF_ERROR(planner->AddExpert(layer, expert, format, plans_.Of(layer, format)));
    }
  }
  return absl::OkStatus();
}

// Recomputes the whole table from the architecture and the formats, and compares it with the stored one. So
// no offset or length that is read from the file can point anywhere else.
absl::Status Pack::Index() {
  const std::vector<DenseSpec> specs = DenseSpecs(manifest_.config, by_outputs());
  RETURN_IF_ERROR(CheckDenseTensors(specs, manifest_.dense_tensors));
  ExtentPlanner planner;
  RETURN_IF_ERROR(planner.AddDense(specs, manifest_.dense_tensors));
  dense_extent_count_ = static_cast<uint32_t>(planner.extents().size());
  RETURN_IF_ERROR(planner.AddRows(specs, manifest_.dense_tensors));
  row_extent_count_ = static_cast<uint32_t>(planner.extents().size()) - dense_extent_count_;
  RETURN_IF_ERROR(IndexExperts(&planner));
  const std::vector<ExtentEntry>& expected = planner.extents();
  if (expected.size() != table_.entries.size() || planner.checksum_count() != table_.checksums.size()) {
    return absl::DataLossError(absl::StrCat(kExtentTableName, ": ", table_.entries.size(),
                                            " entries, the model needs ", expected.size()));
  }
  for (uint32_t i = 0; i < expected.size(); ++i) {
    if (expected[i] != table_.entries[i]) {
      return absl::DataLossError(absl::StrCat(kExtentTableName, ": entry ", i, " is not that of ",
                                              ExtentName(i), ": offset ", table_.entries[i].offset,
                                              ", length ", table_.entries[i].length, ", expected ",
                                              expected[i].offset, ", ", expected[i].length));
    }
  }
  for (int f = 0; f < kPackFileCount; ++f) {
    if (planner.file_bytes(static_cast<PackFile>(f)) != manifest_.payload[f].bytes) {
      return absl::DataLossError(absl::StrCat(kManifestName, ": ", kPackFileNames[f], " has ",
                                              manifest_.payload[f].bytes, " bytes, its extents have ",
                                              planner.file_bytes(static_cast<PackFile>(f))));
    }
  }
  for (uint32_t layer = 0; layer < config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < expert_count(layer); ++expert) {
      largest_expert_bytes_ = std::max(largest_expert_bytes_, expert_bytes(layer, expert));
    }
  }
  for (uint32_t i = 0; i < manifest_.dense_tensors.size(); ++i) {
    dense_by_name_.emplace(manifest_.dense_tensors[i].name, i);
  }
  return absl::OkStatus();
}

absl::Span<const uint64_t> Pack::checksums(uint32_t extent) const {
  const ExtentEntry& entry = table_.entries[extent];
  return absl::MakeConstSpan(table_.checksums)
      .subspan(entry.first_checksum, ChecksumChunkCount(entry.length));
}

std::string Pack::ExtentName(uint32_t extent) const {
  if (extent >= table_.entries.size()) return absl::StrCat("extent ", extent, " (none)");
  const ExtentEntry& entry = table_.entries[extent];
  if (extent < dense_extent_count_) {
    const std::string group = entry.layer != ExtentEntry::kNone ? absl::StrCat("layer ", entry.layer)
                              : extent == 0                     ? "embeddings"
                                                                : "embeddings or head";
    return absl::StrCat("extent ", extent, " (dense, ", group, ")");
  }
  if (extent < first_expert_extent()) {
    return absl::StrCat("extent ", extent, " (rows ", entry.expert, " of the table of layer ", entry.layer,
                        ")");
  }
  std::string parts;
  if (entry.format < manifest_.expert_formats.size() && entry.layer < config().layers.size()) {
    for (int p = 0; p < kPartCount; ++p) {
      const bool is_stored =
          (StoredParts(manifest_.expert_formats[entry.format]) & PartBit(static_cast<Part>(p))) != 0;
      if (is_stored && plans_.Of(entry.layer, entry.format).parts[p].stream == entry.stream) {
        absl::StrAppend(&parts, parts.empty() ? " " : "+", PartName(static_cast<Part>(p)));
      }
    }
  }
  return absl::StrCat("extent ", extent, " (layer ", entry.layer, ", expert ", entry.expert, ", stream ",
                      entry.stream, parts, ")");
}

ExtentRange Pack::expert_extents(uint32_t layer, uint32_t expert) const {
  const uint32_t first = expert_first_extent_[layer_first_expert_[layer] + expert];
  return {first, plans_.Of(layer, table_.entries[first].format).streams};
}

const ExpertFormat& Pack::expert_format(uint32_t layer, uint32_t expert) const {
  return manifest_.expert_formats[table_.entries[expert_extents(layer, expert).first].format];
}

PartView Pack::part(uint32_t layer, uint32_t expert, Part part) const {
  const uint32_t first = expert_extents(layer, expert).first;
  const uint32_t format = table_.entries[first].format;
  const PartLocation& location = plans_.Of(layer, format).parts[static_cast<size_t>(part)];
  PartView view;
  view.extent = first + location.stream;
  view.base = location.base;
  view.stride = location.stride;
  view.rows = location.rows;
  view.cols = location.cols;
  view.encoding = manifest_.expert_formats[format].parts[static_cast<size_t>(part)];
  return view;
}

uint64_t Pack::expert_bytes(uint32_t layer, uint32_t expert) const {
  const ExtentRange range = expert_extents(layer, expert);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < range.count; ++i) bytes += table_.entries[range.first + i].length;
  return bytes;
}

const DenseTensor* Pack::FindDense(std::string_view name) const {
  const auto it = dense_by_name_.find(absl::string_view(name.data(), name.size()));
  return it == dense_by_name_.end() ? nullptr : &manifest_.dense_tensors[it->second];
}

std::string Pack::file_path(PackFile file) const {
  if (manifest_.in_place.has_value()) return manifest_.in_place->model;
  return absl::StrCat(dir_, "/", kPackFileNames[static_cast<size_t>(file)]);
}

absl::StatusOr<std::map<std::string, std::string>> Pack::ReadTokenizerFiles() const {
  std::map<std::string, std::string> files;
  for (const auto& [name, stored] : manifest_.tokenizer_files) {
    ASSIGN_OR_RETURN(files[name], ReadStored(absl::StrCat(dir_, "/", kTokenizerFolder, "/", name), stored,
                                             kMaxTokenizerFileBytes));
  }
  return files;
}

absl::Status VerifyChunks(const Pack& pack, uint32_t extent, uint64_t offset,
                          absl::Span<const std::byte> bytes) {
  if (extent >= pack.extent_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("pack ", pack.dir(), " has ", pack.extent_count(), " extents, none is ", extent));
  }
  const ExtentEntry& entry = pack.extents()[extent];
  // The order of the two comparisons matters: `offset + size` could wrap around.
  const bool in_range = offset <= entry.length && bytes.size() <= entry.length - offset;
  const uint64_t end = offset + bytes.size();
  if (!in_range || offset % kChecksumChunkBytes != 0 ||
      (end != entry.length && end % kChecksumChunkBytes != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("bytes ", offset, " to ", end, " of ",
                                                   pack.ExtentName(extent), " (", entry.length,
                                                   " bytes) are not whole chunks"));
  }
  const absl::Span<const uint64_t> expected = pack.checksums(extent);
  for (uint64_t at = 0; at < bytes.size(); at += kChecksumChunkBytes) {
    const absl::Span<const std::byte> chunk = bytes.subspan(at, kChecksumChunkBytes);
    const uint64_t number = (offset + at) / kChecksumChunkBytes;
    const uint64_t file_offset = entry.offset + offset + at;
    if (ChunkChecksum(entry.file, file_offset, chunk) != expected[number]) {
      return absl::DataLossError(absl::StrCat("pack ", pack.dir(), ": ", pack.ExtentName(extent), ": chunk ",
                                              number, " (", chunk.size(), " bytes at offset ", file_offset,
                                              " of ", kPackFileNames[entry.file],
                                              ") does not match its checksum"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
