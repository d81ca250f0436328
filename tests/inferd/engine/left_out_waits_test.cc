// Leaves out each kind of wait for an asynchronous device, and each check for completion, once: the device
// reports the operation that ran too early, or the step ends with an error, or tokens are wrong. So every
// wait is needed, and each missing one is detected.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/file_io.h"
#include "inferd/engine/engine_core.h"
#include "inferd/forward/sequence.h"
#include "inferd/sim/own_memory_device.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/threaded_backend.h"
#include "pack/pack.h"
#include "tests/support/delayed/delayed_backend.h"
#include "tests/support/engine_testing.h"
#include "tests/support/fakes/hasty_backend.h"
#include "tests/support/profiled_pack.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kTokens = 10;
constexpr uint64_t kMaxOfAKind = 6;
constexpr uint64_t kMaxDelays = 5;

struct Case {
  const char* name;
  const char* preset = "exact";
  DeviceKind device = DeviceKind::kSim;
  uint32_t share = 2;       // one in this many experts is on the device
  bool small_dram = false;  // the minimum that a session is guaranteed
  bool cpu = false;         // the CPU computes misses beside the device
  std::vector<std::string> policy = {};
  // Kinds of wait that may be left out without an effect.
  std::set<std::string> harmless = {};
};
void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }

// At the end of a prefill chunk the host reads nothing.
constexpr char kPart[] = "Wait behind Combine";

std::vector<Case> Cases() {
  return {
      // Within a layer slots are reused whose experts were just computed.
      {.name = "exact", .share = 4, .harmless = {kPart}},
      // Within a layer leases are released and their memory is refilled.
      {.name = "leases", .device = DeviceKind::kHost, .small_dram = true, .harmless = {kPart}},
      {.name = "cpu",
       .cpu = true,
       .policy = {"cache=static", "expert_miss=cpu"},
       .harmless = {kPart, "cpu: Wait behind Upload", "cpu: IsDone behind MoeExperts"}},
      {.name = "floe", .preset = "floe"},
      {.name = "corm", .preset = "corm"},
      // The prediction of the next token's first layer is speculative: a wrong one costs a load and no token.
      {.name = "adapmoe",
       .preset = "adapmoe",
       .harmless = {"IsDone behind Download", "Wait behind Download"}},
      {.name = "importance", .preset = "importance", .policy = {"expert_miss=load"}, .harmless = {kPart}},
  };
}

// A backend that is slow on experts.
class SlowBackend final : public ReferenceBackend {
 public:
  using ReferenceBackend::ReferenceBackend;
  absl::Status Enqueue(const Operation& operation) override {
    if (std::holds_alternative<const MoeExpertsArgs*>(operation)) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return ReferenceBackend::Enqueue(operation);
  }
};

class SkippedWaitsTest : public testing::TestWithParam<Case> {
 protected:
  // The pack and its profile; made once.
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    const absl::Status made = MakeProfiledPack(3, dir_->File("work"), PackDir());
    ASSERT_TRUE(made.ok()) << made;
  }
  static void TearDownTestSuite() { dir_.reset(); }
  static std::string PackDir() { return dir_->File("pack"); }

  // Returns greedy tokens, one step after the other on this thread, up to the first error, stored in
  // `status`. The device's delays are drawn by `delays`.
  static std::vector<int32_t> Tokens(uint64_t delays, HastyRun* run, absl::Status* status) {
    // Extents without a lease are evicted at once, and filled with 0xFF.
    FakeWeightOptions weights = {.evict_chance = 0.5};
    if (GetParam().small_dram) {
      weights.dram_budget = SmallestBudget(PackDir(), /*threads=*/1);
    }
    const auto client = *FakeWeightClient::Open(PackDir(), weights);
    EngineOptions options;
    options.device = GetParam().device;
    options.preset = GetParam().preset;
    options.policies.policy = GetParam().policy;
    options.parallel = 1;
    options.context = 64;
    options.prefill_chunk = 4;
    options.stall_limit = absl::Seconds(60);  // a loaded machine is no failure of these
    if (options.device != DeviceKind::kHost) {
      options.slab.budget = client->pack().total_expert_bytes() / GetParam().share;
    }
    if (GetParam().cpu) {
      options.slab.link_gbps = 1e-6;  // slower than any compute
    }
    const EnginePlan plan = *PlanEngine(options, client->pack().config());
    ComputeDevices places;
    places.device = std::make_unique<HastyBackend>(
        std::make_unique<DelayedBackend>(
            *CreateReferenceBackend(plan.backend), plan.backend,
            DelayOptions{.seed = delays, .max_delay_us = 300, .max_hold_us = 1000}),
        run);
    if (options.device == DeviceKind::kSim) {
      places.device = std::make_unique<OwnMemoryDevice>(std::move(places.device));
    }
    if (GetParam().cpu) {
      places.cpu = std::make_unique<HastyBackend>(
          std::make_unique<ThreadedBackend>(std::make_unique<SlowBackend>(plan.backend)), run, "cpu");
    }
    RequestRegistry registry(options.queue);
    absl::StatusOr<std::unique_ptr<EngineCore>> core = EngineCore::Create(
        plan, *ChoosePoliciesFor(options, client->pack()), client.get(), std::move(places), &registry);
    *status = core.status();
    if (!core.ok()) {
      return {};
    }
    const GenerateSpec spec = GreedySpec("r", {4, 5, 6, 7, 8, 9}, kTokens);
    auto sink = std::make_shared<CollectingSink>();
    (*core)->Add(std::make_unique<GenerateSequence>(*registry.Enter(spec.request_id, 1, 1), spec, sink,
                                                    SteadyNow(), 5, std::vector<int32_t>(), nullptr));
    while (!sink->ended()) {
      (*core)->Step(SteadyNow());
    }
    *status = sink->Await();
    return sink->ids();
  }

  // Returns the finding of a process that leaves out one wait; a process of its own, as the effect is
  // undefined.
  std::string Without(const std::string& kind, uint64_t number, uint64_t delays,
                      const std::vector<int32_t>& wanted) {
    const std::string log = dir_->File("found");
    std::remove(log.c_str());
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      HastyRun run{.kind = kind, .number = number};
      absl::Status status;
      const std::vector<int32_t> tokens = Tokens(delays, &run, &status);
      std::string found = "nothing";
      if (!run.left_out) {
        found = "not met";  // polled less often this time
      } else if (!run.told.ok()) {
        found = absl::StrCat("told: ", run.told.message());
      } else if (!status.ok()) {
        found = absl::StrCat("error: ", status.message());
      } else if (tokens != wanted) {
        found = "wrong tokens";
      }
      WriteFileDurably(log, found).IgnoreError();
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) << kind << " " << number << ": hangs";
    return ReadFile(log, 1 << 16).value_or("death");
  }

  static std::unique_ptr<TempDir> dir_;
};
std::unique_ptr<TempDir> SkippedWaitsTest::dir_;

TEST_P(SkippedWaitsTest, EachKindIsFound) {
  HastyRun whole;
  absl::Status status;
  const std::vector<int32_t> wanted = Tokens(/*delays=*/1, &whole, &status);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(whole.told.ok()) << whole.told;
  ASSERT_EQ(wanted.size(), kTokens);
  ASSERT_FALSE(whole.waits.empty());
  for (const auto& [kind, count] : whole.waits) {
    uint64_t met = 0;
    uint64_t found = 0;
    std::string told;
    // A device that happens to be done already hides a missing wait, and another wait may cover it: kinds
    // that were not detected get more tries, and other delays.
    const bool harmless = GetParam().harmless.contains(kind);
    const uint64_t tries = std::min(count, kMaxOfAKind);
    for (uint64_t delays = 1; delays == 1 || (delays <= kMaxDelays && found == 0 && !harmless); ++delays) {
      for (uint64_t i = 0; i < tries || (i < count && found == 0); ++i) {
        const uint64_t number = 1 + (i < tries ? i * count / tries : i);
        const std::string what = Without(kind, number, delays, wanted);
        met += what != "not met" ? 1 : 0;
        found += what != "not met" && what != "nothing" ? 1 : 0;
        if (told.empty() || (absl::StartsWith(what, "told") && !absl::StartsWith(told, "told"))) {
          told = what;
        }
      }
    }
    std::printf("%s (%d in a run): %d of %d found; %s\n", kind.c_str(), static_cast<int>(count),
                static_cast<int>(found), static_cast<int>(met), told.c_str());
    EXPECT_TRUE(found > 0 || harmless) << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, SkippedWaitsTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::inferd
