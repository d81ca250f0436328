// Typed access to fields of untrusted JSON: a wrong type is an InvalidArgument naming the field. Only the
// readers of tokenizer files include it (it brings in the JSON library).
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/text/stages/tokenizer_spec.h"
#include "nlohmann/json.hpp"

namespace sluice {

using Json = nlohmann::json;

// The document in `bytes`, which must be an object. Errors name `file`.
absl::StatusOr<Json> ParseJsonObject(const std::string& bytes, const std::string& file);

// The member `key`; null if `object` is no object or has none, or it is null.
const Json* FindMember(const Json& object, const char* key);

absl::StatusOr<bool> BoolMember(const Json& object, const char* key, bool if_absent);
absl::StatusOr<std::string> StringMember(const Json& object, const char* key);
absl::StatusOr<std::string> StringMemberOr(const Json& object, const char* key, const std::string& if_absent);
// In [0, limit).
absl::StatusOr<int64_t> IndexMember(const Json& object, const char* key, int64_t limit);

// The fields of an added token but its id. `normalized` is the default of the library: not for special ones.
absl::StatusOr<AddedToken> ParseAddedToken(const Json& object);

// vocab: {"token": id}.
absl::Status ParseVocabulary(const Json& object, Vocabulary* vocabulary);

}  // namespace sluice
