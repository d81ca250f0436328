// The daemons' options as values: conversion from and to text for every option type, and the functions over a
// daemon's option table.
//
// A table is one struct and one function ForEachOption() that visits (OptionSpec, pointer to member) of each
// option (daemon/weightd_option_table.h, daemon/inferd_option_table.h). Flags, --help and the reference that
// is made of it, the TOML file, the options of `sluice` (cli/daemon_options.h), checks, GetServerInfo and
// reloading all follow the table.
//
// Thread safety: plain values and pure functions, safe to use from any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace sluice {

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

// The text that parses back to the value. A negative double means "not given": "".
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

// Commands of `sluice` that pass an option on to the daemon which they start.
enum class OptionAudience : uint8_t { kDaemon, kEveryCommand, kServe, kExperiments };

// One row of a table: an option without its value.
struct OptionSpec {
  static constexpr double kNoBound = std::numeric_limits<double>::infinity();
  // `name`: without dashes. `help`: without the valid values and the default.
  OptionSpec(const char* name, const char* help) : name(name), help(help) {}
  // "f32|f16|q8": the valid values of a text.
  OptionSpec Choices(const char* list) && { return choices = list, *this; }
  // "the preset's": the computed default, for the help.
  OptionSpec Default(const char* text) && { return computed_default = text, *this; }
  // The valid values of a number.
  OptionSpec Range(double least, double most = kNoBound) && { return low = least, high = most, *this; }
  OptionSpec PassedOn(OptionAudience by = OptionAudience::kEveryCommand) && { return audience = by, *this; }
  // SIGHUP can change it while the daemon runs.
  OptionSpec Reloadable() && { return reloadable = true, *this; }

  const char* name;
  const char* help;
  const char* choices = "";
  const char* computed_default = "";
  double low = -kNoBound;
  double high = kNoBound;
  OptionAudience audience = OptionAudience::kDaemon;
  bool reloadable = false;
};

// The valid values for people: "f32, f16 or q8"; "" for any.
std::string ShowChoices(const OptionSpec& spec);
// The help text: meaning and valid values, without the default.
template <typename T>
std::string DescribeOption(const OptionSpec& spec, const T&) {
  const std::string choices = std::is_same_v<T, bool> ? "on or off" : ShowChoices(spec);
  return absl::StrCat(spec.help, choices.empty() ? "" : ": ", choices);
}
// The default as text: the computed one, or the member's; "" if there is none to show.
template <typename T>
std::string DefaultOf(const OptionSpec& spec, const T& member) {
  return *spec.computed_default != '\0' ? spec.computed_default : FormatOptionValue(member);
}

// INVALID_ARGUMENT naming option, value and what is valid. An empty text of an option with a computed default
// is valid: it is not given.
absl::Status CheckOption(const OptionSpec& spec, const std::string& value);
absl::Status CheckOption(const OptionSpec& spec, double value);
template <typename T>
absl::Status CheckOption(const OptionSpec& spec, const T& value) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    return CheckOption(spec, static_cast<double>(value));
  }
  return absl::OkStatus();
}

struct OptionText {
  std::string name;
  std::string value;
  bool operator==(const OptionText&) const = default;
};

// Changes that a second reading of the options made.
struct ReloadPlan {
  std::vector<OptionText> applied;        // with the new value; these can change while the daemon runs
  std::vector<OptionText> needs_restart;  // with the value that was read and is not in effect
  // For the log: "log-level=debug; dram-budget needs a restart to become 1073741824".
  std::string Describe() const;
};

// Functions over all options of a table.

// The first error of CheckOption().
template <typename Options>
absl::Status CheckOptions(Options options) {
  absl::Status status;
  ForEachOption(&options, [&](const OptionSpec& spec, const auto* member) {
    if (status.ok()) status = CheckOption(spec, *member);
  });
  return status;
}

// Each value in the form of a flag.
template <typename Options>
std::vector<OptionText> OptionTexts(Options options) {
  std::vector<OptionText> texts;
  ForEachOption(&options, [&](const OptionSpec& spec, const auto* member) {
    texts.push_back({spec.name, FormatOptionValue(*member)});
  });
  return texts;
}

// The changes of a second reading: reloadable options are applied, others need a restart.
template <typename Options>
ReloadPlan PlanReload(Options running, Options read) {
  ReloadPlan plan;
  const std::vector<OptionText> before = OptionTexts(running);
  size_t i = 0;
  ForEachOption(&read, [&](const OptionSpec& spec, const auto* member) {
    OptionText text = {spec.name, FormatOptionValue(*member)};
    if (before[i++].value != text.value) {
      (spec.reloadable ? plan.applied : plan.needs_restart).push_back(std::move(text));
    }
  });
  return plan;
}

// Returns `running` with the reloadable options of `read`.
template <typename Options>
Options WithReloaded(Options running, Options read) {
  std::vector<const void*> members;
  ForEachOption(&read, [&](const OptionSpec&, const auto* member) { members.push_back(member); });
  size_t i = 0;
  ForEachOption(&running, [&]<typename T>(const OptionSpec& spec, T* member) {
    const T* fresh = static_cast<const T*>(members[i++]);
    if (spec.reloadable) *member = *fresh;
  });
  return running;
}

}  // namespace sluice
