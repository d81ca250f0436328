// Values of the daemons' options: parsing, formatting, comparison and reload, for every option type.
//
// Thread safety: plain values and pure functions, safe to use from any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace sluice {

// Values of the daemons' options: conversion to and from text for every option type, and the changes between
// two readings of the same options.
//
// A daemon's options are one struct and one function that visits (name, pointer to member, help) of each;
// flags (daemon/option_declarer.h), the TOML file, GetServerInfo and reloading use it.

// A number of bytes, given and shown as people write sizes.
struct ByteSize {
  ByteSize() = default;
  ByteSize(uint64_t value) : bytes(value) {}
  uint64_t bytes = 0;
};

// A number of bytes, or a share given and shown as 50%; the option defines the total. Neither: not given.
struct SizeOrShare {
  SizeOrShare() = default;
  SizeOrShare(uint64_t value) : bytes(value) {}
  uint64_t bytes = 0;
  double percent = 0;
};

// Permission bits, given and shown in octal.
struct FileMode {
  mode_t bits = 0600;
};

// A user or group, given by name or number, shown as a number.
struct UserId {
  uid_t id = 0;
};
struct GroupId {
  gid_t id = 0;
};

// INVALID_ARGUMENT quoting the text: not a value of the type. NOT_FOUND: no such user or group.
absl::Status ParseOptionValue(const std::string& text, std::string* value);
absl::Status ParseOptionValue(const std::string& text, uint32_t* value);
absl::Status ParseOptionValue(const std::string& text, int* value);
absl::Status ParseOptionValue(const std::string& text, double* value);  // finite, 0 or more
absl::Status ParseOptionValue(const std::string& text, bool* value);    // on, off
absl::Status ParseOptionValue(const std::string& text, ByteSize* value);
absl::Status ParseOptionValue(const std::string& text, SizeOrShare* value);
absl::Status ParseOptionValue(const std::string& text, absl::Duration* value);
absl::Status ParseOptionValue(const std::string& text, FileMode* value);
absl::Status ParseOptionValue(const std::string& text, UserId* value);
absl::Status ParseOptionValue(const std::string& text, GroupId* value);

// The text that parses back to the value. A negative double stands for "not given": "".
std::string FormatOptionValue(const std::string& value);
std::string FormatOptionValue(uint32_t value);
std::string FormatOptionValue(int value);
std::string FormatOptionValue(double value);
std::string FormatOptionValue(bool value);
std::string FormatOptionValue(ByteSize value);
std::string FormatOptionValue(SizeOrShare value);
std::string FormatOptionValue(absl::Duration value);
std::string FormatOptionValue(FileMode value);
std::string FormatOptionValue(UserId value);
std::string FormatOptionValue(GroupId value);
template <typename T>
std::string FormatOptionValue(const std::vector<T>& values) {
  return absl::StrJoin(values, ",",
                       [](std::string* out, const T& value) { *out += FormatOptionValue(value); });
}

// INVALID_ARGUMENT naming option, value and allowed values.
absl::Status CheckOneOf(const char* name, const std::string& value, const std::vector<std::string>& allowed);

struct OptionText {
  std::string name;
  std::string value;
};

// Changes that a second reading of the options made.
struct ReloadPlan {
  std::vector<OptionText> applied;        // with the new value; these can change while the daemon runs
  std::vector<OptionText> needs_restart;  // with the value that was read and is not in effect
  // For the log: "log-level=debug; dram-budget needs a restart to become 1073741824".
  std::string Describe() const;
};

// `running` and `read` name the same options in the same order; `reloadable` lists the options that can
// change.
ReloadPlan PlanReload(const std::vector<OptionText>& running, const std::vector<OptionText>& read,
                      const std::set<std::string>& reloadable);

// Functions over all options of a daemon, as visited by its ForEachOption (daemon/option_values.h).
//
// Thread safety: pure functions, safe to use from any thread.

// Each value in the form of a flag.
template <typename Options>
std::vector<OptionText> OptionTexts(Options options) {
  std::vector<OptionText> texts;
  ForEachOption(&options, [&](const char* name, const auto* member, const char*) {
    texts.push_back({name, FormatOptionValue(*member)});
  });
  return texts;
}

// Returns `running` with the values of `read` for `names`.
template <typename Options>
Options MergeNamedOptions(Options running, Options read, const std::set<std::string>& names) {
  std::map<std::string, const void*> values;
  ForEachOption(&read, [&](const char* name, const auto* member, const char*) { values[name] = member; });
  ForEachOption(&running, [&]<typename T>(const char* name, T* member, const char*) {
    if (names.count(name) > 0) {
      *member = *static_cast<const T*>(values[name]);
    }
  });
  return running;
}

}  // namespace sluice
