// A strict parser of Prometheus' text format, for tests: input that a scraper would refuse is a failure here.
//
// Thread safety: plain values and pure functions, safe to use from any thread.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

struct ParsedFamily {
  std::string type;
  std::string help;
  std::map<std::string, double> samples;  // key: everything before the value, `name{a="b"}`
};

// Families by name. INVALID_ARGUMENT naming the line: a sample without HELP and TYPE before it, a family in
// two positions, an invalid name or label, a wrong escape, a duplicate series, no number, a counter whose
// name does not end in _total, a histogram whose buckets fall, do not end in +Inf or disagree with its count;
// and the errors that `promtool check metrics` finds in names: capitals, a type or an abbreviated or derived
// unit in them, suffixes and labels of histograms.
absl::StatusOr<std::map<std::string, ParsedFamily>> ParsePrometheus(const std::string& text);

// The value of a series, NaN if there is none: SampleOf(families, "x_total", "x_total{a=\"b\"}").
double SampleOf(const std::map<std::string, ParsedFamily>& families, const std::string& family,
                const std::string& series);

// The body of GET `path` from 127.0.0.1:`port`; INTERNAL with the status line unless it is 200.
absl::StatusOr<std::string> HttpGet(int port, const std::string& path);

}  // namespace sluice
