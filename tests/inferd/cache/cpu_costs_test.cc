// CPU time table of an expert by rows, as measured at the start by the clock of the computing device, which
// only the kernels advance.
#include <map>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "inferd/cache/slab_residency.h"
#include "inferd/policy/cache_allocation.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/engine_testing.h"
#include "tests/support/fakes/fake_clock.h"

namespace sluice::inferd {
namespace {

constexpr int64_t kMicro = 1000;

// Experts take the time of a table, by rows; all but the last of three equal calls take longer, as on a
// shared machine.
class TimedBackend final : public ReferenceBackend {
 public:
  TimedBackend(const BackendLimits& limits, FakeClock* clock) : ReferenceBackend(limits), clock_(clock) {}
  std::map<size_t, int64_t> micros;
  std::map<size_t, int> calls;

  absl::Status Enqueue(const Operation& operation) override {
    if (const auto* const* args = std::get_if<const MoeExpertsArgs*>(&operation)) {
      const size_t rows = (*args)->experts[0].rows.size();
      EXPECT_EQ((*args)->experts.size(), 1u);
      const int disturbed = ++calls[rows] % 3 == 0 ? 0 : 77;
      clock_->Advance((micros[rows] + disturbed) * kMicro);
    }
    return ReferenceBackend::Enqueue(operation);
  }
  Event Record() override {
    const Event event = ReferenceBackend::Record();
    times_[event.value] = clock_->NowNanos();
    return event;
  }
  absl::StatusOr<double> Seconds(Event from, Event to) override {
    return static_cast<double>(times_.at(to.value) - times_.at(from.value)) * 1e-9;
  }

 private:
  FakeClock* const clock_;
  std::map<uint64_t, int64_t> times_;  // of events
};

class CpuCostsTest : public testing::Test {
 protected:
  void SetUp() override {
    model_.layers = 2;
    model_.experts = 4;
    ASSERT_TRUE(PackTiny(model_, dir_.File("model"), dir_.File("pack")).ok());
    options_.allocate = AllocateUniform;
    options_.miss = ExpertMiss::kBalance;
    options_.max_rows = 16;
  }

  void Start() {
    client_ = *FakeWeightClient::Open(dir_.File("pack"), {});
    const ModelConfig& config = client_->pack().config();
    backend_ = std::make_unique<TimedBackend>(BackendLimits{.max_tokens = 64,
                                                            .max_cols = config.hidden,
                                                            .hidden = config.hidden,
                                                            .heads = 1,
                                                            .head_dim = 2,
                                                            .max_context = 8,
                                                            .experts = 4,
                                                            .top_k = 2,
                                                            .expert_width = config.layers[0].moe.expert_width,
                                                            .vocab = 8},
                                              &kernels_);
    backend_->micros = {{1, 100}, {2, 140}, {4, 130}, {8, 400}, {16, 900}};
    fetches_ = std::make_unique<FetchQueue>(client_.get(), backend_.get(), &clock_);
    segments_ = std::make_unique<SegmentBuffers>(backend_.get());
    auto made = SlabResidency::Create(options_, client_.get(), fetches_.get(), segments_.get(),
                                      backend_.get(), backend_.get(), nullptr);
    ASSERT_TRUE(made.ok()) << made.status();
    cache_ = *std::move(made);
    ASSERT_TRUE(cache_->Attach().ok());
  }

  double Micros(uint32_t rows) const { return cache_->cpu_costs()[0].Seconds(rows) * 1e6; }

  TinyModelSpec model_;
  TempDir dir_;
  SlabResidencyOptions options_;
  const MonotonicClock clock_;
  FakeClock kernels_;
  std::unique_ptr<FakeWeightClient> client_;
  std::unique_ptr<TimedBackend> backend_;
  std::unique_ptr<FetchQueue> fetches_;
  std::unique_ptr<SegmentBuffers> segments_;
  std::unique_ptr<SlabResidency> cache_;
};

TEST_F(CpuCostsTest, BestOfThreeForEveryPowerOfTwoRows) {
  Start();
  // Three more of one row: the device's own cost, of the same backend here.
  EXPECT_EQ(backend_->calls, (std::map<size_t, int>{{1, 6}, {2, 3}, {4, 3}, {8, 3}, {16, 3}}));
  ASSERT_EQ(cache_->cpu_costs().size(), 1u);
  const double bytes = static_cast<double>(cache_->plan().classes[0].bytes) /
                       static_cast<double>(client_->pack().expert_bytes(0, 0));
  EXPECT_NEAR(Micros(1), 100 * bytes, 1e-6);
  EXPECT_NEAR(Micros(8), 400 * bytes, 1e-6);
  EXPECT_NEAR(Micros(16), 900 * bytes, 1e-6);
}

TEST_F(CpuCostsTest, MoreRowsNeverTakeLess) {
  Start();
  EXPECT_DOUBLE_EQ(Micros(4), Micros(2)) << "measured as less, which is the machine's moment";
  for (uint32_t rows = 1; rows < 100; ++rows) {
    EXPECT_GE(Micros(rows + 1), Micros(rows)) << rows;
  }
}

TEST_F(CpuCostsTest, TableIsLinearBetweenAndBeyondPoints) {
  Start();
  EXPECT_NEAR(Micros(6), (Micros(4) + Micros(8)) / 2, 1e-6);
  EXPECT_NEAR(Micros(12), (Micros(8) + Micros(16)) / 2, 1e-6);
  EXPECT_NEAR(Micros(32) - Micros(16), 2 * (Micros(16) - Micros(8)), 1e-6);
  EXPECT_EQ(Micros(0), 0);
}

TEST_F(CpuCostsTest, NoMoreRowsAreMeasuredThanAStepHas) {
  options_.max_rows = 3;
  Start();
  EXPECT_EQ(backend_->calls, (std::map<size_t, int>{{1, 6}, {2, 3}}));
  EXPECT_NEAR(Micros(3), 2 * Micros(2) - Micros(1), 1e-6);
}

TEST_F(CpuCostsTest, RuntimeTimesCorrectTheMeasurement) {
  Start();
  const auto slots = ExpertSlots::Create(options_, client_.get(), fetches_.get(), backend_.get());
  ASSERT_TRUE(slots.ok()) << slots.status();
  CpuCosts costs(1e-9, nullptr, slots->get(), &client_->pack());
  costs.Assume();
  const double assumed = costs.Seconds(0, 0, 4);
  costs.ReportTime(1, 0);  // no work
  EXPECT_EQ(costs.Seconds(0, 0, 4), assumed);
  for (int layer = 0; layer < 200; ++layer) {
    costs.ReportTime(3 * assumed, costs.Seconds(0, 0, 4));
  }
  EXPECT_NEAR(costs.Seconds(0, 0, 4), 3 * assumed, 1e-3 * assumed);
  costs.ReportTime(1e9 * assumed, costs.Seconds(0, 0, 4));  // a suspended machine does not change the scale
  EXPECT_LT(costs.Seconds(0, 0, 4), 4 * assumed);
}

TEST_F(CpuCostsTest, KnownOrUnneededCostsAreNotMeasured) {
  options_.cpu_seconds = 1e-9;
  Start();
  EXPECT_TRUE(backend_->calls.empty());
  EXPECT_NEAR(Micros(5), 5e-3 * static_cast<double>(cache_->plan().classes[0].bytes), 1e-6);
  options_.cpu_seconds = 0;
  options_.miss = ExpertMiss::kLoad;
  cache_.reset();
  Start();
  EXPECT_TRUE(backend_->calls.empty());
  EXPECT_TRUE(cache_->cpu_costs().empty());
}

}  // namespace
}  // namespace sluice::inferd
