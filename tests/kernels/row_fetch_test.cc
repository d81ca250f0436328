// Which lines RowFetch asks for, and when: addresses there are never read. And kernels that go on with one.
#include "kernels/host/row_fetch.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/pack/row_layout.h"
#include "gtest/gtest.h"
#include "kernels/host/host_isa.h"
#include "kernels/host/row_kind.h"

namespace sluice::host {
namespace {

std::vector<uintptr_t>* noted = nullptr;  // line numbers, in order

struct NoteLine {
  static void At(const uint8_t* line) { noted->push_back(reinterpret_cast<uintptr_t>(line) / 64); }
};

class RowFetchTest : public testing::Test {
 protected:
  RowFetchTest() { noted = &lines_; }
  ~RowFetchTest() override { noted = nullptr; }

  static const uint8_t* Line(uintptr_t line) { return reinterpret_cast<const uint8_t*>(line * 64); }

  // Reads `lines` in so many steps.
  void Read(uint32_t lines, uint32_t steps) {
    BasicLinesAhead<NoteLine> ahead;
    fetch_.Start(lines, steps, &ahead);
    for (uint32_t i = 0; i < steps; ++i) {
      ahead.Step();
    }
  }

  BasicRowFetch<NoteLine> fetch_;
  std::vector<uintptr_t> lines_;
};

TEST_F(RowFetchTest, AsksForEachLineOnceAndForNoOther) {
  for (const uint32_t row_lines : {1u, 2u, 5u, 18u, 37u, 200u}) {
    lines_.clear();
    fetch_.Clear(16 << 10);
    std::vector<uintptr_t> expected;
    uint32_t all = 0;
    for (uintptr_t row = 0; row < 90; ++row) {
      const uintptr_t stream = 1000 + row * row_lines;
      fetch_.AddStream(Line(stream), Line(stream + row_lines) - 7);
      const uintptr_t gathered = 1000000 + row * 333;
      if (row % 3 != 0) {
        fetch_.AddGathered(Line(gathered) + 9, Line(gathered + row_lines));
      }
      for (uint32_t i = 0; i < row_lines; ++i) {
        expected.push_back(stream + i);
        if (row % 3 != 0) {
          expected.push_back(gathered + i);
        }
      }
      all += row_lines * (row % 3 != 0 ? 2 : 1);
    }
    for (uint32_t read = 0; read < all + (32 << 10) / 64; read += 11) {
      Read(11, 4);
    }
    std::sort(lines_.begin(), lines_.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(lines_, expected) << row_lines;
  }
}

TEST_F(RowFetchTest, StaysADistanceAheadOnceItHasCaughtUp) {
  fetch_.Clear(100 * 64);
  fetch_.AddStream(Line(5000), Line(9000));
  fetch_.Advance(20);
  ASSERT_EQ(lines_.size(), 30u);
  uint32_t read = 20;
  for (int i = 0; i < 200; ++i, read += 10) {
    const size_t before = lines_.size();
    Read(10, 5);
    ASSERT_LE(lines_.size() - before, 15u);
    ASSERT_LE(lines_.size(), read + 10 + 100);
  }
  EXPECT_GE(lines_.size() + 20, size_t{read} + 100);
}

TEST_F(RowFetchTest, FollowsANewDistance) {
  fetch_.Clear(100 * 64);
  fetch_.AddStream(Line(5000), Line(9000));
  fetch_.Advance(200);
  ASSERT_EQ(lines_.size(), 100u);
  fetch_.SetDistance(40 * 64);
  Read(60, 4);  // what was fetched before is far enough ahead
  ASSERT_EQ(lines_.size(), 100u);
  Read(10, 5);
  ASSERT_EQ(lines_.size(), 110u);
  fetch_.SetDistance(60 * 64);
  for (int i = 0; i < 10; ++i) {
    Read(10, 5);
  }
  EXPECT_EQ(lines_.size(), 110u + 100 + 20);
}

TEST_F(RowFetchTest, KnowsWhatIsStillToBeFetchedOfGatheredRows) {
  fetch_.Clear(1000 * 64);
  fetch_.AddStream(Line(100), Line(200));
  fetch_.AddGathered(Line(900), Line(904));
  fetch_.AddGathered(Line(700), Line(703));
  EXPECT_EQ(fetch_.gathered_bytes(), 7u * 64);
  fetch_.Advance(200);
  EXPECT_EQ(fetch_.gathered_bytes(), 0u);
}

TEST_F(RowFetchTest, SpreadsItsLinesOverTheSteps) {
  fetch_.Clear(1000 * 64);
  fetch_.AddStream(Line(100), Line(400));
  BasicLinesAhead<NoteLine> ahead;
  fetch_.Start(32, 8, &ahead);
  for (uint32_t step = 1; step <= 8; ++step) {
    ahead.Step();
    ASSERT_EQ(lines_.size(), size_t{6} * step);
  }
}

// A piece of the stream is 8 KiB at each of two places.
TEST_F(RowFetchTest, TakesAStreamAtTwoPlacesInTurn) {
  fetch_.Clear(1000 * 64);
  fetch_.AddStream(Line(100), Line(500));
  fetch_.Advance(200);
  std::vector<uintptr_t> expected;
  for (uintptr_t i = 0; i < 128; ++i) {
    expected.insert(expected.end(), {100 + i, 228 + i});
  }
  for (uintptr_t i = 0; i < 22; ++i) {
    expected.insert(expected.end(), {356 + i, 428 + i});
  }
  EXPECT_EQ(lines_, expected);
}

// Until they end, then what was added behind them; gathered rows wait for them.
TEST_F(RowFetchTest, TakesTwoStreamsInTurn) {
  fetch_.Clear(1000 * 64);
  fetch_.AddStream(Line(90), Line(94));
  fetch_.AddStreams(Line(100), Line(300), 130 * 64);
  fetch_.AddStreams(Line(230) + 32, Line(500) + 32, 64);
  fetch_.AddStream(Line(232), Line(236));
  fetch_.Advance(150);
  std::vector<uintptr_t> expected = {90, 92, 91, 93};
  for (uintptr_t i = 0; i < 110; ++i) {
    expected.insert(expected.end(), {100 + i, 300 + i});
  }
  lines_.resize(expected.size());
  EXPECT_EQ(lines_, expected);
  lines_.clear();
  fetch_.Advance(150);
  fetch_.Advance(150);
  std::sort(lines_.begin(), lines_.end());
  EXPECT_EQ(std::adjacent_find(lines_.begin(), lines_.end()), lines_.end());
  const std::vector<uintptr_t> behind = {230, 231, 232, 233, 234, 235};
  EXPECT_TRUE(std::includes(lines_.begin(), lines_.end(), behind.begin(), behind.end()));
  EXPECT_TRUE(std::binary_search(lines_.begin(), lines_.end(), uintptr_t{501}));
  EXPECT_FALSE(std::binary_search(lines_.begin(), lines_.end(), uintptr_t{502}));
  EXPECT_EQ(lines_.back(), 501u);
}

TEST(InHalvesTest, NamesEveryRowOnceAndBothHalvesInTurn) {
  EXPECT_EQ(InHalves(0, 1), 0u);
  for (const uint32_t rows : {2u, 3u, 7u, 64u}) {
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < rows; ++i) {
      order.push_back(InHalves(i, rows));
    }
    EXPECT_EQ(order[1], (rows + 1) / 2);
    std::sort(order.begin(), order.end());
    for (uint32_t i = 0; i < rows; ++i) {
      EXPECT_EQ(order[i], i);
    }
  }
}

TEST_F(RowFetchTest, TakesGatheredRowsInTurnWithTheStream) {
  fetch_.Clear(1000 * 64);
  fetch_.AddStream(Line(100), Line(200));
  fetch_.AddGathered(Line(900), Line(904));
  fetch_.AddGathered(Line(700), Line(704));
  fetch_.Advance(11);
  EXPECT_EQ(lines_, (std::vector<uintptr_t>{100, 900, 101, 901, 102, 902, 103, 903,  //
                                            104, 700, 105, 701, 106, 702, 107, 703}));
}

TEST_F(RowFetchTest, TakesGatheredRowsAloneWhileTooManyWait) {
  fetch_.Clear(1000 * 64);
  fetch_.TakeInTurn(4);
  fetch_.AddStream(Line(100), Line(200));
  for (const uintptr_t row : {900u, 800u, 700u}) {
    fetch_.AddGathered(Line(row), Line(row + 2));
  }
  fetch_.Advance(7);
  EXPECT_EQ(lines_, (std::vector<uintptr_t>{900, 800, 901, 801, 100, 700, 101, 701, 102, 151}));
}

TEST_F(RowFetchTest, LeavesMoreRangesThanItHasRoomForToThemselves) {
  fetch_.Clear(1 << 20);
  for (uintptr_t row = 0; row < 600; ++row) {
    fetch_.AddGathered(Line(10 * row), Line(10 * row + 2));
  }
  fetch_.Advance(5000);
  EXPECT_EQ(lines_.size(), 1024u);
  lines_.clear();
  fetch_.Clear(1 << 20);
  fetch_.Advance(5000);
  EXPECT_TRUE(lines_.empty());
}

// Weighted sums of `neurons` rows of random codes with finite scales.
struct Sums {
  Sums(const EncodingDescriptor& d, uint32_t cols, uint32_t neurons) : shape(ShapeOf(d, cols)) {
    const uint64_t stride = RoundStride(RowBytes(d, cols));
    memory.resize(neurons * stride + 256);
    uint32_t state = cols + neurons;
    for (uint64_t i = 0; i + 1 < memory.size(); i += 2) {
      state = state * 1664525u + 1013904223u;
      const uint16_t value = static_cast<uint16_t>(0x3c00u | ((state >> 16) & 0x80ffu));
      std::memcpy(memory.data() + i, &value, 2);
    }
    for (uint32_t j = 0; j < neurons; ++j) {
      rows.push_back(memory.data() + j * stride);
      coefficients[0].push_back(static_cast<float>(state >> j % 24 & 0xff) - 100.0f);
      coefficients[1].push_back(j % 3 == 0 ? 0.0f : static_cast<float>(j) - 7.5f);
    }
  }

  std::vector<float> Make(HostIsa isa, QuantKind kind, bool add, RowFetch* fetch,
                          bool in_halves = false) const {
    const bool one = shape.cols > 4096;  // long rows that one token keeps go by themselves
    const KernelTable& table = **ChooseKernels(isa);
    std::vector<float> y(2 * shape.cols, 0.25f);
    float* places[] = {y.data(), y.data() + shape.cols};
    const float* c[] = {coefficients[0].data(), coefficients[1].data()};
    std::vector<uint32_t> scratch(QuantDownWords(shape.cols) + 16);
    QuantDownCall call;
    call.shape = shape;
    call.w = rows.data();
    call.c = c;
    call.y = places;
    call.neurons = static_cast<uint32_t>(rows.size());
    call.tokens = one ? 1 : 2;
    call.add = add;
    call.in_halves = in_halves;
    call.fetch = fetch;
    call.fetch_lines = (shape.bytes + 63) / 64;
    call.scratch = reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    table.quant_down[static_cast<int>(kind)](call);
    return y;
  }

  const RowShape shape;
  std::vector<uint8_t> memory;
  std::vector<const uint8_t*> rows;
  std::vector<float> coefficients[2];
};

// The shorter the distance, the fewer rows of a block are summed at a time.
TEST(RowFetchKernelTest, WeightedSumsDoNotDependOnWhatIsFetchedMeanwhileNorOnTheOrder) {
  const std::pair<Encoding, QuantKind> kinds[] = {{Encoding::kQ8, QuantKind::kQ8},
                                                  {Encoding::kQ4, QuantKind::kQ4},
                                                  {Encoding::kQ3, QuantKind::kQ3},
                                                  {Encoding::kQ2, QuantKind::kQ2}};
  for (const auto& [encoding, kind] : kinds) {
    for (const uint32_t group : {16u, 32u, 48u, 64u, 128u}) {
      for (const uint32_t cols : {16u, 77u, 512u, 1000u, 4200u}) {
        for (const uint32_t neurons : {1u, 4u, 7u, 11u, 15u, 17u, 33u, 50u, 64u}) {
          const Sums sums(MakeDescriptor(encoding, group), cols, neurons);
          const bool add = neurons % 3 != 1;
          const std::vector<float> expected = sums.Make(HostIsa::kAvx2, kind, add, nullptr);
          for (const HostIsa isa : {HostIsa::kAvx2, HostIsa::kAvx2Vnni, HostIsa::kAvx512}) {
            if (!HostIsaSupported(isa)) {
              continue;
            }
            for (const uint32_t variant : {1u, 17u, 32u, 64u, 101u, 117u, 132u, 164u}) {
              const uint32_t rows = variant % 100;
              const bool in_halves = variant > 100;
              RowFetch fetch;
              fetch.Clear(rows * sums.shape.bytes + 64);
              fetch.AddStream(sums.memory.data(), sums.memory.data() + sums.memory.size());
              const std::vector<float> y = sums.Make(isa, kind, add, &fetch, in_halves);
              ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
                  << static_cast<int>(kind) << " g" << group << ", " << neurons << " rows of " << cols
                  << ", isa " << static_cast<int>(isa) << ", " << rows << " ahead"
                  << (in_halves ? ", in halves" : "");
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::host
