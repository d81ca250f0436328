#include "pack/pack_tables.h"

#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/model/model_config_json.h"
#include "common/model/model_limits.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

using nlohmann::json;

// The file is {"manifest": BODY, "digest": "HEX"} with these very bytes around the body, so that the digest
// can be checked over the body's text before any JSON is parsed.
constexpr std::string_view kOpening = "{\"manifest\":";
constexpr std::string_view kMiddle = ",\n\"digest\":\"";
constexpr std::string_view kClosing = "\"}\n";
constexpr size_t kHexDigits = 32;
constexpr uint64_t kMaxU64 = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr size_t kMaxExpertFormats = 4096;
constexpr size_t kMaxTokenizerFiles = 64;

absl::Status DamagedManifest(const std::string& what) {
  return absl::DataLossError(absl::StrCat(kManifestName, ": ", what));
}

json EncodingJson(const EncodingDescriptor& d) {
  json object = {{"encoding", EncodingName(d.encoding)}};
  if (IsQuantized(d.encoding)) {
    object["group"] = d.group;
    object["meta_bits"] = d.meta_bits;
    object["super_group"] = d.super_group;
  }
  return object;
}

json FileJson(const StoredFile& file) { return {{"bytes", file.bytes}, {"digest", file.digest.ToHex()}}; }

json FormatJson(const ExpertFormat& format) {
  json parts = json::object();
  for (int p = 0; p < kPartCount; ++p) {
    if ((StoredParts(format) & PartBit(static_cast<Part>(p))) == 0) continue;
    parts[PartName(static_cast<Part>(p))] = EncodingJson(format.parts[p]);
  }
  return {{"layout", ExpertLayoutName(format.layout)}, {"parts", std::move(parts)}};
}

json TensorJson(const DenseTensor& tensor) {
  return {{"name", tensor.name},     {"rows", tensor.rows},     {"cols", tensor.cols},
          {"extent", tensor.extent}, {"offset", tensor.offset}, {"encoding", EncodingJson(tensor.encoding)}};
}

json BodyJson(const Manifest& m) {
  json formats = json::array();
  for (const ExpertFormat& format : m.expert_formats) formats.push_back(FormatJson(format));
  json tensors = json::array();
  for (const DenseTensor& tensor : m.dense_tensors) tensors.push_back(TensorJson(tensor));
  json files = {{kExtentTableName, FileJson(m.extent_table)}};
  for (int f = 0; f < kPackFileCount; ++f) {
    if (HasFile(m, static_cast<PackFile>(f))) files[kPackFileNames[f]] = FileJson(m.payload[f]);
  }
  json tokenizer = json::object();
  for (const auto& [name, file] : m.tokenizer_files) tokenizer[name] = FileJson(file);
  json body = {
      {"format_version", m.format_version},
      {"features", {{"incompatible", m.incompatible_features}, {"compatible", m.compatible_features}}},
      {"config", ModelConfigToJson(m.config)},
      {"generation", GenerationToJson(m.generation)},
      {"chat_template", m.chat_template},
      {"expert_formats", std::move(formats)},
      {"dense_tensors", std::move(tensors)},
      {"files", std::move(files)},
      {"tokenizer_files", std::move(tokenizer)},
      {"provenance",
       {{"source_digest", m.provenance.source_digest},
        {"options", m.provenance.options},
        {"generator", m.provenance.generator}}}};
  if (m.in_place.has_value()) {
    body["in_place"] = {{"model", m.in_place->model}, {"fingerprint", m.in_place->fingerprint}};
  }
  return body;
}

absl::StatusOr<EncodingDescriptor> ReadEncoding(const JsonObject& object) {
  EncodingDescriptor d;
  ASSIGN_OR_RETURN(const std::string name, object.String("encoding"));
  ASSIGN_OR_RETURN(d.encoding, EncodingFromName(name));
  ASSIGN_OR_RETURN(d.group, object.UintOr("group", 0, 128, 0));
  ASSIGN_OR_RETURN(d.meta_bits, object.UintOr("meta_bits", 0, 16, 0));
  ASSIGN_OR_RETURN(d.super_group, object.UintOr("super_group", 0, 256, 0));
  if (!IsValidDescriptor(d)) {
    return object.Error("encoding", absl::StrCat(name, " with group ", d.group, ", meta_bits ", d.meta_bits,
                                                 ", super_group ", d.super_group, " is not defined"));
  }
  return d;
}

absl::StatusOr<StoredFile> ReadStoredFile(const JsonObject& object) {
  StoredFile file;
  ASSIGN_OR_RETURN(file.bytes, object.Uint("bytes", 0, kMaxU64));
  ASSIGN_OR_RETURN(const std::string digest, object.String("digest"));
  if (!Digest128::FromHex(digest, &file.digest)) return object.Error("digest", "is not 32 hex digits");
  return file;
}

absl::Status ReadFormats(const JsonObject& body, Manifest* m) {
  ASSIGN_OR_RETURN(const json* list, body.Array("expert_formats"));
  if (list->size() > kMaxExpertFormats) return body.Error("expert_formats", "are too many");
  for (const json& value : *list) {
    ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, body.subject() + ": expert_formats"));
    ASSIGN_OR_RETURN(const std::string layout, object.String("layout"));
    ExpertFormat format;
    ASSIGN_OR_RETURN(format.layout, ExpertLayoutFromName(layout));
    ASSIGN_OR_RETURN(const JsonObject parts, object.Object("parts"));
    format.gates = parts.Has(PartName(Part::kGate));
    for (int p = 0; p < kPartCount; ++p) {
      if ((StoredParts(format) & PartBit(static_cast<Part>(p))) == 0) continue;
      ASSIGN_OR_RETURN(const JsonObject part, parts.Object(PartName(static_cast<Part>(p))));
      ASSIGN_OR_RETURN(format.parts[p], ReadEncoding(part));
    }
    const EncodingDescriptor& down = format.parts[static_cast<size_t>(Part::kDown)];
    if (IsBlockEncoding(down.encoding) && !IsByOutputs(format.layout)) {
      return parts.Error(PartName(Part::kDown),
                         absl::StrCat("is ", EncodingName(down.encoding), ", which has no weighted sums"));
    }
    if (!format.gates && format.layout != ExpertLayout::kUpGateDown && !IsByOutputs(format.layout)) {
      return object.Error("layout", absl::StrCat("is ", layout, ", but there are no gates"));
    }
    if (IsByOutputs(format.layout) !=
        IsByOutputs(m->expert_formats.empty() ? format.layout : m->expert_formats.front().layout)) {
      return object.Error("layout", absl::StrCat("is ", layout, ", beside ",
                                                 ExpertLayoutName(m->expert_formats.front().layout)));
    }
    if (!format.gates) {
      format.parts[static_cast<size_t>(Part::kGate)] = format.parts[static_cast<size_t>(Part::kUp)];
    }
    m->expert_formats.push_back(format);
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(const JsonObject& body, Manifest* m) {
  ASSIGN_OR_RETURN(const json* list, body.Array("dense_tensors"));
  for (const json& value : *list) {
    ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, body.subject() + ": dense_tensors"));
    DenseTensor tensor;
    ASSIGN_OR_RETURN(tensor.name, object.String("name"));
    ASSIGN_OR_RETURN(tensor.rows, object.Uint("rows", 1, kMaxU32));
    ASSIGN_OR_RETURN(tensor.cols, object.Uint("cols", 1, kMaxVocab));
    ASSIGN_OR_RETURN(tensor.extent, object.Uint("extent", 0, kMaxU32));
    ASSIGN_OR_RETURN(tensor.offset, object.Uint("offset", 0, kMaxU64));
    ASSIGN_OR_RETURN(const JsonObject encoding, object.Object("encoding"));
    ASSIGN_OR_RETURN(tensor.encoding, ReadEncoding(encoding));
    tensor.stride = static_cast<uint32_t>(RoundStride(RowBytes(tensor.encoding, tensor.cols)));
    m->dense_tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

// A file name that stays inside its folder on every system.
bool IsPlainFileName(const std::string& name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= 128 && name[0] != '.' &&
         name.find_first_not_of(kAllowed) == std::string::npos;
}

absl::Status ReadFiles(const JsonObject& body, Manifest* m) {
  ASSIGN_OR_RETURN(const JsonObject files, body.Object("files"));
  ASSIGN_OR_RETURN(const JsonObject table, files.Object(kExtentTableName));
  ASSIGN_OR_RETURN(m->extent_table, ReadStoredFile(table));
  for (int f = 0; f < kPackFileCount; ++f) {
    if (!HasFile(*m, static_cast<PackFile>(f))) continue;
    ASSIGN_OR_RETURN(const JsonObject file, files.Object(kPackFileNames[f]));
    ASSIGN_OR_RETURN(m->payload[f], ReadStoredFile(file));
  }
  ASSIGN_OR_RETURN(const JsonObject tokenizer, body.Object("tokenizer_files"));
  if (tokenizer.value().size() > kMaxTokenizerFiles) return body.Error("tokenizer_files", "are too many");
  for (const auto& [name, value] : tokenizer.value().items()) {
    if (!IsPlainFileName(name)) {
      return body.Error("tokenizer_files", absl::StrCat("has the name ", JsonExcerpt(json(name))));
    }
    ASSIGN_OR_RETURN(const JsonObject file, JsonObject::Of(value, body.subject() + ": tokenizer_files"));
    ASSIGN_OR_RETURN(m->tokenizer_files[name], ReadStoredFile(file));
  }
  return absl::OkStatus();
}

absl::Status ReadProvenance(const JsonObject& body, Manifest* m) {
  ASSIGN_OR_RETURN(const JsonObject provenance, body.Object("provenance"));
  ASSIGN_OR_RETURN(m->provenance.source_digest, provenance.String("source_digest"));
  ASSIGN_OR_RETURN(m->provenance.options, provenance.String("options"));
  ASSIGN_OR_RETURN(m->provenance.generator, provenance.String("generator"));
  return absl::OkStatus();
}

absl::Status ReadInPlace(const JsonObject& body, Manifest* m) {
  if (!body.Has("in_place")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const JsonObject in_place, body.Object("in_place"));
  m->in_place.emplace();
  ASSIGN_OR_RETURN(m->in_place->model, in_place.String("model"));
  ASSIGN_OR_RETURN(m->in_place->fingerprint, in_place.String("fingerprint"));
  return absl::OkStatus();
}

// Checks version and features first: they could change the meaning of every other field.
absl::Status ReadVersion(const JsonObject& body, Manifest* m) {
  ASSIGN_OR_RETURN(const uint64_t version, body.Uint("format_version", 0, kMaxU32));
  if (version != kPackFormatVersion) {
    return absl::UnimplementedError(absl::StrCat(kManifestName, ": pack format version ", version,
                                                 " is not supported (this build reads version ",
                                                 kPackFormatVersion, ")"));
  }
  ASSIGN_OR_RETURN(const JsonObject features, body.Object("features"));
  ASSIGN_OR_RETURN(m->incompatible_features, features.Uint("incompatible", 0, kMaxU64));
  ASSIGN_OR_RETURN(m->compatible_features, features.Uint("compatible", 0, kMaxU64));
  for (int bit = 0; bit < 64; ++bit) {
    constexpr uint64_t kKnown = kKnownIncompatibleFeatures | kFeatureBlocks | kFeatureFileBlocks;
    if (((m->incompatible_features & ~kKnown) >> bit & 1) != 0) {
      return absl::UnimplementedError(
          absl::StrCat(kManifestName, ": incompatible feature bit ", bit, " is not known to this build"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadBody(const JsonObject& body, Manifest* m) {
  RETURN_IF_ERROR(ReadVersion(body, m));
  ASSIGN_OR_RETURN(const JsonObject config, body.Object("config"));
  ASSIGN_OR_RETURN(m->config, ModelConfigFromJson(config));
  ASSIGN_OR_RETURN(const JsonObject generation, body.Object("generation"));
  ASSIGN_OR_RETURN(m->generation, GenerationFromJson(generation));
  ASSIGN_OR_RETURN(m->chat_template, body.String("chat_template"));
  RETURN_IF_ERROR(ReadFormats(body, m));
  RETURN_IF_ERROR(ReadTensors(body, m));
  RETURN_IF_ERROR(ReadFiles(body, m));
  RETURN_IF_ERROR(ReadProvenance(body, m));
  RETURN_IF_ERROR(ReadInPlace(body, m));
  // Older readers refuse by these bits; they would misread a pack that leaves one out.
  if (m->incompatible_features != FeaturesOf(*m)) {
    return body.Error("features", absl::StrCat("incompatible bits are ", m->incompatible_features,
                                               ", but the formats need ", FeaturesOf(*m)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Manifest> ParseManifest(std::string_view text) {
  const size_t tail = kMiddle.size() + kHexDigits + kClosing.size();
  if (text.size() < kOpening.size() + tail || !text.starts_with(kOpening) || !text.ends_with(kClosing) ||
      text.substr(text.size() - tail, kMiddle.size()) != kMiddle) {
    return DamagedManifest("not a manifest, or cut short");
  }
  const std::string_view body = text.substr(kOpening.size(), text.size() - kOpening.size() - tail);
  const std::string_view hex = text.substr(text.size() - kClosing.size() - kHexDigits, kHexDigits);
  const std::string actual = DigestOf(body).ToHex();
  if (actual != hex) {
    return DamagedManifest(absl::StrCat("its digest is ", actual, ", but it says ", std::string(hex)));
  }
  Manifest manifest;
  manifest.model_id = actual;
  absl::StatusOr<json> root = ParseJson(body, kManifestName);
  if (!root.ok()) return absl::DataLossError(root.status().message());
  absl::StatusOr<JsonObject> object = JsonObject::Of(*root, kManifestName);
  const absl::Status status = object.ok() ? ReadBody(*object, &manifest) : object.status();
  // The digest was right, so an unparsable body was written wrong: the pack is damaged, and the caller's
  // argument is not at fault.
  if (status.code() == absl::StatusCode::kInvalidArgument) return absl::DataLossError(status.message());
  RETURN_IF_ERROR(status);
  return manifest;
}

std::string SerializeManifest(Manifest* manifest) {
  manifest->incompatible_features = FeaturesOf(*manifest);
  // The dump sorts its keys and has one spelling for each value: equal manifests have equal bytes and the
  // same model_id.
  const std::string body =
      BodyJson(*manifest).dump(1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  manifest->model_id = DigestOf(std::string_view(body)).ToHex();
  return absl::StrCat(std::string(kOpening), body, std::string(kMiddle), manifest->model_id,
                      std::string(kClosing));
}

namespace {

constexpr uint32_t kExtentTableVersion = 1;

// Reads little-endian integers at fixed offsets; big-endian machines are refused at compile time
// (common/base/checksum.cc).
template <typename T>
T Load(absl::Span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

template <typename T>
void Store(T value, size_t at, std::string* out) {
  std::memcpy(out->data() + at, &value, sizeof(value));
}

absl::Status DamagedTable(const std::string& what) {
  return absl::DataLossError(absl::StrCat(kExtentTableName, ": ", what));
}

absl::Status CheckHeader(absl::Span<const std::byte> bytes) {
  if (bytes.size() < kExtentTableHeaderBytes) {
    return DamagedTable(absl::StrCat(bytes.size(), " bytes are too few for a header"));
  }
  if (std::memcmp(bytes.data(), kExtentTableMagic, 8) != 0)
    return DamagedTable("not an extent table (magic)");
  const uint32_t version = Load<uint32_t>(bytes, 8);
  if (version != kExtentTableVersion) {
    return absl::UnimplementedError(
        absl::StrCat(kExtentTableName, ": version ", version, " is not supported"));
  }
  if (Load<uint32_t>(bytes, 12) != kExtentTableHeaderBytes ||
      Load<uint32_t>(bytes, 16) != kExtentEntryBytes || Load<uint32_t>(bytes, 20) != kChecksumChunkBytes) {
    return DamagedTable("header, entry or chunk size is not that of version 1");
  }
  const uint64_t entries = Load<uint64_t>(bytes, 24);
  const uint64_t checksums = Load<uint64_t>(bytes, 32);
  // Counts are checked against the available bytes before they size any allocation, and by division, so that
  // no product can overflow.
  const uint64_t rest = bytes.size() - kExtentTableHeaderBytes;
  if (entries >= ExtentEntry::kNone || entries > rest / kExtentEntryBytes ||
      checksums != (rest - entries * kExtentEntryBytes) / 8 ||
      (rest - entries * kExtentEntryBytes) % 8 != 0) {
    return DamagedTable(
        absl::StrCat(entries, " entries and ", checksums, " checksums do not make ", bytes.size(), " bytes"));
  }
  for (size_t at = 40; at < kExtentTableHeaderBytes; ++at) {
    if (bytes[at] != std::byte{0})
      return DamagedTable(absl::StrCat("reserved header byte ", at, " is not zero"));
  }
  return absl::OkStatus();
}

ExtentEntry LoadEntry(absl::Span<const std::byte> bytes, size_t at) {
  ExtentEntry entry;
  entry.kind = static_cast<ExtentKind>(Load<uint8_t>(bytes, at));
  entry.file = Load<uint8_t>(bytes, at + 1);
  entry.stream = Load<uint16_t>(bytes, at + 2);
  entry.layer = Load<uint32_t>(bytes, at + 4);
  entry.expert = Load<uint32_t>(bytes, at + 8);
  entry.format = Load<uint32_t>(bytes, at + 12);
  entry.offset = Load<uint64_t>(bytes, at + 16);
  entry.length = Load<uint64_t>(bytes, at + 24);
  entry.first_checksum = Load<uint64_t>(bytes, at + 32);
  return entry;
}

}  // namespace

absl::StatusOr<ExtentTable> ParseExtentTable(absl::Span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckHeader(bytes));
  const uint64_t entries = Load<uint64_t>(bytes, 24);
  const uint64_t checksums = Load<uint64_t>(bytes, 32);
  ExtentTable table;
  table.entries.reserve(entries);
  // Extents fill their files without a gap, in the table's order. Readers rely on it, and it leaves no byte
  // of a file without a checksum.
  std::array<uint64_t, kPackFileCount> file_end = {};
  uint64_t next_checksum = 0;
  for (uint64_t i = 0; i < entries; ++i) {
    const ExtentEntry entry = LoadEntry(bytes, kExtentTableHeaderBytes + i * kExtentEntryBytes);
    const auto bad = [i](const char* what) { return DamagedTable(absl::StrCat("entry ", i, ": ", what)); };
    if (entry.kind > ExtentKind::kRows) return bad("unknown kind");
    if (entry.file >= kPackFileCount) return bad("unknown file");
    if (entry.length == 0 || entry.length % kExtentAlignment != 0)
      return bad("length is not a multiple of 4096");
    if (entry.offset != file_end[entry.file]) return bad("does not follow the extent before");
    if (__builtin_add_overflow(entry.offset, entry.length, &file_end[entry.file]))
      return bad("length overflows");
    if (entry.first_checksum != next_checksum) return bad("checksum index is not contiguous");
    if (ChecksumChunkCount(entry.length) > checksums - next_checksum) return bad("checksums are missing");
    next_checksum += ChecksumChunkCount(entry.length);
    table.entries.push_back(entry);
  }
  if (next_checksum != checksums) {
    return DamagedTable(
        absl::StrCat(checksums, " checksums, but the extents have ", next_checksum, " chunks"));
  }
  table.checksums.resize(checksums);
  std::memcpy(table.checksums.data(), bytes.data() + kExtentTableHeaderBytes + entries * kExtentEntryBytes,
              checksums * 8);
  return table;
}

std::string SerializeExtentTable(const ExtentTable& table) {
  const size_t entries_end = kExtentTableHeaderBytes + table.entries.size() * kExtentEntryBytes;
  std::string out(entries_end + table.checksums.size() * 8, '\0');
  std::memcpy(out.data(), kExtentTableMagic, 8);
  Store<uint32_t>(kExtentTableVersion, 8, &out);
  Store<uint32_t>(kExtentTableHeaderBytes, 12, &out);
  Store<uint32_t>(kExtentEntryBytes, 16, &out);
  Store<uint32_t>(kChecksumChunkBytes, 20, &out);
  Store<uint64_t>(table.entries.size(), 24, &out);
  Store<uint64_t>(table.checksums.size(), 32, &out);
  size_t at = kExtentTableHeaderBytes;
  for (const ExtentEntry& entry : table.entries) {
    Store<uint8_t>(static_cast<uint8_t>(entry.kind), at, &out);
    Store<uint8_t>(entry.file, at + 1, &out);
    Store<uint16_t>(entry.stream, at + 2, &out);
    Store<uint32_t>(entry.layer, at + 4, &out);
    Store<uint32_t>(entry.expert, at + 8, &out);
    Store<uint32_t>(entry.format, at + 12, &out);
    Store<uint64_t>(entry.offset, at + 16, &out);
    Store<uint64_t>(entry.length, at + 24, &out);
    Store<uint64_t>(entry.first_checksum, at + 32, &out);
    at += kExtentEntryBytes;
  }
  std::memcpy(out.data() + at, table.checksums.data(), table.checksums.size() * 8);
  return out;
}

}  // namespace sluice
