// The neuron level of the cache: a layer's use of its experts' neurons while transfers complete, fail and die
// with weightd. Tables and choices: neuron_table_test.cc; budgets: neuron_plan_test.cc.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "inferd/cache/neuron_residency.h"
#include "inferd/cache/neuron_table.h"
#include "inferd/policy/cache_allocation.h"
#include "pack/row_layout.h"
#include "tests/inferd/cache/neuron_lists.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

// A cache of neurons on a fake weightd and the reference backend, without engine and router.
class NeuronCacheTest : public testing::Test {
 protected:
  static constexpr uint32_t kWidth = 200;
  static constexpr uint32_t kHidden = 32;

  void SetUp() override {
    model_.layers = 2;
    model_.experts = 6;
    model_.width = kWidth;
    model_.hidden = kHidden;
    ASSERT_TRUE(PackTiny(model_, dir_.File("model"), dir_.File("pack")).ok());
    options_.slots.allocate = AllocateUniform;
    options_.slots.lead = Part::kGate;
    options_.slots.stall_limit = absl::Seconds(60);
  }

  // Starts a cache with so many slots.
  void Start(uint32_t slots, const FakeWeightOptions& weights = {}) {
    cache_.reset();
    fetches_.reset();
    backend_.reset();
    client_ = *FakeWeightClient::Open(dir_.File("pack"), weights);
    backend_ = *CreateReferenceBackend({.max_tokens = 64,
                                        .max_cols = 64,
                                        .hidden = kHidden,
                                        .heads = 1,
                                        .head_dim = 2,
                                        .max_context = 8,
                                        .experts = 6,
                                        .top_k = 2,
                                        .expert_width = kWidth,
                                        .vocab = 8});
    fetches_ = std::make_unique<FetchQueue>(client_.get(), backend_.get(), &clock_);
    const Pack& pack = client_->pack();
    const uint64_t slot = NeuronLayoutOf(pack, 0, 0, Part::kGate, options_.lead_resident).slot_bytes;
    options_.slots.budget = slots * slot + PositionBytes(pack, slots) +
                            (options_.lead_resident ? LeadBytes(pack, Part::kGate) : 0);
    auto cache = NeuronResidency::Create(options_, client_.get(), fetches_.get(), backend_.get());
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    ASSERT_TRUE(cache_->Attach().ok());
    x_ = NewRows(64, kHidden);
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    auto* x = reinterpret_cast<float*>(backend_->HostWrite(x_.base, 64 * kHidden * sizeof(float)));
    std::generate_n(x, 64 * kHidden, [&] { return normal(random); });
    y_ = NewRows(64, kHidden);
    cache_->BeginStep({.number = ++step_});
  }
  Rows NewRows(uint32_t rows, uint32_t cols) {
    return {{*backend_->Allocate(uint64_t{rows} * cols * sizeof(float), BufferKind::kStaging), 0}, cols};
  }

  // A layer with one row for each expert, from `first_row` on: the rows that came out, by expert.
  using Outputs = std::vector<std::vector<float>>;
  absl::StatusOr<Outputs> Run(uint32_t layer, const Neurons& experts, uint32_t first_row = 0) {
    std::vector<ExpertDemand> demands;
    for (const uint32_t expert : experts) {
      demands.push_back({expert, 1});
    }
    RETURN_IF_ERROR(cache_->BeginLayer({layer, demands}));
    for (;;) {
      ASSIGN_OR_RETURN(const absl::Span<const ReadyTile> ready, cache_->Next());
      if (ready.empty()) {
        break;
      }
      RETURN_IF_ERROR(Compute(ready, first_row));
    }
    Outputs outputs;
    for (size_t i = 0; i < experts.size(); ++i) {
      const auto* y = reinterpret_cast<const float*>(
          backend_->HostRead(y_.base + i * kHidden * sizeof(float), kHidden * sizeof(float)));
      outputs.emplace_back(y, y + kHidden);
    }
    return outputs;
  }

  absl::Status Compute(absl::Span<const ReadyTile> ready, uint32_t first_row) {
    std::vector<uint32_t> rows(64);
    std::vector<uint32_t> slots(64);
    std::iota(rows.begin(), rows.end(), first_row);
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<LeadWork> leads;
    std::vector<ExpertWork> works;
    for (const ReadyTile& tile : ready) {
      const auto row = absl::MakeConstSpan(rows).subspan(tile.demand, 1);
      if (tile.lead_only) {
        leads.push_back({.lead = tile.gate,
                         .rows = row,
                         .threshold = threshold_,
                         .values = tile.lead_values,
                         .active = tile.lead_active});
        continue;
      }
      works.push_back({.up = tile.up,
                       .gate = tile.gate,
                       .down = tile.down,
                       .rows = row,
                       .slots = absl::MakeConstSpan(slots).subspan(tile.demand, 1),
                       .neuron_begin = tile.neuron_begin,
                       .neuron_end = tile.neuron_end,
                       .sparsity = SparsityOrder::kGate,
                       .threshold = threshold_,
                       .lead_values = tile.lead_values});
    }
    if (!leads.empty()) {
      RETURN_IF_ERROR(backend_->queue().ExpertLeads(
          {.x = x_, .tokens = 64, .hidden = kHidden, .order = SparsityOrder::kGate, .experts = leads}));
      EXPECT_TRUE(works.empty());
      return cache_->LeadsQueued();
    }
    return backend_->queue().MoeExperts(
        {.x = x_, .tokens = 64, .hidden = kHidden, .experts = works, .y = y_, .slots = 64});
  }

  // The neurons of an expert of layer 0 that count for a row.
  Neurons Active(uint32_t expert, uint32_t row) {
    const std::vector<std::vector<float>> values = Leads(expert, row);
    Neurons active;
    for (uint32_t j = 0; j < kWidth; ++j) {
      if (!(std::fabs(values[0][j]) < threshold_)) {
        active.push_back(j);
      }
    }
    return active;
  }
  std::vector<std::vector<float>> Leads(uint32_t expert, uint32_t row) {
    const Rows values = NewRows(1, 256);
    const LeadWork work{
        .lead = *cache_->Lead(0, expert), .rows = absl::MakeConstSpan(&row, 1), .values = values};
    EXPECT_TRUE(backend_->queue()
                    .ExpertLeads({.x = x_,
                                  .tokens = 64,
                                  .hidden = kHidden,
                                  .order = SparsityOrder::kGate,
                                  .experts = absl::MakeConstSpan(&work, 1)})
                    .ok());
    const auto* v = reinterpret_cast<const float*>(backend_->HostRead(values.base, kWidth * sizeof(float)));
    return {std::vector<float>(v, v + kWidth)};
  }

  NeuronCounters Counted() const { return cache_->stats().neurons[0]; }
  uint32_t Present(uint32_t expert) const {
    return cache_->slots().neurons().present_count(cache_->slots().Find(0, expert));
  }
  // Waits for all transfers.
  void Settle() {
    for (int i = 0; i < 1000 && cache_->slots().in_flight() > 0; ++i) {
      cache_->Poll();
    }
    ASSERT_EQ(cache_->slots().in_flight(), 0u);
  }

  TempDir dir_;
  TinyModelSpec model_;
  MonotonicClock clock_;
  std::unique_ptr<FakeWeightClient> client_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<FetchQueue> fetches_;
  NeuronResidencyOptions options_;
  std::unique_ptr<NeuronResidency> cache_;
  float threshold_ = 0.3f;
  uint64_t step_ = 0;
  Rows x_;
  Rows y_;
};

TEST_F(NeuronCacheTest, CountingNeuronsAreFetchedOnce) {
  options_.lead_resident = true;
  options_.slots.allocate = [](absl::Span<const uint32_t> experts, uint64_t) {
    return std::vector<uint32_t>(experts.size(), 3);
  };
  Start(8);
  for (const uint32_t expert : {3u, 4u, 5u}) {  // none of them is in the first fill
    ASSERT_TRUE(Run(0, {expert}, expert).ok());
  }
  const Neurons first = Active(3, 3);
  EXPECT_EQ(Present(3), first.size());
  const NeuronCounters before = Counted();
  ASSERT_TRUE(Run(0, {3}, 3).ok());
  EXPECT_EQ(Counted().hits - before.hits, first.size());
  EXPECT_EQ(Counted().fetched, before.fetched);
  ASSERT_TRUE(Run(0, {3}, 8).ok());  // another row
  const Neurons second = Active(3, 8);
  Neurons both;
  std::set_union(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(both));
  ASSERT_GT(both.size(), first.size());
  EXPECT_EQ(Present(3), both.size());
  EXPECT_EQ(Counted().fetched - before.fetched, both.size() - first.size());
  const PartView gate = client_->pack().part(0, 3, Part::kUp);
  EXPECT_EQ(Counted().bytes - before.bytes,
            2 * (both.size() - first.size()) * RowBytes(gate.encoding, gate.cols));
}

TEST_F(NeuronCacheTest, AboveTheShareAllMissingNeuronsCome) {
  options_.copy_all_share = 0.1;
  Start(4);
  ASSERT_TRUE(Run(0, {5}).ok());
  EXPECT_EQ(Present(5), kWidth);
  EXPECT_EQ(Counted().copied_all, 1u);
  EXPECT_TRUE(cache_->slots().IsFull(0, 5));
}

TEST_F(NeuronCacheTest, EvictedExpertReturnsWithCurrentNeurons) {
  Start(4);
  const auto first = Run(0, {5}, 1);
  ASSERT_TRUE(first.ok()) << first.status();
  for (uint32_t round = 0; round < 3; ++round) {
    for (const uint32_t expert : {0u, 1u, 2u, 3u, 4u}) {
      ASSERT_TRUE(Run(0, {expert}, 2).ok());
    }
  }
  ASSERT_EQ(cache_->slots().Find(0, 5), NeuronSlots::kNoSlot);
  const auto again = Run(0, {5}, 1);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(Present(5), Active(5, 1).size());
  EXPECT_EQ(client_->violation(), "");
}

TEST_F(NeuronCacheTest, LandedNeuronsSurviveWeightdsDeath) {
  for (const bool resident : {false, true}) {
    options_.lead_resident = resident;
    Start(6, {.max_delay_polls = 5});
    const auto wanted = Run(0, {4, 5}, 1);
    ASSERT_TRUE(wanted.ok());
    const uint32_t present = Present(4);
    ASSERT_TRUE(cache_->BeginLayer({.layer = 1}).ok());
    Neurons more;
    const auto there = cache_->slots().neurons().present(cache_->slots().Find(0, 4));
    for (uint32_t j = 0; j < kWidth && more.size() < 20; ++j) {
      if (!HasNeuron(there, j)) {
        more.push_back(j);
      }
    }
    cache_->PrefetchNeurons(0, 4, more);
    cache_->PrefetchNeurons(0, 0, {1, 2, 3});
    ASSERT_GT(cache_->slots().in_flight(), 0u);
    client_->Disconnect();
    cache_->Abandon();
    fetches_->Forget();
    client_->AllowReconnect(true);
    ASSERT_TRUE(client_->Reconnect(SteadyNow() + absl::Seconds(60)).ok());
    ASSERT_TRUE(cache_->Attach().ok());
    EXPECT_EQ(Present(4), present) << "leads stay " << resident;
    cache_->BeginStep({.number = ++step_});
    const auto again = Run(0, {4, 5}, 1);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *wanted);
    EXPECT_EQ(client_->violation(), "");
  }
}

TEST_F(NeuronCacheTest, PromptDoesNotEvictDecodingsExperts) {
  Start(6);
  for (const uint32_t expert : {4u, 5u}) {  // used last: they are kept
    ASSERT_TRUE(Run(0, {expert}, expert).ok());
  }
  const uint32_t kept = Present(4);
  ASSERT_EQ(kept, Active(4, 4).size());
  cache_->BeginStep({.number = step_, .prefill = true, .exact = true});
  const auto wanted = Run(0, {0, 1, 2, 3, 4, 5}, 20);
  ASSERT_TRUE(wanted.ok());
  ASSERT_TRUE(cache_->BeginLayer({.layer = 1}).ok());
  for (const uint32_t expert : {4u, 5u}) {
    ASSERT_NE(cache_->slots().Find(0, expert), NeuronSlots::kNoSlot) << "expert " << expert;
  }
  EXPECT_GE(Present(4), kept);
}

TEST_F(NeuronCacheTest, ExpertWithManyRowsComesWholeWithoutLead) {
  Start(4);
  const NeuronCounters before = Counted();
  const ExpertDemand demands[] = {{5, 33}};
  ASSERT_TRUE(cache_->BeginLayer({0, demands}).ok());
  bool looked = false;
  for (;;) {
    const auto ready = cache_->Next();
    ASSERT_TRUE(ready.ok()) << ready.status();
    if (ready->empty()) {
      break;
    }
    for (const ReadyTile& tile : *ready) {
      looked = looked || tile.lead_only || tile.lead_values.base;
    }
  }
  EXPECT_FALSE(looked);
  EXPECT_TRUE(cache_->slots().IsFull(0, 5));
  EXPECT_EQ(Counted().copied_all - before.copied_all, 1u);
  EXPECT_EQ(Counted().requests, before.requests);
}

TEST_F(NeuronCacheTest, ProceedLoadsOnlyUnpredictedExperts) {
  options_.miss = NeuronMiss::kProceed;
  options_.lead_resident = true;
  options_.slots.allocate = [](absl::Span<const uint32_t> experts, uint64_t) {
    return std::vector<uint32_t>(experts.size(), 3);
  };
  Start(8);
  const Neurons active = Active(5, 2);
  ASSERT_GT(active.size(), 10u);
  const Neurons predicted(active.begin(), active.begin() + 10);
  cache_->PrefetchNeurons(0, 5, predicted);
  ASSERT_TRUE(Run(0, {5}, 2).ok());
  EXPECT_EQ(Present(5), 10u);
  EXPECT_EQ(Counted().left_out, active.size() - 10);
  EXPECT_EQ(Counted().fetched, 0u);
  EXPECT_EQ(Counted().prefetched, 10u);
  // Two steps later the prediction is too old: nothing is left out.
  cache_->BeginStep({.number = step_ += 2});
  ASSERT_TRUE(Run(0, {5}, 2).ok());
  EXPECT_EQ(Present(5), active.size());
  EXPECT_EQ(Counted().left_out, active.size() - 10);
  // Prompts use everything too.
  cache_->PrefetchNeurons(1, 5, predicted);
  cache_->BeginStep({.number = step_, .exact = true});
  ASSERT_TRUE(Run(1, {5}, 2).ok());
  EXPECT_EQ(cache_->stats().neurons[1].left_out, 0u);
}

TEST_F(NeuronCacheTest, BudgetFetchesTheLargestNeurons) {
  options_.miss = NeuronMiss::kBudgeted;
  options_.lead_resident = true;
  options_.slots.load_seconds = 1e-8;
  options_.slots.allocate = [](absl::Span<const uint32_t> experts, uint64_t) {
    return std::vector<uint32_t>(experts.size(), 3);
  };
  const uint64_t record = 2 * kHidden * 2;  // up and down rows, bf16
  options_.budget_us = 12.5 * static_cast<double>(record) * 1e-8 * 1e6;
  Start(8);
  Neurons active = Active(5, 2);
  const std::vector<float> values = Leads(5, 2)[0];
  std::sort(active.begin(), active.end(),
            [&](uint32_t a, uint32_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  ASSERT_GT(active.size(), 12u);
  ASSERT_TRUE(Run(0, {5}, 2).ok());
  Neurons largest(active.begin(), active.begin() + 12);
  std::sort(largest.begin(), largest.end());
  EXPECT_EQ(Listed(cache_->slots().neurons().present(cache_->slots().Find(0, 5))), largest);
  EXPECT_EQ(Counted().fetched, 12u);
  EXPECT_EQ(Counted().left_out, active.size() - 12);
}

// Computing time does not count: transfers have the whole timeout from its end on.
TEST_F(NeuronCacheTest, ComputingDoesNotCountForTheStallLimit) {
  options_.slots.stall_limit = absl::Milliseconds(40);
  Start(8, {.max_delay_polls = 60});
  const ExpertDemand demands[] = {{0, 1}, {5, 1}};
  ASSERT_TRUE(cache_->BeginLayer({0, demands}).ok());
  int rounds = 0;
  for (;; ++rounds) {
    const auto ready = cache_->Next();
    ASSERT_TRUE(ready.ok()) << ready.status();
    if (ready->empty()) break;
    ASSERT_TRUE(Compute(*ready, 0).ok());
    absl::SleepFor(absl::Milliseconds(60));
  }
  EXPECT_GT(rounds, 2);
}

// A predictor that waits for leads is notified while a layer waits for something else.
TEST_F(NeuronCacheTest, LeadArrivingDuringAWaitIsReported) {
  class Told final : public LeadListener {
   public:
    explicit Told(NeuronResidency* cache) : cache_(cache) {}
    absl::Status OnLeads() override {
      ++times;
      there = cache_->Lead(1, 3).has_value();
      cache_->PrefetchNeurons(1, 3, Neurons{4, 5});
      return absl::OkStatus();
    }
    NeuronResidency* const cache_;
    int times = 0;
    bool there = false;
  };
  Start(8);
  Told told(cache_.get());
  cache_->SetLeadListener(&told);
  cache_->Prefetch(1, 3);
  ASSERT_TRUE(Run(0, {0, 1, 2, 3, 4, 5}).ok());
  EXPECT_EQ(told.times, 1);
  EXPECT_TRUE(told.there);
  EXPECT_EQ(cache_->stats().neurons[1].prefetched, 2u);
  ASSERT_TRUE(Run(1, {3}).ok());
  EXPECT_EQ(told.times, 1) << "the layer's own leads are its own business";
  cache_->SetLeadListener(nullptr);
}

// Requests of predictors and slow transfers do not change a layer's result.
TEST_F(NeuronCacheTest, PredictionsDoNotChangeTheResult) {
  std::vector<Outputs> wanted;
  Start(12);
  for (uint32_t step = 0; step < 30; ++step) {
    wanted.push_back(*Run(step % 2, {step % 6, (step + 3) % 6}, step));
  }
  for (uint32_t draw = 0; draw < 12; ++draw) {
    std::mt19937 random(draw);
    options_.lead_resident = draw % 2 == 0;
    options_.copy_all_share = draw % 3 == 0 ? 0.2 : 0.75;
    Start(4 + draw % 3, {.ring_entries = draw % 4 == 0 ? 4u : 64u,
                         .seed = draw,
                         .max_delay_polls = draw % 5,
                         .no_room_chance = draw % 3 == 1 ? 0.1 : 0.0});
    for (uint32_t step = 0; step < 30; ++step) {
      cache_->BeginStep({.number = ++step_});
      for (uint32_t i = 0; i < random() % 3; ++i) {
        Neurons named;
        for (uint32_t j = random() % 50; j < kWidth; j += 1 + random() % 20) {
          named.push_back(j);
        }
        cache_->PrefetchNeurons(step % 2, random() % 6, named);
      }
      if (random() % 3 == 0) {
        cache_->Prefetch(step % 2, random() % 6);
      }
      const auto outputs = Run(step % 2, {step % 6, (step + 3) % 6}, step);
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      ASSERT_EQ(*outputs, wanted[step]) << "draw " << draw << " step " << step;
      ASSERT_TRUE(cache_->BeginLayer({.layer = (step + 1) % 2}).ok());
    }
    ASSERT_EQ(client_->violation(), "") << "draw " << draw;
  }
}

}  // namespace
}  // namespace sluice::inferd
