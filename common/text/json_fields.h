// Typed access to fields of untrusted JSON: a wrong type is an InvalidArgument naming the field. Only the
// readers of tokenizer files include it (it includes the JSON library).
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/text/tokenizer_spec.h"
#include "nlohmann/json.hpp"

namespace sluice {

using Json = nlohmann::json;

// Parses `bytes`, which must be an object. Errors name `file`.
absl::StatusOr<Json> ParseJsonObject(const std::string& bytes, const std::string& file);

// Returns the member `key`; null if `object` is no object, or the member is absent or null.
const Json* FindMember(const Json& object, const char* key);

absl::StatusOr<bool> BoolMember(const Json& object, const char* key, bool if_absent);
absl::StatusOr<std::string> StringMember(const Json& object, const char* key);
absl::StatusOr<std::string> StringMemberOr(const Json& object, const char* key, const std::string& if_absent);
// Returns an integer in [0, limit).
absl::StatusOr<int64_t> IndexMember(const Json& object, const char* key, int64_t limit);

// Reads the fields of an added token except its id. `normalized` defaults as in the library: true unless
// special.
absl::StatusOr<AddedToken> ParseAddedToken(const Json& object);

// Reads vocab: {"token": id}.
absl::Status ParseVocabulary(const Json& object, Vocabulary* vocabulary);

}  // namespace sluice
