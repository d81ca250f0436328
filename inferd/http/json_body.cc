#include "inferd/http/json_body.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

constexpr JsonLimits kBodyLimits{.max_members = 1024, .allow_duplicate_keys = true};

}  // namespace

Json ParseBounded(const std::string& text) {
  return ParseOrderedJson(text, "", kBodyLimits).value_or(Json(Json::value_t::discarded));
}

absl::StatusOr<Json> ParseBody(const std::string& body) {
  absl::StatusOr<Json> json = ParseOrderedJson(body, "the body cannot be read", kBodyLimits);
  if (!json.ok()) {
    return ReasonError(absl::StatusCode::kInvalidArgument, "INVALID_JSON",
                       std::string(json.status().message()));
  }
  if (!json->is_object()) {
    return ReasonError(absl::StatusCode::kInvalidArgument, "INVALID_JSON",
                       absl::StrCat("the body is ", KindOf(*json), ", must be a JSON object"));
  }
  return json;
}

std::string TextMember(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

absl::Status BadField(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

std::string KindOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_float:
      return "a number with a fraction";
    default:
      return value.is_number() ? "a whole number" : "no JSON";
  }
}

const Json* JsonFields::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status JsonFields::Wrong(const char* name, const char* wanted) const {
  return BadField(Path(name), absl::StrCat("is ", KindOf(*Find(name)), ", must be ", wanted));
}

absl::Status JsonFields::Take(const char* name, std::optional<double>* out) const {
  if (const Json* value = Find(name); value != nullptr) {
    if (!value->is_number()) {
      return Wrong(name, "a number");
    }
    *out = value->get<double>();
  }
  return absl::OkStatus();
}

absl::Status JsonFields::Take(const char* name, bool* out) const {
  if (const Json* value = Find(name); value != nullptr) {
    if (!value->is_boolean()) {
      return Wrong(name, "true or false");
    }
    *out = value->get<bool>();
  }
  return absl::OkStatus();
}

absl::Status JsonFields::Take(const char* name, std::string* out) const {
  if (const Json* value = Find(name); value != nullptr) {
    if (!value->is_string()) {
      return Wrong(name, "a string");
    }
    *out = value->get<std::string>();
  }
  return absl::OkStatus();
}

absl::Status JsonFields::Take(const char* name, int64_t low, int64_t high,
                              std::optional<int64_t>* out) const {
  const Json* value = Find(name);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (!value->is_number_integer()) {
    return Wrong(name, "a whole number");
  }
  // A number beyond int64 would become negative.
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  const int64_t number = huge ? INT64_MAX : value->get<int64_t>();
  if (number < low || number > high || huge) {
    return BadField(Path(name), absl::StrCat("is ", Dump(*value), ", must be ", low, " to ", high));
  }
  *out = number;
  return absl::OkStatus();
}

absl::Status JsonFields::Take(const char* name, int64_t low, int64_t high,
                              std::optional<uint32_t>* out) const {
  std::optional<int64_t> number;
  RETURN_IF_ERROR(Take(name, low, high, &number));
  if (number.has_value()) {
    *out = static_cast<uint32_t>(*number);
  }
  return absl::OkStatus();
}

absl::Status JsonFields::TakeTexts(const char* name, std::vector<std::string>* out) const {
  const Json* value = Find(name);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (value->is_string()) {
    out->push_back(value->get<std::string>());
    return absl::OkStatus();
  }
  if (!value->is_array()) {
    return Wrong(name, "a string or a list of strings");
  }
  for (const Json& item : *value) {
    if (!item.is_string()) {
      return BadField(absl::StrCat(Path(name), "[", out->size(), "]"),
                      absl::StrCat("is ", KindOf(item), ", must be a string"));
    }
    out->push_back(item.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status JsonFields::TakeIds(const char* name, uint32_t vocab, std::vector<int32_t>* out) const {
  ASSIGN_OR_RETURN(const Json* list, TakeList(name));
  if (list != nullptr) {
    ASSIGN_OR_RETURN(*out, IdsOf(*list, vocab, Path(name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Json*> JsonFields::TakeObject(const char* name) const {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_object()) {
    return Wrong(name, "an object");
  }
  return value;
}

absl::StatusOr<const Json*> JsonFields::TakeList(const char* name) const {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_array()) {
    return Wrong(name, "a list");
  }
  return value;
}

absl::StatusOr<std::vector<int32_t>> IdsOf(const Json& list, uint32_t vocab, const std::string& field) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const bool in_range =
        item.is_number_integer() && item.is_number_unsigned() && item.get<uint64_t>() < vocab;
    if (!in_range) {
      return BadField(absl::StrCat(field, "[", ids.size(), "]"),
                      absl::StrCat("must be a token id below ", vocab));
    }
    ids.push_back(static_cast<int32_t>(item.get<uint64_t>()));
  }
  return ids;
}

}  // namespace sluice::inferd
