// Every instruction against host arithmetic. A full warp and one of seven lanes: they take different loops.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "common/base/half.h"
#include "tests/cuda_fake/tests/ptx_testing.h"

namespace sluice::cuda_fake {
namespace {

struct Case {
  const char* body;
  int bytes;
  std::function<uint64_t(uint64_t, uint64_t, uint64_t)> expected;
};

// Random bits, and the edges of every width among them.
std::vector<Operands> SomeOperands(size_t lanes, uint64_t seed) {
  constexpr uint64_t kEdges[] = {0,      1,          31,         32,         0x7fff,
                                 0x8000, 0x7fffffff, 0x80000000, 0xffffffff, ~uint64_t{0}};
  std::mt19937_64 random(seed);
  std::vector<Operands> all(lanes);
  for (Operands& operands : all) {
    for (uint64_t& value : operands) {
      value = random() % 3 == 0 ? kEdges[random() % std::size(kEdges)] : random();
    }
  }
  return all;
}

void Check(const std::vector<Case>& cases, const std::function<void(Operands*)>& prepare = nullptr) {
  for (const Case& test : cases) {
    for (const size_t lanes : {size_t{32}, size_t{7}}) {
      std::vector<Operands> operands = SomeOperands(lanes, 17 + lanes);
      for (Operands& one : operands) {
        if (prepare) {
          prepare(&one);
        }
      }
      const std::vector<uint64_t> results = RunInstruction(test.body, test.bytes, operands);
      for (size_t lane = 0; lane < lanes; ++lane) {
        const auto& [a, b, c] = operands[lane];
        uint64_t expected = test.expected(a, b, c);
        expected &= test.bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * test.bytes)) - 1;
        EXPECT_EQ(results[lane], expected) << test.body << " of " << std::hex << a << ", " << b << ", " << c;
      }
    }
  }
}

int32_t S32(uint64_t a) { return static_cast<int32_t>(a); }
uint32_t U32(uint64_t a) { return static_cast<uint32_t>(a); }
int64_t S64(uint64_t a) { return static_cast<int64_t>(a); }
float F32(uint64_t a) { return std::bit_cast<float>(U32(a)); }
uint64_t Bits(float a) { return std::bit_cast<uint32_t>(a); }
uint64_t Bits(double a) { return std::bit_cast<uint64_t>(a); }
double F64(uint64_t a) { return std::bit_cast<double>(a); }

TEST(InstructionTest, IntegerArithmetic) {
  Check({
      {"add.s32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return a + b; }},
      {"add.s64 %x9, %x0, -5;", 8, [](auto a, auto, auto) { return a - 5; }},
      {"sub.u32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return a - b; }},
      {"add.u16 %h9, %h0, %h1;", 2, [](auto a, auto b, auto) { return a + b; }},
      {"mul.lo.s32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return a * b; }},
      {"mul.lo.s64 %x9, %x0, %x1;", 8, [](auto a, auto b, auto) { return a * b; }},
      {"mul.hi.u32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return uint64_t{U32(a)} * U32(b) >> 32; }},
      {"mul.hi.s32 %r9, %r0, %r1;", 4,
       [](auto a, auto b, auto) { return static_cast<uint64_t>(int64_t{S32(a)} * S32(b)) >> 32; }},
      {"mul.wide.s32 %x9, %r0, %r1;", 8,
       [](auto a, auto b, auto) { return static_cast<uint64_t>(int64_t{S32(a)} * S32(b)); }},
      {"mul.wide.u32 %x9, %r0, 12;", 8, [](auto a, auto, auto) { return uint64_t{U32(a)} * 12; }},
      {"mul.wide.u16 %r9, %h0, %h1;", 4, [](auto a, auto b, auto) { return (a & 0xffff) * (b & 0xffff); }},
      {"mad.lo.s32 %r9, %r0, %r1, %r2;", 4, [](auto a, auto b, auto c) { return a * b + c; }},
      {"mad.lo.s64 %x9, %x0, %x1, %x2;", 8, [](auto a, auto b, auto c) { return a * b + c; }},
      {"mad.wide.u32 %x9, %r0, %r1, %x2;", 8,
       [](auto a, auto b, auto c) { return uint64_t{U32(a)} * U32(b) + c; }},
      {"div.u32 %r9, %r0, %r1;", 4,
       [](auto a, auto b, auto) { return U32(b) == 0 ? ~uint64_t{0} : U32(a) / U32(b); }},
      {"rem.u32 %r9, %r0, %r1;", 4,
       [](auto a, auto b, auto) { return U32(b) == 0 ? U32(a) : U32(a) % U32(b); }},
      {"div.s32 %r9, %r0, 7;", 4, [](auto a, auto, auto) { return static_cast<uint64_t>(S32(a) / 7); }},
      {"div.u64 %x9, %x0, 1000;", 8, [](auto a, auto, auto) { return a / 1000; }},
      {"rem.s64 %x9, %x0, 1000;", 8, [](auto a, auto, auto) { return static_cast<uint64_t>(S64(a) % 1000); }},
      {"min.s32 %r9, %r0, %r1;", 4,
       [](auto a, auto b, auto) { return static_cast<uint64_t>(std::min(S32(a), S32(b))); }},
      {"max.s32 %r9, %r0, %r1;", 4,
       [](auto a, auto b, auto) { return static_cast<uint64_t>(std::max(S32(a), S32(b))); }},
      {"min.u32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return std::min(U32(a), U32(b)); }},
      {"max.u64 %x9, %x0, %x1;", 8, [](auto a, auto b, auto) { return std::max(a, b); }},
      {"neg.s32 %r9, %r0;", 4, [](auto a, auto, auto) { return 0 - a; }},
      {"abs.s32 %r9, %r0;", 4, [](auto a, auto, auto) { return S32(a) < 0 ? 0 - a : a; }},
      {"abs.s64 %x9, %x0;", 8, [](auto a, auto, auto) { return S64(a) < 0 ? 0 - a : a; }},
  });
}

uint64_t Dp4a(uint64_t a, uint64_t b, uint64_t c) {
  uint32_t sum = U32(c);
  for (int i = 0; i < 32; i += 8) {
    sum += static_cast<uint32_t>(static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i));
  }
  return sum;
}

TEST(InstructionTest, DotProducts) {
  Check({
      {"dp4a.s32.s32 %r9, %r0, %r1, %r2;", 4, Dp4a},
      {"dp2a.lo.s32.s32 %r9, %r0, %r1, %r2;", 4,
       [](auto a, auto b, auto c) {
         return U32(c) + U32(static_cast<uint64_t>(int16_t(a) * int8_t(b))) +
                U32(static_cast<uint64_t>(int16_t(a >> 16) * int8_t(b >> 8)));
       }},
      {"dp2a.hi.s32.u32 %r9, %r0, %r1, %r2;", 4,
       [](auto a, auto b, auto c) {
         return U32(c) + U32(static_cast<uint64_t>(int16_t(a) * uint8_t(b >> 16))) +
                U32(static_cast<uint64_t>(int16_t(a >> 16) * uint8_t(b >> 24)));
       }},
  });
}

TEST(InstructionTest, Bits) {
  Check({
      {"and.b32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return a & b; }},
      {"or.b64 %x9, %x0, %x1;", 8, [](auto a, auto b, auto) { return a | b; }},
      {"xor.b32 %r9, %r0, -1;", 4, [](auto a, auto, auto) { return ~a; }},
      {"not.b64 %x9, %x0;", 8, [](auto a, auto, auto) { return ~a; }},
      {"and.b16 %h9, %h0, 255;", 2, [](auto a, auto, auto) { return a & 255; }},
      {"shl.b32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return U32(b) > 31 ? 0 : a << U32(b); }},
      {"shr.u32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return U32(b) > 31 ? 0 : U32(a) >> U32(b); }},
      {"shr.s32 %r9, %r0, %r1;", 4,
       [](auto a, auto b, auto) { return static_cast<uint64_t>(S32(a) >> std::min(U32(b), 31u)); }},
      {"shr.u64 %x9, %x0, 5;", 8, [](auto a, auto, auto) { return a >> 5; }},
      {"shl.b64 %x9, %x0, 33;", 8, [](auto a, auto, auto) { return a << 33; }},
      {"popc.b32 %r9, %r0;", 4, [](auto a, auto, auto) { return std::popcount(U32(a)); }},
      {"clz.b32 %r9, %r0;", 4, [](auto a, auto, auto) { return std::countl_zero(U32(a)); }},
      {"clz.b64 %r9, %x0;", 4, [](auto a, auto, auto) { return std::countl_zero(a); }},
      {"brev.b32 %r9, %r0;\nbrev.b32 %r9, %r9;", 4, [](auto a, auto, auto) { return a; }},
      {"bfind.u32 %r9, %r0;", 4, [](auto a, auto, auto) { return 31 - std::countl_zero(U32(a)); }},
      {"bfind.shiftamt.u32 %r9, %r0;", 4,
       [](auto a, auto, auto) { return U32(a) == 0 ? ~uint64_t{0} : std::countl_zero(U32(a)); }},
      {"bfe.u32 %r9, %r0, 5, 9;", 4, [](auto a, auto, auto) { return U32(a) >> 5 & 511; }},
      {"bfe.s32 %r9, %r0, 5, 9;", 4,
       [](auto a, auto, auto) { return static_cast<uint64_t>(S32(U32(a) << 18) >> 23); }},
      {"bfi.b32 %r9, %r0, %r1, 4, 9;", 4,
       [](auto a, auto b, auto) { return (b & ~(uint64_t{511} << 4)) | (a & 511) << 4; }},
      {"bfi.b64 %x9, %x0, %x1, 20, 33;", 8,
       [](auto a, auto b, auto) {
         const uint64_t ones = (uint64_t{1} << 33) - 1;
         return (b & ~(ones << 20)) | (a & ones) << 20;
       }},
      {"prmt.b32 %r9, %r0, %r1, 0x5410;", 4, [](auto a, auto b, auto) { return (a & 0xffff) | b << 16; }},
      {"prmt.b32 %r9, %r0, %r1, 0x7654;", 4, [](auto, auto b, auto) { return b; }},
      {"shf.r.wrap.b32 %r9, %r0, %r1, 7;", 4,
       [](auto a, auto b, auto) { return (U32(b) * (uint64_t{1} << 32) | U32(a)) >> 7; }},
      {"shf.l.wrap.b32 %r9, %r0, %r1, 7;", 4,
       [](auto a, auto b, auto) { return U32(b) << 7 | U32(a) >> 25; }},
      {"lop3.b32 %r9, %r0, %r1, %r2, 0xe8;", 4,
       [](auto a, auto b, auto c) { return (a & b) | (a & c) | (b & c); }},
      {"lop3.b32 %r9, %r0, %r1, %r2, 0x6a;", 4, [](auto a, auto b, auto c) { return (a & b) ^ c; }},
  });
}

TEST(InstructionTest, MovesAndChoices) {
  Check({
      {"mov.b64 %x9, {%r0, %r1};", 8, [](auto a, auto b, auto) { return U32(a) | b << 32; }},
      {"mov.b64 {%r8, %r9}, %x0;", 4, [](auto a, auto, auto) { return a >> 32; }},
      {"mov.b32 %r9, {%h0, %h1};", 4, [](auto a, auto b, auto) { return (a & 0xffff) | b << 16; }},
      {"mov.b32 {%h9, %h8}, %r0;", 2, [](auto a, auto, auto) { return a; }},
      {"mov.u32 %r9, 0f3F800000;", 4, [](auto, auto, auto) { return Bits(1.0f); }},
      {"{\n.reg .b32 %r9, t;\nmov.b32 t, 3;\nmov.b32 %r9, t;\n}\nmov.b32 %r9, 4;", 4,
       [](auto, auto, auto) { return 4; }},
      {"setp.lt.s32 %p0, %r0, %r1;\nselp.b32 %r9, %r0, %r2, %p0;", 4,
       [](auto a, auto b, auto c) { return S32(a) < S32(b) ? a : c; }},
      {"setp.hi.u32 %p0, %r0, %r1;\nselp.b64 %x9, 1, 2, %p0;", 8,
       [](auto a, auto b, auto) { return U32(a) > U32(b) ? 1 : 2; }},
      {"setp.gt.u32 %p1, %r0, %r2;\nsetp.lt.and.u32 %p0, %r0, %r1, !%p1;\nselp.b32 %r9, 1, 0, %p0;", 4,
       [](auto a, auto b, auto c) { return U32(a) < U32(b) && U32(a) <= U32(c); }},
      {"setp.eq.u32 %p0|%p1, %r0, %r1;\nselp.b32 %r9, 1, 0, %p1;", 4,
       [](auto a, auto b, auto) { return U32(a) != U32(b); }},
      {"setp.ne.s64 %p0, %x0, %x1;\nnot.pred %p0, %p0;\nselp.b32 %r9, 1, 0, %p0;", 4,
       [](auto a, auto b, auto) { return a == b; }},
      {"setp.lt.u32 %p0, %r0, %r1;\nsetp.lt.u32 %p1, %r0, %r2;\nxor.pred %p2, %p0, %p1;\nselp.b32 %r9, 1, 0, "
       "%p2;",
       4, [](auto a, auto b, auto c) { return (U32(a) < U32(b)) != (U32(a) < U32(c)); }},
      {"mov.b32 %r9, 1;\nsetp.lt.u32 %p0, %r0, %r1;\n@%p0 mov.b32 %r9, 2;\n@!%p0 add.u32 %r9, %r9, 2;", 4,
       [](auto a, auto b, auto) { return U32(a) < U32(b) ? 2 : 3; }},
  });
}

TEST(InstructionTest, IntegerConversions) {
  Check({
      {"cvt.s64.s32 %x9, %r0;", 8, [](auto a, auto, auto) { return static_cast<uint64_t>(int64_t{S32(a)}); }},
      {"cvt.u64.u32 %x9, %r0;", 8, [](auto a, auto, auto) { return U32(a); }},
      {"cvt.u32.u64 %r9, %x0;", 4, [](auto a, auto, auto) { return a; }},
      {"cvt.s32.s16 %r9, %h0;", 4,
       [](auto a, auto, auto) { return static_cast<uint64_t>(static_cast<int16_t>(a)); }},
      {"cvt.s32.s8 %r9, %r0;", 4,
       [](auto a, auto, auto) { return static_cast<uint64_t>(static_cast<int8_t>(a)); }},
      {"cvt.u16.u32 %h9, %r0;", 2, [](auto a, auto, auto) { return a; }},
      {"cvt.rn.f32.s32 %r9, %r0;", 4, [](auto a, auto, auto) { return Bits(static_cast<float>(S32(a))); }},
      {"cvt.rn.f32.u32 %r9, %r0;", 4, [](auto a, auto, auto) { return Bits(static_cast<float>(U32(a))); }},
      {"cvt.rn.f64.s64 %x9, %x0;", 8, [](auto a, auto, auto) { return Bits(static_cast<double>(S64(a))); }},
      {"cvt.f32.f16 %r9, %h0;\nabs.f32 %r9, %r9;\nsetp.nan.f32 %p0, %r9, %r9;\nselp.b32 %r9, 1, %r9, %p0;", 4,
       [](auto a, auto, auto) {
         const float value = std::fabs(F16ToFloat(static_cast<uint16_t>(a)));
         return std::isnan(value) ? 1 : Bits(value);
       }},
  });
}

// Finite floats of all sizes in 32 and in 64 bits, some equal, some NaN where `nan` says so.
void MakeFloats(Operands* operands, bool single, bool nan) {
  for (uint64_t& value : *operands) {
    if (single) {
      value = std::isfinite(F32(value)) ? U32(value) : Bits(-1.5f);
    } else {
      value = std::isfinite(F64(value)) ? value : Bits(-1.5);
    }
  }
  const uint64_t choice = (*operands)[0] % 5;
  if (nan && choice < 2) {
    (*operands)[choice] = single ? Bits(NAN) : Bits(std::nan(""));
  } else if (choice == 2) {
    (*operands)[1] = (*operands)[0];
  }
}

TEST(InstructionTest, SinglePrecision) {
  Check(
      {
          {"add.f32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return Bits(F32(a) + F32(b)); }},
          {"sub.rn.f32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return Bits(F32(a) - F32(b)); }},
          {"mul.rn.f32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return Bits(F32(a) * F32(b)); }},
          {"fma.rn.f32 %r9, %r0, 0f3F000000, %r2;", 4,
           [](auto a, auto, auto c) { return Bits(std::fma(F32(a), 0.5f, F32(c))); }},
          {"neg.f32 %r9, %r0;", 4, [](auto a, auto, auto) { return Bits(-F32(a)); }},
          {"abs.f32 %r9, %r0;", 4, [](auto a, auto, auto) { return Bits(std::fabs(F32(a))); }},
          {"abs.f32 %r8, %r0;\nsqrt.rn.f32 %r9, %r8;", 4,
           [](auto a, auto, auto) { return Bits(std::sqrt(std::fabs(F32(a)))); }},
          {"rcp.rn.f32 %r9, %r0;", 4, [](auto a, auto, auto) { return Bits(1.0f / F32(a)); }},
          {"cvt.rni.f32.f32 %r9, %r0;", 4, [](auto a, auto, auto) { return Bits(std::nearbyint(F32(a))); }},
          {"cvt.rmi.f32.f32 %r9, %r0;", 4, [](auto a, auto, auto) { return Bits(std::floor(F32(a))); }},
          {"cvt.f64.f32 %x9, %r0;", 8, [](auto a, auto, auto) { return Bits(static_cast<double>(F32(a))); }},
          {"cvt.rn.f16.f32 %h9, %r0;", 2, [](auto a, auto, auto) { return FloatToF16(F32(a)); }},
      },
      [](Operands* operands) { MakeFloats(operands, true, false); });
}

TEST(InstructionTest, ComparisonsWithNaN) {
  const auto nan = [](auto a, auto b) { return std::isnan(F32(a)) || std::isnan(F32(b)); };
  Check(
      {
          {"setp.lt.f32 %p0, %r0, %r1;\nselp.b32 %r9, 1, 0, %p0;", 4,
           [](auto a, auto b, auto) { return F32(a) < F32(b); }},
          {"setp.ne.f32 %p0, %r0, %r1;\nselp.b32 %r9, 1, 0, %p0;", 4,
           [=](auto a, auto b, auto) { return !nan(a, b) && F32(a) != F32(b); }},
          {"setp.neu.f32 %p0, %r0, %r1;\nselp.b32 %r9, 1, 0, %p0;", 4,
           [](auto a, auto b, auto) { return F32(a) != F32(b); }},
          {"setp.equ.f32 %p0, %r0, %r1;\nselp.b32 %r9, 1, 0, %p0;", 4,
           [=](auto a, auto b, auto) { return nan(a, b) || F32(a) == F32(b); }},
          {"setp.geu.f32 %p0, %r0, %r1;\nselp.b32 %r9, 1, 0, %p0;", 4,
           [](auto a, auto b, auto) { return !(F32(a) < F32(b)); }},
          {"setp.num.f32 %p0, %r0, %r1;\nselp.b32 %r9, 1, 0, %p0;", 4,
           [=](auto a, auto b, auto) { return !nan(a, b); }},
          {"max.f32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return Bits(std::fmax(F32(a), F32(b))); }},
          {"min.f32 %r9, %r0, %r1;", 4, [](auto a, auto b, auto) { return Bits(std::fmin(F32(a), F32(b))); }},
      },
      [](Operands* operands) { MakeFloats(operands, true, true); });
}

uint64_t Saturated(uint64_t a) {
  const double rounded = std::nearbyint(static_cast<double>(F32(a)));
  return std::isnan(F32(a)) ? 0
                            : static_cast<uint64_t>(static_cast<int64_t>(
                                  std::min(std::max(rounded, -2147483648.0), 2147483647.0)));
}

TEST(InstructionTest, FloatsToIntegersSaturate) {
  const auto floats = [](Operands* operands) { MakeFloats(operands, true, true); };
  Check({{"cvt.rni.s32.f32 %r9, %r0;", 4, [](auto a, auto, auto) { return Saturated(a); }},
         {"cvt.rzi.u32.f32 %r9, %r0;", 4,
          [](auto a, auto, auto) {
            const double value = std::trunc(static_cast<double>(F32(a)));
            return !(value > 0) ? 0 : value > 4294967295.0 ? 4294967295u : static_cast<uint64_t>(value);
          }}},
        floats);
  // Ties go to even.
  const std::vector<uint64_t> ties =
      RunInstruction("cvt.rni.s32.f32 %r9, %r0;", 4, {{Bits(0.5f)}, {Bits(1.5f)}, {Bits(-2.5f)}});
  EXPECT_EQ(ties, (std::vector<uint64_t>{0, 2, U32(-2)}));
}

TEST(InstructionTest, DoublePrecision) {
  Check(
      {
          {"add.f64 %x9, %x0, %x1;", 8, [](auto a, auto b, auto) { return Bits(F64(a) + F64(b)); }},
          {"mul.rn.f64 %x9, %x0, %x1;", 8, [](auto a, auto b, auto) { return Bits(F64(a) * F64(b)); }},
          {"fma.rn.f64 %x9, %x0, 0d3FE0000000000000, %x2;", 8,
           [](auto a, auto, auto c) { return Bits(std::fma(F64(a), 0.5, F64(c))); }},
          {"div.rn.f64 %x9, %x0, 0d4008000000000000;", 8,
           [](auto a, auto, auto) { return Bits(F64(a) / 3.0); }},
          {"cvt.rn.f32.f64 %r9, %x0;", 4,
           [](auto a, auto, auto) { return Bits(static_cast<float>(F64(a))); }},
      },
      [](Operands* operands) { MakeFloats(operands, false, false); });
}

TEST(InstructionTest, WhatIsNotKnownStopsWithItsLine) {
  std::vector<uint32_t> data(4);
  EXPECT_NE(RunPtx("ex2.approx.ftz.f32 %r0, %r1;", {}, &data).error.find("ex2.approx.ftz.f32"),
            std::string::npos);
  const std::string rounding = RunPtx("add.rz.f32 %r0, %r1, %r2;", {}, &data).error;
  EXPECT_NE(rounding.find("PTX line 11: the interpreter does not know this form of add.rz.f32"),
            std::string::npos)
      << rounding;
  EXPECT_NE(RunPtx("add.s32 %r0, %x1, %r2;", {}, &data).error.find("8 bytes"), std::string::npos);
  EXPECT_NE(RunPtx("mov.u32 %r0, nobody;", {}, &data).error.find("nobody"), std::string::npos);
}

}  // namespace
}  // namespace sluice::cuda_fake
