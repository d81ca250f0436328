// A prompt over a pack that is larger than the memory, replayed without times: its hits, the parts of others'
// working sets that it leaves, and that no step reads an expert twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "common/protocol/lease.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/eviction.h"

namespace sluice::weightd {
namespace {

constexpr uint64_t kExtent = 4096;

struct Shape {
  uint32_t layers = 24;
  uint32_t experts = 32;
  uint32_t extents() const { return layers * experts; }
};

// A host client's use of experts: resident ones are leased when the layer begins, the rest demanded in turn
// with `window` in flight, and missing experts of the next layer are prefetched after that.
class ScanReplay {
 public:
  ScanReplay(const Shape& shape, uint32_t capacity, const TierPolicy& policy)
      : shape_(shape),
        table_(shape.extents()),
        pins_(shape.extents()),
        reads_(shape.extents()),
        tier_(ArenaOptions(capacity),
              Arena::Listener{[](uint32_t, const std::shared_ptr<const SharedMemory>&) {},
                              [this](uint32_t id) { tier_.DropSegment(id); }},
              policy) {
    tier_.AddPack(std::vector<uint64_t>(shape.extents(), kExtent), table_.data());
    tier_.AddPins(0, /*session=*/1, pins_.data(), &timeline_);
  }

  // Runs a chunk of a prompt that uses all experts, except those in `skips`. Returns its hit rate.
  double Chunk(uint32_t window, bool ahead, const std::set<uint32_t>& skips = {}) {
    BeginStep(/*scan=*/true);
    uint64_t found = 0;
    uint64_t wanted = 0;
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      std::vector<uint32_t> chosen;
      for (uint32_t expert = 0; expert < shape_.experts; ++expert) {
        if (!skips.contains(ExtentId(layer, expert))) chosen.push_back(ExtentId(layer, expert));
      }
      wanted += chosen.size();
      found += Layer(layer, chosen, window, ahead);
    }
    return static_cast<double>(found) / static_cast<double>(wanted);
  }

  // A token that uses these experts of each layer.
  double Token(const std::vector<uint32_t>& experts) {
    BeginStep(/*scan=*/false);
    uint64_t found = 0;
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      std::vector<uint32_t> chosen;
      for (const uint32_t expert : experts) chosen.push_back(ExtentId(layer, expert));
      found += Layer(layer, chosen, 2, /*ahead=*/false);
    }
    return static_cast<double>(found) / static_cast<double>(shape_.layers * experts.size());
  }

  // Maximum reads of one extent in the last step.
  uint32_t most_reads() const { return *std::max_element(reads_.begin(), reads_.end()); }
  uint32_t refused_prefetches() const { return refused_; }
  DramTier& tier() { return tier_; }
  uint32_t ExtentId(uint32_t layer, uint32_t expert) const { return layer * shape_.experts + expert; }
  bool IsThere(uint32_t extent_id) const { return IsResident(table_[extent_id]); }

 private:
  static Arena::Options ArenaOptions(uint32_t capacity) {
    Arena::Options options;
    options.budget = capacity * kExtent;
    return options;
  }
  void BeginStep(bool scan) {
    ++step_;
    scan_ = scan;
    order_ = 0;
    std::fill(reads_.begin(), reads_.end(), 0);
  }
  // Resident extents, prefetched in this step or not, count as found only if nobody read them for this step.
  uint64_t Layer(uint32_t layer, const std::vector<uint32_t>& chosen, uint32_t window, bool ahead) {
    uint64_t found = 0;
    std::vector<uint32_t> held;
    std::vector<uint32_t> missing;
    for (const uint32_t extent_id : chosen) {
      if (IsThere(extent_id)) {
        Lease(extent_id);
        held.push_back(extent_id);
        found += reads_[extent_id] == 0 ? 1 : 0;
      } else {
        missing.push_back(extent_id);
      }
    }
    std::for_each(held.begin(), held.end(), [this](uint32_t extent_id) { Release(extent_id); });
    for (size_t at = 0; at < missing.size(); at += window) {
      const size_t end = std::min(missing.size(), at + window);
      for (size_t i = at; i < end; ++i) {
        EXPECT_EQ(Fill(missing[i], layer, /*prefetch=*/false), DramTier::AllocResult::kAllocated);
        Lease(missing[i]);
      }
      std::for_each(missing.begin() + static_cast<ptrdiff_t>(at),
                    missing.begin() + static_cast<ptrdiff_t>(end),
                    [this](uint32_t extent_id) { Release(extent_id); });
    }
    if (ahead && layer + 1 < shape_.layers) {
      for (uint32_t expert = 0; expert < shape_.experts; ++expert) {
        const uint32_t extent_id = ExtentId(layer + 1, expert);
        if (!IsThere(extent_id) &&
            Fill(extent_id, layer + 1, /*prefetch=*/true) != DramTier::AllocResult::kAllocated)
          ++refused_;
      }
    }
    return found;
  }
  DramTier::AllocResult Fill(uint32_t extent_id, uint32_t layer, bool prefetch) {
    tier_.Tick();
    timeline_.Note(stamp_.load(), tier_.clock());
    const uint32_t running = prefetch ? layer - 1 : layer;
    const ScanPlace place{step_, ExtentId(running, 0), ExtentId(layer + 1, 0), prefetch};
    std::byte* dest = nullptr;
    const DramTier::AllocResult room =
        tier_.BeginFill(extent_id, &dest, /*session=*/1, step_, scan_ ? &place : nullptr);
    if (room == DramTier::AllocResult::kAllocated) {
      tier_.Publish(extent_id);
      ++reads_[extent_id];
    }
    return room;
  }
  void Lease(uint32_t extent_id) {
    uint64_t place;
    uint64_t generation;
    ASSERT_TRUE(TryLease(table_[extent_id], pins_[extent_id], &place, &generation));
  }
  void Release(uint32_t extent_id) {
    ReleaseLease(pins_[extent_id], stamp_, StepStamp(step_, ++order_), /*counts=*/!scan_);
  }

  const Shape shape_;
  std::vector<ResidencyEntry> table_;
  std::vector<PinEntry> pins_;
  std::vector<uint32_t> reads_;  // by extent, of this step
  StepTimeline timeline_;
  std::atomic<uint64_t> stamp_{0};
  uint64_t step_ = 0;
  uint64_t order_ = 0;
  uint32_t refused_ = 0;
  bool scan_ = false;
  DramTier tier_;
};

std::vector<TierPolicy> AllPolicies() {
  std::vector<TierPolicy> all;
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    for (bool admission : {false, true}) all.push_back({kind, admission});
  }
  return all;
}

TEST(ScanOrderTest, EveryChunkFindsTheShareThatTheMemoryHolds) {
  for (const Shape shape : {Shape{24, 32}, Shape{4, 64}, Shape{48, 8}}) {
    for (const double share : {0.2, 0.47, 0.8}) {
      for (const TierPolicy& policy : AllPolicies()) {
        const auto capacity = static_cast<uint32_t>(share * shape.extents());
        ScanReplay replay(shape, capacity, policy);
        EXPECT_EQ(replay.Chunk(/*window=*/4, /*ahead=*/false), 0) << "nothing is there yet";
        for (int chunk = 1; chunk < 6; ++chunk) {
          const double found = replay.Chunk(4, false);
          EXPECT_GE(found, share - 5.0 / shape.extents())
              << NameOf(policy.eviction) << " admission " << policy.admission << " share " << share << " of "
              << shape.layers << " layers, chunk " << chunk;
          EXPECT_LE(replay.most_reads(), 1u);
        }
      }
    }
  }
}

TEST(ScanOrderTest, PrefetchAheadCostsAtMostOneLayer) {
  const Shape shape{24, 32};
  for (const double share : {0.2, 0.47, 0.8}) {
    for (const TierPolicy& policy : AllPolicies()) {
      ScanReplay replay(shape, static_cast<uint32_t>(share * shape.extents()), policy);
      replay.Chunk(4, true);
      for (int chunk = 1; chunk < 6; ++chunk) {
        const double found = replay.Chunk(4, true);
        EXPECT_GE(found, share - 1.0 / shape.layers - 0.005)
            << NameOf(policy.eviction) << " admission " << policy.admission << " share " << share;
        EXPECT_LE(replay.most_reads(), 1u);
      }
      EXPECT_EQ(replay.refused_prefetches(), 0u);
    }
  }
}

TEST(ScanOrderTest, AChunkThatLeavesExpertsOutFindsAsMuch) {
  const Shape shape{24, 32};
  ScanReplay replay(shape, shape.extents() * 47 / 100, {});
  std::mt19937_64 random(5);
  replay.Chunk(4, true);
  for (int chunk = 0; chunk < 8; ++chunk) {
    std::set<uint32_t> skips;
    while (skips.size() < shape.extents() / 5) {
      skips.insert(static_cast<uint32_t>(random() % shape.extents()));
    }
    EXPECT_GE(replay.Chunk(4, true, skips), 0.38);
    EXPECT_LE(replay.most_reads(), 1u);
  }
}

TEST(ScanOrderTest, DecodeSetIsResidentAfterALongPrompt) {
  const Shape shape{24, 32};
  const std::vector<uint32_t> usual = {3, 7, 11, 19, 23, 30};
  for (const TierPolicy& policy : AllPolicies()) {
    ScanReplay replay(shape, shape.extents() * 47 / 100, policy);
    std::mt19937_64 random(9);
    // The usual six, and now and then others, fill the memory.
    for (int token = 0; token < 200; ++token) {
      std::vector<uint32_t> experts = usual;
      experts.push_back(static_cast<uint32_t>(random() % shape.experts));
      std::sort(experts.begin(), experts.end());
      experts.erase(std::unique(experts.begin(), experts.end()), experts.end());
      replay.Token(experts);
    }
    ASSERT_EQ(replay.Token(usual), 1.0);
    double found = 0;
    for (int chunk = 0; chunk < 8; ++chunk) {
      found = replay.Chunk(4, true);
    }
    EXPECT_GE(found, 0.40) << NameOf(policy.eviction) << " admission " << policy.admission;
    const double after = replay.Token(usual);
    EXPECT_GE(after, policy.admission ? 0.99 : 0.9) << NameOf(policy.eviction) << " " << policy.admission;
  }
}

TEST(ScanOrderTest, AScansUsesMakeNothingTrusted) {
  const Shape shape{8, 16};
  ScanReplay replay(shape, shape.extents() * 9 / 10, {EvictionKind::kLru, true});
  for (int chunk = 0; chunk < 6; ++chunk) {
    replay.Chunk(4, true);
  }
  EXPECT_EQ(replay.tier().trusted_extents(), 0u);
}

TEST(ScanOrderTest, NothingIsReadTwiceWithRoomForOneLayer) {
  const Shape shape{6, 32};
  for (const TierPolicy& policy : AllPolicies()) {
    ScanReplay replay(shape, 40, policy);
    for (int chunk = 0; chunk < 4; ++chunk) {
      replay.Chunk(4, true);
      EXPECT_LE(replay.most_reads(), 1u) << NameOf(policy.eviction) << " admission " << policy.admission;
    }
  }
}

TEST(ScanOrderTest, AQuotaIsScannedInTheSameWay) {
  const Shape shape{24, 32};
  ScanReplay replay(shape, shape.extents(), {});
  replay.tier().SetQuota(1, shape.extents() / 2 * kExtent);
  replay.Chunk(4, false);
  for (int chunk = 0; chunk < 4; ++chunk) {
    EXPECT_GE(replay.Chunk(4, false), 0.49);
  }
}

// The order itself: extents 0..9, layers of two.
class ScanVictimTest : public ::testing::Test {
 protected:
  ScanVictimTest() {
    for (uint32_t e = 0; e < 10; ++e) order_.Add(e, /*uses=*/0);
  }
  std::optional<uint32_t> NextVictim(const ScanPlace& place) {
    const auto found = order_.NextVictim(place, [this](uint32_t e) {
      const bool used = used_.contains(e);
      return ExtentUse{UseKey{1, used ? StepStamp(kStep, 0) : UINT64_MAX}, !held_.contains(e),
                       counted_.contains(e) ? 1u : 0u, 0, false};
    });
    return found.has_value() ? std::optional<uint32_t>(found->extent) : std::nullopt;
  }
  static constexpr uint64_t kStep = 7;
  ScanOrder order_;
  std::set<uint32_t> used_;
  std::set<uint32_t> held_;
  std::set<uint32_t> counted_;
};

TEST_F(ScanVictimTest, UsedGoesFirstThenBehindThenFurthestAhead) {
  const ScanPlace demand{kStep, 4, 6, false};
  EXPECT_EQ(NextVictim(demand), 3u);
  used_ = {5};
  EXPECT_EQ(NextVictim(demand), 5u);
  held_ = {5, 3, 2, 1};
  EXPECT_EQ(NextVictim(demand), 0u);
  held_ = {5, 3, 2, 1, 0};
  EXPECT_EQ(NextVictim(demand), 9u);
  held_ = {0, 1, 2, 3, 5, 6, 7, 8, 9};
  EXPECT_EQ(NextVictim(demand), std::nullopt) << "4 is still to be used";
}

TEST_F(ScanVictimTest, PrefetchSparesTheComputedAndItsOwnLayer) {
  const ScanPlace prefetch{kStep, 4, 8, true};
  held_ = {0, 1, 2, 3, 8, 9};
  EXPECT_EQ(NextVictim(prefetch), std::nullopt);
  order_.NoteScanUse(4, kStep);
  EXPECT_EQ(NextVictim(prefetch), 4u) << "a copy of it has ended";
}

TEST_F(ScanVictimTest, ExtentUsedElsewhereLeavesTheScanOrder) {
  counted_ = {3};
  EXPECT_EQ(NextVictim({kStep, 4, 6, false}), 2u);
  EXPECT_EQ(order_.size(), 9u);
}

}  // namespace
}  // namespace sluice::weightd
