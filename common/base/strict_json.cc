#include "common/base/strict_json.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

// Builds the value from the parser's events. The library's own builder would allocate without a limit for
// hostile input, and would silently keep the last of two equal keys.
class StrictBuilder final : public nlohmann::json_sax<json> {
 public:
  explicit StrictBuilder(const JsonLimits& limits) : limits_(limits) {}

  json Take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return Add(value) != nullptr; }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& value) override {
    if (stack_.back()->contains(value)) {
      return Fail(absl::StrCat("duplicate key \"", value.substr(0, 100), "\""));
    }
    key_ = std::move(value);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ...": the offset and the reason.
    const std::string what = e.what();
    const size_t reason = what.find(": ");
    return Fail(
        absl::StrCat("JSON error at byte ", position, ": ",
                     reason == std::string::npos ? what.substr(0, 200) : what.substr(reason + 2, 200)));
  }

 private:
  bool Fail(std::string why) {
    if (error_.empty()) error_ = std::move(why);
    return false;
  }

  // Stores a value at the parser's position: at the root, at the end of the innermost array, or under the
  // last key. Null once a limit is exceeded, which ends the parsing.
  template <typename T>
  json* Add(T&& value) {
    if (++values_ > limits_.max_values) {
      Fail(absl::StrCat("more than ", limits_.max_values, " values"));
      return nullptr;
    }
    if (stack_.empty()) {
      root_ = json(std::forward<T>(value));
      return &root_;
    }
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(json(std::forward<T>(value)));
      return &parent.back();
    }
    return &(parent[key_] = json(std::forward<T>(value)));
  }

  bool Open(json container) {
    if (stack_.size() >= static_cast<size_t>(limits_.max_depth)) {
      return Fail(absl::StrCat("nested deeper than ", limits_.max_depth));
    }
    json* added = Add(std::move(container));
    if (added == nullptr) return false;
    stack_.push_back(added);
    return true;
  }

  bool Close() {
    stack_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  json root_;
  // Open containers. A parent is not changed while a child is open, so the pointers hold.
  std::vector<json*> stack_;
  std::string key_;
  uint64_t values_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseStrictJson(std::string_view text, const std::string& subject,
                                     const JsonLimits& limits) {
  StrictBuilder builder(limits);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": ", builder.error().empty() ? "not JSON" : builder.error()));
  }
  return builder.Take();
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
  return absl::InvalidArgumentError(absl::StrCat(subject_, ": ", std::string(key), " ", what));
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
  return Of(*value, absl::StrCat(subject_, ": ", std::string(key)));
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
