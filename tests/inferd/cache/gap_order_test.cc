// Turns while experts of a prompt's layer wait for slots: arrived experts first, staying ones in the gaps.
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "inferd/cache/transfer_pacing.h"

namespace sluice::inferd {
namespace {

// A device whose work is done on the test's command.
class PacedQueue final : public Queue {
 public:
  uint64_t done = 0;
  absl::Status Enqueue(const Operation&) override { return absl::OkStatus(); }
  absl::Status Upload(const void*, uint64_t, BufferRef) override { return absl::OkStatus(); }
  absl::Status Download(BufferRef, uint64_t, void*) override { return absl::OkStatus(); }
  bool RunsAtCall() const override { return false; }
  Event Record() override { return {++recorded_}; }
  bool IsDone(Event event) override { return event.value <= done; }
  absl::Status Wait(Event) override { return absl::OkStatus(); }
  absl::StatusOr<double> Seconds(Event, Event) override { return 0.0; }

 private:
  uint64_t recorded_ = 0;
};

// A layer of eight demands in a slab with eight passing slots, so that a portion is two experts.
class StreamOrderTest : public testing::Test {
 protected:
  static SlabPlan Plan() {
    SlabPlan plan;
    plan.classes = {{.passing = 5}, {.passing = 3}};
    return plan;
  }

  std::vector<uint32_t> Turn(bool gaps) {
    std::vector<uint32_t> handed;
    order_.HandOut(
        8, gaps, [this](uint32_t i) { return stays_.contains(i); },
        [&](uint32_t i) {
          const bool there = stays_.erase(i) + came_.erase(i) > 0;
          if (there) {
            handed.push_back(i);
          }
          return there;
        });
    if (!handed.empty()) {
      order_.Queued(queue_.Record());
    }
    return handed;
  }

  using Demands = std::vector<uint32_t>;
  PacedQueue queue_;
  StreamOrder order_{Plan(), &queue_};
  std::set<uint32_t> came_;   // passing experts that are ready
  std::set<uint32_t> stays_;  // ready in slots that it keeps
};

TEST_F(StreamOrderTest, ArrivedExpertsRunFirstStayingOnesInPortions) {
  stays_ = {0, 1, 3, 4, 6};
  came_ = {2, 7};
  EXPECT_EQ(Turn(/*gaps=*/true), (Demands{2, 7}));
  EXPECT_EQ(Turn(true), (Demands{0, 1}));
  came_ = {5};
  EXPECT_EQ(Turn(true), Demands{5});
  EXPECT_EQ(Turn(true), (Demands{3, 4}));
}

TEST_F(StreamOrderTest, TwoPortionsOfStayingExpertsAreQueued) {
  stays_ = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(Turn(true), (Demands{0, 1}));  // behind it event 1
  EXPECT_FALSE(order_.HoldsBack());
  EXPECT_EQ(Turn(true), (Demands{2, 3}));
  EXPECT_TRUE(order_.HoldsBack());
  EXPECT_EQ(Turn(true), Demands{});
  came_ = {7};
  EXPECT_EQ(Turn(true), Demands{7}) << "what came waits for nobody";
  queue_.done = 1;
  EXPECT_FALSE(order_.HoldsBack());
  EXPECT_EQ(Turn(true), (Demands{4, 5}));
  EXPECT_TRUE(order_.HoldsBack());
}

TEST_F(StreamOrderTest, EveryDemandHasItsTurnWithoutGaps) {
  stays_ = {0, 1, 2, 3, 4};
  came_ = {6};
  EXPECT_EQ(Turn(/*gaps=*/false), (Demands{0, 1, 2, 3, 4, 6}));
  stays_ = {0, 1, 2};
  EXPECT_EQ(Turn(true), (Demands{0, 1})) << "it was no portion";
  EXPECT_FALSE(order_.HoldsBack());
}

}  // namespace
}  // namespace sluice::inferd
