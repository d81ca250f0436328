// The files of a GGUF model: one, or the parts of a split one, opened by the first.
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
  // Reads heads only. Errors as ParseGgufHeader's, and those of parts that are missing or do not belong
  // together, naming file and numbers.
  static absl::StatusOr<std::unique_ptr<GgufFiles>> Open(const std::string& path);
  // The first file's head alone, which may be all there is of it; tensors of other parts are not listed, and
  // nothing can be read of any.
  static absl::StatusOr<std::unique_ptr<GgufFiles>> OpenHead(const std::string& path);

  const GgufKeys& keys() const { return keys_; }  // of the first file
  absl::Span<const GgufTensorInfo> tensors() const { return tensors_; }
  const GgufTensorInfo* Find(std::string_view name) const;

  // Bytes [offset, offset + bytes.size()) of a tensor. REQUIRES: within the tensor.
  absl::Status Read(const GgufTensorInfo& tensor, uint64_t offset, absl::Span<std::byte> bytes) const;
  // All values of a tensor of at most kMaxSmall values; InvalidArgument naming one that has more.
  absl::StatusOr<std::vector<float>> ReadSmall(const GgufTensorInfo& tensor) const;
  static constexpr uint64_t kMaxSmall = 1 << 20;

  const std::string& path() const { return files_[0].path(); }
  const std::string& PathOf(const GgufTensorInfo& tensor) const { return files_[tensor.file].path(); }
  // Changes when a file's size or time of change does.
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
