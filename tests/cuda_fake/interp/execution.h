// Runs one launch of a kernel: blocks one after another in seeded order, a block's warps in seeded turns, and
// enters every memory access into the shadows.
//
// Blocks never run side by side, so a kernel in which one waits for another does not end; the manual promises
// it no progress either, outside of cooperative launches.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/cuda_fake/interp/counts.h"
#include "tests/cuda_fake/interp/instruction.h"
#include "tests/cuda_fake/interp/region.h"
#include "tests/cuda_fake/interp/warp.h"
#include "tests/cuda_fake/report.h"

namespace sluice::cuda_fake {

// Where the windows of shared and local memory begin in generic addresses, and the first shared address: what
// lies below is nobody's, so that a null pointer is found.
inline constexpr uint64_t kSharedWindow = 0x0001'0000'0000'0000;
inline constexpr uint64_t kLocalWindow = 0x0002'0000'0000'0000;
inline constexpr uint64_t kWindowBytes = 0x0000'0001'0000'0000;
inline constexpr uint64_t kFirstSharedAddress = 1024;

enum class Fault { kNone, kIllegalAddress, kMisaligned, kIllegalInstruction, kLaunchFailure, kAssert };

struct Dim {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
  uint64_t Count() const { return uint64_t{x} * y * z; }
};

// Buffers of an execution, kept from launch to launch.
struct ExecutionBuffers;

struct LaunchSpec {
  const Program* program = nullptr;
  Dim grid;
  Dim block;
  uint64_t dynamic_shared = 0;
  std::vector<uint8_t> params;
  Scope scope;  // without phases: no other operation has been
  const RegionTable* regions = nullptr;
  ExecutionBuffers* buffers = nullptr;  // nullptr: made for this one
  ReportSink* reports = nullptr;
  uint64_t seed = 0;                 // 0: warps in order, each as far as it comes; 1: the same backwards
  uint64_t step_limit = 50'000'000;  // warp-instructions of a block
  bool counts = false;               // accesses are counted too
};

// Where the lanes of an access find their bytes.
struct LanePlaces {
  enum class Pattern : uint8_t {
    kStopped,  // by a fault
    kRun,      // one behind the other: lane `lowest` at `first`, and so on
    kSame,     // all at `first`
    kApart     // each at lanes[lane]
  };
  Pattern pattern = Pattern::kStopped;
  int lowest = 0;
  uint8_t* first = nullptr;
  uint8_t* lanes[kWarpLanes];
};

class Execution {
 public:
  explicit Execution(const LaunchSpec& spec);
  ~Execution();

  // Until all blocks have ended, or the first fault. Races and the like are reported and do not stop it.
  Fault Run();
  const LaunchCounts& counts() const { return counts_; }

  // For the instructions' functions.
  const LaunchSpec& spec() const { return spec_; }
  // A generic address's own space, and the address there.
  static Space SpaceOf(uint64_t* address);
  // The bytes at addresses[lane] of `space` for each lane of `mask`, checked and entered.
  void Places(Warp& warp, const Instruction& in, uint32_t mask, Space space, uint64_t* addresses,
              uint32_t bytes, AccessKind kind, LanePlaces* places);
  // The same for one lane; nullptr after a fault.
  uint8_t* Access(Warp& warp, const Instruction& in, int lane, Space space, uint64_t address, uint32_t bytes,
                  AccessKind kind);
  // Enters that shared bytes are to be written by a cp.async, and later that they have been.
  void PoisonShared(uint64_t offset, uint32_t bytes);
  void ReportAt(Finding finding, const Instruction& in, absl::string_view text);
  Outcome Stop(Fault fault, Finding finding, const Instruction& in, absl::string_view text);
  std::string Thread(const Warp& warp, int lane) const;
  uint8_t* shared() { return shared_; }

 private:
  void BeginLaunch();
  void BeginBlock(uint64_t index);
  uint32_t SpecialValue(Special special, const Warp& warp, uint32_t lane) const;
  // Those that tell blocks apart, or the others.
  void FillSpecials(Warp* warp, bool of_block);
  void RunBlock();
  void RunWarp(Warp& warp, uint64_t steps);
  void CountRequest(const Instruction& in);
  Warp* NextWarp();
  std::vector<Warp*> BlockWarps() const;
  bool ReleaseBarrier();
  void ReportStuck();
  uint8_t* GlobalAccess(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes,
                        AccessKind kind);
  uint8_t* SharedAccess(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes,
                        AccessKind kind);
  uint8_t* LocalAccess(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes,
                       AccessKind kind);
  // The lanes' accesses at once; false where each needs a look of its own.
  bool PlacesAtOnce(Warp& warp, uint32_t mask, Space space, const uint64_t* addresses, uint32_t bytes,
                    AccessKind kind, LanePlaces* places);
  uint32_t PlacesApart(Warp& warp, uint32_t mask, Space space, const uint64_t* addresses, uint32_t bytes,
                       AccessKind kind, LanePlaces* places);
  Who ThreadOf(const Warp& warp, int lane) const {
    return uint32_t{warp.sync} << 16 | (warp.index * kWarpLanes + static_cast<uint32_t>(lane));
  }
  void ReportConflict(const Shadow::Conflict& conflict, AccessKind kind, const Warp& warp,
                      const Instruction& in, int lane, absl::string_view where);

  LaunchSpec spec_;
  const Program& program_;
  std::mt19937_64 random_;
  Fault fault_ = Fault::kNone;
  LaunchCounts counts_;
  RequestCounter requests_;
  const Region* last_region_ = nullptr;
  Phases own_phases_;
  std::unique_ptr<ExecutionBuffers> own_buffers_;
  ExecutionBuffers* buffers_ = nullptr;
  Scope global_;  // with which accesses are entered
  Scope shared_scope_;

  // Index of the block that runs.
  Dim block_id_;
  uint32_t block_index_ = 0;
  uint64_t steps_ = 0;
  uint8_t* shared_ = nullptr;
  uint64_t shared_bytes_ = 0;
  Shadow* shared_shadow_ = nullptr;
};

// Thread safety: thread-compatible.
struct ExecutionBuffers {
  std::vector<std::unique_ptr<Warp>> warps;  // the first `warp_count` are the block's
  size_t warp_count = 0;
  std::vector<uint8_t> shared;
  std::unique_ptr<Shadow> shadow;
};

}  // namespace sluice::cuda_fake
