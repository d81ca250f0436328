#include "common/model/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "common/base/checksum.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

struct TypeRow {
  std::string_view name;
  ElementType type;
  uint32_t bytes;
};
constexpr TypeRow kTypes[] = {
    {"BF16", ElementType::kBf16, 2},      {"F16", ElementType::kF16, 2},
    {"F32", ElementType::kF32, 4},        {"F64", ElementType::kF64, 8},
    {"F8_E4M3", ElementType::kF8E4m3, 1}, {"F8_E5M2", ElementType::kF8E5m2, 1},
    {"I8", ElementType::kI8, 1},          {"U8", ElementType::kU8, 1},
    {"I16", ElementType::kI16, 2},        {"U16", ElementType::kU16, 2},
    {"I32", ElementType::kI32, 4},        {"U32", ElementType::kU32, 4},
    {"I64", ElementType::kI64, 8},        {"U64", ElementType::kU64, 8},
    {"BOOL", ElementType::kBool, 1},
};

const TypeRow* FindType(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

// Bounds a name from the file for error messages.
std::string TensorExcerpt(std::string_view name) {
  return JsonExcerpt(json(std::string(name.substr(0, 200))));
}

absl::Status BadTensor(const std::string& subject, std::string_view name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(subject, ": tensor ", TensorExcerpt(name), ": ", what));
}

// Returns the shape's product times `element_bytes`; nullopt if it exceeds 64 bits or the shape is not whole
// numbers.
std::optional<uint64_t> ShapeBytes(const json& shape, uint32_t element_bytes, std::vector<uint64_t>* out) {
  uint64_t bytes = element_bytes;
  bool overflow = false;
  bool empty = false;
  for (const json& dim : shape) {
    if (!dim.is_number_unsigned()) return std::nullopt;
    const uint64_t value = dim.get<uint64_t>();
    out->push_back(value);
    empty = empty || value == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, value, &bytes);
  }
  if (overflow) return std::nullopt;
  return empty ? 0 : bytes;
}

absl::StatusOr<TensorInfo> ParseTensor(const std::string& name, const json& value, uint64_t data_start,
                                       uint64_t data_bytes, const std::string& subject) {
  const auto type_name = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (!value.is_object() || value.size() != 3 || type_name == value.end() || !type_name->is_string() ||
      shape == value.end() || !shape->is_array() || offsets == value.end() || !offsets->is_array()) {
    return BadTensor(subject, name, "needs exactly dtype, shape and data_offsets");
  }
  const TypeRow* type = FindType(type_name->get_ref<const std::string&>());
  if (type == nullptr) {
    return BadTensor(subject, name, absl::StrCat("unknown dtype ", JsonExcerpt(*type_name)));
  }
  if (shape->size() > kMaxTensorRank) {
    return BadTensor(subject, name, absl::StrCat("rank ", shape->size(), " is above ", kMaxTensorRank));
  }
  TensorInfo info;
  info.name = name;
  info.type = type->type;
  const std::optional<uint64_t> bytes = ShapeBytes(*shape, type->bytes, &info.shape);
  if (!bytes.has_value()) {
    return BadTensor(subject, name, "shape has a dimension that is no whole number, or overflows 64 bits");
  }
  if (offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return BadTensor(subject, name, "data_offsets must be two whole numbers");
  }
  const uint64_t begin = (*offsets)[0].get<uint64_t>();
  const uint64_t end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return BadTensor(subject, name,
                     absl::StrCat("data_offsets [", begin, ", ", end, "] outside the file's ", data_bytes,
                                  " bytes of data"));
  }
  if (end - begin != *bytes) {
    return BadTensor(subject, name,
                     absl::StrCat("data_offsets span ", end - begin, " bytes, but shape and ",
                                  std::string(type->name), " need ", *bytes));
  }
  info.offset = data_start + begin;
  info.bytes = *bytes;
  return info;
}

// The format requires that tensors fill the data without gaps or overlaps: unowned bytes could hide anything,
// and overlapping tensors mean a damaged or forged file.
absl::Status CheckContiguous(const std::vector<TensorInfo>& tensors, uint64_t data_start, uint64_t file_bytes,
                             const std::string& subject) {
  uint64_t position = data_start;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != position) {
      return BadTensor(
          subject, tensor.name,
          absl::StrCat(tensor.offset < position ? "overlaps the tensor before: begins at byte "
                                                : "leaves a gap: begins at byte ",
                       tensor.offset - data_start, " of the data, expected ", position - data_start));
    }
    position += tensor.bytes;
  }
  if (position != file_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": ", file_bytes - position, " bytes at the end belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* ElementTypeName(ElementType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name.data();
  }
  return "?";
}

uint32_t ElementBytes(ElementType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.bytes;
  }
  return 0;
}

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::Span<const std::byte> first8, uint64_t file_bytes,
                                                const std::string& subject) {
  if (file_bytes < 8 || first8.size() < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": ", file_bytes, " bytes are no safetensors file"));
  }
  uint64_t length = 0;
  std::memcpy(&length, first8.data(), sizeof(length));
  if (length > kMaxSafetensorsHeader || length > file_bytes - 8) {
    return absl::InvalidArgumentError(absl::StrCat(subject, ": header length ", length, " is above ",
                                                   std::min(kMaxSafetensorsHeader, file_bytes - 8)));
  }
  return length;
}

absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::string_view header, uint64_t file_bytes,
                                                               const std::string& subject) {
  if (header.size() > kMaxSafetensorsHeader || file_bytes < 8 || header.size() > file_bytes - 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": header of ", header.size(), " bytes does not fit a file of ", file_bytes));
  }
  ASSIGN_OR_RETURN(const json root, ParseJson(header, subject, {.max_depth = 4}));
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, subject));
  const uint64_t data_start = 8 + header.size();
  std::vector<TensorInfo> tensors;
  tensors.reserve(root.size());
  for (const auto& [name, value] : object.value().items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(JsonObject::Of(value, absl::StrCat(subject, ": __metadata__")).status());
      continue;
    }
    ASSIGN_OR_RETURN(TensorInfo info, ParseTensor(name, value, data_start, file_bytes - data_start, subject));
    tensors.push_back(std::move(info));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  RETURN_IF_ERROR(CheckContiguous(tensors, data_start, file_bytes, subject));
  return tensors;
}

// TensorFolder: the tensors of a model folder, from one safetensors file or from shards with an index.

namespace {

constexpr uint64_t kMaxIndexBytes = 256ull << 20;
constexpr char kSingleName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";

// A name from the index is joined to the folder's path: it must not lead out of the folder or to a hidden
// file.
bool IsPlainShardName(const std::string& name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) && name[0] != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

}  // namespace

absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text, const std::string& subject) {
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseJson(text, subject, {.max_depth = 8}));
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, subject));
  ASSIGN_OR_RETURN(const JsonObject map, object.Object("weight_map"));
  std::set<std::string> files;
  for (const auto& [tensor, file] : map.value().items()) {
    if (!file.is_string() || !IsPlainShardName(file.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(absl::StrCat(subject, ": weight_map gives ",
                                                     JsonExcerpt(nlohmann::json(tensor)), " the file ",
                                                     JsonExcerpt(file), ", which is no shard's name"));
    }
    files.insert(file.get_ref<const std::string&>());
  }
  if (files.empty()) return absl::InvalidArgumentError(absl::StrCat(subject, ": weight_map is empty"));
  ShardIndex index;
  index.files.assign(files.begin(), files.end());
  for (const auto& [tensor, file] : map.value().items()) {
    const auto it =
        std::lower_bound(index.files.begin(), index.files.end(), file.get_ref<const std::string&>());
    index.file_of.emplace(tensor, static_cast<uint32_t>(it - index.files.begin()));
  }
  return index;
}

absl::Status TensorFolder::AddFile(const std::string& path) {
  ASSIGN_OR_RETURN(File file, File::OpenForRead(path));
  ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  std::byte first8[8] = {};
  if (size >= 8) RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(first8)));
  ASSIGN_OR_RETURN(const uint64_t length, SafetensorsHeaderBytes(first8, size, path));
  std::string header(length, '\0');
  RETURN_IF_ERROR(file.ReadAt(8, absl::MakeSpan(reinterpret_cast<std::byte*>(header.data()), length)));
  ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, ParseSafetensorsHeader(header, size, path));
  for (TensorInfo& tensor : tensors) {
    tensor.file = static_cast<uint32_t>(files_.size());
    tensors_.push_back(std::move(tensor));
  }
  // The fingerprint detects a folder changed since an interrupted conversion began, without reading the
  // weights again: names, sizes, times and the headers' digests.
  struct stat info;
  if (fstat(file.fd(), &info) != 0) return ErrnoToStatus(errno, absl::StrCat("stat ", path));
  absl::StrAppend(&fingerprint_, path.substr(path.rfind('/') + 1), " ", size, " ", info.st_mtim.tv_sec, ".",
                  info.st_mtim.tv_nsec, " ", DigestOf(std::string_view(header)).ToHex(), "\n");
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TensorFolder>> TensorFolder::Open(const std::string& dir) {
  auto folder = std::unique_ptr<TensorFolder>(new TensorFolder());
  ShardIndex index;
  const bool sharded = !FileExists(absl::StrCat(dir, "/", kSingleName));
  if (!sharded) {
    RETURN_IF_ERROR(folder->AddFile(absl::StrCat(dir, "/", kSingleName)));
  } else {
    const std::string path = absl::StrCat(dir, "/", kIndexName);
    if (!FileExists(path)) {
      return absl::NotFoundError(absl::StrCat(dir, ": has neither ", kSingleName, " nor ", kIndexName));
    }
    ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndexBytes));
    ASSIGN_OR_RETURN(index, ParseShardIndex(text, path));
    for (const std::string& file : index.files) {
      RETURN_IF_ERROR(folder->AddFile(absl::StrCat(dir, "/", file)));
    }
  }
  std::sort(folder->tensors_.begin(), folder->tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (uint32_t i = 0; i < folder->tensors_.size(); ++i) {
    const TensorInfo& tensor = folder->tensors_[i];
    const std::string& path = folder->files_[tensor.file].path();
    if (!folder->by_name_.emplace(tensor.name, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", tensor.name, " is in another shard too"));
    }
    if (sharded) {
      const auto place = index.file_of.find(tensor.name);
      if (place == index.file_of.end() || place->second != tensor.file) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": holds tensor ", tensor.name, ", but ", kIndexName, " says otherwise"));
      }
    }
  }
  // The shards agree with the index so far; remaining names of the index are missing tensors.
  for (const auto& [tensor, file] : index.file_of) {
    if (!folder->by_name_.contains(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat(folder->files_[file].path(), ": has no tensor ", tensor,
                                                     ", which ", kIndexName, " says is there"));
    }
  }
  return folder;
}

const TensorInfo* TensorFolder::Find(std::string_view name) const {
  const auto it = by_name_.find(absl::string_view(name.data(), name.size()));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

absl::Status TensorFolder::Read(const TensorInfo& tensor, uint64_t offset,
                                absl::Span<std::byte> bytes) const {
  return files_[tensor.file].ReadAt(tensor.offset + offset, bytes);
}

}  // namespace sluice
