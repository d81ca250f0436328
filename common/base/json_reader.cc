#include "common/base/json_reader.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

using nlohmann::json;

template <typename Document>
bool JsonBuilder<Document>::key(string_t& value) {
  levels_.back().key = std::move(value);
  return true;
}

template <typename Document>
bool JsonBuilder<Document>::parse_error(size_t position, const std::string&,
                                        const nlohmann::detail::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: ...": the offset and the reason.
  const std::string what = error.what();
  const size_t reason = what.find(": ");
  return Fail(absl::StrCat("JSON error at byte ", position, ": ",
                           reason == std::string::npos ? what.substr(0, 200) : what.substr(reason + 2, 200)));
}

template <typename Document>
bool JsonBuilder<Document>::Fail(std::string why) {
  if (error_.empty()) error_ = std::move(why);
  return false;
}

template <typename Document>
bool JsonBuilder<Document>::IsAt(std::initializer_list<std::string_view> path) const {
  return std::equal(levels_.begin(), levels_.end(), path.begin(), path.end(),
                    [](const Level& level, std::string_view key) {
                      return level.container->is_object() && level.key == key;
                    });
}

// Stores a value at the parser's position: at the root, at the end of the innermost array, or under the last
// key. Null once a limit is exceeded, which ends the parsing.
template <typename Document>
Document* JsonBuilder<Document>::Add(Document value) {
  if (!MayAdd()) return nullptr;
  if (++values_ > limits_.max_values) {
    Fail(absl::StrCat("more than ", limits_.max_values, " values"));
    return nullptr;
  }
  if (levels_.empty()) {
    root_ = std::move(value);
    return &root_;
  }
  Document& parent = *levels_.back().container;
  if (parent.is_array()) {
    parent.push_back(std::move(value));
    return &parent.back();
  }
  std::string& key = levels_.back().key;
  const auto [member, added] = parent.emplace(key, nullptr);
  if (!added && !limits_.allow_duplicate_keys) {
    Fail(absl::StrCat("duplicate key \"", key.substr(0, 100), "\""));
    return nullptr;
  }
  if (parent.size() > limits_.max_members) {
    Fail(absl::StrCat("an object has more than ", limits_.max_members, " members"));
    return nullptr;
  }
  *member = std::move(value);
  return &*member;
}

template <typename Document>
bool JsonBuilder<Document>::Open(Document container) {
  if (levels_.size() >= limits_.max_depth) {
    return Fail(absl::StrCat("nested deeper than ", limits_.max_depth));
  }
  Document* const added = Add(std::move(container));
  if (added == nullptr) return false;
  levels_.push_back({added, ""});
  return true;
}

template <typename Document>
absl::Status JsonBuilder<Document>::ErrorOf(const std::string& subject) const {
  return absl::InvalidArgumentError(absl::StrCat(subject, ": ", error_.empty() ? "not JSON" : error_));
}

template class JsonBuilder<nlohmann::json>;
template class JsonBuilder<nlohmann::ordered_json>;

absl::StatusOr<json> ParseJson(std::string_view text, const std::string& subject, const JsonLimits& limits) {
  JsonBuilder<json> builder(limits);
  return builder.Parse(text, subject, &builder);
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, const std::string& subject,
                                                        const JsonLimits& limits) {
  JsonBuilder<nlohmann::ordered_json> builder(limits);
  return builder.Parse(text, subject, &builder);
}

std::string JsonExcerpt(const json& value) {
  constexpr size_t kMaxExcerpt = 60;
  if (value.is_object()) return absl::StrCat("an object of ", value.size());
  if (value.is_array()) return absl::StrCat("an array of ", value.size());
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMaxExcerpt) text = text.substr(0, kMaxExcerpt) + "...";
  return text;
}

absl::StatusOr<JsonObject> JsonObject::Of(const json& value, const std::string& subject) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": ", JsonExcerpt(value), " where an object is expected"));
  }
  return JsonObject(&value, subject);
}

const json* JsonObject::Find(std::string_view key) const {
  const auto it = value_->find(std::string(key));
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

absl::Status JsonObject::Error(std::string_view key, const std::string& what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(subject_, subject_.empty() ? "" : ": ", std::string(key), " ", what));
}

absl::StatusOr<const json*> JsonObject::Require(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return Error(key, "is missing");
  return value;
}

absl::StatusOr<uint64_t> JsonObject::Uint(std::string_view key, uint64_t low, uint64_t high) const {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  // A number with a point or an exponent is not an integer: 1e3 for a count is a mistake.
  const bool whole = value->is_number_unsigned();
  if (!whole || value->get<uint64_t>() < low || value->get<uint64_t>() > high) {
    return Error(key, absl::StrCat("is ", JsonExcerpt(*value), "; a whole number from ", low, " to ", high,
                                   " is expected"));
  }
  return value->get<uint64_t>();
}

absl::StatusOr<double> JsonObject::Double(std::string_view key, double low, double high) const {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < low ||
      value->get<double>() > high) {
    return Error(
        key, absl::StrCat("is ", JsonExcerpt(*value), "; a number from ", low, " to ", high, " is expected"));
  }
  return value->get<double>();
}

absl::StatusOr<bool> JsonObject::Bool(std::string_view key) const {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  if (!value->is_boolean())
    return Error(key, absl::StrCat("is ", JsonExcerpt(*value), "; true or false is expected"));
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonObject::String(std::string_view key) const {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  if (!value->is_string())
    return Error(key, absl::StrCat("is ", JsonExcerpt(*value), "; a string is expected"));
  return value->get_ref<const std::string&>();
}

absl::StatusOr<JsonObject> JsonObject::Object(std::string_view key) const {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  return Of(*value, absl::StrCat(subject_, subject_.empty() ? "" : ": ", std::string(key)));
}

absl::StatusOr<const json*> JsonObject::Array(std::string_view key) const {
  ASSIGN_OR_RETURN(const json* value, Require(key));
  if (!value->is_array())
    return Error(key, absl::StrCat("is ", JsonExcerpt(*value), "; an array is expected"));
  return value;
}

absl::StatusOr<uint64_t> JsonObject::UintOr(std::string_view key, uint64_t low, uint64_t high,
                                            uint64_t fallback) const {
  if (!Has(key)) return fallback;
  return Uint(key, low, high);
}

absl::StatusOr<bool> JsonObject::BoolOr(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  return Bool(key);
}

absl::StatusOr<std::string> JsonObject::StringOr(std::string_view key, const std::string& fallback) const {
  if (!Has(key)) return fallback;
  return String(key);
}

}  // namespace sluice
