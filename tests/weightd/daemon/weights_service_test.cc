// WeightService over its unix socket.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/base/clock.h"
#include "google/protobuf/descriptor.h"
#include "tests/support/fakes/test_slab.h"
#include "tests/weightd/daemon/weights_service_testing.h"
#include "weightd/engine/store_stats.h"

namespace sluice::weightd {
namespace {

TEST_F(WeightsServiceTest, AnotherAbiIsRefusedNamingTheField) {
  v1::OpenSessionRequest version = GoodRequest();
  version.mutable_abi()->set_version(kAbiVersion + 1);
  ExpectRefused(version, absl::StatusCode::kFailedPrecondition, "ABI_MISMATCH", "version");
  v1::OpenSessionRequest size = GoodRequest();
  size.mutable_abi()->set_completion_entry(64);
  ExpectRefused(size, absl::StatusCode::kFailedPrecondition, "ABI_MISMATCH", "completion_entry");
  v1::OpenSessionRequest message = GoodRequest();
  message.mutable_abi()->set_side_message(80);
  ExpectRefused(message, absl::StatusCode::kFailedPrecondition, "ABI_MISMATCH", "side_message");
  v1::OpenSessionRequest none = GoodRequest();
  none.clear_abi();
  ExpectRefused(none, absl::StatusCode::kFailedPrecondition, "ABI_MISMATCH", "version");
}

TEST_F(WeightsServiceTest, AnotherBootEpochIsRefusedAndTheRightOneTaken) {
  v1::OpenSessionRequest request = GoodRequest();
  request.set_expected_boot_epoch(server_->store().Look(&StoreCore::boot_epoch) ^ 1);
  ExpectRefused(request, absl::StatusCode::kFailedPrecondition, "BOOT_EPOCH_MISMATCH", "started anew");
  request.set_expected_boot_epoch(server_->store().Look(&StoreCore::boot_epoch));
  v1::OpenSessionResponse response;
  EXPECT_TRUE(Open(request, &response).ok());
  EXPECT_EQ(response.boot_epoch(), server_->store().Look(&StoreCore::boot_epoch));
}

TEST_F(WeightsServiceTest, WrongFieldsAreRefusedByName) {
  v1::OpenSessionRequest packs = GoodRequest();
  packs.clear_packs();
  ExpectRefused(packs, absl::StatusCode::kInvalidArgument, "INVALID_FIELD", "packs");
  packs.add_packs();
  ExpectRefused(packs, absl::StatusCode::kInvalidArgument, "INVALID_FIELD", "model_id");
  v1::OpenSessionRequest unknown = GoodRequest();
  unknown.mutable_packs(0)->set_path("/nowhere");
  ExpectRefused(unknown, absl::StatusCode::kNotFound, "PACK_UNKNOWN", pack_.dir());
  v1::OpenSessionRequest contradiction = GoodRequest();
  contradiction.mutable_packs(0)->set_model_id(std::string(32, '0'));
  ExpectRefused(contradiction, absl::StatusCode::kNotFound, "PACK_UNKNOWN", pack_.pack().model_id());
  v1::OpenSessionRequest twice = GoodRequest();
  twice.add_packs()->set_model_id(pack_.pack().model_id());
  ExpectRefused(twice, absl::StatusCode::kInvalidArgument, "INVALID_FIELD", "twice");
  v1::OpenSessionRequest threads = GoodRequest();
  threads.set_compute_threads(0);
  ExpectRefused(threads, absl::StatusCode::kInvalidArgument, "INVALID_FIELD", "compute_threads");
  threads.set_compute_threads(0xffffffff);
  ExpectRefused(threads, absl::StatusCode::kInvalidArgument, "INVALID_FIELD", "compute_threads");
  threads.set_compute_threads(4096);
  ExpectRefused(threads, absl::StatusCode::kResourceExhausted, "BUDGET_TOO_SMALL", "4096");
  v1::OpenSessionRequest rings = GoodRequest();
  rings.mutable_rings()->set_ring_entries(1000);
  ExpectRefused(rings, absl::StatusCode::kInvalidArgument, "INVALID_FIELD", "1000");
  v1::OpenSessionRequest name = GoodRequest();
  name.set_client_name(std::string(129, 'x'));
  ExpectRefused(name, absl::StatusCode::kInvalidArgument, "INVALID_FIELD", "client_name");
}

TEST_F(WeightsServiceTest, ClosingAnUnattachedSessionRevokesItsNonce) {
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(Open(GoodRequest(), &opened).ok());
  EXPECT_EQ(opened.nonce().size(), kNonceBytes);
  EXPECT_GT(opened.reserved_bytes(), 0u);
  v1::CloseSessionRequest close;
  close.set_session(opened.session());
  v1::CloseSessionResponse closed;
  close.set_boot_epoch(opened.boot_epoch() + 1);
  EXPECT_EQ(ReasonOf(Call(&v1::WeightService::Stub::CloseSession, close, &closed)), "SESSION_UNKNOWN")
      << "of another life";
  close.set_boot_epoch(opened.boot_epoch());
  EXPECT_TRUE(Call(&v1::WeightService::Stub::CloseSession, close, &closed).ok());
  AwaitSessions(0);
  const absl::Status again = Call(&v1::WeightService::Stub::CloseSession, close, &closed);
  EXPECT_TRUE(absl::IsNotFound(again));
  EXPECT_EQ(ReasonOf(again), "SESSION_UNKNOWN");
  const auto side = ConnectUnix(opened.side_socket(), UnixSocketType::kSeqPacket);
  SideMessage hello;
  std::copy(opened.nonce().begin(), opened.nonce().end(), hello.nonce.begin());
  ASSERT_TRUE(SendSideMessage(side->get(), hello).ok());
  pollfd polled{side->get(), POLLIN, 0};
  poll(&polled, 1, 20'000);
  const auto answer = ReceiveSideMessage(side->get());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->message.type, SideType::kReject);
}

TEST_F(WeightsServiceTest, NonceAttachesOnlyOnce) {
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(Open(GoodRequest(), &opened).ok());
  const auto first = RawClient::Join(opened);
  ASSERT_NE(first, nullptr);
  const auto second = ConnectUnix(opened.side_socket(), UnixSocketType::kSeqPacket);
  SideMessage hello;
  std::copy(opened.nonce().begin(), opened.nonce().end(), hello.nonce.begin());
  ASSERT_TRUE(SendSideMessage(second->get(), hello).ok());
  pollfd polled{second->get(), POLLIN, 0};
  poll(&polled, 1, 20'000);
  EXPECT_EQ(ReceiveSideMessage(second->get())->message.type, SideType::kReject);
  EXPECT_EQ(server_->store().Look(&StoreCore::Stats).sessions.at(0).state, "active");
}

TEST_F(WeightsServiceTest, DescribesThePackAndWhatIsInMemory) {
  ExpectServes();
  v1::DescribePackRequest request;
  request.mutable_pack()->set_model_id(pack_.pack().model_id());
  v1::DescribePackResponse response;
  ASSERT_TRUE(Call(&v1::WeightService::Stub::DescribePack, request, &response).ok());
  EXPECT_EQ(response.path(), pack_.dir());
  EXPECT_EQ(response.family(), "mixtral");
  EXPECT_EQ(response.layers(), 4u);
  EXPECT_EQ(response.experts(), 32u);
  EXPECT_EQ(response.extents(), pack_.pack().extent_count());
  EXPECT_EQ(response.expert_bytes(), pack_.pack().total_expert_bytes());
  EXPECT_EQ(response.resident_extents(), 1u);
  EXPECT_EQ(response.resident_bytes(), pack_.pack().extents()[5].length);
}

TEST_F(WeightsServiceTest, WarmSetIsReadAheadAndReported) {
  v1::SetWarmSetRequest set;
  set.mutable_pack()->set_path(pack_.dir());
  set.set_dense(true);
  for (uint32_t expert = 0; expert < 8; ++expert) {
    v1::ExpertRef* ref = set.add_experts();
    ref->set_layer(2);
    ref->set_expert(expert);
  }
  v1::SetWarmSetResponse taken;
  ASSERT_TRUE(Call(&v1::WeightService::Stub::SetWarmSet, set, &taken).ok());
  EXPECT_EQ(taken.extents(), pack_.pack().dense_extent_count() + 24);
  v1::GetWarmSetRequest get;
  get.mutable_pack()->set_path(pack_.dir());
  v1::GetWarmSetResponse got;
  const absl::Time deadline = Soon();
  do {
    ASSERT_TRUE(Call(&v1::WeightService::Stub::GetWarmSet, get, &got).ok());
  } while (got.resident_extents() < got.extents() && SteadyNow() < deadline);
  EXPECT_EQ(got.resident_extents(), taken.extents());
  EXPECT_EQ(got.extents(), taken.extents());
  EXPECT_TRUE(got.dense());
  EXPECT_EQ(got.experts_size(), 8);
  AwaitSessions(0);
}

TEST_F(WeightsServiceTest, PreloadReadsThePackWithoutEvicting) {
  Serve(/*preload=*/true, 32 << 20);
  v1::GetStatsResponse stats;
  const absl::Time deadline = Soon();
  do {
    ASSERT_TRUE(Call(&v1::WeightService::Stub::GetStats, v1::GetStatsRequest(), &stats).ok());
    ASSERT_EQ(stats.warm_sets_size(), 1);
  } while (stats.warm_sets(0).reading() && SteadyNow() < deadline);
  const uint32_t extents = pack_.pack().extent_count();
  EXPECT_EQ(stats.warm_sets(0).extents(), extents);
  EXPECT_EQ(stats.warm_sets(0).done(), extents);
  EXPECT_EQ(stats.resident_extents(), extents);
  EXPECT_EQ(stats.evictions(), 0u);
  AwaitSessions(0);
}

TEST_F(WeightsServiceTest, PreloadNeedsRoomForAllWeights) {
  Serve(/*preload=*/true, pack_.pack().dense_bytes() + pack_.pack().total_expert_bytes() - 1);
  v1::GetStatsResponse stats;
  ASSERT_TRUE(Call(&v1::WeightService::Stub::GetStats, v1::GetStatsRequest(), &stats).ok());
  EXPECT_EQ(stats.warm_sets_size(), 0);
  EXPECT_EQ(stats.prefetch_requests(), 0u);
}

TEST_F(WeightsServiceTest, StatsShowWarmSetProgressAndEmptySetCancels) {
  v1::SetWarmSetRequest set;
  set.mutable_pack()->set_path(pack_.dir());
  for (uint32_t i = 0; i < 32; ++i) {
    v1::ExpertRef* ref = set.add_experts();
    ref->set_layer(i / 8);
    ref->set_expert(i % 8);
  }
  v1::SetWarmSetResponse taken;
  ASSERT_TRUE(Call(&v1::WeightService::Stub::SetWarmSet, set, &taken).ok());
  v1::GetStatsResponse stats;
  absl::Time deadline = Soon();
  do {
    ASSERT_TRUE(Call(&v1::WeightService::Stub::GetStats, v1::GetStatsRequest(), &stats).ok());
    ASSERT_EQ(stats.warm_sets_size(), 1);
    EXPECT_LE(stats.warm_sets(0).done(), stats.warm_sets(0).extents());
  } while (stats.warm_sets(0).reading() && SteadyNow() < deadline);
  EXPECT_EQ(stats.warm_sets(0).model_id(), pack_.pack().model_id());
  EXPECT_EQ(stats.warm_sets(0).extents(), 96u);
  EXPECT_EQ(stats.warm_sets(0).done(), 96u);

  set.clear_experts();
  ASSERT_TRUE(Call(&v1::WeightService::Stub::SetWarmSet, set, &taken).ok());
  deadline = Soon();
  do {
    ASSERT_TRUE(Call(&v1::WeightService::Stub::GetStats, v1::GetStatsRequest(), &stats).ok());
  } while (stats.warm_sets(0).reading() && SteadyNow() < deadline);
  EXPECT_EQ(stats.warm_sets(0).extents(), 0u);
  EXPECT_FALSE(stats.warm_sets(0).reading());
  AwaitSessions(0);
}

TEST_F(WeightsServiceTest, WarmSetOfUnknownExpertsIsRefused) {
  v1::SetWarmSetRequest set;
  set.mutable_pack()->set_path(pack_.dir());
  set.add_experts()->set_layer(4);
  v1::SetWarmSetResponse taken;
  const absl::Status status = Call(&v1::WeightService::Stub::SetWarmSet, set, &taken);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(ReasonOf(status), "INVALID_FIELD");
}

TEST_F(WeightsServiceTest, StatsShowSessionsAndBytes) {
  const auto client = Connect();
  inferd::ExtentLease lease;
  ASSERT_TRUE(FetchAndLease(client.get(), 1, 3, &lease).ok());
  v1::GetStatsResponse stats;
  ASSERT_TRUE(Call(&v1::WeightService::Stub::GetStats, v1::GetStatsRequest(), &stats).ok());
  EXPECT_EQ(stats.boot_epoch(), server_->store().Look(&StoreCore::boot_epoch));
  EXPECT_EQ(stats.dram_budget_bytes(), 32u << 20);
  EXPECT_EQ(stats.bytes_read(), pack_.pack().extents()[3].length);
  EXPECT_EQ(stats.demand_requests(), 1u);
  ASSERT_EQ(stats.sessions_size(), 1);
  EXPECT_EQ(stats.sessions(0).client_name(), "inferd");
  EXPECT_EQ(stats.sessions(0).state(), "active");
  EXPECT_EQ(stats.sessions(0).held_extents(), 1u);
  client->Release(3, 1);
}

TEST(StoreCountersTest, EveryGetStatsFieldHasARowInTheTable) {
  const google::protobuf::Descriptor& fields = *v1::GetStatsResponse::descriptor();
  std::set<std::string> promised;
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *fields.field(i);
    if (field.cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT64 && !field.is_repeated()) {
      promised.insert(field.name());
    }
  }
  promised.erase("boot_epoch");     // not a number that counts
  promised.erase("prefetch_late");  // counted without the store's lock
  std::set<std::string> told;
  std::set<std::string> metrics;
  for (const StoreCounter& counter : kStoreCounters) {
    EXPECT_TRUE(told.insert(counter.field).second) << counter.field;
    EXPECT_TRUE(counter.metric == nullptr || metrics.insert(counter.metric).second) << counter.metric;
  }
  EXPECT_EQ(told, promised);
}

TEST_F(WeightsServiceTest, StatsCountTransfersAndTheirBytes) {
  const auto client = Connect();
  const TestSlab slab(64 * 1024);
  const auto number = client->OfferSlab(slab.Offer());
  ASSERT_TRUE(number.ok()) << number.status();
  const inferd::TransferTarget target = TestSlab::Target(pack_.pack(), *number, 1, 2, kAllParts, 0);
  inferd::FetchRequest request = ExpertRequest(7, 1, 2, RequestClass::kDemand);
  request.parts = kAllParts;
  request.transfer = &target;
  ASSERT_TRUE(client->Submit(request).ok());
  const auto done = Await(client.get(), 7);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(slab.Holds(pack_, 1, 2, kAllParts, target));
  v1::GetStatsResponse stats;
  ASSERT_TRUE(Call(&v1::WeightService::Stub::GetStats, v1::GetStatsRequest(), &stats).ok());
  EXPECT_EQ(stats.transfers(), 1u);
  EXPECT_EQ(stats.transfers_cancelled(), 0u);
  EXPECT_EQ(stats.transfers_waiting(), 0u);
  EXPECT_GT(done->link_bytes, 0u);
  EXPECT_EQ(stats.link_bytes(), done->link_bytes);
}

TEST_F(WeightsServiceTest, DrainRefusesNewSessionsAndLeavesOpenOnesAlone) {
  const auto client = Connect();
  v1::DrainResponse drained;
  ASSERT_TRUE(Call(&v1::WeightService::Stub::Drain, v1::DrainRequest(), &drained).ok());
  EXPECT_EQ(drained.open_sessions(), 1u);
  v1::OpenSessionResponse response;
  const absl::Status refused = Open(GoodRequest(), &response);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
  inferd::ExtentLease lease;
  EXPECT_TRUE(client->connected());
  ASSERT_TRUE(FetchAndLease(client.get(), 1, 3, &lease).ok());
  client->Release(3, 1);
}

}  // namespace
}  // namespace sluice::weightd
