// JSON that clients send, read with care: bounded, and every member asked for by name and type.
//
// Included by the sources of this room alone; its types are nlohmann's.
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

namespace sluice {

// Members keep their order: templates print schemas as they stand.
using Json = nlohmann::ordered_json;

// The object that `body` spells. INVALID_ARGUMENT: not JSON (with the byte), no object, deeper than 64, more
// than 4 million values, an object of more than 1024 members (looking one up takes as long).
absl::StatusOr<Json> ParseBody(const std::string& body);
// The value that `text` spells, whatever it is; discarded if it is no JSON or beyond these bounds.
Json ParseBounded(const std::string& text);

// One line, and UTF-8 whatever is in it.
std::string Dump(const Json& json);

// INVALID_ARGUMENT about a request's field.
absl::Status BadField(const std::string& field, const std::string& description);
// What a value is, for errors: "a string".
std::string KindOf(const Json& value);

// The members of an object by name. One that is null counts as absent, as clients send all that they know of.
class JsonFields {
 public:
  // `object` is one, and outlives this. `path` stands before names in errors: "messages[2].".
  explicit JsonFields(const Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  const Json* Find(const char* name) const;
  bool Has(const char* name) const { return Find(name) != nullptr; }
  std::string Path(const char* name) const { return path_ + name; }

  // Take the member over where it is there; INVALID_ARGUMENT naming it where it is of another type, or out of
  // the range of a whole number.
  absl::Status Take(const char* name, std::optional<double>* out) const;
  absl::Status Take(const char* name, bool* out) const;
  absl::Status Take(const char* name, std::string* out) const;
  absl::Status Take(const char* name, int64_t low, int64_t high, std::optional<int64_t>* out) const;
  absl::Status Take(const char* name, int64_t low, int64_t high, std::optional<uint32_t>* out) const;
  // A string or a list of them.
  absl::Status TakeTexts(const char* name, std::vector<std::string>* out) const;
  // A list of token ids below `vocab`.
  absl::Status TakeIds(const char* name, uint32_t vocab, std::vector<int32_t>* out) const;
  // Null where it is absent.
  absl::StatusOr<const Json*> TakeObject(const char* name) const;
  absl::StatusOr<const Json*> TakeList(const char* name) const;

 private:
  absl::Status Wrong(const char* name, const char* wanted) const;

  const Json& object_;
  const std::string path_;
};

// The ids of a list; `field` is what the client calls it.
absl::StatusOr<std::vector<int32_t>> IdsOf(const Json& list, uint32_t vocab, const std::string& field);

}  // namespace sluice
