#include "tests/cuda_fake/interp/decoder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/interp/execution.h"
#include "tests/cuda_fake/ptx/parser.h"

namespace sluice::cuda_fake {
namespace {

// Between shared variables, so that an index one too large is in none.
constexpr uint64_t kRedZone = 128;

const OpcodeTable& Opcodes() {
  static const OpcodeTable* const table = [] {
    auto* all = new OpcodeTable;
    AddArithmeticOpcodes(all);
    AddLogicOpcodes(all);
    AddFloatOpcodes(all);
    AddCompareOpcodes(all);
    AddConvertOpcodes(all);
    AddMemoryOpcodes(all);
    AddAtomicOpcodes(all);
    AddAsyncOpcodes(all);
    AddControlOpcodes(all);
    AddWarpOpcodes(all);
    return all;
  }();
  return *table;
}

uint64_t AlignTo(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

const std::map<std::string, Special, std::less<>>& Specials() {
  static const auto* const names =
      new std::map<std::string, Special, std::less<>>{{"%tid.x", Special::kTidX},
                                                      {"%tid.y", Special::kTidY},
                                                      {"%tid.z", Special::kTidZ},
                                                      {"%ntid.x", Special::kNtidX},
                                                      {"%ntid.y", Special::kNtidY},
                                                      {"%ntid.z", Special::kNtidZ},
                                                      {"%ctaid.x", Special::kCtaidX},
                                                      {"%ctaid.y", Special::kCtaidY},
                                                      {"%ctaid.z", Special::kCtaidZ},
                                                      {"%nctaid.x", Special::kNctaidX},
                                                      {"%nctaid.y", Special::kNctaidY},
                                                      {"%nctaid.z", Special::kNctaidZ},
                                                      {"%laneid", Special::kLaneid},
                                                      {"%warpid", Special::kWarpid},
                                                      {"%lanemask_lt", Special::kLanemaskLt},
                                                      {"%lanemask_le", Special::kLanemaskLe},
                                                      {"%lanemask_eq", Special::kLanemaskEq},
                                                      {"%lanemask_ge", Special::kLanemaskGe},
                                                      {"%lanemask_gt", Special::kLanemaskGt}};
  return *names;
}

}  // namespace

Type TypeOf(absl::string_view word) {
  static const auto* const types = new std::map<absl::string_view, Type>{
      {"pred", Type::kPred}, {"b8", Type::kB8},       {"b16", Type::kB16},      {"b32", Type::kB32},
      {"b64", Type::kB64},   {"u8", Type::kU8},       {"u16", Type::kU16},      {"u32", Type::kU32},
      {"u64", Type::kU64},   {"s8", Type::kS8},       {"s16", Type::kS16},      {"s32", Type::kS32},
      {"s64", Type::kS64},   {"f16", Type::kF16},     {"bf16", Type::kBf16},    {"f32", Type::kF32},
      {"f64", Type::kF64},   {"f16x2", Type::kF16x2}, {"bf16x2", Type::kBf16x2}};
  const auto it = types->find(word);
  return it == types->end() ? Type::kNone : it->second;
}

uint8_t BytesOf(Type type) {
  switch (type) {
    case Type::kNone:
    case Type::kPred:
      return 0;
    case Type::kB8:
    case Type::kU8:
    case Type::kS8:
      return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBf16:
      return 2;
    case Type::kB32:
    case Type::kU32:
    case Type::kS32:
    case Type::kF32:
    case Type::kF16x2:
    case Type::kBf16x2:
      return 4;
    default:
      return 8;
  }
}

bool IsSigned(Type type) {
  return type == Type::kS8 || type == Type::kS16 || type == Type::kS32 || type == Type::kS64;
}

bool IsFloat(Type type) { return type >= Type::kF16; }

bool HasWord(const Statement& statement, absl::string_view word) {
  return std::find(statement.words.begin(), statement.words.end(), word) != statement.words.end();
}

absl::Status UnknownForm(const Statement& statement) {
  return absl::UnimplementedError(absl::StrCat(
      "PTX line ", statement.line, ": the interpreter does not know this form of ", statement.opcode));
}

std::string Program::Where(const Instruction& instruction) const {
  const Statement& s = *instruction.statement;
  const auto file = module->files.find(s.source_file);
  const bool toolkit = file != module->files.end() && file->second.find("/include/") != std::string::npos;
  const auto shown = toolkit && s.caller_file != 0 ? module->files.find(s.caller_file) : file;
  std::string place;
  if (shown != module->files.end()) {
    place = absl::StrCat(shown->second.substr(shown->second.rfind('/') + 1), ":",
                         toolkit && s.caller_file != 0 ? s.caller_line : s.source_line, ", ");
  }
  return absl::StrCat(place, "PTX line ", s.line, " \"", s.opcode, "\"");
}

absl::StatusOr<Program> Decode(const Module& module, const Kernel& kernel, const SymbolAddresses& symbols) {
  return Decoder(module, kernel, symbols).Run();
}

Decoder::Decoder(const Module& module, const Kernel& kernel, const SymbolAddresses& symbols)
    : module_(module), kernel_(kernel), symbols_(symbols) {
  program_.name = kernel.name;
  program_.module = &module;
  program_.kernel = &kernel;
  for (const Register& reg : kernel.registers) {
    rows_.push_back(NewRow(reg.bytes));
  }
  PlaceVariables();
}

uint32_t Decoder::NewRow(uint32_t bytes) {
  const uint32_t row = program_.file_bytes;
  program_.file_bytes += bytes == 0 ? 4 : bytes * kWarpLanes;
  // Predicates pack; other rows begin where a vector register may be loaded.
  if (bytes != 0 && row % 64 != 0) {
    program_.file_bytes += 64 - row % 64;
    return row + 64 - row % 64;
  }
  return row;
}

void Decoder::PlaceVariables() {
  for (const Variable& param : kernel_.params) {
    places_[param.name] = param.offset;
  }
  std::vector<Variable> variables = kernel_.variables;
  for (const Variable& variable : module_.variables) {
    if (variable.space == Space::kShared) {
      variables.push_back(variable);
    }
  }
  uint64_t shared = 0;
  for (const Variable& variable : variables) {
    uint64_t& end = variable.space == Space::kShared ? shared : program_.local_bytes;
    if (variable.space == Space::kShared && variable.bytes == 0) {
      continue;
    }
    end = AlignTo(end, variable.align);
    places_[variable.name] = end;
    if (variable.space == Space::kShared) {
      program_.shared.push_back({end, variable.bytes});
      program_.static_shared = AlignTo(program_.static_shared, variable.align) + variable.bytes;
      end += kRedZone;
    }
    end += variable.bytes;
  }
  program_.shared_end = AlignTo(shared, 128);
  for (const Variable& variable : variables) {
    if (variable.space == Space::kShared) {
      places_.emplace(variable.name, program_.shared_end);
      places_[variable.name] += kFirstSharedAddress;
    }
  }
}

absl::StatusOr<Program> Decoder::Run() {
  for (const Statement& statement : kernel_.statements) {
    Instruction in;
    in.statement = &statement;
    if (statement.guard >= 0) {
      in.guard = rows_[static_cast<size_t>(statement.guard)];
      in.guard_negated = statement.guard_negated;
    }
    const auto it = Opcodes().find(statement.words[0]);
    if (it == Opcodes().end()) {
      return absl::UnimplementedError(absl::StrCat("kernel ", kernel_.name, ", PTX line ", statement.line,
                                                   ": the interpreter does not know ", statement.opcode));
    }
    const absl::Status status = it->second(*this, statement, &in);
    if (!status.ok() || !error_.ok()) {
      const absl::Status& first = status.ok() ? error_ : status;
      return absl::Status(first.code(), absl::StrCat("kernel ", kernel_.name, ", ", first.message()));
    }
    program_.code.push_back(in);
  }
  return std::move(program_);
}

void Decoder::Fail(const Statement& statement, absl::string_view what) {
  if (error_.ok()) {
    error_ = absl::UnimplementedError(
        absl::StrCat("PTX line ", statement.line, " ", statement.opcode, ": ", what));
  }
}

uint32_t Decoder::Constant(uint64_t value, uint8_t bytes) {
  if (bytes < 8 && bytes > 0) {
    value &= (uint64_t{1} << (8 * bytes)) - 1;
  }
  const auto [it, is_new] = constants_.try_emplace({value, bytes}, 0);
  if (is_new) {
    it->second = NewRow(bytes);
    program_.constants.push_back({it->second, bytes, value});
  }
  return it->second;
}

uint32_t Decoder::SpecialRegister(const std::string& name) {
  const Special special = Specials().find(name)->second;
  const auto [it, is_new] = specials_.try_emplace(special, 0);
  if (is_new) {
    it->second = NewRow(4);
    program_.specials.push_back({it->second, special});
  }
  return it->second;
}

bool Decoder::Symbol(const std::string& name, uint64_t* value) const {
  if (const auto place = places_.find(name); place != places_.end()) {
    *value = place->second;
    return true;
  }
  if (const auto symbol = symbols_.find(name); symbol != symbols_.end()) {
    *value = symbol->second;
    return true;
  }
  return false;
}

uint32_t Decoder::Read(const Statement& statement, size_t i, Type type) {
  if (i >= statement.operands.size()) {
    Fail(statement, absl::StrCat("has no operand ", i));
    return kNoRow;
  }
  return Read(statement, statement.operands[i], type);
}

uint32_t Decoder::Read(const Statement& statement, const Operand& operand, Type type) {
  const uint8_t bytes = std::max<uint8_t>(BytesOf(type), type == Type::kPred ? 0 : 2);
  if (operand.kind == Operand::Kind::kImmediate) {
    const absl::StatusOr<uint64_t> value = ParseLiteral(operand.text);
    if (!value.ok()) {
      Fail(statement, value.status().message());
      return kNoRow;
    }
    return Constant(*value, bytes);
  }
  if (operand.kind == Operand::Kind::kSymbol) {
    if (Specials().contains(operand.text)) {
      if (bytes != 4) {
        Fail(statement, absl::StrCat(operand.text, " has 4 bytes, not ", bytes));
      }
      return SpecialRegister(operand.text);
    }
    if (operand.text == "WARP_SZ") {
      return Constant(kWarpLanes, bytes);
    }
    uint64_t value = 0;
    if (!Symbol(operand.text, &value)) {
      Fail(statement, absl::StrCat("unknown name ", operand.text));
      return kNoRow;
    }
    return Constant(value + static_cast<uint64_t>(operand.offset), bytes);
  }
  return Write(statement, operand, type);
}

uint32_t Decoder::Write(const Statement& statement, const Operand& operand, Type type) {
  if (operand.kind != Operand::Kind::kRegister) {
    Fail(statement, absl::StrCat("register expected, found \"", operand.text, "\""));
    return kNoRow;
  }
  const Register& reg = kernel_.registers[static_cast<size_t>(operand.reg)];
  const uint32_t bytes = std::max<uint32_t>(BytesOf(type), type == Type::kPred ? 0 : 2);
  if (reg.bytes != bytes) {
    Fail(statement, absl::StrCat(reg.name, " has ", reg.bytes, " bytes, not ", bytes));
  }
  return rows_[static_cast<size_t>(operand.reg)];
}

void Decoder::ReadAll(const Statement& statement, Type type, Instruction* in) {
  uint32_t* const rows[] = {&in->d, &in->a, &in->b, &in->c};
  for (size_t i = 0; i < std::min<size_t>(statement.operands.size(), 4); ++i) {
    *rows[i] = i == 0 ? Write(statement, statement.operands[0], type) : Read(statement, i, type);
  }
}

uint32_t Decoder::AnyRegister(const Statement& statement, const Operand& operand, uint8_t* bytes) {
  if (operand.kind == Operand::Kind::kSink) {
    return kNoRow;
  }
  if (operand.kind != Operand::Kind::kRegister) {
    Fail(statement, absl::StrCat("register expected, found \"", operand.text, "\""));
    return kNoRow;
  }
  *bytes = static_cast<uint8_t>(kernel_.registers[static_cast<size_t>(operand.reg)].bytes);
  return rows_[static_cast<size_t>(operand.reg)];
}

void Decoder::Address(const Statement& statement, const Operand& operand, Instruction* in,
                      uint8_t* row_bytes) {
  if (operand.kind != Operand::Kind::kAddress) {
    Fail(statement, "address expected");
    return;
  }
  in->offset = operand.offset;
  if (operand.reg >= 0) {
    *row_bytes = static_cast<uint8_t>(kernel_.registers[static_cast<size_t>(operand.reg)].bytes);
    in->a = rows_[static_cast<size_t>(operand.reg)];
    return;
  }
  uint64_t value = 0;
  if (!Symbol(operand.text, &value)) {
    Fail(statement, absl::StrCat("unknown name ", operand.text));
  }
  *row_bytes = 8;
  in->offset += static_cast<int64_t>(value);
  in->a = Constant(0, 8);
}

uint32_t Decoder::Label(const Statement& statement, const Operand& operand) {
  const auto it = kernel_.labels.find(operand.text);
  if (it == kernel_.labels.end()) {
    Fail(statement, absl::StrCat("unknown label ", operand.text));
    return 0;
  }
  return it->second;
}

}  // namespace sluice::cuda_fake
