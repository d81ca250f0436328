// Plans: every layout, list and tile size copies exactly the requested rows.
#include "common/protocol/transfer_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace sluice {
namespace {

TEST(StreamCopyTest, CopiesEveryLengthAndMisalignmentExactly) {
  std::vector<std::byte> source(5000);
  for (size_t i = 0; i < source.size(); ++i) {
    source[i] = static_cast<std::byte>(i * 7 + 1);
  }
  for (uint64_t bytes : {0, 1, 31, 64, 255, 256, 257, 319, 320, 1000, 4096}) {
    for (uint64_t from : {0, 1, 33}) {
      for (uint64_t to : {0, 1, 31, 63}) {
        std::vector<std::byte> dest(4200, std::byte{0xee});
        StreamCopy(dest.data() + to, source.data() + from, bytes);
        StreamFence();
        EXPECT_EQ(std::memcmp(dest.data() + to, source.data() + from, bytes), 0) << bytes;
        const auto untouched = std::count(dest.begin(), dest.end(), std::byte{0xee});
        EXPECT_GE(untouched, static_cast<ptrdiff_t>(4200 - bytes));
        EXPECT_TRUE(to + bytes == 4200 || dest[to + bytes] == std::byte{0xee}) << bytes << " " << to;
      }
    }
  }
}

struct Expert {
  uint32_t rows = 0;
  std::vector<std::byte> bytes;
  std::vector<PartCopy> parts;  // without destinations
};

// Up alone, gate and down interleaved (compact), or each alone.
Expert MakeExpert(bool compact, uint32_t rows, uint64_t row_bytes, uint64_t round, std::mt19937_64* random) {
  const auto up = [&](uint64_t bytes) { return (bytes + round - 1) / round * round; };
  Expert expert;
  expert.rows = rows;
  expert.bytes.resize(rows * 3 * up(row_bytes) + 64);
  for (std::byte& byte : expert.bytes) {
    byte = static_cast<std::byte>((*random)());
  }
  const std::byte* at = expert.bytes.data();
  if (compact) {
    const uint64_t pair = up(2 * row_bytes);
    const std::byte* second = at + rows * up(row_bytes);
    expert.parts = {{at, 0, up(row_bytes), 0, row_bytes},
                    {second, 0, pair, 0, row_bytes},
                    {second + row_bytes, 0, pair, 0, row_bytes}};
  } else {
    for (int part = 0; part < 3; ++part) {
      expert.parts.push_back({at + part * rows * up(row_bytes), 0, up(row_bytes), 0, row_bytes});
    }
  }
  return expert;
}

TEST(TransferPlanTest, EveryCombinationCopiesExactlyItsRows) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 400; ++round) {
    const bool compact = random() % 2 == 0;
    const auto rows = static_cast<uint32_t>(1 + random() % 70);
    const uint64_t row_bytes = random() % 2 == 0 ? 16 + 16 * (random() % 8) : 500 + random() % 700;
    Expert expert = MakeExpert(compact, rows, row_bytes, row_bytes > 500 ? 64 : 16, &random);
    const bool like_stored = random() % 2 == 0;
    std::vector<std::byte> slab(expert.bytes.size() * 2 + 3 * 256 * rows, std::byte{0x55});
    uint64_t at = random() % 64;
    std::vector<PartCopy> wanted;
    for (size_t p = 0; p < 3; ++p) {
      PartCopy part = expert.parts[p];
      const bool paired = compact && p == 2 && like_stored;
      part.dest_stride = like_stored ? part.source_stride : part.row_bytes + random() % 256;
      part.dest = paired ? at - rows * part.dest_stride + part.row_bytes : at;
      at += paired ? 0 : rows * part.dest_stride;
      if (random() % 4 != 0 || (p == 2 && wanted.empty())) {
        wanted.push_back(part);
      }
    }
    std::vector<uint32_t> neurons;
    for (uint32_t neuron = 0; random() % 2 == 0 && neuron < rows; ++neuron) {
      if (random() % 3 != 0) {
        neurons.push_back(neuron);
      }
    }
    PlanOptions options;
    options.chunk_bytes = 1 + random() % 20'000;
    options.chunk_neurons = static_cast<uint32_t>(1 + random() % 60);
    options.min_chunk_bytes = random() % 3 == 0 ? random() % 9'000 : 0;
    options.merge = random() % 4 != 0;
    const auto tile = static_cast<uint32_t>(random() % 80);
    const TransferPlan plan = MakeTransferPlan(wanted, rows, neurons, tile, options);
    const uint32_t total = neurons.empty() ? rows : static_cast<uint32_t>(neurons.size());
    ASSERT_EQ(plan.tiles, tile == 0 ? 1 : (total + tile - 1) / tile);
    uint32_t next = 0;
    for (const PlanChunk& chunk : plan.chunks) {
      ASSERT_EQ(chunk.first, next);
      ASSERT_EQ(chunk.tile, tile == 0 ? 0 : chunk.first / tile);
      ASSERT_TRUE(tile == 0 || (chunk.first + chunk.rows - 1) / tile == chunk.tile);
      next += chunk.rows;
      CopyPlanChunk(plan, chunk, slab.data());
    }
    ASSERT_EQ(next, total);
    std::vector<std::byte> expected(slab.size(), std::byte{0x55});
    for (const PartCopy& part : wanted) {
      for (uint32_t i = 0; i < total; ++i) {
        const uint64_t neuron = neurons.empty() ? i : neurons[i];
        const std::byte* row = part.source + neuron * part.source_stride;
        const uint64_t to = part.dest + i * part.dest_stride;
        ASSERT_EQ(std::memcmp(slab.data() + to, row, part.row_bytes), 0) << "round " << round;
        std::memcpy(expected.data() + to, row, part.row_bytes);
      }
    }
    // Beyond the rows only the rounding between them may differ.
    const auto different = [&] {
      size_t bytes = 0;
      for (size_t i = 0; i < slab.size(); ++i) {
        bytes += slab[i] != expected[i] ? 1 : 0;
      }
      return bytes;
    }();
    const uint64_t gap = row_bytes > 500 ? 63 : 15;
    ASSERT_LE(different, (like_stored ? gap : 63) * 3 * rows) << "round " << round;
  }
}

TEST(TransferPlanTest, AdjacentPartsAreOneRowAndWholeStreamsOnePiece) {
  std::vector<std::byte> source(4096 * 3);
  // gate+down of 256 bytes each, with the slab laid out alike.
  const std::vector<PartCopy> pair = {{source.data(), 0, 512, 512, 256},
                                      {source.data() + 256, 256, 512, 512, 256}};
  const TransferPlan whole = MakeTransferPlan(pair, 8, {}, 0, {});
  ASSERT_EQ(whole.lanes.size(), 1u);
  EXPECT_EQ(whole.lanes[0].row_bytes, 512u);
  EXPECT_TRUE(whole.lanes[0].solid);
  EXPECT_EQ(whole.chunks.size(), 1u);
  PlanOptions naive;
  naive.merge = false;
  EXPECT_EQ(MakeTransferPlan(pair, 8, {}, 0, naive).lanes.size(), 2u);
  // One of the two alone: the other's rows lie between its own.
  const TransferPlan gate = MakeTransferPlan({pair[0]}, 8, {}, 0, {});
  EXPECT_FALSE(gate.lanes[0].solid);
}

TEST(TransferPlanTest, OwnRowsLandWithTheLastTile) {
  std::vector<std::byte> source(70 * 64 + 300 * 48);
  for (size_t i = 0; i < source.size(); ++i) {
    source[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  const PartCopy up{source.data(), 0, 64, 64, 60};
  const PartCopy down{source.data() + 70 * 64, 70 * 64, 48, 64, 48, 300};
  for (const uint32_t tile : {0u, 16u, 64u}) {
    for (const bool alone : {false, true}) {
      std::vector<PartCopy> parts = {down};
      if (!alone) parts.push_back(up);
      const TransferPlan plan = MakeTransferPlan(parts, 70, {}, tile, {.chunk_bytes = 1000});
      EXPECT_EQ(plan.tiles, alone || tile == 0 ? 1u : (70 + tile - 1) / tile);
      std::vector<std::byte> slab(70 * 64 + 300 * 64, std::byte{0x55});
      uint32_t last = 0;
      uint64_t outputs = 0;
      for (const PlanChunk& chunk : plan.chunks) {
        EXPECT_GE(chunk.tile, last);
        last = chunk.tile;
        const bool is_down = plan.lanes[chunk.first_lane].row_bytes == 48;
        outputs += is_down ? chunk.rows : 0;
        EXPECT_TRUE(!is_down || chunk.tile + 1 == plan.tiles);
        CopyPlanChunk(plan, chunk, slab.data());
      }
      EXPECT_EQ(outputs, 300u);
      for (uint32_t row = 0; row < 300; ++row) {
        ASSERT_EQ(std::memcmp(slab.data() + down.dest + row * 64, down.source + row * 48, 48), 0) << row;
      }
      for (uint32_t row = 0; row < 70 && !alone; ++row) {
        ASSERT_EQ(std::memcmp(slab.data() + row * 64, up.source + row * 64, 60), 0) << row;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
