// The one reader of JSON: no exceptions, bounded depth and number of values, errors that name the place.
//
// Files that the project writes or that describe a model must not have a key twice; in requests and in what
// models write the last one counts, as in browsers. Documents are nlohmann's, ordered where the order of the
// members is part of the answer. Only the few .cc files that read or write JSON include this.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

struct JsonLimits {
  size_t max_depth = 64;
  uint64_t max_values = 4'000'000;    // about 64 bytes each once parsed
  uint64_t max_members = UINT64_MAX;  // of one object; an ordered one searches its members one by one
  bool allow_duplicate_keys = false;  // true: the last of two equal keys counts
};

// Parses `text` as one value with nothing after it. `subject` (a file name) begins every error message.
// INVALID_ARGUMENT: a syntax error with its byte offset, a duplicate key by name, a limit with its number.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& subject,
                                         const JsonLimits& limits = {});
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, const std::string& subject,
                                                        const JsonLimits& limits = {});

// JsonBuilder: builds a document from the parser's events. The library's own builder would allocate without a
// limit for hostile input, and would silently keep the last of two equal keys. A reader that takes large
// members as a stream derives from it and overrides the events between their start and their end.
//
// Thread safety: thread-compatible.
template <typename Document>
class JsonBuilder : public nlohmann::json_sax<Document> {
 public:
  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  // As ParseJson(). REQUIRES: not called before.
  template <typename Self>
  static absl::StatusOr<Document> Parse(std::string_view text, const std::string& subject, Self* builder) {
    if (!Document::sax_parse(text.begin(), text.end(), builder)) return builder->ErrorOf(subject);
    return std::move(builder->root_);
  }

  using typename nlohmann::json_sax<Document>::number_integer_t;
  using typename nlohmann::json_sax<Document>::number_unsigned_t;
  using typename nlohmann::json_sax<Document>::number_float_t;
  using typename nlohmann::json_sax<Document>::string_t;
  using typename nlohmann::json_sax<Document>::binary_t;
  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return Add(value) != nullptr; }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool start_object(size_t) override { return Open(Document::object()); }
  bool start_array(size_t) override { return Open(Document::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override;
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override;

 protected:
  // Returns false, for an event to end the parsing with this error.
  bool Fail(std::string why);
  // Returns false, after Fail(), where the document may have no value.
  virtual bool MayAdd() { return true; }
  // True if the next value is the member of this path, from the root.
  bool IsAt(std::initializer_list<std::string_view> path) const;

 private:
  // An open container. A parent is not changed while a child is open, so the pointers hold.
  struct Level {
    Document* container;
    std::string key;  // of the member that is read; unused in an array
  };
  Document* Add(Document value);
  bool Open(Document container);
  bool Close() {
    levels_.pop_back();
    return true;
  }
  absl::Status ErrorOf(const std::string& subject) const;

  const JsonLimits limits_;
  Document root_;
  std::vector<Level> levels_;
  uint64_t values_ = 0;
  std::string error_;
};
extern template class JsonBuilder<nlohmann::json>;
extern template class JsonBuilder<nlohmann::ordered_json>;

// Checked access to the members of an object; errors say "<subject>: <path>.<key> ...".
class JsonObject {
 public:
  // INVALID_ARGUMENT if `value` is not an object. `value` must outlive this.
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
