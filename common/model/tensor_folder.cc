// TensorFolder: the tensors of a model folder, from one safetensors file or from shards with an index.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "common/checksum.h"
#include "common/model/safetensors.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
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
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseStrictJson(text, subject, {.max_depth = 8}));
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
