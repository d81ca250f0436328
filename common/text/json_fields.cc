#include "common/text/json_fields.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

absl::Status WrongType(const char* key, const char* expected) {
  return absl::InvalidArgumentError(absl::StrCat("field \"", key, "\" is not ", expected));
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(const std::string& bytes, const std::string& file) {
  // These files come with untrusted models. Parsing without exceptions and reading values by type-checked
  // pointers turns any malformed content into an error.
  Json document = Json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded() || !document.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " (", bytes.size(), " bytes) is not a well-formed JSON object"));
  }
  return document;
}

const Json* FindMember(const Json& object, const char* key) {
  if (!object.is_object()) {
    return nullptr;
  }
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<bool> BoolMember(const Json& object, const char* key, bool if_absent) {
  const Json* member = FindMember(object, key);
  if (member == nullptr) {
    return if_absent;
  }
  if (!member->is_boolean()) {
    return WrongType(key, "true or false");
  }
  return *member->get_ptr<const bool*>();
}

absl::StatusOr<std::string> StringMember(const Json& object, const char* key) {
  const Json* member = FindMember(object, key);
  if (member == nullptr || !member->is_string()) {
    return WrongType(key, "a string");
  }
  return *member->get_ptr<const std::string*>();
}

absl::StatusOr<std::string> StringMemberOr(const Json& object, const char* key,
                                           const std::string& if_absent) {
  return FindMember(object, key) == nullptr ? absl::StatusOr<std::string>(if_absent)
                                            : StringMember(object, key);
}

absl::StatusOr<int64_t> IndexMember(const Json& object, const char* key, int64_t limit) {
  const Json* member = FindMember(object, key);
  if (member == nullptr || !member->is_number_unsigned()) {
    return WrongType(key, "a whole number from 0");
  }
  const uint64_t value = *member->get_ptr<const uint64_t*>();
  if (value >= static_cast<uint64_t>(limit)) {
    return absl::InvalidArgumentError(absl::StrCat("field \"", key, "\" is ", value, ", not below ", limit));
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<AddedToken> ParseAddedToken(const Json& object) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, StringMember(object, "content"));
  ASSIGN_OR_RETURN(token.single_word, BoolMember(object, "single_word", false));
  ASSIGN_OR_RETURN(token.lstrip, BoolMember(object, "lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, BoolMember(object, "rstrip", false));
  ASSIGN_OR_RETURN(token.special, BoolMember(object, "special", false));
  ASSIGN_OR_RETURN(token.normalized, BoolMember(object, "normalized", !token.special));
  return token;
}

absl::Status ParseVocabulary(const Json& object, Vocabulary* vocabulary) {
  if (!object.is_object()) {
    return WrongType("vocab", "an object");
  }
  for (const auto& [token, id] : object.items()) {
    const auto* value = id.get_ptr<const uint64_t*>();
    if (!id.is_number_unsigned() || value == nullptr ||
        *value >= static_cast<uint64_t>(Vocabulary::kMaxIds)) {
      return absl::InvalidArgumentError(
          absl::StrCat("id of token \"", token, "\" is not a whole number below ", Vocabulary::kMaxIds));
    }
    RETURN_IF_ERROR(vocabulary->Add(token, static_cast<int64_t>(*value)));
  }
  return absl::OkStatus();
}

}  // namespace sluice
