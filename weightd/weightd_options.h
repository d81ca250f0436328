// Options of the weightd program: one struct, filled from flags and a TOML file.
//
// Thread safety: a plain value; parsing belongs to main's thread.
#ifndef SLUICE_WEIGHTD_WEIGHTD_OPTIONS_H_
#define SLUICE_WEIGHTD_WEIGHTD_OPTIONS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "weightd/eviction.h"

namespace sluice {

struct WeightdOptions {
  std::string socket;              // absolute; the side socket is `<socket>.side`
  std::vector<std::string> packs;  // folders, at least one
  uint64_t dram_budget = 0;        // 0: DefaultDramBudget()
  std::string io = "uring";        // or "pread"
  bool direct = true;
  int reader_threads = 32;  // of the pread engine
  EvictionKind eviction = EvictionKind::kLru;
  bool admission = true;
  uint64_t session_quota = 0;       // bytes that a session may fill; 0: no bound
  std::vector<uid_t> allowed_uids;  // beside the own user and root
  mode_t socket_mode = 0600;
  absl::Duration budget_wait = absl::Seconds(10);
  absl::Duration drain_timeout = absl::Seconds(2);
  int parent_lifeline = -1;  // descriptor at whose end weightd ends; -1: none
  absl::Duration keep;       // stays this long after that
  std::string log_level = "info";
};

// What the command line asks for.
struct WeightdCommand {
  WeightdOptions options;
  std::optional<int> exit_code;  // set: nothing to serve (--help, --version, a usage error: already printed)
};

WeightdCommand ParseWeightdCommand(int argc, const char* const* argv);

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_WEIGHTD_OPTIONS_H_
