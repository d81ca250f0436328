#include "common/model/gguf/gguf_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr int64_t kMaxParts = 4096;
// Size limit used when only the head of a file is present.
constexpr uint64_t kAnySize = uint64_t{1} << 50;

// PREFIX-00001-of-00003.gguf
std::string PartSuffix(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number + 1, count);
}

absl::StatusOr<int64_t> NeedInt(const GgufKeys& keys, const std::string& key, int64_t low, int64_t high) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, keys.Int(key, low, high));
  if (!value.has_value()) return keys.Error(key, "is missing");
  return *value;
}

}  // namespace

absl::StatusOr<GgufHeader> GgufFiles::AddFile(const std::string& path, bool whole) {
  ASSIGN_OR_RETURN(File file, File::OpenForRead(path));
  ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  const auto read = [&file, size](uint64_t offset, absl::Span<std::byte> bytes) -> absl::Status {
    // With a lone head, the parser's buffer may reach beyond the end of the file.
    const uint64_t there = std::min<uint64_t>(bytes.size(), size - std::min(size, offset));
    std::fill(bytes.begin() + static_cast<ptrdiff_t>(there), bytes.end(), std::byte{0});
    return file.ReadAt(offset, bytes.first(there));
  };
  ASSIGN_OR_RETURN(GgufHeader header, ParseGgufHeader(whole ? size : kAnySize, read, path));
  struct stat info;
  if (fstat(file.fd(), &info) != 0) return ErrnoToStatus(errno, absl::StrCat("stat ", path));
  absl::StrAppend(&fingerprint_, path.substr(path.rfind('/') + 1), " ", size, " ", info.st_mtim.tv_sec, ".",
                  info.st_mtim.tv_nsec, "\n");
  for (GgufTensorInfo& tensor : header.tensors) {
    tensor.file = static_cast<uint32_t>(files_.size());
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return header;
}

absl::Status GgufFiles::AddParts(const std::string& path) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> count, keys_.Int("split.count", 0, kMaxParts));
  if (count.value_or(0) <= 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t first, NeedInt(keys_, "split.no", 0, kMaxParts));
  if (first != 0) {
    return keys_.Error("split.no", absl::StrCat("is ", first, "; open the model by its first file, ...",
                                                PartSuffix(0, *count)));
  }
  if (!absl::EndsWith(path, PartSuffix(0, *count))) {
    return keys_.Error("split.count", absl::StrCat("is ", *count, ", so the file's name must end in ",
                                                   PartSuffix(0, *count)));
  }
  const std::string prefix = path.substr(0, path.size() - PartSuffix(0, *count).size());
  for (int64_t number = 1; number < *count; ++number) {
    ASSIGN_OR_RETURN(const GgufHeader part, AddFile(prefix + PartSuffix(number, *count), /*whole=*/true));
    ASSIGN_OR_RETURN(const int64_t own_number, NeedInt(part.keys, "split.no", 0, kMaxParts));
    ASSIGN_OR_RETURN(const int64_t own_count, NeedInt(part.keys, "split.count", 0, kMaxParts));
    if (own_number != number || own_count != *count) {
      return part.keys.Error("split.no", absl::StrCat("and split.count are ", own_number, " and ", own_count,
                                                      ", expected ", number, " and ", *count));
    }
  }
  ASSIGN_OR_RETURN(const int64_t total, NeedInt(keys_, "split.tensors.count", 0, INT32_MAX));
  if (static_cast<uint64_t>(total) != tensors_.size()) {
    return keys_.Error("split.tensors.count",
                       absl::StrCat("is ", total, ", but the files hold ", tensors_.size()));
  }
  return absl::OkStatus();
}

absl::Status GgufFiles::IndexTensors() {
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    if (!by_name_.emplace(tensors_[i].name, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(PathOf(tensors_[i]), ": tensor ", tensors_[i].name, " is in another part too"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GgufFiles>> GgufFiles::Open(const std::string& path) {
  auto files = std::unique_ptr<GgufFiles>(new GgufFiles());
  ASSIGN_OR_RETURN(GgufHeader header, files->AddFile(path, /*whole=*/true));
  files->keys_ = std::move(header.keys);
  RETURN_IF_ERROR(files->AddParts(path));
  RETURN_IF_ERROR(files->IndexTensors());
  return files;
}

absl::StatusOr<std::unique_ptr<GgufFiles>> GgufFiles::OpenMetadata(const std::string& path) {
  auto files = std::unique_ptr<GgufFiles>(new GgufFiles());
  ASSIGN_OR_RETURN(GgufHeader header, files->AddFile(path, /*whole=*/false));
  files->keys_ = std::move(header.keys);
  RETURN_IF_ERROR(files->IndexTensors());
  return files;
}

const GgufTensorInfo* GgufFiles::Find(std::string_view name) const {
  const auto it = by_name_.find(absl::string_view(name.data(), name.size()));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

absl::Status GgufFiles::Read(const GgufTensorInfo& tensor, uint64_t offset,
                             absl::Span<std::byte> bytes) const {
  return files_[tensor.file].ReadAt(tensor.offset + offset, bytes);
}

absl::StatusOr<std::vector<float>> GgufFiles::ReadSmall(const GgufTensorInfo& tensor) const {
  const uint64_t blocks = tensor.bytes / tensor.format->bytes;
  if (blocks > kMaxSmall / tensor.format->values) {
    return absl::InvalidArgumentError(absl::StrCat(PathOf(tensor), ": tensor ", tensor.name, " has ",
                                                   blocks * tensor.format->values, " values, more than ",
                                                   kMaxSmall));
  }
  std::vector<std::byte> raw(tensor.bytes);
  RETURN_IF_ERROR(Read(tensor, 0, absl::MakeSpan(raw)));
  std::vector<float> values(blocks * tensor.format->values);
  for (uint64_t i = 0; i < blocks; ++i) {
    tensor.format->decode(reinterpret_cast<const uint8_t*>(raw.data()) + i * tensor.format->bytes,
                          values.data() + i * tensor.format->values);
  }
  return values;
}

}  // namespace sluice
