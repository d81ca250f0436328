#include "cli/json.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"

namespace sluice::cli {

struct Json::Value {
  nlohmann::ordered_json json;
};

Json::Json() : value_(std::make_unique<Value>()) {}
Json::Json(bool value) : Json() { value_->json = value; }
Json::Json(double value) : Json() { value_->json = value; }
Json::Json(const char* value) : Json() { value_->json = value; }
Json::Json(const std::string& value) : Json() { value_->json = value; }
Json::Json(Integer value) : Json() {
  if (value.is_unsigned) {
    value_->json = static_cast<uint64_t>(value.bits);
  } else {
    value_->json = value.bits;
  }
}
Json::~Json() = default;
Json::Json(const Json& other) : value_(std::make_unique<Value>(*other.value_)) {}
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(Json other) noexcept {
  value_ = std::move(other.value_);
  return *this;
}

Json Json::Object() {
  Json json;
  json.value_->json = nlohmann::ordered_json::object();
  return json;
}

Json Json::Array() {
  Json json;
  json.value_->json = nlohmann::ordered_json::array();
  return json;
}

Json& Json::Set(const std::string& key, Json value) {
  value_->json[key] = std::move(value.value_->json);
  return *this;
}

Json& Json::Append(Json value) {
  value_->json.push_back(std::move(value.value_->json));
  return *this;
}

void Json::ForEachScalar(absl::FunctionRef<void(const std::string&, const std::string&)> handle) const {
  for (const auto& [key, value] : value_->json.items()) {
    if (value.is_string()) {
      handle(key, value.get<std::string>());
    } else if (!value.is_structured()) {
      handle(key, value.is_null() ? "" : value.dump());
    }
  }
}

std::string Json::Dump(int indent) const {
  return value_->json.dump(indent, ' ', /*ensure_ascii=*/false,
                           nlohmann::ordered_json::error_handler_t::replace);
}

bool IsJson(std::string_view text) { return ParseJson(text, "", {.allow_duplicate_keys = true}).ok(); }

absl::StatusOr<std::vector<int32_t>> TokenIdsFromJson(std::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, "token ids"));
  if (!json.is_array()) {
    return absl::InvalidArgumentError("token ids: expected a JSON array of whole numbers");
  }
  std::vector<int32_t> ids;
  ids.reserve(json.size());
  for (const nlohmann::json& entry : json) {
    const bool in_range = entry.is_number_unsigned() &&
                          entry.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
    if (!in_range) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ids: entry ", ids.size(), " is no whole number from 0 to 2147483647"));
    }
    ids.push_back(static_cast<int32_t>(entry.get<uint64_t>()));
  }
  return ids;
}

}  // namespace sluice::cli
