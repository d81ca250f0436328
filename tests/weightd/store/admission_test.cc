// Probation: extents used once are evicted before those used again, under each policy.
#include "weightd/store/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "common/protocol/lease.h"
#include "weightd/store/dram_tier.h"

namespace sluice::weightd {
namespace {

// A tier of equal extents, one session that stamps its uses, and the hits it had.
class Replay {
 public:
  static constexpr uint64_t kExtent = 4096;
  Replay(uint32_t extents, uint32_t capacity, const TierPolicy& policy)
      : table_(extents),
        pins_(extents),
        tier_(ArenaOptions(capacity),
              Arena::Listener{[](uint32_t, const std::shared_ptr<const SharedMemory>&) {},
                              [this](uint32_t id) { tier_.DropSegment(id); }},
              policy) {
    tier_.AddPack(std::vector<uint64_t>(extents, kExtent), table_.data());
    tier_.AddPins(0, /*session=*/1, pins_.data(), &timeline_);
  }

  // One use in the engine step `step`; true if it was a hit.
  bool Use(uint32_t extent, uint64_t step) { return UseTogether({{extent}}, step) == 1; }

  // Uses experts that hold all their extents until the last expert has been fetched. Whole experts are leased
  // first; the others are requested in turn. Returns the number of extents that were resident.
  int UseTogether(const std::vector<std::vector<uint32_t>>& experts, uint64_t step) {
    int hits = 0;
    std::vector<const std::vector<uint32_t>*> waiting;
    for (const std::vector<uint32_t>& expert : experts) {
      const auto there =
          std::count_if(expert.begin(), expert.end(), [this](uint32_t e) { return IsThere(e); });
      hits += static_cast<int>(there);
      if (static_cast<size_t>(there) < expert.size()) {
        waiting.push_back(&expert);
        continue;
      }
      std::for_each(expert.begin(), expert.end(), [this](uint32_t extent) { Lease(extent); });
    }
    for (const std::vector<uint32_t>* expert : waiting) {
      tier_.Tick();
      timeline_.Note(stamp_.load(), tier_.clock());
      Fetch(*expert, step);
    }
    for (const std::vector<uint32_t>& expert : experts) {
      for (uint32_t extent : expert) {
        order_ = step == step_ ? order_ + 1 : 0;
        step_ = step;
        ReleaseLease(pins_[extent], stamp_, StepStamp(step, order_));
      }
    }
    return hits;
  }
  const DramTier& tier() const { return tier_; }

 private:
  bool IsThere(uint32_t extent) const { return IsResident(table_[extent]); }
  void Fetch(const std::vector<uint32_t>& expert, uint64_t step) {
    for (uint32_t extent : expert) {
      if (IsThere(extent)) {
        Lease(extent);
      }
    }
    for (uint32_t extent : expert) {
      if (!IsThere(extent)) {
        std::byte* dest = nullptr;
        EXPECT_EQ(tier_.BeginFill(extent, &dest, /*session=*/1, step), DramTier::AllocResult::kAllocated);
        tier_.Publish(extent);
        Lease(extent);
      }
    }
  }
  void Lease(uint32_t extent) {
    uint64_t place;
    uint64_t generation;
    EXPECT_TRUE(TryLease(table_[extent], pins_[extent], &place, &generation));
  }
  static Arena::Options ArenaOptions(uint32_t capacity) {
    Arena::Options options;
    options.budget = capacity * kExtent;
    return options;
  }
  std::vector<ResidencyEntry> table_;
  std::vector<PinEntry> pins_;
  StepTimeline timeline_;
  std::atomic<uint64_t> stamp_{0};
  uint64_t step_ = 0;
  uint64_t order_ = 0;
  DramTier tier_;
};

constexpr uint32_t kLayers = 8;
constexpr uint32_t kExperts = 64;
constexpr uint32_t kPerToken = 4;

// A decode token whose experts are mostly the eight preferred ones of each layer.
double Token(Replay* replay, std::mt19937_64* random, uint64_t step) {
  int hits = 0;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    std::set<uint32_t> chosen;
    while (chosen.size() < kPerToken) {
      const bool usual = (*random)() % 10 != 0;
      chosen.insert(static_cast<uint32_t>((*random)() % (usual ? 8 : kExperts)));
    }
    for (uint32_t expert : chosen) {
      hits += replay->Use(layer * kExperts + expert, step) ? 1 : 0;
    }
  }
  return static_cast<double>(hits) / (kLayers * kPerToken);
}

double Tokens(Replay* replay, std::mt19937_64* random, int count, uint64_t* step) {
  double rate = 0;
  for (int i = 0; i < count; ++i) {
    rate += Token(replay, random, ++*step);
  }
  return rate / count;
}

// `chunks` chunks of a prefill: each uses every expert of every layer once.
void Prefill(Replay* replay, int chunks, uint64_t* step) {
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ++*step;
    for (uint32_t extent = 0; extent < kLayers * kExperts; ++extent) {
      replay->Use(extent, *step);
    }
  }
}

struct Outcome {
  double before;
  double after;
};

Outcome DecodePrefillDecode(const TierPolicy& policy, uint32_t capacity, int chunks) {
  Replay replay(kLayers * kExperts, capacity, policy);
  std::mt19937_64 random(7);
  uint64_t step = 0;
  Tokens(&replay, &random, 300, &step);
  Outcome outcome{};
  outcome.before = Tokens(&replay, &random, 100, &step);
  Prefill(&replay, chunks, &step);
  outcome.after = Tokens(&replay, &random, 3, &step);
  return outcome;
}

TEST(AdmissionTest, LongPrefillLeavesTheDecodeSetInMemory) {
  std::printf("%-6s %-8s %-7s %-22s %s\n", "policy", "capacity", "chunks", "hit rate, no admission",
              "hit rate, admission (before -> after)");
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    for (uint32_t capacity : {128u, 256u}) {
      for (int chunks : {1, 8}) {
        const Outcome without = DecodePrefillDecode({kind, false}, capacity, chunks);
        const Outcome with = DecodePrefillDecode({kind, true}, capacity, chunks);
        std::printf("%-6s %-8u %-7d %.2f -> %-14.2f %.2f -> %.2f\n", NameOf(kind), capacity, chunks,
                    without.before, without.after, with.before, with.after);
        EXPECT_GE(with.before, without.before - 0.03) << NameOf(kind);
        EXPECT_GE(with.after, with.before - 0.06) << NameOf(kind) << " " << capacity << " " << chunks;
        if (kind == EvictionKind::kLru) {
          EXPECT_LT(without.after, without.before - 0.2) << "without admission the test shows nothing";
        }
      }
    }
  }
}

TEST(AdmissionTest, AnotherTextBecomesTheWorkingSetSoon) {
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    Replay replay(kLayers * kExperts, 128, {kind, true});
    std::mt19937_64 random(7);
    uint64_t step = 0;
    const double first = Tokens(&replay, &random, 400, &step);
    // The same preferences with all experts renamed: the far half of each layer.
    double rate = 0;
    for (int token = 0; token < 200; ++token) {
      ++step;
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t i = 0; i < kPerToken; ++i) {
          const uint32_t expert = 40 + static_cast<uint32_t>(random() % 8);
          rate += replay.Use(layer * kExperts + expert, step) && token >= 100 ? 1 : 0;
        }
      }
    }
    rate /= 100 * kLayers * kPerToken;
    EXPECT_GT(rate, first) << NameOf(kind) << ": all that it uses fits";
    EXPECT_GT(rate, 0.99) << NameOf(kind);
  }
}

TEST(AdmissionTest, ALoopJustAboveTheProbationLearnsItsWayIn) {
  // 90 extents in turn fit into 100; a quarter for probation does not hold them, lasting trust does.
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    Replay replay(400, 100, {kind, true});
    uint64_t step = 0;
    for (uint32_t round = 0; round < 20; ++round) {
      for (uint32_t extent = 300; extent < 400; ++extent) {
        replay.Use(extent, ++step);
      }
    }
    int hits = 0;
    for (uint32_t round = 0; round < 40; ++round) {
      for (uint32_t extent = 0; extent < 90; ++extent) {
        hits += replay.Use(extent, ++step) && round >= 30 ? 1 : 0;
      }
    }
    EXPECT_GE(hits, 850) << NameOf(kind) << " of 900";
  }
}

TEST(AdmissionTest, SpreadRoutingHitRateIsTheMemoryShare) {
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    for (uint32_t capacity : {171u, 342u}) {
      Replay replay(512, capacity, {kind, true});
      std::mt19937_64 random(3);
      int hits = 0;
      for (uint64_t step = 1; step <= 30000; ++step) {
        hits += replay.Use(static_cast<uint32_t>(random() % 512), step) && step > 10000 ? 1 : 0;
      }
      EXPECT_NEAR(hits / 20000.0, capacity / 512.0, 0.015) << NameOf(kind);
      EXPECT_LE(replay.tier().trusted_extents(), capacity * 3 / 4 + 1);
    }
  }
}

TEST(AdmissionTest, RefillSoonAfterEvictionIsTrustedAtOnce) {
  ProbationPolicy policy(EvictionKind::kLru);
  const auto look = [](uint32_t extent) { return ExtentUse{UseKey{extent + 1u, 0}, true, 0, 0}; };
  for (uint32_t e = 0; e < 8; ++e) {
    policy.Add(e, look(e));
  }
  ASSERT_EQ(policy.Coldest(0, look)->extent, 0u);
  policy.Remove(0, 0);
  policy.Remove(1, 0);
  EXPECT_EQ(policy.trusted(), 0u);
  policy.Add(0, ExtentUse{UseKey{1, 0}, true, 0, 0.2});
  EXPECT_EQ(policy.trusted(), 1u);
  policy.Add(1, ExtentUse{UseKey{2, 0}, true, 0, 0.3});
  EXPECT_EQ(policy.trusted(), 1u) << "0.3 turnovers are more than kMemory";
  EXPECT_EQ(policy.Coldest(0.3, look)->extent, 1u) << "extent 0 is older, but trusted";
}

TEST(AdmissionTest, SecondUseSinceTheFillMakesTrusted) {
  ProbationPolicy policy(EvictionKind::kLru);
  std::array<uint64_t, 8> uses = {};
  const auto look = [&uses](uint32_t extent) {
    return ExtentUse{UseKey{extent + 1u, 0}, true, uses[extent], 0};
  };
  for (uint32_t e = 0; e < 8; ++e) {
    uses[e] = 10;  // of earlier stays
    policy.Add(e, look(e));
  }
  uses[0] = 11;
  EXPECT_EQ(policy.Coldest(0, look)->extent, 0u) << "the use it was filled for";
  EXPECT_EQ(policy.trusted(), 0u);
  uses[0] = 12;
  EXPECT_EQ(policy.Coldest(0, look)->extent, 1u);
  EXPECT_EQ(policy.trusted(), 1u);
  EXPECT_EQ(policy.promotions(), 1u);
}

// A decode of few large experts: a token uses two of eight experts in each of three layers, three extents
// each.
double FewLargeExperts(uint32_t capacity, const TierPolicy& policy) {
  constexpr uint32_t kFewLayers = 3;
  constexpr uint32_t kFew = 8;
  constexpr uint32_t kParts = 3;
  constexpr int kTokens = 3000;
  Replay replay(kFewLayers * kFew * kParts, capacity, policy);
  std::mt19937_64 random(5);
  int hits = 0;
  for (int token = 1; token <= kTokens; ++token) {
    for (uint32_t layer = 0; layer < kFewLayers; ++layer) {
      const uint32_t first = static_cast<uint32_t>(random() % kFew);
      const uint32_t second = (first + 1 + static_cast<uint32_t>(random() % (kFew - 1))) % kFew;
      std::vector<std::vector<uint32_t>> experts;
      for (uint32_t expert : {first, second}) {
        const uint32_t extent = (layer * kFew + expert) * kParts;
        experts.push_back({extent, extent + 1, extent + 2});
      }
      hits += replay.UseTogether(experts, static_cast<uint64_t>(token));
    }
  }
  return static_cast<double>(hits) / (kTokens * kFewLayers * 2 * kParts);
}

TEST(AdmissionTest, FewLargeExpertsAreKeptFromOneTokenToTheNext) {
  std::printf("%-6s %-8s %s\n", "policy", "capacity",
              "share of 72 extents, hit rate: no admission, admission");
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    for (uint32_t capacity : {20u, 24u, 30u, 42u}) {
      const double share = capacity / 72.0;
      const double without = FewLargeExperts(capacity, {kind, false});
      const double with = FewLargeExperts(capacity, {kind, true});
      std::printf("%-6s %-8u %.3f: %.3f, %.3f\n", NameOf(kind), capacity, share, without, with);
      EXPECT_GE(with, without - 0.02) << NameOf(kind) << " " << capacity;
    }
  }
}

}  // namespace
}  // namespace sluice::weightd
