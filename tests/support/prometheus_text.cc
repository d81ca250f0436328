#include "tests/support/prometheus_text.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace sluice {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

bool IsName(const std::string& name, bool colons) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) {
    return false;
  }
  for (const char c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && !(c == ':' && colons)) {
      return false;
    }
  }
  return true;
}

// True if `name` follows promtool's rules for metrics; `histogram`: it is one of a histogram.
bool IsGoodName(const std::string& name, bool histogram) {
  static constexpr std::array<const char*, 6> kTypes = {"counter", "gauge",     "histogram",
                                                        "summary", "timestamp", "untyped"};
  static constexpr std::array<const char*, 23> kUnits = {
      "ms",           "us",          "ns",        "sec",     "min",       "milliseconds",
      "microseconds", "nanoseconds", "minutes",   "hours",   "days",      "kb",
      "mb",           "gb",          "kib",       "mib",     "gib",       "bits",
      "kilobytes",    "megabytes",   "gigabytes", "percent", "percentage"};
  const std::vector<std::string> words = absl::StrSplit(name, '_');
  for (const std::string& word : words) {
    const auto is_word = [&word](const char* bad) { return word == bad; };
    if (std::any_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; }) ||
        std::any_of(kTypes.begin(), kTypes.end(), is_word) ||
        std::any_of(kUnits.begin(), kUnits.end(), is_word)) {
      return false;
    }
  }
  return histogram || (words.back() != "count" && words.back() != "sum" && words.back() != "bucket");
}

// Parses `{a="b",c="d"}` at the front of `rest` and removes it.
bool TakeLabels(std::string* rest, Labels* labels) {
  size_t at = 1;
  while (at < rest->size() && (*rest)[at] != '}') {
    const size_t equals = rest->find("=\"", at);
    if (equals == std::string::npos) {
      return false;
    }
    const std::string name = rest->substr(at, equals - at);
    std::string value;
    at = equals + 2;
    while (at < rest->size() && (*rest)[at] != '"') {
      if ((*rest)[at] == '\\') {
        ++at;
        if (at == rest->size() || std::string("\\\"n").find((*rest)[at]) == std::string::npos) {
          return false;
        }
      }
      value += (*rest)[at++];
    }
    if (at == rest->size() || !IsName(name, /*colons=*/false)) {
      return false;
    }
    labels->emplace_back(name, value);
    ++at;
    if (at < rest->size() && (*rest)[at] == ',') {
      ++at;
    }
  }
  if (at >= rest->size()) {
    return false;
  }
  rest->erase(0, at + 1);
  return true;
}

bool ParseValue(const std::string& text, double* value) {
  if (text == "+Inf" || text == "-Inf" || text == "NaN") {
    *value = text == "NaN" ? std::numeric_limits<double>::quiet_NaN()
                           : std::numeric_limits<double>::infinity() * (text[0] == '-' ? -1 : 1);
    return true;
  }
  return absl::SimpleAtod(text, value);
}

class Parser {
 public:
  absl::Status Line(const std::string& line) {
    if (absl::StartsWith(line, "# HELP ")) {
      return Help(line.substr(7));
    }
    if (absl::StartsWith(line, "# TYPE ")) {
      return Type(line.substr(7));
    }
    return Sample(line);
  }

  absl::Status CheckHistograms() const {
    for (const auto& [key, last] : buckets_) {
      if (!last.infinite) {
        return absl::InvalidArgumentError(absl::StrCat(key, ": no +Inf bucket"));
      }
      if (!counts_.contains(key) || counts_.at(key) != last.count || !sums_.contains(key)) {
        return absl::InvalidArgumentError(absl::StrCat(key, ": _count or _sum disagrees with the buckets"));
      }
    }
    return absl::OkStatus();
  }

  std::map<std::string, ParsedFamily> Take() { return std::move(families_); }

 private:
  struct Bucket {
    double bound = 0;
    double count = 0;
    bool infinite = false;
  };

  absl::Status Help(const std::string& rest) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(rest, absl::MaxSplits(' ', 1));
    if (!IsName(parts.first, /*colons=*/true) || parts.second.empty() || families_.contains(parts.first)) {
      return absl::InvalidArgumentError("bad or repeated HELP");
    }
    families_[parts.first].help = parts.second;
    current_ = parts.first;
    return absl::OkStatus();
  }

  absl::Status Type(const std::string& rest) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(rest, absl::MaxSplits(' ', 1));
    if (parts.first != current_ || !families_[current_].type.empty()) {
      return absl::InvalidArgumentError("TYPE does not follow its HELP");
    }
    if (parts.second != "counter" && parts.second != "gauge" && parts.second != "histogram") {
      return absl::InvalidArgumentError("unknown type");
    }
    if ((parts.second == "counter") != absl::EndsWith(current_, "_total")) {
      return absl::InvalidArgumentError("_total belongs to counters, and to them alone");
    }
    if (!IsGoodName(current_, parts.second == "histogram")) {
      return absl::InvalidArgumentError("a name that promtool refuses");
    }
    families_[current_].type = parts.second;
    return absl::OkStatus();
  }

  absl::Status Sample(const std::string& line) {
    const size_t end = line.find_first_of("{ ");
    if (end == std::string::npos || current_.empty() || families_[current_].type.empty()) {
      return absl::InvalidArgumentError("a sample without HELP and TYPE, or no sample");
    }
    const std::string name = line.substr(0, end);
    std::string rest = line.substr(end);
    Labels labels;
    if (rest[0] == '{' && !TakeLabels(&rest, &labels)) {
      return absl::InvalidArgumentError("bad labels");
    }
    for (const auto& [label, text] : labels) {
      const bool of_histogram = label == "le" && families_[current_].type == "histogram";
      if ((label == "le" && !of_histogram) || label == "quantile" || !IsGoodName(label, true)) {
        return absl::InvalidArgumentError("a label that promtool refuses");
      }
    }
    double value = 0;
    if (rest.empty() || rest[0] != ' ' || !ParseValue(rest.substr(1), &value)) {
      return absl::InvalidArgumentError("no number");
    }
    ParsedFamily& family = families_[current_];
    const std::string series = line.substr(0, line.size() - rest.size());
    if (!family.samples.emplace(series, value).second) {
      return absl::InvalidArgumentError("a series twice");
    }
    if (family.type == "histogram") {
      return HistogramLine(name, labels, value);
    }
    return name == current_ && !(family.type == "counter" && !(value >= 0))
               ? absl::OkStatus()
               : absl::InvalidArgumentError("a sample of another family, or a negative counter");
  }

  absl::Status HistogramLine(const std::string& name, Labels labels, double value) {
    double bound = 0;
    const bool is_bucket = name == current_ + "_bucket";
    if (is_bucket) {
      if (labels.empty() || labels.back().first != "le" || !ParseValue(labels.back().second, &bound)) {
        return absl::InvalidArgumentError("a bucket without le");
      }
      labels.pop_back();
    }
    std::string key = current_;
    for (const auto& [label, text] : labels) {
      absl::StrAppend(&key, " ", label, "=", text);
    }
    if (name == current_ + "_sum") {
      sums_.insert(key);
      return absl::OkStatus();
    }
    if (name == current_ + "_count") {
      counts_[key] = value;
      return absl::OkStatus();
    }
    const auto last = buckets_.find(key);
    if (!is_bucket ||
        (last != buckets_.end() && (bound <= last->second.bound || value < last->second.count))) {
      return absl::InvalidArgumentError("buckets fall, or no line of a histogram");
    }
    buckets_[key] = Bucket{bound, value, std::isinf(bound)};
    return absl::OkStatus();
  }

  std::map<std::string, ParsedFamily> families_;
  std::string current_;
  std::map<std::string, Bucket> buckets_;
  std::map<std::string, double> counts_;
  std::set<std::string> sums_;
};

}  // namespace

absl::StatusOr<std::map<std::string, ParsedFamily>> ParsePrometheus(const std::string& text) {
  if (text.empty() || text.back() != '\n') {
    return absl::InvalidArgumentError("the text does not end with a line");
  }
  Parser parser;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(text.substr(0, text.size() - 1), '\n'))) {
    const absl::Status status = parser.Line(line);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(status.message(), ": ", line));
    }
  }
  RETURN_IF_ERROR(parser.CheckHistograms());
  return parser.Take();
}

double SampleOf(const std::map<std::string, ParsedFamily>& families, const std::string& family,
                const std::string& series) {
  const auto found = families.find(family);
  if (found == families.end() || !found->second.samples.contains(series)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return found->second.samples.at(series);
}

absl::StatusOr<std::string> HttpGet(int port, const std::string& path) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("connecting to port ", port));
  }
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  if (write(fd.get(), request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
    return ErrnoToStatus(errno, "writing a request");
  }
  std::string answer;
  char chunk[4096];
  for (ssize_t got = 0; (got = read(fd.get(), chunk, sizeof(chunk))) > 0;) {
    answer.append(chunk, static_cast<size_t>(got));
  }
  const size_t body = answer.find("\r\n\r\n");
  if (!absl::StartsWith(answer, "HTTP/1.1 200 ") || body == std::string::npos) {
    return absl::InternalError(answer.substr(0, answer.find("\r\n")));
  }
  return answer.substr(body + 4);
}

}  // namespace sluice
