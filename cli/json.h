// Json: a value for output, based on nlohmann-json, whose header only json.cc includes.
//
// Keys keep the order in which they were set. Strings that are not UTF-8 are written with U+FFFD; NaN and
// infinities become null.
//
// Thread safety: thread-compatible; a plain value.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace sluice::cli {

class Json {
 public:
  Json();  // null
  Json(bool value);
  Json(double value);
  Json(const char* value);
  Json(const std::string& value);
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value)
      : Json(Integer{static_cast<int64_t>(value), std::is_unsigned_v<T>}) {}
  template <typename T>
  Json(const std::vector<T>& values) : Json(Array()) {
    for (const T& value : values) {
      Append(value);
    }
  }
  ~Json();
  Json(const Json& other);
  Json(Json&&) noexcept;
  Json& operator=(Json other) noexcept;

  static Json Object();
  static Json Array();

  // REQUIRES: this is an object. Replaces an earlier value of the key. Returns this.
  Json& Set(const std::string& key, Json value);
  // REQUIRES: this is an array. Returns this.
  Json& Append(Json value);

  // Calls `handle` with each key and scalar member: strings without quotes, null as "". REQUIRES: this is an
  // object.
  void ForEachScalar(absl::FunctionRef<void(const std::string&, const std::string&)> handle) const;

  // One line, or indented by `indent` spaces.
  std::string Dump(int indent = -1) const;

 private:
  struct Integer {
    int64_t bits;
    bool is_unsigned;
  };
  struct Value;
  explicit Json(Integer value);
  std::unique_ptr<Value> value_;
};

// Returns true if `text` is exactly one JSON value.
bool IsJson(std::string_view text);

// Parses a JSON array of integers in [0, 2^31), the format of `--token-ids-file`. INVALID_ARGUMENT naming the
// entry.
absl::StatusOr<std::vector<int32_t>> TokenIdsFromJson(std::string_view text);

}  // namespace sluice::cli
