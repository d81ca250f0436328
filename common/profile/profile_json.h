// JSON form of the profile's files: reading with limits, a root with format and key, DATA_LOSS for damage,
// and one canonical spelling.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/strict_json.h"
#include "nlohmann/json.hpp"

namespace sluice {

inline constexpr uint64_t kMaxProfileCount = 1ull << 53;  // exact in every JSON reader

// Turns a parser's INVALID_ARGUMENT into DATA_LOSS: a malformed stored file is damaged.
absl::Status ToDataLoss(const absl::Status& status);

// Returns the root object of a profile's text after checking its format (1) and its key: UNIMPLEMENTED for
// another format, CheckProfileKey()'s errors for another key. `*found` is the key in the file.
absl::StatusOr<JsonObject> CheckProfileRoot(const nlohmann::json& root, const std::string& subject,
                                            const char* key_name, const std::string& key, std::string* found);

// Parses text to a value by `convert`(json); damage becomes DATA_LOSS.
template <typename Value, typename Convert>
absl::StatusOr<Value> ParseProfileText(std::string_view text, const std::string& subject, uint64_t max_values,
                                       const Convert& convert) {
  const absl::StatusOr<nlohmann::json> root = ParseStrictJson(text, subject, {.max_values = max_values});
  if (!root.ok()) return ToDataLoss(root.status());
  absl::StatusOr<Value> value = convert(*root);
  if (!value.ok()) return ToDataLoss(value.status());
  return value;
}

// Writes a profile's text: the format's number and the members of `body`, with sorted keys, one per line.
std::string FormatProfile(nlohmann::json body);

}  // namespace sluice
