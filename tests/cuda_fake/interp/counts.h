// Memory requests of a launch. A request is made by one instruction of a warp.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace sluice::cuda_fake {

struct LaunchCounts {
  uint64_t warp_instructions = 0;
  // Where LaunchSpec::counts wants them.
  uint64_t global_requests = 0;
  uint64_t global_sectors = 0;  // of 32 bytes that requests touch, each request's own
  uint64_t unique_sectors = 0;  // the same over the whole launch: what memory moves at least
  uint64_t shared_requests = 0;
  uint64_t shared_waves = 0;  // turns that shared memory takes for them: 32 banks of 4 bytes a turn
};

// Collects the lanes' accesses of an instruction, then adds them up.
class RequestCounter {
 public:
  void NoteGlobal(uint64_t address, uint32_t bytes);
  void NoteShared(int lane, uint64_t address, uint32_t bytes);
  // Forgets what was noted since the last request: not the kernel's own access.
  void Drop();
  void EndRequest(LaunchCounts* counts);
  void EndLaunch(LaunchCounts* counts) const { counts->unique_sectors = unique_.size(); }

 private:
  struct SharedAccess {
    int lane;
    uint64_t word;
    uint32_t words;
  };
  uint64_t Waves();

  std::vector<uint64_t> sectors_;
  std::vector<SharedAccess> shared_;
  std::vector<uint64_t> words_;  // of a turn, room kept
  absl::flat_hash_set<uint64_t> unique_;
};

}  // namespace sluice::cuda_fake
