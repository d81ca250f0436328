// File access of all profile files: reading with precise errors, atomic replacement, and the sealed binary
// form {body, XXH3-128 of the body} with bounded, checked reading.
//
// Thread safety: free functions, safe to call from any thread. A ByteReader belongs to one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// Returns FAILED_PRECONDITION naming both ids if `found` is not `wanted` (an empty `wanted` accepts any),
// DATA_LOSS if `found` is not 32 hex digits.
absl::Status CheckProfileKey(const std::string& subject, const char* key_name, const std::string& found,
                             const std::string& wanted);

// Returns the file's bytes. NOT_FOUND names `sluice calibrate` as its source; DATA_LOSS above `max_bytes`.
absl::StatusOr<std::string> ReadProfileFile(const std::string& path, uint64_t max_bytes);

// Creates `folder` if necessary and replaces `folder`/`name` in one durable step: readers see the old bytes
// or the new ones.
absl::Status WriteProfileFile(const std::string& folder, const std::string& name, std::string_view content);

// Appends little-endian values (the machine's own order; big-endian is refused at compile time, checksum.cc).
template <typename T>
void AppendValue(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
void AppendValues(const std::vector<T>& values, std::string* out) {
  out->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Appends the digest of the bytes in `out`.
void Seal(std::string* out);
// Returns the body of sealed bytes that begins with `magic` (8 characters). DATA_LOSS if truncated, damaged
// or of another kind.
absl::StatusOr<std::string_view> Unseal(std::string_view bytes, std::string_view magic,
                                        const std::string& subject);

// ByteReader: reads values from the front of a body; every read is checked against the remaining bytes before
// memory is allocated.
class ByteReader {
 public:
  ByteReader(std::string_view bytes, std::string subject) : rest_(bytes), subject_(std::move(subject)) {}

  template <typename T>
  absl::Status Take(T* value) {
    if (rest_.size() < sizeof(T)) return Short(sizeof(T));
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status TakeMany(uint64_t count, std::vector<T>* values) {
    if (count > rest_.size() / sizeof(T)) return Short(count);
    values->resize(count);
    if (count > 0) std::memcpy(values->data(), rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
    return absl::OkStatus();
  }
  absl::Status TakeText(size_t length, std::string* text);
  // Reads float32 values, all of them finite; DATA_LOSS naming `what` otherwise.
  absl::Status TakeFinite(uint64_t count, const std::string& what, std::vector<float>* values);
  // Returns DATA_LOSS if bytes are left.
  absl::Status Finish() const;
  absl::Status Damaged(const std::string& what) const;

 private:
  absl::Status Short(uint64_t wanted) const;

  std::string_view rest_;
  const std::string subject_;
};

}  // namespace sluice
