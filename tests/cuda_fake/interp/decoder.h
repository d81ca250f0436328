// Makes a kernel's statements into instructions. The *_ops.cc files define the opcodes: each adds its opcodes
// to the table, by the opcode's first word.
//
// Thread safety: thread-compatible; Decode is a pure function.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/cuda_fake/interp/instruction.h"
#include "tests/cuda_fake/ptx/module.h"

namespace sluice::cuda_fake {

// An instruction's type, as its last word names it.
enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kF16x2,
  kBf16x2
};
Type TypeOf(absl::string_view word);
uint8_t BytesOf(Type type);  // 0 for kPred
bool IsSigned(Type type);
bool IsFloat(Type type);

class Decoder;
using DecodeFunction = absl::Status (*)(Decoder&, const Statement&, Instruction*);
using OpcodeTable = std::map<std::string, DecodeFunction, std::less<>>;

void AddArithmeticOpcodes(OpcodeTable* table);
void AddLogicOpcodes(OpcodeTable* table);
void AddFloatOpcodes(OpcodeTable* table);
void AddCompareOpcodes(OpcodeTable* table);
void AddConvertOpcodes(OpcodeTable* table);
void AddMemoryOpcodes(OpcodeTable* table);
void AddAtomicOpcodes(OpcodeTable* table);
void AddAsyncOpcodes(OpcodeTable* table);
void AddControlOpcodes(OpcodeTable* table);
void AddWarpOpcodes(OpcodeTable* table);

// Global and constant variables' addresses.
using SymbolAddresses = std::map<std::string, uint64_t, std::less<>>;

// UNIMPLEMENTED naming the line and the opcode for what no table knows.
absl::StatusOr<Program> Decode(const Module& module, const Kernel& kernel, const SymbolAddresses& symbols);

// Services for the opcodes' functions.
class Decoder {
 public:
  Decoder(const Module& module, const Kernel& kernel, const SymbolAddresses& symbols);
  absl::StatusOr<Program> Run();

  // Rows of operand `i`, read or written as `type`; the register's width must be the type's. An immediate or
  // a special register gets a row of its own. Errors stick and are returned by Run().
  uint32_t Read(const Statement& statement, size_t i, Type type);
  uint32_t Read(const Statement& statement, const Operand& operand, Type type);
  uint32_t Write(const Statement& statement, const Operand& operand, Type type);
  // Fills d, a, b, c by operands 0, 1, 2, 3, all of `type`.
  void ReadAll(const Statement& statement, Type type, Instruction* in);
  // The operand's register of whatever width; kNoRow for a sink.
  uint32_t AnyRegister(const Statement& statement, const Operand& operand, uint8_t* bytes);
  // A constant row.
  uint32_t Constant(uint64_t value, uint8_t bytes);
  // [register + offset] or [variable + offset]: a, or kNoRow with the address in offset; and the row's bytes.
  void Address(const Statement& statement, const Operand& operand, Instruction* in, uint8_t* row_bytes);
  uint32_t Label(const Statement& statement, const Operand& operand);
  void Fail(const Statement& statement, absl::string_view what);

 private:
  bool Symbol(const std::string& name, uint64_t* value) const;
  void PlaceVariables();
  uint32_t NewRow(uint32_t bytes);
  uint32_t SpecialRegister(const std::string& name);

  const Module& module_;
  const Kernel& kernel_;
  const SymbolAddresses& symbols_;
  Program program_;
  std::vector<uint32_t> rows_;  // of the kernel's registers
  std::map<std::pair<uint64_t, uint8_t>, uint32_t> constants_;
  std::map<Special, uint32_t> specials_;
  std::map<std::string, uint64_t, std::less<>> places_;  // of variables in their spaces, and of parameters
  absl::Status error_;
};

// The status of an opcode whose form the function does not know.
absl::Status UnknownForm(const Statement& statement);
bool HasWord(const Statement& statement, absl::string_view word);

}  // namespace sluice::cuda_fake
