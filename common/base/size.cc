#include "common/base/size.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && IsSpace(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
}

absl::Status Bad(const char* kind, std::string_view text, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("bad ", kind, " '", std::string(text), "': ", why));
}

// Cuts digits with at most one point from the front of *text; empty if there are none.
std::string TakeNumber(std::string_view* text) {
  size_t n = 0;
  bool point = false;
  while (n < text->size() && (IsDigit((*text)[n]) || ((*text)[n] == '.' && !point))) {
    point = point || (*text)[n] == '.';
    ++n;
  }
  std::string number(text->substr(0, n));
  text->remove_prefix(n);
  return number == "." ? "" : number;
}

// The factor of a unit, 0 if the unit is unknown.
uint64_t UnitFactor(const std::string& unit) {
  static constexpr char kPrefixes[] = "kmgtp";
  if (unit.empty() || unit == "b") {
    return 1;
  }
  uint64_t binary = 1;
  uint64_t decimal = 1;
  for (const char prefix : std::string_view(kPrefixes)) {
    binary *= 1024;
    decimal *= 1000;
    if (unit[0] != prefix) {
      continue;
    }
    const std::string rest = unit.substr(1);
    if (rest.empty() || rest == "ib") {
      return binary;
    }
    return rest == "b" ? decimal : 0;
  }
  return 0;
}

// Whole numbers are exact up to 2^64 - 1; false if `number` x `factor` does not fit.
bool Multiply(const std::string& number, uint64_t factor, uint64_t* out) {
  constexpr long double kLimit = 18446744073709551616.0L;
  // A long double has 64 bits of mantissa, so whole numbers pass through it unchanged.
  const long double value = strtold(number.c_str(), nullptr) * static_cast<long double>(factor);
  if (!(value < kLimit)) {
    return false;
  }
  *out = static_cast<uint64_t>(value);
  return true;
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(std::string_view text) {
  std::string_view rest = Trim(text);
  const std::string number = TakeNumber(&rest);
  if (number.empty()) {
    return Bad("size", text, "expected a number and a unit such as 512MiB or 2GB");
  }
  const uint64_t factor = UnitFactor(Lower(Trim(rest)));
  if (factor == 0) {
    return Bad("size", text, "the unit is none of B, kB, KiB, MB, MiB, GB, GiB, TB, TiB, PB, PiB");
  }
  uint64_t bytes = 0;
  if (!Multiply(number, factor, &bytes)) {
    return Bad("size", text, "2^64 bytes or more");
  }
  return bytes;
}

std::string FormatSize(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) {
    return absl::StrCat(bytes, " B");
  }
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would print as "1024.0".
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

absl::StatusOr<absl::Duration> ParseTimeSpan(std::string_view text) {
  std::string_view rest = Trim(text);
  absl::Duration total = absl::ZeroDuration();
  bool any = false;
  while (!rest.empty()) {
    const std::string number = TakeNumber(&rest);
    if (number.empty()) {
      return Bad("duration", text, "expected a number and a unit such as 500ms, 30s, 10m or 1h30m");
    }
    size_t letters = 0;
    while (letters < rest.size() && !IsDigit(rest[letters]) && rest[letters] != '.') {
      ++letters;
    }
    const std::string unit = Lower(Trim(rest.substr(0, letters)));
    rest.remove_prefix(letters);
    double seconds = 0;
    if (unit == "ms") {
      seconds = 1e-3;
    } else if (unit == "s" || (unit.empty() && !any)) {
      seconds = 1;
    } else if (unit == "m") {
      seconds = 60;
    } else if (unit == "h") {
      seconds = 3600;
    } else if (unit == "d") {
      seconds = 86400;
    } else {
      return Bad("duration", text, "the unit is none of ms, s, m, h, d");
    }
    total += absl::Seconds(strtod(number.c_str(), nullptr) * seconds);
    any = true;
  }
  if (!any) {
    return Bad("duration", text, "it is empty");
  }
  if (total >= absl::Hours(24 * 36500)) {
    return Bad("duration", text, "more than a hundred years");
  }
  return total;
}

// Shows two units at most: readable at a glance, though ParseTimeSpan() does not return the exact value.
std::string FormatTimeSpan(absl::Duration duration) {
  const int64_t ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(duration));
  if (ms < 1000) {
    return absl::StrCat(ms, "ms");
  }
  const int64_t seconds = ms / 1000;
  if (seconds < 60) {
    return absl::StrCat(seconds, "s");
  }
  if (seconds < 3600) {
    return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  }
  return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
}

std::optional<double> ParsePercent(std::string_view text) {
  double percent = 0;
  if (text.empty() || text.back() != '%' ||
      !absl::SimpleAtod(absl::string_view(text.data(), text.size() - 1), &percent) ||
      !(percent > 0 && percent <= 100)) {
    return std::nullopt;
  }
  return percent;
}

}  // namespace sluice
