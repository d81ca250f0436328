// Options of the weightd program. One table (ForEachOption) names each of them, with its help; flags, the
// TOML file and reloading all use it.
//
// Thread safety: plain values; parsing belongs to main's thread.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/option_values.h"

namespace sluice::weightd {

struct WeightdOptions {
  std::string socket;              // absolute; the side socket is `<socket>.side`
  std::vector<std::string> packs;  // folders, at least one
  std::vector<UserId> allowed_uids;
  std::vector<GroupId> allowed_gids;
  FileMode socket_mode;
  std::string metrics;  // host:port; empty: off

  ByteSize dram_budget;      // 0: DefaultDramBudget()
  std::string io = "uring";  // or "pread"
  bool direct = true;
  int reader_threads = 64;  // of the pread engine
  absl::Duration read_timeout = absl::Seconds(1);
  std::string eviction = "lru";
  bool admission = true;
  std::string numa = "interleave";
  int copy_threads = 0;     // into slabs; 0: by the CPUs
  int gather_neurons = 50;  // listed neurons that travel in one chunk
  ByteSize scrub_rate;      // bytes per second; 0: none
  ByteSize session_quota;   // maximum bytes that a session may fill; 0: no bound

  absl::Duration budget_wait = absl::Seconds(10);
  absl::Duration drain_timeout = absl::Seconds(2);
  int parent_lifeline = -1;  // descriptor whose end stops weightd; -1: none
  absl::Duration keep;       // delay before that stop
  std::string log_level = "info";
};

// The parsed command line.
struct WeightdCommand {
  WeightdOptions options;
  std::optional<int> exit_code;  // set: nothing to serve (--help, --version, a usage error: already printed)
};

WeightdCommand ParseWeightdCommand(int argc, const char* const* argv);

// INVALID_ARGUMENT naming the option: values that are never valid, or not supported by this build.
absl::Status CheckWeightdOptions(const WeightdOptions& options);

// Every option in the format of its flag.
std::vector<OptionText> OptionTextsOf(const WeightdOptions& options);
// Options that SIGHUP can change while weightd runs.
const std::set<std::string>& ReloadableWeightdOptions();
// Returns `running` with the reloadable options of `read`.
WeightdOptions WithReloaded(const WeightdOptions& running, const WeightdOptions& read);

// Calls visit(name, pointer to the member, help) for each option, in the order of --help. The help text
// states a default that is computed; other defaults are shown from the member.
template <typename Visit>
void ForEachOption(WeightdOptions* o, Visit visit) {
  visit("socket", &o->socket,
        "Unix socket to serve on; the side channel is at <socket>.side (default: weightd.sock in the "
        "runtime directory)");
  visit("pack", &o->packs, "Folder of a pack to serve; repeat for more");
  visit("allow-uid", &o->allowed_uids,
        "User who may connect, by name or number, besides weightd's user and root; repeat for more");
  visit("allow-group", &o->allowed_gids, "Group whose members may connect; repeat for more");
  visit("socket-mode", &o->socket_mode, "Mode of the socket files, octal");
  visit("metrics", &o->metrics, "Loopback port of Prometheus metrics, as 127.0.0.1:9400 (default: off)");

  visit("dram-budget", &o->dram_budget,
        "Memory for weights, as 512MiB or 2GB (default: the packs, at most 70 % of what is available)");
  visit("io", &o->io,
        "Engine that reads packs: uring or pread; pread is the fallback where io_uring is refused");
  visit("read-timeout", &o->read_timeout,
        "A slower read is hedged by another one; after four times as long its requests time out");
  visit("eviction", &o->eviction, "Which weights leave memory first: lru, lfru or score");
  visit(
      "numa", &o->numa,
      "Where weights lie on a machine with several memory nodes: interleave (every segment's pages in turn), "
      "segments (whole ones in turn) or off (where weightd's threads run)");
  visit("admission", &o->admission, "Protect the working set from one long prefill: on or off");
  visit(
      "session-quota", &o->session_quota,
      "Memory that one session may fill; beyond it its own coldest extents are evicted (default: no bound)");
  visit("scrub-rate", &o->scrub_rate, "Resident weights verified again per second, as 64MiB (default: off)");
  visit("copy-threads", &o->copy_threads,
        "Threads that copy into slabs; 0: one for every four CPUs, at most four");
  visit("gather-neurons", &o->gather_neurons, "Listed neurons copied into a slab per chunk");
  visit("direct", &o->direct, "Read past the page cache: on or off");
  visit("threads", &o->reader_threads, "Threads of the pread engine");

  visit("budget-wait", &o->budget_wait, "Maximum wait for free memory at the start");
  visit("drain-timeout", &o->drain_timeout, "Maximum wait for sessions to end on SIGTERM");
  visit("parent-lifeline", &o->parent_lifeline,
        "Inherited descriptor; weightd exits when its other end closes");
  visit("keep", &o->keep, "Delay of that exit");
  visit("log-level", &o->log_level, "Least severity that is logged: debug, info, warning or error");
}

}  // namespace sluice::weightd
