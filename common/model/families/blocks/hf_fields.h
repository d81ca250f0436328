// The members of a config.json, as a family's reader asks for them: with their ranges and defaults, the first
// error kept for the end, and every member that nobody asked for refused.
//
// A reader is a straight list of questions; a wrong answer comes back as the lowest allowed value, so that
// the code between the questions needs no checks, and Finish() tells what was wrong. A member that the reader
// never asked for is a switch that this code does not know: it is refused, unless it is null, false, or one
// of the names that change no computation (InertFields).
//
// Private to common/model. Thread safety: used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/strict_json.h"

namespace sluice {

class HfFields {
 public:
  // `object` outlives this.
  explicit HfFields(const JsonObject& object) : object_(object) {}

  // Whether `key` is there and not null; it counts as asked for.
  bool Has(std::string_view key);
  // Whether `key` is there and null.
  bool IsNull(std::string_view key) const { return object_.value().contains(key) && !object_.Has(key); }

  // Whether `key` is a whole number, where it may be something else.
  bool IsWhole(std::string_view key) const {
    return object_.Has(key) && object_.Find(key)->is_number_unsigned();
  }

  // Whole numbers in [low, high]; without a fallback the member is required.
  uint32_t Number(std::string_view key, uint64_t low, uint64_t high);
  uint32_t Number(std::string_view key, uint64_t low, uint64_t high, uint64_t fallback);
  // Infinite ones (Infinity, or transformers' object for it) where the range ends there.
  double Real(std::string_view key, double low, double high);
  double Real(std::string_view key, double low, double high, double fallback);
  bool Flag(std::string_view key, bool fallback);
  std::string Word(std::string_view key, const std::string& fallback);
  // Lists; empty if the member is absent.
  std::vector<uint32_t> Numbers(std::string_view key, uint64_t high);
  std::vector<double> Reals(std::string_view key, double low, double high);
  std::vector<std::string> Words(std::string_view key);

  // The names of all members.
  std::vector<std::string> Keys() const;

  // A member that changes nothing here.
  void Skip(std::string_view key) { Ask(key); }
  // Members that must be absent, null or false (`value`: or that): any other value is not supported.
  void OnlyOff(std::string_view key);
  void OnlyWord(std::string_view key, const std::string& value);
  void OnlyNumber(std::string_view key, double value);
  void OnlyFlag(std::string_view key, bool value);

  // Reads the object `key` with `read`, if it is there; what `read` leaves is refused too.
  template <typename Read>
  void Group(std::string_view key, const Read& read) {
    if (!Has(key)) return;
    absl::StatusOr<JsonObject> object = object_.Object(key);
    if (!object.ok()) return Keep(object.status());
    HfFields group(*object);
    read(&group);
    Keep(group.Finish());
  }

  // Errors of the reader's own: InvalidArgument "<key> <what>", Unimplemented "<key> <value> is not
  // supported".
  void Fail(std::string_view key, const std::string& what) { Keep(object_.Error(key, what)); }
  void Refuse(std::string_view key);
  void Refuse(std::string_view key, const std::string& what);

  // The first error; else a member that nobody asked for.
  absl::Status Finish() const;

 private:
  void Ask(std::string_view key) { asked_.emplace_back(key); }
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  template <typename T>
  T Take(const absl::StatusOr<T>& value, T otherwise);
  // The list under `key` by `read`(entry, &value), which says whether the entry is what was expected; an
  // error names the first that is not. Empty: absent, or an error.
  template <typename T, typename Read>
  std::vector<T> List(std::string_view key, const char* of, const std::string& expected, const Read& read);

  const JsonObject& object_;
  std::vector<std::string> asked_;
  absl::Status status_;
};

}  // namespace sluice
