// A kernel made ready to run: every instruction with its function, and operands as rows of a warp's register
// file.
//
// A row holds one value a lane: 32 values of 2, 4 or 8 bytes; a predicate's row is one 32-bit mask.
// Immediates and special registers are rows too, filled when a warp begins, so that no instruction asks what
// its operand is.
//
// Thread safety: plain values; a Program may be run by several executions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda_fake/ptx/module.h"

namespace sluice::cuda_fake {

class Execution;
class Warp;
struct Instruction;

// The next state of the lanes that ran an instruction.
enum class Outcome : uint8_t {
  kNext,      // on to the next instruction
  kBranched,  // all lanes of the group have gone to one place
  kJumped,    // the function has set their place itself: there may be other groups of lanes than before
  kStop       // a fault: the launch ends
};
using Handler = Outcome (*)(Execution&, Warp&, const Instruction&, uint32_t mask);

inline constexpr uint32_t kNoRow = 0xffffffff;
inline constexpr uint32_t kFullMask = 0xffffffff;
inline constexpr int kWarpLanes = 32;

struct Instruction {
  Handler run = nullptr;
  uint32_t d = kNoRow;  // byte offsets of rows in the register file
  uint32_t a = kNoRow;
  uint32_t b = kNoRow;
  uint32_t c = kNoRow;
  uint32_t p = kNoRow;  // a second, predicate target or a third predicate source
  bool p_negated = false;
  uint32_t guard = kNoRow;
  bool guard_negated = false;
  uint32_t target = 0;  // of a branch
  Space space = Space::kGeneric;
  uint8_t bytes = 0;                                    // of an element in memory
  uint8_t elements = 1;                                 // of a vector
  uint8_t register_bytes = 0;                           // of the registers of a load or a store
  bool sign = false;                                    // a load extends the sign
  int64_t offset = 0;                                   // added to an address; other constants
  uint32_t rows[4] = {kNoRow, kNoRow, kNoRow, kNoRow};  // of a vector
  std::vector<uint32_t> parts;                          // of the operands of mma
  const Statement* statement = nullptr;
};

// A row that a warp begins with.
struct ConstantRow {
  uint32_t row = 0;
  uint8_t bytes = 4;  // of a lane's value; 0: a predicate
  uint64_t value = 0;
};
// Special registers, by what the execution fills in.
enum class Special : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kLanemaskLt,
  kLanemaskLe,
  kLanemaskEq,
  kLanemaskGe,
  kLanemaskGt
};
struct SpecialRow {
  uint32_t row = 0;
  Special special = Special::kTidX;
};

// A .shared or .local variable's place.
struct Place {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct Program {
  std::string name;
  const Module* module = nullptr;
  const Kernel* kernel = nullptr;
  std::vector<Instruction> code;
  uint32_t file_bytes = 0;  // of a warp's register file
  std::vector<ConstantRow> constants;
  std::vector<SpecialRow> specials;
  std::vector<Place> shared;   // static variables, and the dynamic part's start last if there is one
  uint64_t static_shared = 0;  // bytes as a GPU counts them
  uint64_t shared_end = 0;     // where the dynamic part begins
  uint64_t local_bytes = 0;    // a thread

  // "matmul.cu:37, PTX line 88 \"bar.sync\"".
  std::string Where(const Instruction& instruction) const;
};

}  // namespace sluice::cuda_fake
