// Bounded reader for clients' JSON: every member is looked up by name and type.
//
// Include it only in sources of this folder; its types are nlohmann's.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::inferd {

// Members keep their order: templates print schemas in that order.
using Json = nlohmann::ordered_json;

// Parses `body` as an object. INVALID_ARGUMENT: not JSON (with the byte), no object, deeper than 64, more
// than 4 million values, an object of more than 1024 members (lookup is linear).
absl::StatusOr<Json> ParseBody(const std::string& body);
// Parses `text` as any value; discarded if it is invalid JSON or beyond these bounds.
Json ParseBounded(const std::string& text);

// Returns the member of an object if it is a string, else "".
std::string TextMember(const Json& object, const char* name);

// Prints one line, always valid UTF-8.
std::string Dump(const Json& json);

// INVALID_ARGUMENT for a request's field.
absl::Status BadField(const std::string& field, const std::string& description);
// Returns a value's type for errors: "a string".
std::string KindOf(const Json& value);

// Members of an object by name. Null members count as absent, since clients send all fields that they know.
class JsonFields {
 public:
  // `object` must be an object and outlive this. `path` precedes names in errors: "messages[2].".
  explicit JsonFields(const Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  const Json* Find(const char* name) const;
  bool Has(const char* name) const { return Find(name) != nullptr; }
  std::string Path(const char* name) const { return path_ + name; }

  // Read a member if present; INVALID_ARGUMENT naming it if its type is wrong or an integer is out of range.
  absl::Status Take(const char* name, std::optional<double>* out) const;
  absl::Status Take(const char* name, bool* out) const;
  absl::Status Take(const char* name, std::string* out) const;
  absl::Status Take(const char* name, int64_t low, int64_t high, std::optional<int64_t>* out) const;
  absl::Status Take(const char* name, int64_t low, int64_t high, std::optional<uint32_t>* out) const;
  // Reads a string or a list of strings.
  absl::Status TakeTexts(const char* name, std::vector<std::string>* out) const;
  // Reads a list of token ids below `vocab`.
  absl::Status TakeIds(const char* name, uint32_t vocab, std::vector<int32_t>* out) const;
  // Null if absent.
  absl::StatusOr<const Json*> TakeObject(const char* name) const;
  absl::StatusOr<const Json*> TakeList(const char* name) const;

 private:
  absl::Status Wrong(const char* name, const char* wanted) const;

  const Json& object_;
  const std::string path_;
};

// Reads the ids of a list; `field` is the client's name.
absl::StatusOr<std::vector<int32_t>> IdsOf(const Json& list, uint32_t vocab, const std::string& field);

}  // namespace sluice::inferd
