// Tests the lines that RowFetch fetches, and their order; their addresses are never read. Also kernels that
// continue one.
#include "kernels/cpu/row_fetch.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/kernel_table.h"
#include "pack/row_layout.h"

namespace sluice::cpu {
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

  // Reads `lines` in `steps` steps.
  void Read(uint32_t lines, uint32_t steps) {
    BasicLinesAhead<NoteLine> ahead;
    fetch_.Start(lines, steps, &ahead);
    for (uint32_t i = 0; i < steps; ++i) {
      ahead.Step();
    }
  }

  // Rows of a sort, a few lines at a time.
  void ReadRows(RowSort sort, uint32_t lines) {
    fetch_.Reads(sort, lines);
    for (uint32_t read = 0; read < lines; read += 10) {
      Read(std::min(lines - read, 10u), 4);
    }
  }

  BasicRowFetch<NoteLine> fetch_;
  std::vector<uintptr_t> lines_;
};

// Reads as workers do: three blocks of the stream are known, and kept rows of one block are read after the
// next.
TEST_F(RowFetchTest, AsksForEachLineOnceAndForNoOther) {
  for (const uint32_t row_lines : {1u, 2u, 5u, 18u, 37u, 200u}) {
    lines_.clear();
    fetch_.Clear(64 << 10);
    std::vector<uintptr_t> expected;
    const auto add = [&](bool stream, uintptr_t first) {
      const uint8_t* end = Line(first + row_lines);
      stream ? fetch_.AddStream(Line(first), end - 7) : fetch_.AddGathered(Line(first) + 9, end);
      for (uint32_t i = 0; i < row_lines; ++i) {
        expected.push_back(first + i);
      }
    };
    const auto add_block = [&](uintptr_t block) {
      for (uintptr_t row = 0; row < 10; ++row) {
        add(true, 1000 + (10 * block + row) * row_lines);
      }
    };
    add_block(0);
    add_block(1);
    fetch_.Advance(100);
    for (uintptr_t block = 0; block < 20; ++block) {
      add_block(block + 2);
      ReadRows(RowSort::kStream, 10 * row_lines);
      for (uintptr_t row = 0; row < 6; ++row) {
        add(false, 1000000 + (6 * block + row) * 333);
      }
      if (block > 0) {
        ReadRows(RowSort::kGathered, 6 * row_lines);
      }
    }
    fetch_.Reads(RowSort::kStream, 0);
    fetch_.SetDistance(64 << 20);
    fetch_.Advance(100000);
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
  Read(60, 4);  // lines fetched before are far enough ahead
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

// A reader that counts 9 of 10 lines, and one that counts 11.
TEST_F(RowFetchTest, StaysADistanceAheadOfReadersThatMiscount) {
  for (const uint32_t counted : {9u, 11u}) {
    lines_.clear();
    fetch_.Clear(1000 * 64);
    std::vector<uint32_t> streams, kept;
    for (uintptr_t block = 0; block < 60; ++block) {
      streams.push_back(fetch_.added(RowSort::kStream));
      kept.push_back(fetch_.added(RowSort::kGathered));
      fetch_.AddStream(Line(5000 + block * 600), Line(5600 + block * 600));
      fetch_.AddGathered(Line(100000 + block * 900), Line(100300 + block * 900));
    }
    fetch_.Advance(1000);
    for (uint32_t block = 0; block < 50; ++block) {
      fetch_.SetRead(RowSort::kStream, streams[block]);
      fetch_.SetRead(RowSort::kGathered, kept[block]);
      ASSERT_GE(lines_.size(), 900 * block + 850u) << block;
      ASSERT_LE(lines_.size(), 900 * block + 1150u) << block;
      for (const RowSort sort : {RowSort::kStream, RowSort::kGathered}) {
        const uint32_t lines = sort == RowSort::kStream ? 600 : 300;
        fetch_.Reads(sort, lines);
        for (uint32_t read = 0; read < lines; read += 10) {
          Read(counted, 4);
        }
      }
    }
  }
}

TEST_F(RowFetchTest, DoesNotFetchWhatHasBeenRead) {
  fetch_.Clear(1000 * 64);
  fetch_.AddStream(Line(100), Line(110));
  fetch_.AddStreams(Line(200), Line(300), 4 * 64);
  fetch_.AddGathered(Line(700), Line(702));
  fetch_.AddGathered(Line(900), Line(904));
  EXPECT_EQ(fetch_.added(RowSort::kStream), 18u);
  EXPECT_EQ(fetch_.added(RowSort::kGathered), 6u);
  fetch_.AddStream(Line(400), Line(402));
  fetch_.SetRead(RowSort::kStream, 14);
  fetch_.SetRead(RowSort::kGathered, 3);
  fetch_.Advance(1000);
  std::sort(lines_.begin(), lines_.end());
  EXPECT_EQ(lines_, (std::vector<uintptr_t>{202, 203, 302, 303, 400, 401, 901, 902, 903}));
  lines_.clear();
  fetch_.AddStream(Line(500), Line(520));
  fetch_.Reads(RowSort::kStream, 40);
  Read(18, 4);  // six were fetched before
  std::sort(lines_.begin(), lines_.end());
  EXPECT_EQ(lines_, (std::vector<uintptr_t>{512, 513, 514, 515, 516, 517, 518, 519}));
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
  fetch_.Clear(4000 * 64);
  fetch_.AddStream(Line(100), Line(1700));
  fetch_.Advance(171);
  ASSERT_EQ(lines_.size(), 256u);
  lines_.clear();
  fetch_.AddGathered(Line(9000), Line(9004));
  fetch_.AddGathered(Line(7000), Line(7004));
  fetch_.Reads(RowSort::kStream, 1000);
  fetch_.Advance(11);
  EXPECT_EQ(lines_, (std::vector<uintptr_t>{356, 9000, 357, 9001, 358, 9002, 359, 9003,  //
                                            360, 7000, 361, 7001, 362, 7002, 363, 7003}));
}

// Returns the number of gathered lines among the next ones.
TEST_F(RowFetchTest, TakesAloneWhatTheReaderComesToFirst) {
  const auto gathered = [&](RowSort sort, uint32_t left, uint32_t in_any_order) {
    lines_.clear();
    fetch_.Clear(4000 * 64);
    for (uintptr_t row = 0; row < 90; ++row) {
      fetch_.AddGathered(Line(10000 + 20 * row), Line(10010 + 20 * row));
      fetch_.AddStream(Line(100 + 20 * row), Line(110 + 20 * row));
    }
    fetch_.Reads(sort, left, in_any_order);
    fetch_.Advance(400);
    return std::count_if(lines_.begin(), lines_.end(), [](uintptr_t line) { return line >= 10000; });
  };
  // 256 lines of the sort that is read now come first, then both in turn.
  EXPECT_NEAR(gathered(RowSort::kStream, 2000, 0), 170, 10);
  EXPECT_NEAR(gathered(RowSort::kGathered, 2000, 0), 430, 10);
  EXPECT_NEAR(gathered(RowSort::kGathered, 2000, 100), 480, 10);
  // The sort that is read now ends soon, so many lines of the other come first.
  EXPECT_NEAR(gathered(RowSort::kStream, 100, 0), 328, 10);
  EXPECT_NEAR(gathered(RowSort::kStream, 100, 200), 428, 10);
  EXPECT_NEAR(gathered(RowSort::kGathered, 100, 0), 272, 10);
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

  std::vector<float> Make(CpuIsa isa, QuantKind kind, bool add, RowFetch* fetch,
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
TEST(RowFetchKernelTest, WeightedSumsDoNotDependOnFetches) {
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
          const std::vector<float> expected = sums.Make(CpuIsa::kAvx2, kind, add, nullptr);
          for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx2Vnni, CpuIsa::kAvx512}) {
            if (!CpuIsaSupported(isa)) {
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
}  // namespace sluice::cpu
