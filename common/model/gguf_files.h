// GGUF files: keys and tensor infos from untrusted bytes, and the files of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_io.h"
#include "common/model/gguf_blocks.h"

namespace sluice {

// Head of a GGUF file, versions 2 and 3: keys and tensor infos, read from untrusted bytes. Every length and
// count is checked against the file before anything is allocated for it.
//
// Thread safety: ParseGgufHeader is a pure function of the bytes that `read` returns; a GgufHeader is plain
// data.

// Value of a key. Integers and booleans of all widths are int64 (u64 above its range: refused), f32 and f64
// are double.
using GgufValue = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

struct GgufTensorInfo {
  std::string name;
  std::vector<uint64_t> dims;  // fastest first, 1 to 4, none 0; without trailing ones
  const GgufBlockFormat* format = nullptr;
  uint64_t offset = 0;  // in the file, absolute
  uint64_t bytes = 0;
  uint32_t file = 0;  // index among the files of a split model; set by GgufFiles

  uint64_t row_bytes() const { return dims[0] / format->values * format->bytes; }
};

// Keys with typed access: nullopt if a key is absent, InvalidArgument naming it if it has another type or
// does not fit.
class GgufKeys {
 public:
  explicit GgufKeys(std::string subject = "") : subject_(std::move(subject)) {}

  const std::string& subject() const { return subject_; }
  bool Has(const std::string& key) const { return values_.contains(key); }
  // InvalidArgument for a duplicate key.
  absl::Status Add(const std::string& key, GgufValue value);

  absl::StatusOr<std::optional<int64_t>> Int(const std::string& key, int64_t low, int64_t high) const;
  absl::StatusOr<std::optional<double>> Real(const std::string& key) const;  // finite; integers too
  absl::StatusOr<std::optional<std::string>> Text(const std::string& key) const;
  // Returns a list; null if absent.
  absl::StatusOr<const std::vector<int64_t>*> Ints(const std::string& key) const;
  absl::StatusOr<const std::vector<double>*> Reals(const std::string& key) const;
  absl::StatusOr<const std::vector<std::string>*> Texts(const std::string& key) const;

  absl::Status Error(const std::string& key, const std::string& what) const;
  absl::Status Unsupported(const std::string& key, const std::string& what) const;

 private:
  template <typename T>
  absl::StatusOr<const T*> Get(const std::string& key, const char* what) const;

  std::string subject_;
  std::map<std::string, GgufValue> values_;
};

struct GgufHeader {
  GgufKeys keys;
  std::vector<GgufTensorInfo> tensors;  // in the file's order
};

// Reads bytes [offset, offset + bytes.size()) of the file; the range lies within the file.
using GgufRead = std::function<absl::Status(uint64_t offset, absl::Span<std::byte> bytes)>;

// Parses the head of a file of `file_bytes`. `subject` (the file) opens messages. InvalidArgument naming the
// key or tensor and the invalid numbers; Unimplemented naming an unsupported version, byte order or block
// format. Tensors begin at multiples of the alignment, in any order, and do not overlap. Keys that are lists
// of lists are skipped.
absl::StatusOr<GgufHeader> ParseGgufHeader(uint64_t file_bytes, const GgufRead& read,
                                           const std::string& subject);

// GgufFiles: the file of a GGUF model, or all parts of a split one, opened by the first part.
//
// Thread safety: immutable after Open; const methods may be called from any thread.

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
