// ModelTable: which models are loaded, in what order they make room, and that no request waits for ever.

#include "cli/router/model_table.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace sluice::cli {
namespace {

constexpr absl::Duration kIdle = absl::Minutes(10);

class ModelTableTest : public testing::Test {
 protected:
  // Two of the three models fit.
  ModelTableTest() {
    for (const char* name : {"a", "b", "c"}) {
      EXPECT_TRUE(table_.Add(name, {10, 5}).ok());
    }
  }

  absl::Time Now() { return now_ += absl::Seconds(1); }
  // The next step as "+a" or "-a"; "" if there is none.
  std::string Next() {
    const std::optional<ModelTable::Step> step = table_.Next(Now());
    return step.has_value() ? std::string(step->load ? "+" : "-") + static_cast<char>('a' + step->model) : "";
  }
  // A request that loads its model.
  void Load(size_t model) {
    const uint64_t ticket = table_.Wait(model);
    EXPECT_EQ(std::string("+") + static_cast<char>('a' + model), Next());
    table_.Loaded(model, Now());
    table_.Leave(model, ticket);
  }
  void Begin(size_t model) { table_.Began(model, Now()); }
  void End(size_t model) { table_.Ended(model, Now()); }

  ModelTable table_{{20, 100}, kIdle};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(ModelTableTest, AModelIsLoadedForItsFirstRequest) {
  EXPECT_EQ("", Next());
  table_.Wait(1);
  EXPECT_EQ("+b", Next());
  EXPECT_EQ("", Next());
  EXPECT_EQ(ModelState::kLoading, table_.state(1));
  EXPECT_FALSE(table_.MayRun(1));
  table_.Loaded(1, Now());
  EXPECT_TRUE(table_.MayRun(1));
  EXPECT_EQ(10u, table_.Used().memory);
}

TEST_F(ModelTableTest, TheLeastRecentlyUsedOneMakesRoom) {
  Load(0);
  Load(1);
  Begin(0);
  End(0);
  table_.Wait(2);
  EXPECT_EQ("-b", Next());
  EXPECT_EQ("", Next());  // its memory is taken until its process has ended
  table_.Gone(1);
  EXPECT_EQ("+c", Next());
  EXPECT_EQ(ModelState::kLoaded, table_.state(0));
}

TEST_F(ModelTableTest, AnIdleOneMakesRoomBeforeABusyOne) {
  Load(0);
  Load(1);
  Begin(0);
  Begin(1);
  End(1);
  table_.Wait(2);
  EXPECT_EQ("-b", Next());
}

TEST_F(ModelTableTest, ABusyModelEndsItsRequestsFirst) {
  Load(0);
  Load(1);
  Begin(0);
  Begin(1);
  table_.Wait(2);
  EXPECT_EQ("", Next());
  EXPECT_FALSE(table_.MayRun(0));  // so that its requests come to an end
  EXPECT_TRUE(table_.MayRun(1));
  End(0);
  EXPECT_EQ("-a", Next());
}

TEST_F(ModelTableTest, AModelStaysIfNobodyWaitsAnyLonger) {
  Load(0);
  Load(1);
  Begin(0);
  Begin(1);
  const uint64_t ticket = table_.Wait(2);
  EXPECT_EQ("", Next());
  EXPECT_FALSE(table_.MayRun(0));
  table_.Leave(2, ticket);
  EXPECT_EQ("", Next());
  EXPECT_TRUE(table_.MayRun(0));
}

TEST_F(ModelTableTest, AnIdleModelIsUnloadedInTime) {
  Load(0);
  EXPECT_EQ("", Next());
  const absl::Time due = table_.NextDue();
  EXPECT_FALSE(table_.Next(due - absl::Seconds(1)).has_value());
  EXPECT_TRUE(table_.Next(due).has_value());
  EXPECT_EQ(ModelState::kUnloading, table_.state(0));
  EXPECT_EQ(absl::InfiniteFuture(), table_.NextDue());
}

TEST_F(ModelTableTest, ARunningModelIsNotIdle) {
  Load(0);
  Begin(0);
  EXPECT_FALSE(table_.Next(now_ + 10 * kIdle).has_value());
  EXPECT_EQ(absl::InfiniteFuture(), table_.NextDue());
}

TEST_F(ModelTableTest, ALostModelIsLoadedForItsNextRequest) {
  Load(0);
  table_.Stalled(0);
  EXPECT_FALSE(table_.MayRun(0));
  table_.Gone(0);
  EXPECT_EQ("", Next());
  table_.Wait(0);
  EXPECT_EQ("+a", Next());
}

TEST_F(ModelTableTest, ReservedWeightsCountToo) {
  ModelTable table({100, 12}, kIdle);
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(table.Add(name, {10, 5}).ok());
  }
  for (size_t model = 0; model < 2; ++model) {
    const uint64_t ticket = table.Wait(model);
    ASSERT_TRUE(table.Next(Now())->load);
    table.Loaded(model, Now());
    table.Leave(model, ticket);
  }
  table.Wait(2);
  EXPECT_FALSE(table.Next(Now())->load);
}

TEST_F(ModelTableTest, AModelBeyondTheBudgetIsRefused) {
  const absl::Status memory = table_.Add("d", {21, 1});
  EXPECT_EQ(absl::StatusCode::kResourceExhausted, memory.code());
  EXPECT_NE(std::string::npos, memory.message().find("--models-budget"));
  const absl::Status reserved = table_.Add("d", {1, 101});
  EXPECT_EQ(absl::StatusCode::kResourceExhausted, reserved.code());
  EXPECT_NE(std::string::npos, reserved.message().find("--dram-budget"));
  EXPECT_EQ(3u, table_.size());
}

// Random requests of random lengths, with processes that start, end and are lost at random: the budget holds
// at every step, and each request runs in the end.
TEST_F(ModelTableTest, EveryRequestRunsWithinTheBudget) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    ModelTable table({20, 100}, absl::Seconds(5));
    for (const char* name : {"a", "b", "c", "d"}) {
      ASSERT_TRUE(table.Add(name, {4 + 4 * (random() % 4), 5}).ok());
    }
    std::vector<std::deque<uint64_t>> waiting(table.size());
    std::vector<size_t> running(table.size());
    int unfinished = 0;
    for (int turn = 0; turn < 4000; ++turn) {
      const bool arrives = turn < 2000 && random() % 3 == 0;
      const size_t model = random() % table.size();
      if (arrives) {
        waiting[model].push_back(table.Wait(model));
        ++unfinished;
      } else if (running[model] > 0) {
        table.Ended(model, Now());
        --running[model];
        --unfinished;
      } else if (table.state(model) == ModelState::kLoading) {
        turn < 2000 && random() % 4 == 0 ? table.Gone(model) : table.Loaded(model, Now());
      } else if (table.state(model) == ModelState::kUnloading) {
        table.Gone(model);
      }
      for (bool more = true; more;) {
        for (size_t i = 0; i < table.size(); ++i) {
          while (!waiting[i].empty() && table.MayRun(i)) {
            table.Leave(i, waiting[i].front());
            waiting[i].pop_front();
            table.Began(i, Now());
            ++running[i];
          }
        }
        const std::optional<ModelTable::Step> step = table.Next(Now());
        more = step.has_value();
        if (more && !step->load) {
          ASSERT_EQ(0u, running[step->model]) << seed;
        }
      }
      ASSERT_LE(table.Used().memory, 20u) << seed;
    }
    EXPECT_EQ(0, unfinished) << seed;
  }
}

}  // namespace
}  // namespace sluice::cli
