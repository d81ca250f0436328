#include "daemon/option_values.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice {
namespace {

template <typename Number>
absl::Status ParseNumber(const std::string& text, Number* value) {
  if (text.empty() || !absl::SimpleAtoi(text, value)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no number that fits"));
  }
  return absl::OkStatus();
}

// Buffer for one entry of the system's user or group table. A group with more members than fit is not found
// by name; its number can still be given.
constexpr size_t kEntryBytes = 1 << 16;

}  // namespace

absl::Status ParseOptionValue(const std::string& text, std::string* value) {
  *value = text;
  return absl::OkStatus();
}
absl::Status ParseOptionValue(const std::string& text, uint32_t* value) { return ParseNumber(text, value); }
absl::Status ParseOptionValue(const std::string& text, int* value) { return ParseNumber(text, value); }

absl::Status ParseOptionValue(const std::string& text, double* value) {
  if (!absl::SimpleAtod(text, value) || !std::isfinite(*value) || *value < 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no number of 0 or more"));
  }
  return absl::OkStatus();
}

absl::Status ParseOptionValue(const std::string& text, bool* value) {
  if (text != "on" && text != "off") {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is neither on nor off"));
  }
  *value = text == "on";
  return absl::OkStatus();
}

absl::Status ParseOptionValue(const std::string& text, ByteSize* value) {
  ASSIGN_OR_RETURN(value->bytes, ParseSize(text));
  return absl::OkStatus();
}

absl::Status ParseOptionValue(const std::string& text, SizeOrShare* value) {
  *value = {};
  if (const std::optional<double> percent = ParsePercent(text); percent.has_value()) {
    value->percent = *percent;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(value->bytes, ParseSize(text));
  return absl::OkStatus();
}

absl::Status ParseOptionValue(const std::string& text, absl::Duration* value) {
  ASSIGN_OR_RETURN(*value, ParseTimeSpan(text));
  return absl::OkStatus();
}

absl::Status ParseOptionValue(const std::string& text, FileMode* value) {
  if (text.empty() || text.size() > 4 || text.find_first_not_of("01234567") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no octal mode"));
  }
  value->bits = 0;
  for (const char digit : text) {
    value->bits = value->bits * 8 + static_cast<mode_t>(digit - '0');
  }
  return absl::OkStatus();
}

// A number is accepted even if no user has it: a container's users need not be in this system's table.
absl::Status ParseOptionValue(const std::string& text, UserId* value) {
  if (absl::SimpleAtoi(text, &value->id)) {
    return absl::OkStatus();
  }
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(kEntryBytes);
  if (getpwnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no user \"", text, "\""));
  }
  value->id = entry.pw_uid;
  return absl::OkStatus();
}

absl::Status ParseOptionValue(const std::string& text, GroupId* value) {
  if (absl::SimpleAtoi(text, &value->id)) {
    return absl::OkStatus();
  }
  group entry{};
  group* found = nullptr;
  std::vector<char> buffer(kEntryBytes);
  if (getgrnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no group \"", text, "\""));
  }
  value->id = entry.gr_gid;
  return absl::OkStatus();
}

std::string FormatOptionValue(const std::string& value) { return value; }
std::string FormatOptionValue(uint32_t value) { return absl::StrCat(value); }
std::string FormatOptionValue(int value) { return absl::StrCat(value); }
std::string FormatOptionValue(double value) { return value < 0 ? "" : absl::StrCat(value); }
std::string FormatOptionValue(bool value) { return value ? "on" : "off"; }
std::string FormatOptionValue(ByteSize value) { return absl::StrCat(value.bytes); }
std::string FormatOptionValue(SizeOrShare value) {
  return value.percent > 0 ? absl::StrCat(value.percent, "%") : absl::StrCat(value.bytes);
}
std::string FormatOptionValue(absl::Duration value) { return FormatTimeSpan(value); }
std::string FormatOptionValue(FileMode value) { return absl::StrFormat("%04o", value.bits); }
std::string FormatOptionValue(UserId value) { return absl::StrCat(value.id); }
std::string FormatOptionValue(GroupId value) { return absl::StrCat(value.id); }

std::string ShowChoices(const OptionSpec& spec) {
  const std::vector<std::string> choices = absl::StrSplit(spec.choices, '|', absl::SkipEmpty());
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ", choices[i]);
  }
  return text;
}

absl::Status CheckOption(const OptionSpec& spec, const std::string& value) {
  const std::vector<std::string> choices = absl::StrSplit(spec.choices, '|', absl::SkipEmpty());
  if (choices.empty() || (value.empty() && *spec.computed_default != '\0') ||
      std::find(choices.begin(), choices.end(), value) != choices.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--", spec.name, " is \"", value, "\", must be ", ShowChoices(spec)));
}

absl::Status CheckOption(const OptionSpec& spec, double value) {
  if (value >= spec.low && value <= spec.high) {
    return absl::OkStatus();
  }
  const auto whole = [](double bound) { return static_cast<int64_t>(bound); };
  return absl::InvalidArgumentError(absl::StrCat(
      "--", spec.name, " is ", value, ", must be ",
      spec.high == OptionSpec::kNoBound ? absl::StrCat("at least ", whole(spec.low))
                                        : absl::StrCat(whole(spec.low), " to ", whole(spec.high))));
}

std::string ReloadPlan::Describe() const {
  std::vector<std::string> parts;
  for (const OptionText& option : applied) {
    parts.push_back(absl::StrCat(option.name, "=", option.value));
  }
  for (const OptionText& option : needs_restart) {
    parts.push_back(absl::StrCat(option.name, " needs a restart to become \"", option.value, "\""));
  }
  return parts.empty() ? "nothing has changed" : absl::StrJoin(parts, "; ");
}

}  // namespace sluice
