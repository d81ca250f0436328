// A device with its own memory: its content, the isolation from host memory, and the division of its budget.
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inferd/engine/device_setup.h"
#include "inferd/engine/engine_core.h"
#include "inferd/forward/sequence.h"
#include "inferd/sim/own_memory_device.h"
#include "kernels/reference/reference_backend.h"
#include "pack/pack.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

class OwnMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyModelSpec spec;
    spec.experts = 8;
    spec.layers = 3;
    pack_dir_ = dir_.File("pack");
    const absl::Status status = PackTiny(spec, dir_.File("model"), pack_dir_);
    ASSERT_TRUE(status.ok()) << status;
    pack_ = *Pack::Open(pack_dir_);
    options_.engine.context = 256;
    options_.engine.device = DeviceKind::kSim;
  }
  std::vector<int32_t> Answer(Engine* engine) {
    const auto ids = GenerateIds(engine, GreedySpec("a", {5, 6, 7}, 40));
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.value_or(std::vector<int32_t>());
  }

  TempDir dir_;
  std::string pack_dir_;
  std::unique_ptr<Pack> pack_;
  TestEngineOptions options_;
};

TEST(OwnMemoryDeviceTest, HostReadsOnlyStagingMemory) {
  OwnMemoryDevice device(*CreateReferenceBackend({}));
  const std::vector<float> values(16, 2.5f);
  for (const BufferKind kind : {BufferKind::kActivations, BufferKind::kKvCache, BufferKind::kTables}) {
    const BufferRef buffer{*device.Allocate(64, kind), 0};
    EXPECT_EQ(device.HostRead(buffer, 64), nullptr);
    EXPECT_EQ(device.HostWrite(buffer, 64), nullptr);
    // A copy through the queue works.
    std::vector<float> back(16);
    ASSERT_TRUE(device.queue().Upload(values.data(), 64, buffer).ok());
    ASSERT_TRUE(device.queue().Download(buffer, 64, back.data()).ok());
    ASSERT_TRUE(device.queue().Wait(device.queue().Record()).ok());
    EXPECT_EQ(back, values);
  }
  const BufferId staging = *device.Allocate(64, BufferKind::kStaging);
  EXPECT_NE(device.HostRead({staging, 0}, 64), nullptr);
  EXPECT_NE(device.HostWrite({staging, 0}, 64), nullptr);
  const SharedBuffer shared = *device.AllocateShared(4096);
  EXPECT_EQ(device.HostRead({shared.buffer, 0}, 64), nullptr);
  EXPECT_EQ(device.Import(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), 64))
                .status()
                .code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(OwnMemoryTest, DenseWeightsAreOnTheDeviceNotInDram) {
  TestEngineOptions host = options_;
  host.engine.device = DeviceKind::kHost;
  const absl::StatusOr<TestEngine> on_host = StartEngine(pack_dir_, host);
  ASSERT_TRUE(on_host.ok()) << on_host.status();
  const std::vector<int32_t> wanted = Answer(on_host->engine.get());
  EXPECT_EQ(AwaitQuiet(*on_host->engine).dense_leases_held, pack_->dense_extent_count());
  // A budget below the dense weights: enough if a device holds them, too little to lease them.
  uint64_t largest = pack_->largest_expert_bytes();
  for (uint32_t extent = 0; extent < pack_->dense_extent_count(); ++extent) {
    largest = std::max(largest, pack_->extents()[extent].length);
  }
  ASSERT_LT(2 * largest, pack_->dense_bytes());
  options_.weights.dram_budget = 2 * largest;
  for (const uint64_t seed : {0, 3, 4}) {
    options_.delay_seed = seed;
    options_.engine.slab.transport = seed == 4 ? Transport::kPull : Transport::kPush;
    const absl::StatusOr<TestEngine> on_sim = StartEngine(pack_dir_, options_);
    ASSERT_TRUE(on_sim.ok()) << on_sim.status();
    EXPECT_EQ(Answer(on_sim->engine.get()), wanted);
    const EngineStats stats = AwaitQuiet(*on_sim->engine);
    EXPECT_EQ(stats.dense_leases_held, 0u);
    EXPECT_EQ(on_sim->client->counters().held_leases, 0u);
    EXPECT_EQ(on_sim->client->violation(), "");
  }
  host.weights.dram_budget = 2 * largest;
  host.engine.stall_limit = absl::Milliseconds(200);
  EXPECT_EQ(StartEngine(pack_dir_, host).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(OwnMemoryTest, PulledExpertEqualsTheLease) {
  const absl::StatusOr<TestEngine> pushed = StartEngine(pack_dir_, options_);
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  const std::vector<int32_t> wanted = Answer(pushed->engine.get());
  // Few slots, DRAM that cannot hold all experts, extents evicted while they are fetched, and sessions that
  // end at any time.
  options_.engine.slab.transport = Transport::kPull;
  options_.engine.slab.budget = 4 * pack_->largest_expert_bytes();
  options_.weights.dram_budget = SmallestBudget(pack_dir_, 1);
  options_.weights.evict_chance = 0.3;
  options_.weights.max_delay_polls = 2;
  const absl::StatusOr<TestEngine> pulled = StartEngine(pack_dir_, options_);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  for (uint64_t round = 0; round < 20; ++round) {
    pulled->client->DisconnectAfterPolls(5 * round + 1);
    EXPECT_EQ(Answer(pulled->engine.get()), wanted) << round;
  }
  EXPECT_GT(AwaitQuiet(*pulled->engine).weightd_reconnects, 5u);
  EXPECT_EQ(pulled->client->counters().held_leases, 0u);
  EXPECT_EQ(pulled->client->violation(), "");
}

TEST_F(OwnMemoryTest, DeviceWeightsOutliveTheSession) {
  const absl::StatusOr<TestEngine> test = StartEngine(pack_dir_, options_);
  ASSERT_TRUE(test.ok()) << test.status();
  const std::vector<int32_t> wanted = Answer(test->engine.get());
  const uint64_t requests = test->client->counters().demand_requests;
  for (uint64_t round = 1; round <= 3; ++round) {
    test->client->Disconnect();
    while (test->client->counters().reconnects < round) {
      std::this_thread::yield();
    }
    EXPECT_EQ(Answer(test->engine.get()), wanted);
  }
  // All experts are in slots, and nothing is requested again.
  EXPECT_EQ(test->client->counters().demand_requests, requests);
  EXPECT_EQ(test->client->violation(), "");
}

TEST_F(OwnMemoryTest, DamagedDenseWeightsAreNamed) {
  {
    const ExtentEntry& entry = pack_->extents()[0];
    std::fstream file(pack_->file_path(static_cast<PackFile>(entry.file)),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(entry.offset));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(entry.offset));
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
  const absl::Status status = StartEngine(pack_dir_, options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(pack_->ExtentName(0)));
}

TEST_F(OwnMemoryTest, OneBudgetCoversAllDeviceMemory) {
  const EnginePlan plan = *PlanEngine(options_.engine, pack_->config());
  const Policies policies = *PoliciesOf("exact", {}, DeviceKind::kSim);
  const DeviceMemory all = *DivideDeviceMemory({}, plan, policies, *pack_);
  EXPECT_EQ(all.dense, pack_->dense_bytes());
  EXPECT_EQ(all.kv, plan.kv_bytes);
  EXPECT_EQ(all.activations, plan.activation_bytes);
  EXPECT_EQ(all.experts, 0u) << "all of them";
  const uint64_t least = 2 * pack_->largest_expert_bytes();
  const DeviceMemory some = *DivideDeviceMemory({all.beside() + least + 100, 0}, plan, policies, *pack_);
  EXPECT_EQ(some.experts, least + 100);
  EXPECT_EQ(some.beside() + some.experts, all.beside() + least + 100);
  EXPECT_THAT(some.Describe(*pack_), HasSubstr("dense weights"));
  const DeviceMemory half = *DivideDeviceMemory({0, 50}, plan, policies, *pack_);
  uint64_t experts = 0;
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (uint32_t expert = 0; expert < 8; ++expert) {
      experts += pack_->expert_bytes(layer, expert);
    }
  }
  EXPECT_EQ(half.experts, experts / 2);
  for (const uint64_t bytes : {uint64_t{1}, all.beside(), all.beside() + 1, all.beside() + least - 1}) {
    const absl::Status refused = DivideDeviceMemory({bytes, 0}, plan, policies, *pack_).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << bytes;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("cannot hold the least working set"));
  }
}

TEST_F(OwnMemoryTest, RealDeviceBudgetIsItsFreeMemory) {
  constexpr uint64_t kGranule = 4096;
  const EnginePlan plan = *PlanEngine(options_.engine, pack_->config());
  const Policies policies = *PoliciesOf("exact", {}, DeviceKind::kCuda);
  DeviceCapacity room;
  room.total = uint64_t{1} << 40;
  room.contexts = 1000;
  room.granule = kGranule;
  room.free = room.total / 2;
  const DeviceMemory all = *DivideDeviceMemory({}, plan, policies, *pack_, room);
  EXPECT_EQ(all.experts, 0u) << "all of them";
  EXPECT_EQ(all.contexts, 1000u);
  EXPECT_EQ(all.dense % kGranule, 0u);
  // The default is 95 % of the free memory, with contexts already allocated; slabs use whole granules.
  const uint64_t beside = all.beside() - all.contexts;
  room.free = beside + pack_->total_expert_bytes();
  const DeviceMemory some = *DivideDeviceMemory({}, plan, policies, *pack_, room);
  EXPECT_GT(some.experts, 0u);
  EXPECT_EQ(some.experts % kGranule, 0u);
  EXPECT_LE(beside + some.experts, room.free - room.free / 20 + 1);
  EXPECT_GT(beside + some.experts + kGranule, room.free - room.free / 20 - 1);
  // Too little free memory, and too large a budget, are refused with the numbers.
  room.free = beside;
  for (const DeviceBudget& budget : {DeviceBudget{}, {all.beside() + (1 << 20), 0}, {0, 100}}) {
    const absl::Status refused = DivideDeviceMemory(budget, plan, policies, *pack_, room).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << budget.bytes;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(room.free, " of ", room.total)));
  }
}

// Tracks staging memory, and detects a search for the best logits there.
class WatchedBackend final : public ReferenceBackend {
 public:
  using ReferenceBackend::ReferenceBackend;
  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override {
    ASSIGN_OR_RETURN(const BufferId buffer, ReferenceBackend::Allocate(bytes, kind));
    if (kind == BufferKind::kStaging) {
      staging_.insert(buffer);
    }
    return buffer;
  }
  absl::Status Enqueue(const Operation& operation) override {
    if (const auto* const args = std::get_if<const TopLogitsArgs*>(&operation)) {
      ++(staging_.contains((*args)->logits.base.buffer) ? in_staging_ : on_device_);
    }
    return ReferenceBackend::Enqueue(operation);
  }
  int in_staging() const { return in_staging_; }
  int on_device() const { return on_device_; }

 private:
  absl::flat_hash_set<BufferId> staging_;
  int in_staging_ = 0;
  int on_device_ = 0;
};

// Logits in staging memory would be read over the link, a vocabulary for each token.
TEST_F(OwnMemoryTest, TopLogitsReadDeviceMemory) {
  const auto client = *FakeWeightClient::Open(pack_dir_, {});
  EngineOptions options = options_.engine;
  options.parallel = 1;
  options.slab.budget = client->pack().total_expert_bytes();
  const EnginePlan plan = *PlanEngine(options, client->pack().config());
  auto device = std::make_unique<WatchedBackend>(plan.backend);
  const WatchedBackend& watched = *device;
  ComputeDevices places;
  places.device = std::make_unique<OwnMemoryDevice>(std::move(device));
  RequestRegistry registry(options.queue);
  auto core = EngineCore::Create(plan, *ChoosePoliciesFor(options, client->pack()), client.get(),
                                 std::move(places), &registry);
  ASSERT_TRUE(core.ok()) << core.status();
  const GenerateSpec spec = GreedySpec("r", {4, 5, 6}, 5);
  const auto sink = std::make_shared<CollectingSink>();
  (*core)->Add(std::make_unique<GenerateSequence>(*registry.Enter(spec.request_id, 1, 1), spec, sink,
                                                  SteadyNow(), 5, std::vector<int32_t>(), nullptr));
  while (!sink->ended()) {
    (*core)->Step(SteadyNow());
  }
  ASSERT_TRUE(sink->Await().ok());
  EXPECT_EQ(watched.in_staging(), 0);
  EXPECT_GE(watched.on_device(), 5);
}

}  // namespace
}  // namespace sluice::inferd
