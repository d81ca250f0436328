// PTX as read from its text: what is declared, and each kernel's statements with registers and labels
// resolved. The decoder (interp/decoder.h) defines the opcodes.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::cuda_fake {

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kConst, kParam };

// A declared register: bytes of a lane's value, 0 for a predicate.
struct Register {
  std::string name;
  uint32_t bytes = 0;
};

// A variable, or a kernel's parameter.
struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  uint32_t align = 1;
  uint64_t bytes = 0;            // 0: `.extern .shared name[]`, the dynamic part
  uint64_t offset = 0;           // parameters: in the argument block
  std::vector<uint8_t> initial;  // empty: zeros (const, global) or nothing (others)
};

struct Operand {
  enum class Kind {
    kRegister,   // reg
    kImmediate,  // text
    kSymbol,     // text: variable, label or special register
    kAddress,    // [reg + offset] or [text + offset]
    kVector,     // parts
    kPair,       // parts: %r|%p
    kSink        // _
  };
  Kind kind = Kind::kSink;
  int reg = -1;  // index into Kernel::registers
  std::string text;
  int64_t offset = 0;
  bool negated = false;  // !%p
  std::vector<Operand> parts;
};

struct Statement {
  std::string opcode;              // "ld.global.nc.f32"
  std::vector<std::string> words;  // {"ld", "global", "nc", "f32"}
  int guard = -1;                  // predicate register, -1: none
  bool guard_negated = false;
  std::vector<Operand> operands;
  int line = 0;         // of the PTX
  int source_file = 0;  // Module::files, 0: unknown
  int source_line = 0;
  int caller_file = 0;  // where the source line was inlined, 0: it was not
  int caller_line = 0;
};

struct Kernel {
  std::string name;
  std::vector<Variable> params;
  uint64_t param_bytes = 0;
  std::vector<Register> registers;
  std::vector<Variable> variables;  // .shared and .local
  std::vector<Statement> statements;
  std::map<std::string, uint32_t, std::less<>> labels;  // to an index into statements
  uint32_t max_threads = 0;                             // .maxntid, 0: not said
};

struct Module {
  int target = 0;  // 80 for sm_80
  std::vector<Variable> variables;
  std::map<int, std::string> files;
  std::map<std::string, Kernel, std::less<>> kernels;
};

}  // namespace sluice::cuda_fake
