// The project's CUDA kernels, as nvcc has compiled them, against the reference backend's arithmetic: to the
// bit, on every PTX in the objects, over seeds, with no report of a check.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/scalar.h"
#include "pack/row_layout.h"
#include "tests/cuda_fake/device/modules.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/cuda_fake/ptx/parser.h"
#include "tests/cuda_fake/tests/kernels_testing.h"

namespace sluice::cuda_fake {
namespace {

struct Device {
  int capability;
  uint64_t seed;
};
constexpr Device kDevices[] = {{75, 0}, {80, 1}, {100, 2}, {80, 3}};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> ReferenceNorm(const std::vector<float>& x, const std::vector<float>& weight, uint32_t rows,
                                 float epsilon) {
  const uint64_t cols = x.size() / rows;
  CallNorm norm;
  norm.weight = weight.empty() ? nullptr : weight.data();
  norm.epsilon = epsilon;
  std::vector<float> y(x.size());
  for (uint32_t r = 0; r < rows; ++r) {
    reference::NormRow(norm, &x[r * cols], cols, &y[r * cols]);
  }
  return y;
}

TEST(CudaKernelTest, RmsNormIsTheReferencesToTheBit) {
  for (const Device& run : kDevices) {
    for (const auto& [rows, cols] : {std::pair{1u, 4u}, {1u, 36u}, {3u, 132u}, {2u, 1024u}, {1u, 2052u}}) {
      for (const bool weighted : {false, true}) {
        ResetFake({.seed = run.seed, .capability = run.capability});
        const std::vector<float> x = RandomFloats(rows * cols, cols);
        const std::vector<float> weight = weighted ? RandomFloats(cols, 5) : std::vector<float>();
        EXPECT_TRUE(SameBits(RunRmsNorm({}, x, weight, rows, 1e-5f), ReferenceNorm(x, weight, rows, 1e-5f)))
            << rows << " x " << cols << ", capability " << run.capability;
        EXPECT_TRUE(TakeReports().empty());
      }
    }
  }
}

TEST(CudaKernelTest, GemvQ4IsTheReferencesToTheBit) {
  const EncodingDescriptor d = MakeDescriptor(Encoding::kQ4);
  for (const Device& run : kDevices) {
    for (const auto& [rows, cols] :
         {std::pair{1u, 1u}, {5u, 64u}, {3u, 100u}, {9u, 512u}, {6u, 1030u}, {4u, 2112u}}) {
      ResetFake({.seed = run.seed, .capability = run.capability});
      uint64_t stride = 0;
      const std::vector<uint8_t> weights = RandomQ4Rows(rows, cols, &stride, cols);
      const std::vector<float> x = RandomFloats(cols, rows);
      std::vector<float> expected(rows);
      for (uint32_t r = 0; r < rows; ++r) {
        expected[r] = reference::Dot(d, &weights[r * stride], x.data(), cols);
      }
      EXPECT_TRUE(SameBits(RunGemvQ4({}, x, weights, rows, stride), expected))
          << rows << " x " << cols << ", capability " << run.capability;
      EXPECT_TRUE(TakeReports().empty());
    }
  }
}

TEST(CudaKernelTest, ARowOfZerosIsZero) {
  ResetFake({});
  uint64_t stride = 0;
  const std::vector<uint8_t> weights = RandomQ4Rows(2, 128, &stride, 1);
  EXPECT_EQ(RunGemvQ4({}, std::vector<float>(128, 0.0f), weights, 2, stride), (std::vector<float>{0, 0}));
  EXPECT_TRUE(TakeReports().empty());
}

// Rows whose rounded activations do not fit a block's shared memory.
TEST(CudaKernelTest, RowsBeyondSharedMemoryAreRefused) {
  ResetFake({});
  cuda::MatMulLaunch launch;
  launch.tokens = 1;
  launch.part_count = 1;
  launch.parts[0].weights.encoding = Encoding::kQ4;
  launch.parts[0].weights.group = 64;
  launch.parts[0].weights.cols = 40000;
  launch.parts[0].rows = 1;
  launch.parts[0].rounded = reinterpret_cast<const uint8_t*>(16);
  cuda::Launcher launcher;
  EXPECT_EQ(cuda::EnqueueMatMul(launch, 48 << 10, launcher), cudaErrorInvalidValue);
  EXPECT_EQ(CountersOfFake().launches, 0u);
}

// ptxas fuses an f32 product and sum that do not say how they round, and approximate instructions differ from
// GPU to GPU: neither may stand in a kernel whose bits are promised.
TEST(CudaKernelTest, PtxHasNothingWhoseBitsAreOpen) {
  ResetFake({});
  ASSERT_TRUE(CreateCudaBackend({}).ok());  // so that every kernel is linked
  std::set<const void*> binaries;
  for (const RegisteredName& kernel : GlobalRegistry().kernels) {
    binaries.insert(kernel.binary);
  }
  size_t modules = 0;
  for (const void* binary : binaries) {
    for (const std::string& text : PtxOf(binary)) {
      const absl::StatusOr<Module> module = ParsePtx(text);
      ASSERT_TRUE(module.ok()) << module.status().message();
      ++modules;
      for (const auto& [name, kernel] : module->kernels) {
        for (const Statement& s : kernel.statements) {
          const bool open = s.opcode == "mul.f32" || s.opcode == "add.f32" || s.opcode == "sub.f32" ||
                            s.opcode == "mul.f64" || s.opcode == "add.f64" || s.opcode == "sub.f64" ||
                            s.opcode.find(".approx") != std::string::npos ||
                            s.opcode.find(".ftz") != std::string::npos ||
                            s.opcode.find(".full") != std::string::npos;
          EXPECT_FALSE(open) << name << ", line " << s.line << ": " << s.opcode;
        }
      }
    }
  }
  EXPECT_GE(modules, 10u * 3u);  // ten objects, three architectures
}

}  // namespace
}  // namespace sluice::cuda_fake
