// Options shared by all commands with a model: those of the daemons, from the daemons' own tables
// (daemon/option_values.h), and those of the launcher.
//
// Thread safety: plain values; the main thread calls Declare().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "cli/command_line.h"
#include "daemon/option_values.h"

namespace sluice::cli {

// Models of a command that serves several, as given.
struct SeveralModels {
  std::vector<std::string> models;  // as CommonOptions::model
  std::vector<std::string> packs;
  std::string folder;                         // of packs; empty: none
  std::optional<uint64_t> budget;             // bytes of all loaded models, besides their weights in DRAM
  std::optional<absl::Duration> idle_unload;  // 0: never; none: 10 minutes
};

struct CommonOptions {
  std::string pack;
  // A model to be packed by PackOf() (cli/pack_cache.h) instead of a pack, and the encoding of its rows.
  std::string model;
  std::optional<std::string> bits;
  // True of commands that need no pack: `model` may be a name at a running server of several models.
  bool takes_served_name = false;
  // Instead of these two, of a command that serves several models.
  SeveralModels several;

  // Daemon options that were given, each as the daemon's flag takes it: {"context", "8192"}, sizes in bytes.
  // A repeated option has several entries.
  std::vector<OptionText> given;

  // Options of the launcher.
  std::optional<std::string> address;
  std::optional<std::string> admin;  // admin socket of the inferd at `address`
  std::optional<absl::Duration> keep;
  bool no_restart = false;
  // True if started daemons prove themselves by a token before the first request. A command that sends a
  // request at once does without: on a cold disk that token costs as much as a short prompt.
  bool self_test = false;
  bool verbose = false;
  bool quiet = false;

  // Declares `--pack` and the options above; if a pack is needed, also `--model`, and requires one of the
  // two.
  void Declare(ArgParser* parser, bool needs_pack = true);
  // The same for a command with one or several models, into `several`.
  void DeclareSeveral(ArgParser* parser);
  // Declares the cost tables for `--clock virtual`, which only experiments use.
  void DeclareCosts(ArgParser* parser);
  // Declares the options of the HTTP server and of the prefix file, which only `serve` uses.
  void DeclareServe(ArgParser* parser);

  bool Has(std::string_view name) const { return !All(name).empty(); }
  // Returns the value of a daemon's option, or `otherwise` if it was not given.
  std::string ValueOr(std::string_view name, const std::string& otherwise) const;
  std::vector<std::string> All(std::string_view name) const;
  // Replaces all values of the option.
  void Set(const std::string& name, const std::string& value) { SetAll(name, {value}); }
  void SetAll(const std::string& name, const std::vector<std::string>& values);

  // Returns the given options of one daemon, in the order of its table.
  std::vector<OptionText> InferdSettings() const;
  std::vector<OptionText> WeightdSettings() const;

 private:
  void DeclareDaemons(ArgParser* parser);
  void DeclareFor(OptionAudience audience, ArgParser* parser);
};

// Returns {"--context", "8192", ...}.
std::vector<std::string> AsFlags(const std::vector<OptionText>& settings);

// Returns true if two values of an option are equal: numbers by value ("16" and "16.0"), sizes by bytes
// ("1KiB" and "1024"), everything else as text.
bool SameOptionValue(const std::string& a, const std::string& b);

// True for options that may be repeated and that the daemon reports joined, as "A,B".
bool IsListOption(const std::string& name);

// Returns true if `in_effect` contains all of `asked` ("KEY=VALUE,.." or plain words).
bool HoldsPolicies(const std::string& in_effect, const std::string& asked);

}  // namespace sluice::cli
