// Tests that sums by tiles, over a model of AMX and over AMX itself where the CPU has it, have the bits of
// the kernels that matmul_test and moe_test compare with the reference.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/kernel_table.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"
#include "tests/kernels/cpu/tile_model.h"

namespace sluice::cpu {
namespace {

template <class T>
T* Aligned(std::vector<T>* memory, uint64_t count) {
  memory->assign(count + 64 / sizeof(T), T{});
  const uint64_t place = reinterpret_cast<uintptr_t>(memory->data());
  return memory->data() + ((place + 63) / 64 * 64 - place) / sizeof(T);
}

// Rows of weights in an encoding, with room behind them that kernels may read.
class Weights {
 public:
  Weights(const EncodingDescriptor& e, uint32_t rows, uint32_t cols, std::mt19937* random)
      : shape_(ShapeOf(e, cols)) {
    const uint64_t stride = RoundUp(shape_.bytes, 64);
    uint8_t* place = Aligned(&memory_, rows * stride + 256);
    std::uniform_real_distribution<float> draw(-2, 2);
    std::vector<float> values(cols);
    for (uint32_t r = 0; r < rows; ++r, place += stride) {
      // Any bits are a row of mxfp4 or of GGUF's blocks, which nothing here encodes.
      for (uint32_t i = 0; i < shape_.bytes; ++i) {
        place[i] = ByteOf(e, i, static_cast<uint32_t>((*random)()));
      }
      for (float& value : values) {
        value = draw(*random);
      }
      if (CanEncode(e.encoding)) {
        EXPECT_EQ(EncodeRow(e, values, reinterpret_cast<std::byte*>(place)), -1);
      }
      rows_.push_back(place);
    }
  }
  const RowShape& shape() const { return shape_; }
  const uint8_t* const* rows() const { return rows_.data(); }

 private:
  // Codes and small whole scales are any byte; a power of two of mxfp4 and an f16 stay finite.
  uint8_t ByteOf(const EncodingDescriptor& e, uint32_t place, uint32_t drawn) const {
    if (IsFileBlock(e.encoding)) {  // each block begins with its scales; a factor may follow the last one
      const bool is_scale = place % TraitsOf(e.encoding).block_bytes < 4 || place + 4 >= shape_.bytes;
      return static_cast<uint8_t>(is_scale ? 0x28 + drawn % 8 : drawn);
    }
    const uint32_t scales = e.super_group != 0 ? shape_.super_groups : shape_.scales;
    if (place < scales) {
      return static_cast<uint8_t>(drawn);
    }
    if (e.encoding == Encoding::kMxfp4) {
      return static_cast<uint8_t>(120 + drawn % 8);
    }
    return static_cast<uint8_t>((place - scales) % 2 == 0 ? drawn : 0x28 + drawn % 8);
  }

  RowShape shape_;
  std::vector<uint8_t> memory_;
  std::vector<const uint8_t*> rows_;
};

// Floats in rows of `cols`.
class Matrix {
 public:
  Matrix(uint32_t rows, uint32_t cols) : values_(uint64_t{rows} * cols) {
    for (uint32_t r = 0; r < rows; ++r) {
      rows_.push_back(values_.data() + uint64_t{r} * cols);
    }
  }
  void Fill(std::mt19937* random) {
    std::uniform_real_distribution<float> draw(-1, 1);
    for (float& value : values_) {
      value = draw(*random);
    }
  }
  float* const* rows() { return rows_.data(); }
  const std::vector<float>& values() const { return values_; }

 private:
  std::vector<float> values_;
  std::vector<float*> rows_;
};

std::vector<const KernelTable*> TablesWithTiles() {
  std::vector<const KernelTable*> tables = {&TileModelKernels()};
  // With AMX itself, where the CPU has it.
  const auto best = ChooseKernels(CpuIsa::kBest);
  EXPECT_TRUE(best.ok()) << best.status();
  if (best.ok()) {
    tables.push_back(*best);
  }
  return tables;
}

constexpr std::pair<Encoding, uint32_t> kEncodings[] = {
    {Encoding::kQ8, 64},  {Encoding::kQ8, 128}, {Encoding::kQ4, 16},  {Encoding::kQ4, 32},
    {Encoding::kQ4, 64},  {Encoding::kQ4, 128}, {Encoding::kQ4, 96},  {Encoding::kQ3, 64},
    {Encoding::kQ3, 128}, {Encoding::kQ2, 16},  {Encoding::kQ2, 128}, {Encoding::kMxfp4, 32}};

// GGUF's rows, which only up and gate have: there are no weighted sums of them.
constexpr std::pair<Encoding, uint32_t> kBlockEncodings[] = {{blocks::kQ4_K, 32},   {blocks::kQ5_K, 32},
                                                             {blocks::kQ6_K, 16},   {blocks::kIq4Nl, 32},
                                                             {blocks::kIq2Xxs, 32}, {blocks::kNvfp4, 16}};

std::vector<std::pair<Encoding, uint32_t>> EncodingsOfDots() {
  std::vector<std::pair<Encoding, uint32_t>> all(std::begin(kEncodings), std::end(kEncodings));
  all.insert(all.end(), std::begin(kBlockEncodings), std::end(kBlockEncodings));
  return all;
}

TEST(TileSumsTest, DotProductsAreThoseOfOtherKernelsToTheBit) {
  std::mt19937 random(7);
  for (const auto& [encoding, group] : EncodingsOfDots()) {
    for (const uint32_t cols : {64u, 300u, 1024u}) {
      for (const uint32_t tokens : {1u, 15u, 16u, 23u, 64u, 65u, 150u}) {
        const EncodingDescriptor e = MakeDescriptor(encoding, group);
        const uint32_t rows = 16 + tokens % 7;
        const Weights weights(e, rows, cols, &random);
        Matrix x(tokens, cols);
        x.Fill(&random);
        // Rounded rows in any order.
        const uint64_t stride = RoundUp(cols, kCodeAlign) + 64;
        const uint64_t groups = RoundUp((cols + 15) / 16, 8) + 16;
        std::vector<int8_t> code_memory;
        std::vector<int8_t> woven_memory;
        int8_t* codes = Aligned(&code_memory, tokens * stride);
        int8_t* woven = Aligned(&woven_memory, tokens * stride * 3);
        std::vector<float> scales(tokens * groups);
        std::vector<float> sums(tokens * groups);
        std::vector<QuantRow> rounded;
        for (uint32_t t = 0; t < tokens; ++t) {
          const uint32_t place = tokens - 1 - t;
          const QuantRow row{codes + place * stride, scales.data() + t * groups, sums.data() + t * groups,
                             woven + t * stride * 3};
          Avx2Kernels().quantize({x.rows()[t], cols, group, codes + place * stride,
                                  scales.data() + t * groups, sums.data() + t * groups,
                                  woven + t * stride * 3});
          rounded.push_back(row);
        }
        const auto run = [&](const KernelTable& table) {
          Matrix y(tokens, rows);
          std::vector<float> scratch;
          std::vector<int8_t> packed;
          QuantDotCall call;
          call.shape = weights.shape();
          call.w = weights.rows();
          call.x = rounded.data();
          call.y = y.rows();
          call.rows = rows;
          call.tokens = tokens;
          call.scratch = Aligned(&scratch, QuantGemmFloats(cols) + FileRowFloats(cols));
          int8_t* place = Aligned(&packed, QuantPackedBytes(tokens, cols));
          table.pack_quant({rounded.data(), tokens, cols, group, place});
          call.packed = place;
          table.quant_gemm[QuantKindOf(encoding)](call);
          return y.values();
        };
        const std::vector<float> expected = run(Avx2Kernels());
        for (const KernelTable* table : TablesWithTiles()) {
          const std::vector<float> got = run(*table);
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float)), 0)
              << table->name << ", encoding " << static_cast<int>(encoding) << " in groups of " << group
              << ", " << rows << " rows of " << cols << ", " << tokens << " tokens";
        }
      }
    }
  }
}

TEST(TileSumsTest, WeightedSumsAreThoseOfOtherKernelsToTheBit) {
  std::mt19937 random(8);
  for (const auto& [encoding, group] : kEncodings) {
    for (const uint32_t cols : {64u, 300u, 1024u}) {
      for (const uint32_t tokens : {3u, 16u, 31u, 48u, 70u, 97u}) {
        const uint32_t neurons = tokens % 2 == 0 ? 64 : 37;
        const bool add = tokens % 3 == 0;
        const Weights weights(MakeDescriptor(encoding, group), neurons, cols, &random);
        Matrix c(tokens, 64);
        c.Fill(&random);
        Matrix before(tokens, cols);
        before.Fill(&random);
        const auto run = [&](const KernelTable& table) {
          Matrix y(tokens, cols);
          for (uint32_t t = 0; t < tokens; ++t) {
            std::memcpy(y.rows()[t], before.rows()[t], cols * sizeof(float));
          }
          std::vector<uint32_t> scratch;
          QuantDownCall call;
          call.shape = weights.shape();
          call.w = weights.rows();
          call.c = c.rows();
          call.y = y.rows();
          call.neurons = neurons;
          call.tokens = tokens;
          call.add = add;
          call.prefetch = {0, 8, neurons};
          call.scratch = Aligned(&scratch, QuantDownWords(cols));
          table.quant_down[QuantKindOf(encoding)](call);
          return y.values();
        };
        const std::vector<float> expected = run(Avx2Kernels());
        for (const KernelTable* table : TablesWithTiles()) {
          const std::vector<float> got = run(*table);
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float)), 0)
              << table->name << ", encoding " << static_cast<int>(encoding) << " in groups of " << group
              << ", " << neurons << " rows of " << cols << ", " << tokens << " tokens";
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::cpu
