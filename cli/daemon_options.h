// The options that every command with a model shares: those of the daemons by the daemons' own tables
// (daemon/option_values.h), and those of the launcher.
//
// Thread safety: plain values; Declare is used by the main thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "cli/command_line.h"
#include "daemon/option_values.h"

namespace sluice::cli {

struct CommonOptions {
  std::string pack;
  // Instead of a pack: what PackOf() (cli/pack_cache.h) makes one of, and the bits of its rows.
  std::string model;
  std::optional<std::string> bits;

  // The given options of the daemons, each as a daemon's flag takes it: {"context", "8192"}, sizes in bytes.
  // An option that is given several times stands here several times.
  std::vector<OptionText> given;

  // Options of the launcher.
  std::optional<std::string> address;
  std::optional<std::string> admin;  // of the operators of the inferd at `address`
  std::optional<absl::Duration> keep;
  bool no_restart = false;
  bool verbose = false;
  bool quiet = false;

  // Adds `--pack` and all of these; where a pack is needed also `--model`, one of the two being required.
  void Declare(ArgParser* parser, bool needs_pack = true);
  // Adds the tables of costs for `--clock virtual`: options of experiments alone.
  void DeclareCosts(ArgParser* parser);
  // Adds those of the HTTP server and of the file of cached prefixes: of the command that serves.
  void DeclareServe(ArgParser* parser);

  bool Has(std::string_view name) const { return !All(name).empty(); }
  // The value of an option of a daemon, `otherwise` if it was not given.
  std::string ValueOr(std::string_view name, const std::string& otherwise) const;
  std::vector<std::string> All(std::string_view name) const;
  // Replaces all values of the option.
  void Set(const std::string& name, const std::string& value) { SetAll(name, {value}); }
  void SetAll(const std::string& name, const std::vector<std::string>& values);

  // The given options of either daemon, in the order of its table.
  std::vector<OptionText> InferdSettings() const;
  std::vector<OptionText> WeightdSettings() const;

 private:
  void DeclareFor(OptionAudience audience, ArgParser* parser);
};

// {"--context", "8192", ...} for a command line.
std::vector<std::string> AsFlags(const std::vector<OptionText>& settings);

// Returns true if two values of an option are equal: numbers by value ("16" and "16.0"), sizes by bytes
// ("1KiB" and "1024"), everything else by letters.
bool SameOptionValue(const std::string& a, const std::string& b);

// Options that are given one by one and reported together, as "A,B".
bool IsListOption(const std::string& name);

// Returns true if `in_effect` contains all of `asked` ("KEY=VALUE,.." or plain words).
bool HoldsPolicies(const std::string& in_effect, const std::string& asked);

}  // namespace sluice::cli
