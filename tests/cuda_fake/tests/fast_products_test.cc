// Products by cuBLASLt, on the fake of it: within the stated tolerance of the reference, rows that do not
// depend on others, and every reason why the library is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "pack/row_layout.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;

const BackendCase kReference{"reference", true};

// Limits of a backend whose only dense matrix is this one.
BackendLimits FastLimits(const EncodedMatrix& w, PrefillMath math = PrefillMath::kFast) {
  BackendLimits limits = TestLimits();
  limits.max_tokens = 600;
  limits.prefill_math = math;
  limits.dense_shapes = {{w.encoding, w.rows, w.cols}};
  return limits;
}

class FastProductsTest : public testing::TestWithParam<BackendCase> {
 protected:
  FastProductsTest() { setenv("SLUICE_CUBLASLT", SLUICE_FAKE_CUBLASLT_PATH, 1); }
  ~FastProductsTest() override {
    unsetenv("SLUICE_CUBLASLT");
    unsetenv("SLUICE_FAKE_CUBLASLT");
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, FastProductsTest, testing::ValuesIn(AllBackends()), CaseName);

// Weights in the device's own memory, as engines have them.
WeightView PutOnDevice(OpBench& bench, const EncodedMatrix& w) {
  const absl::StatusOr<BufferId> buffer = bench.backend().Allocate(w.bytes.size(), BufferKind::kActivations);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_TRUE(bench.queue().Upload(w.bytes.data(), w.bytes.size(), {*buffer, 0}).ok());
  WeightView view = bench.PutMatrix(w);
  view.base = {*buffer, 0};
  return view;
}

struct Extras {
  bool norm = false;
  bool bias = false;
  bool residual = false;
  float scale = 1;
};

std::vector<float> Multiply(OpBench& bench, const EncodedMatrix& w, const std::vector<float>& x,
                            uint32_t tokens, const Extras& extras = {}) {
  Random random(7);
  const std::vector<float> norm = random.Normals(w.cols);
  const std::vector<float> bias = random.Normals(w.rows);
  const std::vector<float> residual = random.Normals(uint64_t{tokens} * w.rows);
  MatMulArgs args;
  args.x = bench.PutRows(x, w.cols);
  args.tokens = tokens;
  args.cols = w.cols;
  MatMulPart part{PutOnDevice(bench, w), bench.NewRows(tokens, w.rows, w.rows + 3), {}};
  part.scale = extras.scale;
  if (extras.norm) {
    args.norm.weight = bench.PutFloats(norm);
    args.norm.epsilon = 1e-6f;
  }
  if (extras.bias) {
    part.bias = bench.PutFloats(bias);
  }
  if (extras.residual) {
    args.residual = bench.PutRows(residual, w.rows);
  }
  args.parts = {&part, 1};
  const absl::Status status = bench.queue().MatMul(args);
  EXPECT_TRUE(status.ok()) << status;
  return bench.GetRows(part.y, tokens, w.rows);
}

// The tolerance of docs/gpu.md: 2^-10 of the sum of the terms' sizes, 2^-8 where weights are bf16, whose
// activations are too; one part in eight more for the rounding of activations that both have.
double Tolerance(const EncodedMatrix& w, uint32_t row, const float* x) {
  double size = 0;
  for (uint32_t k = 0; k < w.cols; ++k) {
    size += std::abs(w.At(row, k) * x[k]);
  }
  return 1.125 * (w.encoding.encoding == Encoding::kBf16 ? 0x1p-8 : 0x1p-10) * size + 1e-6;
}

void ExpectClose(const EncodedMatrix& w, const std::vector<float>& x, const std::vector<float>& y,
                 const std::vector<float>& expected, uint32_t tokens) {
  ASSERT_EQ(y.size(), expected.size());
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t r = 0; r < w.rows; ++r) {
      ASSERT_NEAR(y[uint64_t{t} * w.rows + r], expected[uint64_t{t} * w.rows + r],
                  Tolerance(w, r, &x[uint64_t{t} * w.cols]))
          << "token " << t << ", row " << r;
    }
  }
}

TEST_P(FastProductsTest, EveryEncodingIsWithinTheTolerance) {
  constexpr struct {
    uint32_t tokens, rows, cols;
  } kShapes[] = {{64, 37, 96}, {65, 8, 130}, {130, 21, 64}, {67, 3, 17}};
  Random random(1);
  uint32_t number = 0;
  for (const EncodingDescriptor& d : AllEncodings()) {
    if (d.encoding == Encoding::kF32) {
      continue;
    }
    const auto& shape = kShapes[number++ % std::size(kShapes)];
    SCOPED_TRACE(testing::Message() << EncodingLabel(d) << " tokens " << shape.tokens << " rows "
                                    << shape.rows << " cols " << shape.cols);
    const EncodedMatrix w = random.Matrix(d, shape.rows, shape.cols, 2 * random.Below(9));
    const std::vector<float> x = random.Normals(uint64_t{shape.tokens} * shape.cols);
    OpBench bench(GetParam(), FastLimits(w));
    OpBench oracle(kReference, FastLimits(w));
    const uint64_t before = cuda_fake::CountersOfFake().library_calls;
    const std::vector<float> y = Multiply(bench, w, x, shape.tokens);
    EXPECT_EQ(cuda_fake::CountersOfFake().library_calls, before + 1);
    const std::vector<float> expected = Multiply(oracle, w, x, shape.tokens);
    ExpectClose(w, x, y, expected, shape.tokens);
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      difference += std::pow(double{y[i]} - expected[i], 2);
      size += std::pow(double{expected[i]}, 2);
    }
    // Roundings of both factors are at random: far below the tolerance of a single result.
    EXPECT_LT(std::sqrt(difference / size), d.encoding == Encoding::kBf16 ? 0x1p-9 : 0x1p-11);
  }
}

TEST_P(FastProductsTest, NormBiasScaleAndResidualAreApplied) {
  Random random(2);
  for (const Encoding encoding : {Encoding::kBf16, Encoding::kF16, Encoding::kQ8}) {
    SCOPED_TRACE(static_cast<int>(encoding));
    const EncodedMatrix w = random.Matrix(MakeDescriptor(encoding), 40, 128);
    const std::vector<float> x = random.Normals(70 * 128);
    OpBench bench(GetParam(), FastLimits(w));
    OpBench oracle(kReference, FastLimits(w));
    const Extras extras = {.norm = true, .bias = true, .residual = true, .scale = 0.5f};
    const std::vector<float> y = Multiply(bench, w, x, 70, extras);
    const std::vector<float> expected = Multiply(oracle, w, x, 70, extras);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i], 0.05) << i;
    }
  }
}

// Rows of any size, of zeros too, and weights of any: a power of two goes with each.
TEST_P(FastProductsTest, SizesOfRowsDoNotMatter) {
  Random random(3);
  EncodedMatrix w = random.Matrix(MakeDescriptor(Encoding::kQ8), 9, 64);
  std::vector<float> x = random.Normals(64 * 64);
  for (uint32_t t = 0; t < 64; ++t) {
    const float size = t == 5 ? 0.0f : std::ldexp(1.0f, static_cast<int>(t) * 3 - 96);
    for (uint32_t k = 0; k < 64; ++k) {
      x[t * 64 + k] *= size;
    }
  }
  OpBench bench(GetParam(), FastLimits(w));
  OpBench oracle(kReference, FastLimits(w));
  const std::vector<float> y = Multiply(bench, w, x, 64);
  const std::vector<float> expected = Multiply(oracle, w, x, 64);
  for (uint32_t t = 0; t < 64; ++t) {
    for (uint32_t r = 0; r < 9; ++r) {
      double size = 0;
      for (uint32_t k = 0; k < 64; ++k) {
        size += std::abs(w.At(r, k) * x[t * 64 + k]);
      }
      ASSERT_NEAR(y[t * 9 + r], expected[t * 9 + r], 0x1.2p-10 * size) << "token " << t << ", row " << r;
    }
  }
}

TEST_P(FastProductsTest, RowsDoNotDependOnEachOther) {
  Random random(4);
  for (const Encoding encoding : {Encoding::kBf16, Encoding::kQ4}) {
    const EncodedMatrix w = random.Matrix(MakeDescriptor(encoding), 24, 96);
    const std::vector<float> x = random.Normals(530 * 96);
    OpBench bench(GetParam(), FastLimits(w));
    const std::vector<float> all = Multiply(bench, w, x, 530);
    for (const uint32_t first : {0u, 1u, 449u, 466u}) {
      const uint32_t count = first == 449 ? 81 : 64;
      const std::vector<float> some(x.begin() + first * 96, x.begin() + (first + count) * 96);
      const std::vector<float> y = Multiply(bench, w, some, count);
      EXPECT_TRUE(BitEqual(y, {all.begin() + first * 24, all.begin() + (first + count) * 24})) << first;
    }
  }
}

TEST_P(FastProductsTest, LongMatricesAreMultipliedTileByTile) {
  Random random(5);
  const EncodedMatrix w = random.Matrix(MakeDescriptor(Encoding::kQ4, 16), 8192 + 13, 16);
  const std::vector<float> x = random.Normals(64 * 16);
  OpBench bench(GetParam(), FastLimits(w));
  OpBench oracle(kReference, FastLimits(w));
  const std::vector<float> y = Multiply(bench, w, x, 64, {.bias = true});
  EXPECT_EQ(bench.backend().Counters().library_products, 2 * 8u + 2u) << "two tiles, and their tests";
  const std::vector<float> expected = Multiply(oracle, w, x, 64, {.bias = true});
  ExpectClose(w, x, y, expected, 64);
}

TEST_P(FastProductsTest, FewRowsAndOtherShapesStayExact) {
  Random random(6);
  const EncodedMatrix w = random.Matrix(MakeDescriptor(Encoding::kBf16), 40, 64);
  const EncodedMatrix router = random.Matrix(MakeDescriptor(Encoding::kBf16), 41, 64);
  const std::vector<float> x = random.Normals(80 * 64);
  OpBench bench(GetParam(), FastLimits(w));
  OpBench oracle(kReference, FastLimits(w));
  const std::vector<float> few(x.begin(), x.begin() + 63 * 64);
  EXPECT_TRUE(BitEqual(Multiply(bench, w, few, 63), Multiply(oracle, w, few, 63)));
  EXPECT_TRUE(BitEqual(Multiply(bench, router, x, 80), Multiply(oracle, router, x, 80)));
}

// Why a backend with this arithmetic is refused; empty if it is not.
std::string Refused(const EncodedMatrix& w, PrefillMath math, std::string* description) {
  const auto backend = CreateCudaBackend(FastLimits(w, math));
  if (backend.ok()) {
    *description = (*backend)->Describe();
    return "";
  }
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition) << backend.status();
  return std::string(backend.status().message());
}

class FastRefusalTest : public testing::Test {
 protected:
  FastRefusalTest() {
    cuda_fake::ResetFake({.seed = 2});
    setenv("SLUICE_CUBLASLT", SLUICE_FAKE_CUBLASLT_PATH, 1);
  }
  ~FastRefusalTest() override {
    unsetenv("SLUICE_CUBLASLT");
    unsetenv("SLUICE_FAKE_CUBLASLT");
    EXPECT_TRUE(cuda_fake::TakeReports().empty());
  }
  // `fast` is refused for this reason, `auto` is exact for it.
  void ExpectRefused(const std::string& why) {
    std::string description;
    EXPECT_THAT(Refused(w_, PrefillMath::kFast, &description), HasSubstr(why));
    EXPECT_EQ(Refused(w_, PrefillMath::kAuto, &description), "");
    EXPECT_THAT(description, HasSubstr("prefill math exact (auto: "));
    EXPECT_THAT(description, HasSubstr(why));
    EXPECT_EQ(Refused(w_, PrefillMath::kExact, &description), "");
    EXPECT_THAT(description, HasSubstr(", prefill math exact"));
  }
  Random random_{1};
  EncodedMatrix w_ = random_.Matrix(MakeDescriptor(Encoding::kBf16), 24, 72);
};

TEST_F(FastRefusalTest, ASoundLibraryIsNamed) {
  for (const PrefillMath math : {PrefillMath::kFast, PrefillMath::kAuto}) {
    std::string description;
    EXPECT_EQ(Refused(w_, math, &description), "");
    EXPECT_THAT(description, HasSubstr("prefill math fast (cuBLASLt 13.0.2, 2 products proven)"));
  }
}

TEST_F(FastRefusalTest, AMissingLibraryIsNamed) {
  setenv("SLUICE_CUBLASLT", "/nowhere/libcublasLt.so.13", 1);
  ExpectRefused("cuBLASLt is missing (/nowhere/libcublasLt.so.13");
  ExpectRefused("install_deps.sh --cublas");
}

TEST_F(FastRefusalTest, AnotherLibraryLacksASymbol) {
  setenv("SLUICE_CUBLASLT", "libm.so.6", 1);
  ExpectRefused("cuBLASLt lacks the symbol cublasLtGetVersion");
}

TEST_F(FastRefusalTest, DefectsOfTheLibraryAreFound) {
  const std::vector<std::pair<std::string, std::string>> defects = {
      {"rows", "a row's bits depend on the rows beside it"},
      {"neighbours", "a row's bits depend on the rows beside it"},
      {"values", "it must be"},
      {"workspace", "without workspace"},
      {"none", "an algorithm for [24, 72]"},
      {"old", "of version 12.8, 13 is needed"}};
  for (const auto& [defect, why] : defects) {
    SCOPED_TRACE(defect);
    setenv("SLUICE_FAKE_CUBLASLT", defect.c_str(), 1);
    ExpectRefused(why);
  }
}

}  // namespace
}  // namespace sluice
