// What the profile's JSON files have in common: reading with limits, a root that says format and key, damage
// that is called damage, and one spelling.
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

// What is wrong with a stored file is damage: INVALID_ARGUMENT of a parser becomes DATA_LOSS.
absl::Status AsDamage(const absl::Status& status);

// The root object of a profile's text, its format (1) and its key checked: UNIMPLEMENTED for another format,
// CheckProfileKey()'s errors for another key. `*found` is the key that the file holds.
absl::StatusOr<JsonObject> CheckProfileRoot(const nlohmann::json& root, const std::string& subject,
                                            const char* key_name, const std::string& key, std::string* found);

// Text to value by `convert`(json), with damage called damage.
template <typename Value, typename Convert>
absl::StatusOr<Value> ParseProfileText(std::string_view text, const std::string& subject, uint64_t max_values,
                                       const Convert& convert) {
  const absl::StatusOr<nlohmann::json> root = ParseStrictJson(text, subject, {.max_values = max_values});
  if (!root.ok()) return AsDamage(root.status());
  absl::StatusOr<Value> value = convert(*root);
  if (!value.ok()) return AsDamage(value.status());
  return value;
}

// A profile's text: the format's number beside the members of `body`, with sorted keys, a line each.
std::string SpellProfile(nlohmann::json body);

}  // namespace sluice
