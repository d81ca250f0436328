// Floating point: add sub mul div fma min max neg abs sqrt rcp, in f32 and f64, rounded to nearest as on
// every device. Approximate instructions and flushing of denormals are not known: their last bits differ from
// GPU to GPU, and no kernel of the project has them.
#include <cmath>
#include <limits>

#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

struct Add {
  template <typename T>
  static T Do(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <typename T>
  static T Do(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <typename T>
  static T Do(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <typename T>
  static T Do(T a, T b) {
    return a / b;
  }
};
// "If one of the inputs is NaN, the result is the other; +0.0 > -0.0" (PTX ISA, min and max).
struct Min {
  template <typename T>
  static T Do(T a, T b) {
    if (a == b) {
      return std::signbit(a) ? a : b;
    }
    return a < b || std::isnan(b) ? a : b;
  }
};
struct Max {
  template <typename T>
  static T Do(T a, T b) {
    if (a == b) {
      return std::signbit(a) ? b : a;
    }
    return a > b || std::isnan(b) ? a : b;
  }
};
struct Fma {
  template <typename T>
  static T Do(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
struct Neg {
  template <typename T>
  static T Do(T a) {
    return -a;
  }
};
struct Abs {
  template <typename T>
  static T Do(T a) {
    return std::fabs(a);
  }
};
struct Sqrt {
  template <typename T>
  static T Do(T a) {
    return std::sqrt(a);
  }
};
struct Rcp {
  template <typename T>
  static T Do(T a) {
    return 1 / a;
  }
};

template <typename T>
Handler HandlerOf(absl::string_view opcode) {
  static const auto* const handlers = new std::map<absl::string_view, Handler>{
      {"add", Binary<T, T, T, Add>},  {"sub", Binary<T, T, T, Sub>}, {"mul", Binary<T, T, T, Mul>},
      {"div", Binary<T, T, T, Div>},  {"min", Binary<T, T, T, Min>}, {"max", Binary<T, T, T, Max>},
      {"fma", Ternary<T, T, T, Fma>}, {"neg", Unary<T, T, Neg>},     {"abs", Unary<T, T, Abs>},
      {"sqrt", Unary<T, T, Sqrt>},    {"rcp", Unary<T, T, Rcp>}};
  const auto it = handlers->find(opcode);
  return it == handlers->end() ? nullptr : it->second;
}

}  // namespace

absl::Status DecodeFloat(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  const bool rounds =
      s.words[0] != "min" && s.words[0] != "max" && s.words[0] != "neg" && s.words[0] != "abs";
  const bool nearest = s.words.size() == 3 && s.words[1] == "rn" && rounds;
  const bool plain =
      s.words.size() == 2 && (!rounds || s.words[0] == "add" || s.words[0] == "sub" || s.words[0] == "mul");
  if ((!nearest && !plain) || (type != Type::kF32 && type != Type::kF64)) {
    return UnknownForm(s);
  }
  in->run = type == Type::kF32 ? HandlerOf<float>(s.words[0]) : HandlerOf<double>(s.words[0]);
  decoder.ReadAll(s, type, in);
  return in->run != nullptr ? absl::OkStatus() : UnknownForm(s);
}

void AddFloatOpcodes(OpcodeTable* table) {
  (*table)["fma"] = DecodeFloat;
  (*table)["sqrt"] = DecodeFloat;
  (*table)["rcp"] = DecodeFloat;
}

}  // namespace sluice::cuda_fake
