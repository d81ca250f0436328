// Tests rounded rows and lists of weight rows alone: the bits of the scalar reference, in every encoding.
#include "kernels/cpu/row_lists.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/expert_calls.h"
#include "kernels/reference/scalar.h"
#include "pack/row_layout.h"
#include "tests/kernels/op_testing.h"

namespace sluice::cpu {
namespace {

constexpr uint32_t kCols = 200;
constexpr uint32_t kTokens = 3;
constexpr uint32_t kRows = 40;

class RowListsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto kernels = ChooseKernels(CpuIsa::kBest);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    kernels_ = *kernels;
    const BackendLimits limits = TestLimits();
    ASSERT_TRUE(space_.Reserve(limits, 1, &scratch_).ok());
    rounded_ = std::make_unique<RoundedRows>(*kernels_, tiles_);
    ASSERT_TRUE(rounded_->Reserve(limits.max_tokens, space_.cols, &scratch_).ok());
    lists_ = std::make_unique<RowLists>(*kernels_, space_, *rounded_);
    lists_->Reserve(1);
    Random random(7);
    x_ = random.Normals(kTokens * kCols);
    for (uint32_t t = 0; t < kTokens; ++t) {
      space_.x_rows[t] = x_.data() + t * kCols;
    }
  }

  const KernelTable* kernels_ = nullptr;
  Scratch scratch_;
  Tiles tiles_{1};
  Workspace space_;
  std::unique_ptr<RoundedRows> rounded_;
  std::unique_ptr<RowLists> lists_;
  std::vector<float> x_;
};

TEST_F(RowListsTest, RowsAreRoundedAsInReferenceAndOnRequest) {
  rounded_->RequestForm(MakeDescriptor(Encoding::kQ4, 64));
  rounded_->RequestForm(MakeDescriptor(Encoding::kBf16));
  rounded_->Make(space_.x_rows, kTokens, kCols);
  for (uint32_t t = 0; t < kTokens; ++t) {
    const QuantRow row = rounded_->Row(64, t);
    for (uint32_t k = 0; k < kCols; k += 64) {
      const uint32_t count = std::min(64u, kCols - k);
      std::vector<int8_t> codes(count);
      const float scale = reference::RoundToInt8(space_.x_rows[t] + k, count, codes.data());
      EXPECT_EQ(row.scales[k / 64], scale);
      EXPECT_EQ(std::vector<int8_t>(row.codes + k, row.codes + k + count), codes);
      EXPECT_EQ(row.sums[k / 64], static_cast<float>(std::accumulate(codes.begin(), codes.end(), 0)));
    }
    EXPECT_EQ(rounded_->Row(128, t).scales[0], 0);  // not requested
  }
}

// Every third row, last one first, with more listed than computed.
TEST_F(RowListsTest, GatheredRowsHaveTheReferencesDotProducts) {
  Random random(8);
  for (const EncodingDescriptor& d : AllEncodings()) {
    const EncodedMatrix m = random.Matrix(d, kRows, kCols, 2);
    std::vector<const uint8_t*> rows;
    for (uint32_t r = kRows - 1; r < kRows; r -= 3) {
      rows.push_back(m.bytes.data() + r * m.stride);
    }
    rounded_->RequestForm(d);
    rounded_->Make(space_.x_rows, kTokens, kCols);
    const auto count = static_cast<uint32_t>(rows.size()) - 2;
    const RowList list{d, kCols, rows.data(), count, count + 2};
    const std::vector<uint32_t> tokens = {2, 0};
    lists_->Dot(list, tokens, 0, space_.workers[0].rows[0]);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (uint32_t r = 0; r < count; ++r) {
        EXPECT_EQ(space_.workers[0].rows[0][i][r],
                  reference::Dot(d, rows[r], space_.x_rows[tokens[i]], kCols))
            << EncodingLabel(d) << " row " << r << " of token " << tokens[i];
      }
    }
  }
}

// Many tokens are packed once for all lists that use them, until the next rows.
TEST_F(RowListsTest, ManyTokensAreThoseOfTheLastRowsInEveryOrder) {
  constexpr uint32_t kMany = 21;
  Random random(10);
  const EncodingDescriptor d = MakeDescriptor(Encoding::kQ4, 64);
  const EncodedMatrix m = random.Matrix(d, kRows, kCols);
  std::vector<const uint8_t*> rows;
  for (uint32_t r = 0; r < kRows; ++r) {
    rows.push_back(m.bytes.data() + r * m.stride);
  }
  const RowList list{d, kCols, rows.data(), kRows, 0};
  std::vector<uint32_t> tokens(kMany);
  for (const uint32_t step : {1u, 4u, 5u}) {
    const std::vector<float> x = random.Normals(kMany * kCols);
    std::vector<const float*> x_rows(kMany);
    for (uint32_t t = 0; t < kMany; ++t) {
      x_rows[t] = x.data() + t * kCols;
    }
    rounded_->RequestForm(d);
    rounded_->Make(x_rows.data(), kMany, kCols);
    for (uint32_t t = 0; t < kMany; ++t) {
      tokens[t] = t * step % kMany;
    }
    for (int time = 0; time < 2; ++time) {
      float** y = space_.workers[0].rows[0];
      lists_->Dot(list, tokens, 0, y);
      for (uint32_t i = 0; i < kMany; ++i) {
        for (uint32_t r = 0; r < kRows; ++r) {
          ASSERT_EQ(y[i][r], reference::Dot(d, rows[r], x_rows[tokens[i]], kCols)) << i << ", row " << r;
        }
      }
    }
  }
}

TEST_F(RowListsTest, AWeightedSumIsWrittenOverOrAddedToWhatIsThere) {
  Random random(9);
  for (const EncodingDescriptor& any : AllEncodings()) {
    const EncodingDescriptor d = DownEncoding(any);
    const EncodedMatrix m = random.Matrix(d, kRows, kCols);
    std::vector<const uint8_t*> rows;
    for (uint32_t r = 0; r < kRows; ++r) {
      rows.push_back(m.bytes.data() + r * m.stride);
    }
    std::vector<float> c = random.Normals(kNeuronBlock);
    const float* coefficients = c.data();
    const RowList list{d, kCols, rows.data(), kRows, 0};
    std::vector<float> sum(kCols, kUntouched);
    float* y = sum.data();
    lists_->Down(list, &coefficients, 1, /*add=*/false, 0, &y);
    std::vector<float> added(kCols, 3.0f);
    y = added.data();
    lists_->Down(list, &coefficients, 1, /*add=*/true, 0, &y);
    for (uint32_t h = 0; h < kCols; ++h) {
      EXPECT_EQ(added[h], 3.0f + sum[h]) << EncodingLabel(d) << " column " << h;
    }
    // Half a step of the rounded coefficients, whose steps are those of the largest one with the largest
    // scale: at most three times the others.
    double exact = 0;
    double steps = 0;
    for (uint32_t r = 0; r < kRows; ++r) {
      exact += static_cast<double>(c[r]) * m.At(r, 5);
      steps += IsQuantized(d.encoding) ? std::fabs(m.At(r, 5)) : 0;
    }
    const float largest = std::fabs(*std::max_element(
        c.begin(), c.begin() + kRows, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    EXPECT_NEAR(sum[5], exact, 1e-5 * (1 + std::fabs(exact)) + 3 * 0.51 / 127 * largest * steps)
        << EncodingLabel(d);
  }
}

}  // namespace
}  // namespace sluice::cpu
