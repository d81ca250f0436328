#include "lab/cache_replay.h"

#include <cstring>
#include <string>
#include <vector>

#include "common/base/file_io.h"
#include "gtest/gtest.h"
#include "inferd/policy/cache_allocation.h"

namespace sluice::inferd {
namespace {

TraceLayer Layer(uint32_t experts, uint32_t top_k, const std::vector<std::vector<uint32_t>>& tokens) {
  TraceLayer layer{experts, top_k, {}, {}, {}, {}, {}};
  for (const auto& chosen : tokens) layer.Add(1, 0, chosen);
  return layer;
}

TEST(CacheReplayTest, LruAndTheOracleOnATraceCountedByHand) {
  const TraceLayer layer = Layer(4, 1, {{0}, {1}, {2}, {0}, {1}, {3}, {0}, {1}});
  EXPECT_EQ(ReplayEviction(layer, 2, {}).hits, 0u);
  // Oracle: 2 takes the place of 1 (used again later than 0), 1 that of 2, 3 that of 1: 0 hits twice.
  EXPECT_EQ(ReplayOracle(layer, 2).hits, 2u);
  EXPECT_EQ(ReplayOracle(layer, 2).accesses, 8u);
  EXPECT_EQ(ReplayEviction(layer, 3, {}).hits, 4u);
}

TEST(CacheReplayTest, ExpertsOfATokenDoNotEvictEachOther) {
  const TraceLayer layer = Layer(4, 2, {{0, 1}, {2, 1}, {1, 3}, {3, 2}});
  // Pinned: {0,1}; 2 evicts 0 (1 stays): hit 1; 3 evicts 2: hit 1; 2 evicts 1: hit 3.
  EXPECT_EQ(ReplayEviction(layer, 2, {}).hits, 3u);
  // Sequential: 2 evicts 0, 1 hits; 1 hits, 3 evicts 2; 3 hits, 2 evicts 1.
  EXPECT_EQ(ReplayEviction(layer, 2, {}, ReplayOrder::kSequential).hits, 3u);
  // Accessed in order, 2 evicts 0 of {0, 1}, then 0 evicts 1.
  const TraceLayer other = Layer(3, 2, {{0, 1}, {2, 0}});
  EXPECT_EQ(ReplayEviction(other, 2, {}).hits, 1u);
  EXPECT_EQ(ReplayEviction(other, 2, {}, ReplayOrder::kSequential).hits, 0u);
}

TEST(CacheReplayTest, OracleBoundsPoliciesAndLruMatchesDistances) {
  uint64_t state = 1;
  std::vector<std::vector<uint32_t>> tokens;
  for (int i = 0; i < 2000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const uint32_t first = static_cast<uint32_t>(state >> 60) % 12;
    tokens.push_back({first, (first + 1 + static_cast<uint32_t>(state >> 40) % 5) % 12});
  }
  TraceLayer layer = Layer(12, 2, tokens);
  layer.scores.assign(layer.tokens() * 12, 0.05f);
  for (uint64_t t = 0; t < layer.tokens(); ++t) layer.scores[t * 12 + layer.Chosen(t)[0]] = 0.5f;
  StackDistances distances(12);
  for (uint64_t t = 0; t < layer.tokens(); ++t) {
    const absl::Span<const uint32_t> chosen = layer.Chosen(t);
    distances.Add(std::vector<uint32_t>(chosen.rbegin(), chosen.rend()));
  }
  for (uint32_t slots = 2; slots <= 12; ++slots) {
    const uint64_t best = ReplayOracle(layer, slots).hits;
    for (const SlotEviction kind : {SlotEviction::kLru, SlotEviction::kLfru, SlotEviction::kScore}) {
      EXPECT_LE(ReplayEviction(layer, slots, {kind}).hits, best) << slots;
    }
    EXPECT_EQ(ReplayEviction(layer, slots, {}).hits, distances.Hits(slots)) << slots;
  }
}

// The first 20000 input positions of the WikiText-2 test windows on the sample model: one byte for each
// position and layer, first expert * 8 + second.
TEST(CacheReplayTest, ReferenceTraceHitRatesMatchOtherProgram) {
  constexpr uint32_t kLayers = 6;
  constexpr uint32_t kPositions = 20000;
  // LRU, pinned, by layer and slots 2..7.
  constexpr double kRates[kLayers][6] = {
      {.2402, .3603, .5019, .6288, .7505, .8845}, {.2444, .3594, .5020, .6350, .7636, .8845},
      {.2759, .4081, .5288, .6563, .7801, .8945}, {.2829, .4094, .5352, .6710, .7907, .9015},
      {.3676, .4698, .5738, .6877, .8003, .9097}, {.4350, .5560, .6639, .7594, .8503, .9333}};
  constexpr double kSequential[kLayers][2] = {{.0583, .4669}, {.0588, .4667}, {.0532, .4915},
                                              {.0529, .5026}, {.0744, .5507}, {.0987, .6414}};
  const auto bytes = ReadFile("tests/inferd/policy/data/reference_trace.bin", kLayers * kPositions);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ASSERT_EQ(bytes->size(), kLayers * kPositions);
  for (uint32_t l = 0; l < kLayers; ++l) {
    TraceLayer layer{8, 2, {}, {}, {}, {}, {}};
    for (uint32_t t = 0; t < kPositions; ++t) {
      const uint8_t pair = static_cast<uint8_t>((*bytes)[t * kLayers + l]);
      const uint32_t chosen[] = {pair / 8u, pair % 8u};
      layer.Add(t, 0, chosen);
    }
    for (uint32_t slots = 2; slots <= 7; ++slots) {
      EXPECT_NEAR(ReplayEviction(layer, slots, {}).rate(), kRates[l][slots - 2], .001) << l << ", " << slots;
    }
    EXPECT_NEAR(ReplayEviction(layer, 1, {}).rate(), kSequential[l][0], .001) << l;
    EXPECT_NEAR(ReplayEviction(layer, 4, {}, ReplayOrder::kSequential).rate(), kSequential[l][1], .001) << l;
  }
}

// The worked example of TRACE.md.
std::string Example() {
  std::string bytes = "SLTRACE1";
  const auto u32 = [&](uint32_t value) { bytes.append(reinterpret_cast<const char*>(&value), 4); };
  for (const uint32_t value : {1u, 2u, 1u, 1u, 0u, 0u, 1u, 0u, 0u, 7u, 1u}) u32(value);
  bytes += std::string("\x01\x00\x00\x00\x80\x3e\x00\x00\x40\x3f", 10);
  return bytes;
}

TEST(TraceFileTest, ReadsTheWorkedExample) {
  EXPECT_EQ(Example().size(), 62u);
  const auto trace = ParseTrace(Example(), "example");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->layers.size(), 1u);
  const TraceLayer& layer = trace->layers[0];
  ASSERT_EQ(layer.tokens(), 1u);
  EXPECT_EQ(layer.Chosen(0).at(0), 1u);
  EXPECT_EQ(layer.Scores(0).at(1), 0.75f);
  EXPECT_EQ(layer.flags[0], kTraceDecode);
}

TEST(TraceFileTest, ACutOffRecordIsLeftOutAndNonsenseIsDamage) {
  for (size_t length = 20; length < Example().size(); ++length) {
    const auto cut = ParseTrace(Example().substr(0, length), "cut");
    ASSERT_TRUE(cut.ok()) << length << ": " << cut.status();
    EXPECT_EQ(cut->layers[0].tokens(), 0u);
  }
  for (const auto& [at, value] : std::vector<std::pair<size_t, char>>{
           {0, 'X'}, {8, '\x7f'}, {16, '\x09'}, {28, '\x05'}, {52, '\x07'}, {57, '\x7f'}}) {
    std::string bad = Example();
    bad[at] = value;
    EXPECT_TRUE(absl::IsDataLoss(ParseTrace(bad, "bad").status())) << at;
  }
}

}  // namespace
}  // namespace sluice::inferd
