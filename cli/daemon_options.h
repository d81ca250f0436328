// The options that every command with a model shares, under the names that the daemons use too.
//
// Thread safety: plain values; Declare is used by the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/command_line.h"

namespace sluice::cli {

// One option as a daemon's flag takes it: {"context", "8192"}.
struct OptionSetting {
  std::string name;
  std::string value;
  bool operator==(const OptionSetting&) const = default;
};

struct CommonOptions {
  std::string pack;
  // Instead of a pack: what PackOf() (cli/pack_cache.h) makes one of, and the bits of its rows.
  std::string model;
  std::optional<std::string> bits;

  // Options of inferd.
  std::optional<std::string> device;
  std::optional<std::string> device_budget;  // bytes, or "50%" of the experts
  std::optional<uint64_t> context;
  std::optional<uint64_t> parallel;
  std::optional<std::string> kv;
  std::optional<uint64_t> kv_budget;
  std::optional<uint64_t> prefill_chunk;
  std::optional<uint64_t> threads;
  std::optional<uint64_t> cpu_threads;
  std::optional<std::string> preset;
  std::optional<std::string> sparsity;
  std::optional<double> sparsity_target;
  std::optional<double> sparsity_threshold;
  std::optional<std::string> sparsity_scope;
  std::optional<std::string> trace;
  std::optional<std::string> replay_trace;
  std::vector<std::string> policy;  // KEY=VALUE[,KEY=VALUE..] each
  std::optional<double> link_gbps;
  std::optional<double> link_latency_us;
  std::optional<uint64_t> tile_neurons;
  std::optional<std::string> transport;
  std::optional<std::string> slab_handle;
  std::optional<std::string> clock;
  std::optional<std::string> virtual_costs;
  std::optional<std::string> measure_costs;

  // Options of inferd's HTTP server.
  std::vector<std::string> http;
  std::optional<std::string> http_keys;
  std::optional<std::string> http_tls_certificate;
  std::optional<std::string> http_tls_key;
  std::vector<std::string> http_cors;
  std::optional<std::string> prefix_file;

  // Options of weightd.
  std::optional<uint64_t> dram_budget;
  std::optional<std::string> io;
  std::optional<bool> direct;

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

  // The given options, for either daemon; sizes in bytes.
  std::vector<OptionSetting> InferdSettings() const;
  std::vector<OptionSetting> WeightdSettings() const;
};

// {"--context", "8192", ...} for a command line.
std::vector<std::string> AsFlags(const std::vector<OptionSetting>& settings);

// Returns true if two values of an option are equal: numbers by value ("16" and "16.0"), sizes by bytes
// ("1KiB" and "1024"), everything else by letters.
bool SameOptionValue(const std::string& a, const std::string& b);

// Options that are given one by one and reported together, as "A,B".
bool IsListOption(const std::string& name);

// Returns true if `in_effect` contains all of `asked` ("KEY=VALUE,.." or plain words).
bool HoldsPolicies(const std::string& in_effect, const std::string& asked);

}  // namespace sluice::cli
