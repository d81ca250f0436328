// Thread safety: tests; the race test runs a client's and weightd's side on several threads over one mapping.
#include "common/protocol/lease.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace sluice {
namespace {

struct Words {
  ResidencyEntry entry{};
  PinEntry pin{};
  std::atomic<uint64_t> last_stamp{0};
};

TEST(LeaseTest, OnlyAResidentExtentIsLeased) {
  Words w;
  uint64_t place = 0;
  uint64_t generation = 0;
  for (ExtentState state :
       {ExtentState::kAbsent, ExtentState::kFilling, ExtentState::kEvicting, ExtentState::kBad}) {
    PublishState(w.entry, state, 4);
    EXPECT_FALSE(TryLease(w.entry, w.pin, &place, &generation));
    EXPECT_EQ(w.pin.pins.load(), 0u);
  }
  PublishResident(w.entry, 9, 8192, 5);
  ASSERT_TRUE(TryLease(w.entry, w.pin, &place, &generation));
  EXPECT_EQ(PlaceSegment(place), 9u);
  EXPECT_EQ(PlaceOffset(place), 8192u);
  EXPECT_EQ(generation, 5u);
}

TEST(LeaseTest, LeaseStopsEvictionAndReleaseLeavesItsStamp) {
  Words w;
  PublishResident(w.entry, 1, 0, 1);
  uint64_t place = 0;
  uint64_t generation = 0;
  const auto pinned = [&w] { return PinsHeld(w.pin); };
  ASSERT_TRUE(TryLease(w.entry, w.pin, &place, &generation));
  ASSERT_TRUE(TryLease(w.entry, w.pin, &place, &generation));
  EXPECT_FALSE(TryEvict(w.entry, pinned));
  EXPECT_TRUE(IsResident(w.entry));
  ReleaseLease(w.pin, w.last_stamp, StepStamp(3, 1));
  EXPECT_FALSE(TryEvict(w.entry, pinned));
  ReleaseLease(w.pin, w.last_stamp, StepStamp(3, 2));
  EXPECT_EQ(w.pin.uses.load(), 2u);
  EXPECT_EQ(w.pin.last_step.load(), StepStamp(3, 2));
  EXPECT_EQ(w.last_stamp.load(), StepStamp(3, 2));
  EXPECT_TRUE(TryEvict(w.entry, pinned));
  EXPECT_FALSE(TryLease(w.entry, w.pin, &place, &generation));
}

// Readers lease and read; one thread evicts, overwrites and publishes again. The payload is not atomic: TSan
// reports the protocol's first mistake, and without TSan a torn payload fails the comparison.
TEST(LeaseTest, LeasedBytesAreNeverOverwritten) {
  constexpr int kReaders = 3;
  constexpr int kExtents = 4;
  constexpr uint64_t kFills = 20000;
  struct Extent {
    ResidencyEntry entry{};
    std::array<PinEntry, kReaders> pins{};
    std::array<uint64_t, 16> payload{};
  };
  std::vector<Extent> extents(kExtents);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> leases{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&, r] {
      std::atomic<uint64_t> last_stamp{0};
      uint64_t step = 0;
      for (uint64_t i = r; !stop.load(std::memory_order_relaxed); ++i) {
        Extent& extent = extents[i % kExtents];
        uint64_t place;
        uint64_t generation;
        if (!TryLease(extent.entry, extent.pins[r], &place, &generation)) {
          std::this_thread::yield();
          continue;
        }
        for (uint64_t word : extent.payload) {
          ASSERT_EQ(word, generation);
        }
        ASSERT_EQ(PlaceOffset(place), generation * kSegmentAlignment);
        leases.fetch_add(1, std::memory_order_relaxed);
        ReleaseLease(extent.pins[r], last_stamp, StepStamp(++step, 0));
      }
    });
  }
  uint64_t refused = 0;
  for (uint64_t fill = 1; fill <= kFills || leases.load() < 1000; ++fill) {
    Extent& extent = extents[fill % kExtents];
    const auto pinned = [&extent] {
      for (const PinEntry& pin : extent.pins) {
        if (PinsHeld(pin)) return true;
      }
      return false;
    };
    if (IsResident(extent.entry) && !TryEvict(extent.entry, pinned)) {
      ++refused;
      continue;
    }
    PublishState(extent.entry, ExtentState::kFilling, fill);
    extent.payload.fill(fill);
    PublishResident(extent.entry, 1, fill * kSegmentAlignment, fill);
  }
  stop.store(true);
  for (std::thread& reader : readers) {
    reader.join();
  }
  RecordProperty("refused", static_cast<int>(refused));
}

}  // namespace
}  // namespace sluice
