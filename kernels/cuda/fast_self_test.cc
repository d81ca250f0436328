// The self-test of a product: that a row's bits depend neither on the number of rows, nor on its place among
// them, nor on its neighbours, and that the sums are those of the matrices. Rows of even number are all the
// same, the others are all different; each number of rows that a call may have is tried.

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/fast_products.h"

namespace sluice::cuda {
namespace {

// Share of the sum of the products' sizes: more than sums of f32 lose in any order (Higham: k * 2^-24, here k
// of some thousands), less than any mistake in an operand.
constexpr double kTolerance = 1e-3;
constexpr uint32_t kCheckedSums = 64;

// Numbers of one seed, equal on every machine.
class Bits {
 public:
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15;
};

// A value of either sign with one of four sizes from 2^-3 on.
uint16_t RandomHalf(bool bf16, Bits* bits) {
  const uint64_t random = bits->Next() >> 20;
  const auto sign = static_cast<uint16_t>((random & 1) << 15);
  const auto size = static_cast<uint16_t>(random >> 1 & 3);
  const auto fraction = static_cast<uint16_t>(random >> 3);
  return bf16 ? sign | static_cast<uint16_t>((size + 124) << 7) | (fraction & 0x7f)
              : sign | static_cast<uint16_t>((size + 12) << 10) | (fraction & 0x3ff);
}

double ValueOf(bool bf16, uint16_t bits) {
  const int exponent = bf16 ? (bits >> 7 & 0xff) - 127 : (bits >> 10 & 0x1f) - 15;
  const double fraction = bf16 ? (bits & 0x7f) / 128.0 : (bits & 0x3ff) / 1024.0;
  return std::ldexp((bits & 0x8000) != 0 ? -1 - fraction : 1 + fraction, exponent);
}

std::vector<uint16_t> RandomHalves(uint64_t count, bool bf16, Bits* bits) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    value = RandomHalf(bf16, bits);
  }
  return values;
}

absl::Status Fail(const std::string& product, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("cuBLASLt's product with ", product, ": ", what));
}

// The first sums of the first row against the host's.
absl::Status CheckValues(const std::string& product, bool bf16, const std::vector<uint16_t>& weights,
                         const std::vector<uint16_t>& x, const std::vector<float>& sums, uint32_t n,
                         uint32_t k) {
  for (uint32_t i = 0; i < std::min(n, kCheckedSums); ++i) {
    const uint32_t r = static_cast<uint32_t>(uint64_t{i} * n / std::min(n, kCheckedSums));
    double sum = 0;
    double size = 0;
    for (uint32_t c = 0; c < k; ++c) {
      const double term = ValueOf(bf16, weights[uint64_t{r} * k + c]) * ValueOf(bf16, x[c]);
      sum += term;
      size += std::abs(term);
    }
    if (!(std::abs(sums[r] - sum) <= kTolerance * size)) {
      return Fail(product, absl::StrCat("sum ", r, " is ", sums[r], ", it must be ", sum, " within ",
                                        kTolerance * size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FastProducts::TestPlan(const Plan& plan) {
  const std::string product = absl::StrCat("[", plan.n, ", ", plan.k, "] in ", plan.bf16 ? "bf16" : "f16");
  Bits bits;
  const std::vector<uint16_t> weights = RandomHalves(uint64_t{plan.n} * plan.k, plan.bf16, &bits);
  std::vector<uint16_t> x = RandomHalves(uint64_t{kFastRows} * plan.k, plan.bf16, &bits);
  for (uint64_t row = 2; row < kFastRows; row += 2) {
    std::memcpy(&x[row * plan.k], x.data(), 2 * uint64_t{plan.k});
  }
  const auto upload = [&](const std::vector<uint16_t>& from, uint16_t* to) {
    return StatusOf(cudaMemcpyAsync(to, from.data(), 2 * from.size(), cudaMemcpyDefault, stream_),
                    "the self-test's matrices");
  };
  RETURN_IF_ERROR(upload(weights, weights_));
  RETURN_IF_ERROR(upload(x, x_));
  const uint64_t stride = (uint64_t{plan.n} + 3) / 4 * 4;
  std::vector<float> first;
  std::vector<float> sums;
  for (uint32_t rows = kFastRowStep; rows <= kFastRows; rows += kFastRowStep) {
    RETURN_IF_ERROR(Call(plan, weights_, x_, rows));
    sums.resize(rows * stride);
    // A row's sums alone: what lies behind them up to whole 16 bytes is nobody's.
    RETURN_IF_ERROR(StatusOf(cudaMemcpy2DAsync(sums.data(), 4 * stride, sums_, 4 * stride,
                                               4 * uint64_t{plan.n}, rows, cudaMemcpyDefault, stream_),
                             "the self-test's sums"));
    RETURN_IF_ERROR(StatusOf(cudaStreamSynchronize(stream_), "the self-test's product"));
    if (first.empty()) {
      first.assign(sums.begin(), sums.begin() + plan.n);
      RETURN_IF_ERROR(CheckValues(product, plan.bf16, weights, x, first, plan.n, plan.k));
    }
    for (uint32_t row = 0; row < rows; row += 2) {
      const float* const own = &sums[row * stride];
      if (std::memcmp(own, first.data(), 4 * uint64_t{plan.n}) == 0) {
        continue;
      }
      uint32_t differ = 0;
      for (uint32_t r = 0; r < plan.n; ++r) {
        differ += std::memcmp(&own[r], &first[r], 4) != 0 ? 1 : 0;
      }
      return Fail(product, absl::StrCat("of ", rows, " rows, row ", row, " has ", differ, " of ", plan.n,
                                        " sums other than the same row alone among ", kFastRowStep,
                                        ": a row's bits depend on the rows beside it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::cuda
