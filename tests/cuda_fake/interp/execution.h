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

struct LaunchSpec {
  const Program* program = nullptr;
  Dim grid;
  Dim block;
  uint64_t dynamic_shared = 0;
  std::vector<uint8_t> params;
  uint32_t operation = 1;  // its number for `ordering`
  const RegionTable* regions = nullptr;
  const Ordering* ordering = nullptr;  // nullptr: no other operation is unordered
  ReportSink* reports = nullptr;
  uint64_t seed = 0;                 // 0: warps in order, each as far as it comes; 1: the same backwards
  uint64_t step_limit = 50'000'000;  // warp-instructions of a block
  bool counts = false;               // accesses are counted too
};

class Execution {
 public:
  explicit Execution(const LaunchSpec& spec);

  // Until all blocks have ended, or the first fault. Races and the like are reported and do not stop it.
  Fault Run();
  const LaunchCounts& counts() const { return counts_; }

  // For the instructions' functions.
  const LaunchSpec& spec() const { return spec_; }
  // A generic address's own space, and the address there.
  static Space SpaceOf(uint64_t* address);
  // The bytes at `address` of `space` for a lane's access, checked and entered; nullptr after a fault.
  uint8_t* Access(Warp& warp, const Instruction& in, int lane, Space space, uint64_t address, uint32_t bytes,
                  AccessKind kind);
  // Enters that shared bytes are to be written by a cp.async, and later that they have been.
  void PoisonShared(uint64_t offset, uint32_t bytes);
  void ReportAt(Finding finding, const Instruction& in, absl::string_view text);
  Outcome Stop(Fault fault, Finding finding, const Instruction& in, absl::string_view text);
  std::string Thread(const Warp& warp, int lane) const;
  uint8_t* shared() { return shared_.data(); }

 private:
  void BeginBlock(uint64_t index);
  void FillSpecials(Warp* warp);
  void RunBlock();
  void RunWarp(Warp& warp, uint64_t steps);
  Warp* NextWarp();
  bool ReleaseBarrier();
  void ReportStuck();
  uint8_t* GlobalAccess(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes,
                        AccessKind kind);
  uint8_t* SharedAccess(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes,
                        AccessKind kind);
  uint8_t* LocalAccess(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes,
                       AccessKind kind);
  Accessor Who(const Warp& warp, int lane) const;
  void ReportConflict(const Shadow::Conflict& conflict, AccessKind kind, const Warp& warp,
                      const Instruction& in, int lane, absl::string_view where);

  LaunchSpec spec_;
  const Program& program_;
  std::mt19937_64 random_;
  Fault fault_ = Fault::kNone;
  LaunchCounts counts_;
  RequestCounter requests_;
  const Region* last_region_ = nullptr;

  // Of the block that runs.
  Dim block_id_;
  uint32_t block_index_ = 0;
  uint16_t epoch_ = 0;
  uint64_t steps_ = 0;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<uint8_t> shared_;
  std::vector<uint8_t> shared_valid_;  // a byte each: inside a variable
  std::unique_ptr<Shadow> shared_shadow_;
};

}  // namespace sluice::cuda_fake
