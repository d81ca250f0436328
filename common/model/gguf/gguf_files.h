// GgufFiles: the file of a GGUF model, or all parts of a split one, opened by the first part.
//
// Thread safety: immutable after Open; const methods may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/file_io.h"
#include "common/model/gguf/gguf_header.h"

namespace sluice {

class GgufFiles {
 public:
  // Reads headers only. Errors as ParseGgufHeader's, and those of parts that are missing or do not belong
  // together, naming file and numbers.
  static absl::StatusOr<std::unique_ptr<GgufFiles>> Open(const std::string& path);
  // Reads only the head of the first file; its data may be missing. Tensors of other parts are not listed,
  // and no tensor can be read.
  static absl::StatusOr<std::unique_ptr<GgufFiles>> OpenMetadata(const std::string& path);

  const GgufKeys& keys() const { return keys_; }  // of the first file
  absl::Span<const GgufTensorInfo> tensors() const { return tensors_; }
  const GgufTensorInfo* Find(std::string_view name) const;

  // Reads bytes [offset, offset + bytes.size()) of a tensor. REQUIRES: within the tensor.
  absl::Status Read(const GgufTensorInfo& tensor, uint64_t offset, absl::Span<std::byte> bytes) const;
  // Reads all values of a tensor of at most kMaxSmall values; InvalidArgument naming a larger one.
  absl::StatusOr<std::vector<float>> ReadSmall(const GgufTensorInfo& tensor) const;
  static constexpr uint64_t kMaxSmall = 1 << 20;

  const std::string& path() const { return files_[0].path(); }
  const std::string& PathOf(const GgufTensorInfo& tensor) const { return files_[tensor.file].path(); }
  // Fingerprint that changes when a file's size or modification time does.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  // `whole`: tensors must lie within the file.
  absl::StatusOr<GgufHeader> AddFile(const std::string& path, bool whole);
  absl::Status AddParts(const std::string& path);
  absl::Status IndexTensors();

  std::vector<File> files_;
  GgufKeys keys_;
  std::vector<GgufTensorInfo> tensors_;
  absl::flat_hash_map<std::string, uint32_t> by_name_;
  std::string fingerprint_;
};

}  // namespace sluice
