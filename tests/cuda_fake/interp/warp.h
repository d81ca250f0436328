// A warp's state: its register file, and where each of its lanes is.
//
// Lanes at the same place form a group and run together. The group with the lowest place runs first, which
// brings lanes together again behind a branch without knowing where that is.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/cuda_fake/interp/instruction.h"

namespace sluice::cuda_fake {

// A cp.async that has been issued and not been waited for.
struct AsyncCopy {
  uint64_t shared_offset = 0;
  uint32_t bytes = 0;
  uint8_t data[16] = {};
};

// A thread's copies by commit group, oldest first; the last one is still open.
struct AsyncGroups {
  std::vector<std::vector<AsyncCopy>> groups{1};
};

class Warp {
 public:
  struct Group {
    uint32_t pc = 0;
    uint32_t mask = 0;
    bool waiting = false;  // at a barrier, or for other lanes of the warp
  };

  Warp() = default;
  // A launch begins: registers hold poison, the program's constants theirs.
  void BeginLaunch(const Program& program, uint32_t index, uint32_t lanes);
  // A block begins: every lane is at the start.
  void BeginBlock();

  template <typename T>
  T* Row(uint32_t row) {
    return reinterpret_cast<T*>(file_ + row);
  }
  uint32_t& Mask(uint32_t row) { return *reinterpret_cast<uint32_t*>(file_ + row); }

  // The group to run next, nullptr if all wait or have ended. Merges groups that have met.
  Group* Lowest();
  // The lowest place of the groups that can run, but for `group`.
  uint32_t NextPlace(const Group& group) const;
  // Splits `taken`'s lanes off `group`, to run on at `target`.
  void Branch(Group* group, uint32_t taken, uint32_t target);
  void Exit(Group* group, uint32_t lanes);
  // The lanes of `mask` stay where they are; the others of their group, left out by the guard, go on.
  void Wait(Group* group, uint32_t mask);
  // The group that waits at `pc`, nullptr if none.
  Group* WaitingAt(uint32_t pc);

  uint32_t index = 0;     // in the block
  uint32_t existing = 0;  // lanes that are threads
  uint32_t live = 0;      // of these: not ended
  uint16_t sync = 0;      // __syncwarps passed
  Group* current = nullptr;
  std::vector<Group> groups;
  std::vector<AsyncGroups> copies;  // [32], empty until the first cp.async
  std::vector<uint8_t> local;       // [32][local bytes], empty until first used
  std::vector<uint8_t> local_written;

 private:
  std::vector<uint8_t> storage_;
  uint8_t* file_ = nullptr;  // aligned to 64
};

template <typename F>
inline void ForEachLane(uint32_t mask, F f) {
  for (; mask != 0; mask &= mask - 1) {
    f(__builtin_ctz(mask));
  }
}

}  // namespace sluice::cuda_fake
