// Head of a GGUF file, versions 2 and 3: keys and tensor infos, read from untrusted bytes. Every length and
// count is checked against the file before anything is allocated for it.
//
// Thread safety: ParseGgufHeader is a pure function of the bytes that `read` returns; a GgufHeader is plain
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/gguf/gguf_blocks.h"

namespace sluice {

// Value of a key. Integers and booleans of all widths are int64 (u64 above its range: refused), f32 and f64
// are double.
using GgufValue = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

struct GgufTensorInfo {
  std::string name;
  std::vector<uint64_t> dims;  // fastest first, 1 to 4, none 0
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
// format. Tensors follow each other in the order of their infos, padded to the alignment, within the file.
absl::StatusOr<GgufHeader> ParseGgufHeader(uint64_t file_bytes, const GgufRead& read,
                                           const std::string& subject);

}  // namespace sluice
