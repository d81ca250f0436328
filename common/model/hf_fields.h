// HfFields: typed access to the members of a config.json with ranges and defaults. Keeps the first error
// until Finish() and refuses every member that was never read.
//
// A reader is a straight list of reads; an invalid member reads as the lowest allowed value, so the code
// between the reads needs no checks, and Finish() returns the error. A member that the reader never asked for
// is an unknown switch: it is refused, unless it is null, false, or one of the names that change no
// computation (InertFields).
//
// Private to common/model. Thread safety: used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/json_reader.h"

namespace sluice {

class HfFields {
 public:
  // REQUIRES: `object` outlives this.
  explicit HfFields(const JsonObject& object) : object_(object) {}

  // True if `key` is present and not null; marks the member as read.
  bool Has(std::string_view key);
  // True if `key` is present and null.
  bool IsNull(std::string_view key) const { return object_.value().contains(key) && !object_.Has(key); }

  // True if `key` is a whole number, for members that may have another type.
  bool IsUnsigned(std::string_view key) const {
    return object_.Has(key) && object_.Find(key)->is_number_unsigned();
  }

  // True if `key` is a word, or a list, for members that may have another type.
  bool IsWord(std::string_view key) const { return object_.Has(key) && object_.Find(key)->is_string(); }
  bool IsList(std::string_view key) const { return object_.Has(key) && object_.Find(key)->is_array(); }

  // Reads a whole number in [low, high]; without a fallback the member is required.
  uint32_t Number(std::string_view key, uint64_t low, uint64_t high);
  uint32_t Number(std::string_view key, uint64_t low, uint64_t high, uint64_t fallback);
  // Reads a real number. Infinities (Infinity, or transformers' object for it) are accepted if the range ends
  // there.
  double Real(std::string_view key, double low, double high);
  double Real(std::string_view key, double low, double high, double fallback);
  bool Flag(std::string_view key, bool fallback);
  std::string Word(std::string_view key, const std::string& fallback);
  // Reads a list; empty if the member is absent.
  std::vector<uint32_t> Numbers(std::string_view key, uint64_t high);
  std::vector<double> Reals(std::string_view key, double low, double high);
  // The same; null entries are 0.
  std::vector<double> RealsOrNull(std::string_view key, double low, double high);
  std::vector<std::string> Words(std::string_view key);
  std::vector<bool> Flags(std::string_view key);

  // Returns the names of all members.
  std::vector<std::string> Keys() const;

  // Marks the member as read: it changes nothing here.
  void Skip(std::string_view key) { MarkRead(key); }
  // Requires the members to be absent, null or false (or equal to `value`): any other value is not supported.
  void RequireOff(std::string_view key);
  void RequireWord(std::string_view key, const std::string& value);
  void RequireNumber(std::string_view key, double value);
  void RequireFlag(std::string_view key, bool value);

  // Reads the object `key` with `read` if it is present; members that `read` leaves unread are refused too.
  template <typename Read>
  void Group(std::string_view key, const Read& read) {
    if (!Has(key)) return;
    absl::StatusOr<JsonObject> object = object_.Object(key);
    if (!object.ok()) return Keep(object.status());
    HfFields group(*object);
    read(&group);
    Keep(group.Finish());
  }

  // Records errors found by the reader itself: InvalidArgument "<key> <what>", Unimplemented "<key> <value>
  // is not supported".
  void Fail(std::string_view key, const std::string& what) { Keep(object_.Error(key, what)); }
  void Refuse(std::string_view key);
  void Refuse(std::string_view key, const std::string& what);

  // Returns the first error, or an error naming a member that was never read.
  absl::Status Finish() const;

 private:
  void MarkRead(std::string_view key) { read_keys_.emplace_back(key); }
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  template <typename T>
  T Take(const absl::StatusOr<T>& value, T otherwise);
  // Reads the list `key` with `read`(entry, &value), which returns false for an unexpected entry; the error
  // names the first such entry. Empty: absent, or an error.
  template <typename T, typename Read>
  std::vector<T> List(std::string_view key, const char* of, const std::string& expected, const Read& read);

  const JsonObject& object_;
  std::vector<std::string> read_keys_;
  absl::Status status_;
};

}  // namespace sluice
