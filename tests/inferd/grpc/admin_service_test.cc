#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "tests/support/service_fixture.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;

class AdminServiceTest : public ServiceFixture {
 protected:
  v1::GetServerInfoResponse Info() {
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(admin_->GetServerInfo(Context().get(), {}, &info).ok());
    return info;
  }
};

TEST_F(AdminServiceTest, ServerInfoTellsModelOptionsAndState) {
  engine_.SetHealth(absl::UnavailableError("leasing dense weights"));
  StartServer();
  v1::GetServerInfoResponse info = Info();
  EXPECT_EQ(v1::SERVER_STATE_STARTING, info.state());
  EXPECT_EQ("leasing dense weights", info.state_detail());
  EXPECT_EQ(context_.model.id, info.model_id());
  EXPECT_EQ("/packs/tiny", info.pack_path());
  ASSERT_EQ(2, info.options_size());
  EXPECT_EQ("context", info.options(0).name());
  EXPECT_EQ("64", info.options(0).value());
  EXPECT_TRUE(info.options(0).is_set());
  EXPECT_FALSE(info.options(1).is_set());

  state_->SetBackend("avx2", "host, 2 threads", "leases");
  engine_.SetHealth(absl::OkStatus());
  info = Info();
  EXPECT_EQ(v1::SERVER_STATE_SERVING, info.state());
  EXPECT_EQ("", info.state_detail());
  EXPECT_EQ("avx2", info.isa());
  EXPECT_EQ("leases", info.weight_transport());
  engine_.SetHealth(absl::UnavailableError("weightd lost"));
  EXPECT_EQ(v1::SERVER_STATE_UNAVAILABLE, Info().state());
}

TEST_F(AdminServiceTest, StatsShowTheEnginesNumbersAndTheCallsThatLive) {
  StartServer();
  EngineStats stats;
  stats.kv_pages_used = 1;
  stats.kv_pages_total = 2;
  stats.kv_pages_cached = 8;
  stats.expert_leases_held = 3;
  stats.dense_leases_held = 4;
  stats.fetches_outstanding = 5;
  stats.generated_tokens = 6;
  stats.stall_seconds = 7.5;
  engine_.SetStats(stats);
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  const v1::GetStatsResponse response = Stats();
  EXPECT_EQ(1u, response.gauges().calls_active());
  EXPECT_EQ(1u, response.gauges().sequences_running());
  EXPECT_EQ(1u, response.gauges().kv_pages_used());
  EXPECT_EQ(3u, response.gauges().expert_leases());
  EXPECT_EQ(5u, response.gauges().fetches_outstanding());
  EXPECT_EQ(2u, response.resources().kv_pages_total());
  EXPECT_EQ(8u, response.resources().kv_pages_kept());
  EXPECT_EQ(4u, response.resources().dense_leases());
  EXPECT_EQ(2u, response.resources().client_connections());
  EXPECT_GT(response.resources().open_descriptors(), 4u);
  EXPECT_GT(response.resources().resident_bytes(), 1u << 20);
  EXPECT_EQ(6u, response.counters().generated_tokens());
  EXPECT_EQ(7.5, response.counters().stall_seconds());
  ASSERT_EQ(2, response.sparsity_size());
  EXPECT_EQ(1u, response.sparsity(1).layer());
  EXPECT_EQ(100u, response.sparsity(0).neurons());
  EXPECT_EQ(25u, response.sparsity(0).kept());
  context->TryCancel();
}

TEST_F(AdminServiceTest, StatsTellEveryCounterOfEveryLayer) {
  StartServer();
  const v1::GetStatsResponse response = Stats();
  ASSERT_EQ(2, response.layers_size());
  const v1::LayerStats& layer = response.layers(1);
  EXPECT_EQ(1u, layer.layer());
  uint64_t expected = 101;  // the fake engine numbers its counters
  const auto expect_all = [&expected](const google::protobuf::Message& part) {
    for (int j = 0; j < part.GetDescriptor()->field_count(); ++j) {
      const google::protobuf::FieldDescriptor* field = part.GetDescriptor()->field(j);
      EXPECT_EQ(expected++, part.GetReflection()->GetUInt64(part, field)) << field->full_name();
    }
  };
  expect_all(layer.experts());
  expect_all(layer.predictions());
  ASSERT_EQ(4, layer.depths_size());
  for (int depth = 0; depth < 4; ++depth) {
    EXPECT_EQ(static_cast<uint32_t>(depth), layer.depths(depth).depth());
    expect_all(layer.depths(depth).predictions());
  }
  expect_all(layer.neurons());
  expect_all(layer.bytes());
  expect_all(layer.routing());
  EXPECT_EQ(101 + sizeof(LayerStats) / sizeof(uint64_t), expected);
}

TEST_F(AdminServiceTest, StatsReportANeuronCache) {
  StartServer();
  EXPECT_FALSE(Stats().has_neuron_cache());
  EngineStats stats;
  stats.neuron_slots = 12;
  stats.leads_stay = true;
  stats.copy_all_share = 0.875;
  stats.kernel_seconds = 2.5;
  stats.parts[static_cast<size_t>(StepPart::kExperts)] = {1.5, 7, 9};
  engine_.SetStats(stats);
  const v1::GetStatsResponse response = Stats();
  EXPECT_EQ(2.5, response.counters().kernel_seconds());
  ASSERT_EQ(response.parts_size(), 5);
  EXPECT_EQ(response.parts(2).part(), "experts");
  EXPECT_EQ(response.parts(2).seconds(), 1.5);
  EXPECT_EQ(response.parts(2).bytes(), 7u);
  EXPECT_EQ(response.parts(2).products(), 9u);
  EXPECT_EQ(12u, response.neuron_cache().slots());
  EXPECT_TRUE(response.neuron_cache().lead_resident());
  EXPECT_EQ(0.875, response.neuron_cache().copy_all_share());
}

TEST_F(AdminServiceTest, StatsTellWhereTheTimeWent) {
  StartServer();
  EngineStats stats;
  stats.times = {10, 4, 3};
  stats.real_times = {20, 1, 3};
  engine_.SetStats(stats);
  const v1::GetStatsResponse response = Stats();
  EXPECT_EQ(10, response.times().step_seconds());
  EXPECT_EQ(7, response.times().compute_seconds());
  EXPECT_EQ(4, response.times().load_seconds());
  EXPECT_EQ(1, response.times().overlap_seconds());
  EXPECT_EQ(3, response.times().stall_seconds());
  EXPECT_EQ(20, response.real_times().step_seconds());
  EXPECT_EQ(0, response.real_times().overlap_seconds()) << "waited for longer than it loaded";
}

TEST_F(AdminServiceTest, AbortEndsTheCallAndUnknownIdsAreNotFound) {
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  v1::AbortRequest request;
  request.set_request_id("r1");
  v1::AbortResponse response;
  EXPECT_TRUE(admin_->Abort(Context().get(), request, &response).ok());
  EXPECT_EQ(grpc::StatusCode::CANCELLED, stream->Finish().error_code());
  engine_.Flush();
  const absl::Status again = FromGrpcStatus(admin_->Abort(Context().get(), request, &response));
  EXPECT_EQ(absl::StatusCode::kNotFound, again.code());
  EXPECT_EQ("REQUEST_NOT_FOUND", ReasonOf(again));
}

TEST_F(AdminServiceTest, DrainRefusesNewRequestsAndTurnsHealthOff) {
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  v1::DrainResponse response;
  ASSERT_TRUE(admin_->Drain(Context().get(), {}, &response).ok());
  EXPECT_EQ(1u, response.requests_left());
  EXPECT_EQ(v1::SERVER_STATE_DRAINING, Info().state());
  v1::GenerateResponse refused;
  EXPECT_EQ("DRAINING", ReasonOf(Generate(Spec("r2"), &refused)));
  engine_.Finish("r1", FinishInfo());
  v1::GenerateStreamResponse message;
  while (stream->Read(&message)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AdminServiceTest, LogLevelIsSetAndThePreviousOneReturned) {
  StartServer();
  v1::SetLogLevelRequest request;
  v1::SetLogLevelResponse response;
  request.set_level(v1::LOG_LEVEL_DEBUG);
  ASSERT_TRUE(admin_->SetLogLevel(Context().get(), request, &response).ok());
  EXPECT_EQ(v1::LOG_LEVEL_INFO, response.previous_level());
  EXPECT_EQ(spdlog::level::debug, log_.level());
  for (const int bad : {0, 99}) {
    request.set_level(static_cast<v1::LogLevel>(bad));
    const absl::Status status = FromGrpcStatus(admin_->SetLogLevel(Context().get(), request, &response));
    EXPECT_EQ("level", FieldOf(status)) << bad;
  }
  EXPECT_EQ(spdlog::level::debug, log_.level());
}

TEST_F(AdminServiceTest, CalibrateReportsProgressAndEnd) {
  StartServer();
  v1::CalibrateRequest request;
  for (const uint32_t id : {5, 6, 7}) {
    request.add_token_ids(id);
  }
  request.set_window(64);
  request.add_quality_bounds(0.02);
  request.set_predictors(false);
  auto context = Context();
  const auto stream = admin_->Calibrate(context.get(), request);
  std::shared_ptr<CalibrationSink> sink;
  const CalibrationSpec spec = engine_.AwaitCalibration(&sink);
  EXPECT_EQ(spec.tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(spec.window, 64u);
  EXPECT_EQ(spec.quality_bounds, std::vector<double>{0.02});
  EXPECT_FALSE(spec.predictors);

  v1::CalibrateResponse response;
  sink->OnProgress({"activations", 1, 3, 7, 10, 12.5});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.progress().stage(), "activations");
  EXPECT_EQ(response.progress().done(), 7u);
  EXPECT_EQ(response.progress().seconds_left(), 12.5);
  EXPECT_FALSE(sink->Cancelled());
  sink->OnFinished({"/packs/tiny/profile", 3, {"usage.json"}, 1.5, true});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.finished().folder(), "/packs/tiny/profile");
  EXPECT_EQ(response.finished().files(0), "usage.json");
  EXPECT_TRUE(response.finished().resumed());
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AdminServiceTest, CalibrationStopsWhenItsCallerIsGone) {
  StartServer();
  v1::CalibrateRequest request;
  request.add_token_ids(1);
  auto context = Context();
  const auto stream = admin_->Calibrate(context.get(), request);
  std::shared_ptr<CalibrationSink> sink;
  engine_.AwaitCalibration(&sink);
  context->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (!sink->Cancelled()) {
    std::this_thread::yield();
  }
  sink->OnError(absl::CancelledError("stopped"));
}

TEST_F(AdminServiceTest, CalibrateRefusesWhatCannotBe) {
  StartServer();
  v1::CalibrateRequest request;
  request.add_token_ids(0x80000000u);
  v1::CalibrateResponse response;
  {
    auto context = Context();
    const auto stream = admin_->Calibrate(context.get(), request);
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  request.set_token_ids(0, 1);
  request.add_quality_bounds(-1);
  auto context = Context();
  const auto stream = admin_->Calibrate(context.get(), request);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminServiceTest, AdminIsNotServedOnTheClientsSocket) {
  StartServer();
  auto wrong = v1::AdminService::NewStub(channel_);
  v1::GetStatsResponse response;
  EXPECT_EQ(grpc::StatusCode::UNIMPLEMENTED, wrong->GetStats(Context().get(), {}, &response).error_code());
}

TEST_F(AdminServiceTest, AdminOverTcpIsRefused) {
  InferdServerOptions options;
  options.addresses = {Address("a.sock")};
  options.admin = {*ParseListenAddress("127.0.0.1:0")};
  EXPECT_EQ(absl::StatusCode::kInvalidArgument,
            InferdServer::Start(std::move(options), context_).status().code());
}

}  // namespace
}  // namespace sluice::inferd
