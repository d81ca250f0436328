// Options of weightd: their values, and the one table of them (daemon/option_values.h).
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

  ByteSize dram_budget;  // 0: DefaultDramBudget()
  bool preload = true;
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

// Calls visit(spec, pointer to the member) for each option, in the order of --help.
template <typename Visit>
void ForEachOption(WeightdOptions* o, Visit visit) {
  visit(OptionSpec("socket", "Unix socket to serve on; the side channel is at <socket>.side")
            .Default("weightd.sock in the runtime directory"),
        &o->socket);
  visit(OptionSpec("pack", "Folder of a pack to serve; repeat for more"), &o->packs);
  visit(
      OptionSpec("allow-uid",
                 "User who may connect, by name or number, besides weightd's user and root; repeat for more")
          .Reloadable(),
      &o->allowed_uids);
  visit(OptionSpec("allow-group", "Group whose members may connect; repeat for more").Reloadable(),
        &o->allowed_gids);
  visit(OptionSpec("socket-mode", "Mode of the socket files, octal"), &o->socket_mode);
  visit(OptionSpec("metrics", "Loopback port of Prometheus metrics, as 127.0.0.1:9400")
            .Default("off")
            .Reloadable(),
        &o->metrics);
  visit(OptionSpec("dram-budget", "Memory for weights, as 512MiB or 2GB")
            .Default("the packs, at most 70 % of what is available")
            .PassedOn(),
        &o->dram_budget);
  visit(
      OptionSpec("preload",
                 "Read all weights from the start on, while nothing else is read, if dram-budget holds them")
          .PassedOn(),
      &o->preload);
  visit(OptionSpec("io", "Engine that reads packs; pread is the fallback where io_uring is refused")
            .Choices("uring|pread")
            .PassedOn(),
        &o->io);
  visit(OptionSpec("read-timeout",
                   "A read that brings no bytes for so long is hedged by another one; after four times as "
                   "long its requests time out")
            .Reloadable(),
        &o->read_timeout);
  visit(OptionSpec("eviction", "Which weights leave memory first").Choices("lru|lfru|score"), &o->eviction);
  visit(OptionSpec("numa",
                   "Where weights lie on a machine with several memory nodes (interleave: every segment's "
                   "pages in turn; segments: whole ones in turn; off: where weightd's threads run)")
            .Choices("interleave|segments|off"),
        &o->numa);
  visit(OptionSpec("admission", "Protect the working set from one long prefill"), &o->admission);
  visit(OptionSpec("session-quota",
                   "Memory that one session may fill; beyond it its own coldest extents are evicted")
            .Default("no bound")
            .Reloadable(),
        &o->session_quota);
  visit(OptionSpec("scrub-rate", "Resident weights verified again per second, as 64MiB")
            .Default("off")
            .Reloadable(),
        &o->scrub_rate);
  visit(OptionSpec("copy-threads", "Threads that copy into slabs; 0: one for every four CPUs, at most four")
            .Range(0, 64),
        &o->copy_threads);
  visit(OptionSpec("gather-neurons", "Listed neurons copied into a slab per chunk").Range(1),
        &o->gather_neurons);
  visit(OptionSpec("direct", "Read past the page cache").PassedOn(), &o->direct);
  visit(OptionSpec("threads", "Threads of the pread engine").Range(1, 256), &o->reader_threads);
  visit(OptionSpec("budget-wait", "Maximum wait for free memory at the start"), &o->budget_wait);
  visit(OptionSpec("drain-timeout", "Maximum wait for sessions to end on SIGTERM").Reloadable(),
        &o->drain_timeout);
  visit(OptionSpec("parent-lifeline", "Inherited descriptor; weightd exits when its other end closes"),
        &o->parent_lifeline);
  visit(OptionSpec("keep", "Delay of that exit").Reloadable(), &o->keep);
  visit(OptionSpec("log-level", "Minimum severity that is logged")
            .Choices("debug|info|warning|error")
            .Reloadable(),
        &o->log_level);
}

}  // namespace sluice::weightd
