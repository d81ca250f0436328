// Reading the tables of a plan's TOML file (quality_rows.h, preset_rows.h): every key known, every error with
// its line.
//
// Thread safety: thread-compatible; a reader belongs to one thread.
#pragma once

#include <toml++/toml.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/measure/rows/quality_rows.h"

namespace sluice::cli {

// INVALID_ARGUMENT naming the file and the line.
absl::StatusOr<toml::table> ParseToml(const std::string& text, const std::string& subject);
absl::Status Wrong(const std::string& subject, const toml::node& node, const std::string& what);

// The tables of [[key]]; INVALID_ARGUMENT if one is something else, or `required` and there is none.
absl::StatusOr<std::vector<const toml::table*>> Tables(const toml::table& root, const std::string& subject,
                                                       const char* key, bool required = true);

// The [[pack]]s (quality_rows.h): names differ, profile_of names an earlier one.
absl::StatusOr<std::vector<QualityPack>> ReadPackTables(const toml::table& root, const std::string& subject);

// Reads one table of the file; the first error sticks. `subject` and the table outlive it.
class TableReader {
 public:
  TableReader(const std::string& subject, const toml::table& table) : subject_(subject), table_(table) {}

  void Text(const char* key, bool required, std::string* out);
  void Texts(const char* key, std::vector<std::string>* out);
  void Flag(const char* key, bool* out);
  void Real(const char* key, std::optional<double>* out);
  // The first error, or a key that nobody asked for.
  absl::Status Finish();

 private:
  const toml::node* Find(const char* key, bool required);
  void Fail(const toml::node& node, const char* key, const char* what);
  bool Check(bool right, const toml::node& node, const char* key, const char* what);

  const std::string& subject_;
  const toml::table& table_;
  std::set<std::string> seen_;
  absl::Status status_;
};

}  // namespace sluice::cli
