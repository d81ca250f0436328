// Safetensors: a parser of untrusted headers, and a folder of files (one, or shards with an index).
//
// A file is: u64 little-endian header length, the header (a JSON object: name -> {dtype, shape,
// data_offsets}), then the tensors' bytes, row-major, without gaps.
//
// Thread safety: ParseSafetensorsHeader is pure. A TensorFolder is immutable after Open; its const methods
// may be called from any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_io.h"

namespace sluice {

// Element types of safetensors. Only the first three are used as weights; the others are parts of quantized
// layers (common/model), or appear in test data.
enum class ElementType : uint8_t {
  kBf16,
  kF16,
  kF32,
  kF64,
  kF8E4m3,
  kF8E5m2,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kBool
};
// Returns the header's spelling ("BF16").
const char* ElementTypeName(ElementType type);
uint32_t ElementBytes(ElementType type);

struct TensorInfo {
  std::string name;
  ElementType type = ElementType::kBf16;
  std::vector<uint64_t> shape;  // at most kMaxTensorRank; the product and its bytes fit 64 bits
  uint64_t offset = 0;          // in the file, absolute
  uint64_t bytes = 0;           // product of shape * ElementBytes(type)
  uint32_t file = 0;            // index into TensorFolder::files()
};

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // the format's own limit
inline constexpr size_t kMaxTensorRank = 8;

// Reads the header length from the first 8 bytes of a file of `file_bytes`; DataLoss if it cannot be right.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::Span<const std::byte> first8, uint64_t file_bytes,
                                                const std::string& subject);

// Parses the header text of a file of `file_bytes`. Tensors are returned in the order of their bytes, which
// must follow each other without gap or overlap from the header's end to the file's. InvalidArgument naming
// `subject` (the file) and the tensor: JSON errors, duplicate names, unknown dtypes, overflowing shapes, byte
// ranges that do not match shape and dtype.
absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::string_view header, uint64_t file_bytes,
                                                               const std::string& subject);

// Parses model.safetensors.index.json: tensor name -> shard file name. Shard names are plain names ending in
// ".safetensors".
struct ShardIndex {
  std::vector<std::string> files;                      // sorted
  absl::flat_hash_map<std::string, uint32_t> file_of;  // tensor -> index into files
};
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text, const std::string& subject);

// TensorFolder: all tensors of a model folder. Opening reads headers only.
class TensorFolder {
 public:
  // Opens model.safetensors, else the shards of model.safetensors.index.json. NotFound if there is neither.
  static absl::StatusOr<std::unique_ptr<TensorFolder>> Open(const std::string& dir);

  // Sorted by name.
  absl::Span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* Find(std::string_view name) const;

  // Reads bytes [offset, offset + bytes.size()) of a tensor. REQUIRES: within the tensor.
  absl::Status Read(const TensorInfo& tensor, uint64_t offset, absl::Span<std::byte> bytes) const;

  absl::Span<const File> files() const { return files_; }
  // Fingerprint that changes when a file's size, modification time or header does; a resumed conversion
  // compares it.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  TensorFolder() = default;
  absl::Status AddFile(const std::string& path);

  std::vector<File> files_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<std::string, uint32_t> by_name_;
  std::string fingerprint_;
};

}  // namespace sluice
