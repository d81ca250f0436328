// JSON from untrusted files: no exceptions, no duplicate keys, bounded depth and number of values.
//
// Only the few .cc files that read or write JSON include this; no public header does.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

struct JsonLimits {
  int max_depth = 64;
  uint64_t max_values = 4'000'000;  // about 64 bytes each once parsed
};

// Parses `text` as one value with nothing after it. `subject` (a file name) begins every error message.
// InvalidArgument: a syntax error with its byte offset, a duplicate key by name, a limit with its number.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text, const std::string& subject,
                                               const JsonLimits& limits = {});

// Checked access to the members of an object; errors say "<subject>: <path>.<key> ...".
class JsonObject {
 public:
  // InvalidArgument if `value` is not an object. `value` must outlive this.
  static absl::StatusOr<JsonObject> Of(const nlohmann::json& value, const std::string& subject);

  const std::string& subject() const { return subject_; }
  const nlohmann::json& value() const { return *value_; }
  // The member, or null if it is absent or JSON null.
  const nlohmann::json* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  // Required members.
  absl::StatusOr<uint64_t> Uint(std::string_view key, uint64_t low, uint64_t high) const;
  absl::StatusOr<double> Double(std::string_view key, double low, double high) const;  // finite
  absl::StatusOr<bool> Bool(std::string_view key) const;
  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<JsonObject> Object(std::string_view key) const;
  absl::StatusOr<const nlohmann::json*> Array(std::string_view key) const;

  // The same with a default for an absent or null member.
  absl::StatusOr<uint64_t> UintOr(std::string_view key, uint64_t low, uint64_t high, uint64_t fallback) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, const std::string& fallback) const;

  absl::Status Error(std::string_view key, const std::string& what) const;

 private:
  JsonObject(const nlohmann::json* value, std::string subject)
      : value_(value), subject_(std::move(subject)) {}
  absl::StatusOr<const nlohmann::json*> Require(std::string_view key) const;

  const nlohmann::json* value_;
  std::string subject_;
};

// A value for an error message: at most 60 bytes of its text.
std::string JsonExcerpt(const nlohmann::json& value);

}  // namespace sluice
