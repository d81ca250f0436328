// Generating calls over a real socket, against an engine controlled by the test.
#include <map>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "tests/support/service_fixture.h"

namespace sluice::inferd {
namespace {

using inference::v1::FINISH_REASON_LENGTH;
using inference::v1::FINISH_REASON_STOP;
using inference::v1::FINISH_REASON_STOP_SEQUENCE;
using inference::v1::GenerateResponse;
using inference::v1::GenerateStreamResponse;
using inference::v1::GenerationSpec;

FinishInfo LengthFinish() {
  FinishInfo info;
  info.reason = FinishReason::kLength;
  info.usage = {3, 2, 1};
  info.timings.queue_seconds = 0.5;
  info.timings.prompt_seconds = 1.5;
  info.timings.decode_seconds = 0.25;
  info.timings.stall_seconds = 0.125;
  info.timings.expert_requests = 40;
  info.timings.expert_hits = 30;
  info.timings.bytes_ssd = 1000;
  info.timings.bytes_link = 2000;
  info.seed = 42;
  return info;
}

class InferenceServiceTest : public ServiceFixture {};

TEST_F(InferenceServiceTest, StreamIsStartedThenDeltasThenFinished) {
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  const GenerateSpec spec = engine_.NextGenerate();
  EXPECT_EQ("r1", spec.request_id);
  EXPECT_EQ("owner", spec.client);
  EXPECT_EQ((std::vector<int32_t>{1, 2, 3}), spec.prompt);

  engine_.Start("r1", {3, 0, 1}, 0.5);
  GenerateStreamResponse message;
  ASSERT_TRUE(stream->Read(&message));
  ASSERT_TRUE(message.has_started());
  EXPECT_EQ("r1", message.started().request_id());
  EXPECT_EQ(context_.model.id, message.started().model());
  EXPECT_EQ(3u, message.started().prompt_tokens());
  EXPECT_EQ(1u, message.started().cached_prompt_tokens());
  EXPECT_EQ(0.5, message.started().queue_seconds());

  engine_.Emit("r1", {{7, -0.5f, {}}}, "Hello");
  ASSERT_TRUE(stream->Read(&message));
  ASSERT_TRUE(message.has_delta());
  EXPECT_EQ("Hello", message.delta().text());
  ASSERT_EQ(1, message.delta().token_ids_size());
  EXPECT_EQ(7u, message.delta().token_ids(0));
  EXPECT_EQ(0, message.delta().logprobs_size());

  engine_.Emit("r1", {{8, -1.5f, {}}}, " world");
  engine_.Finish("r1", LengthFinish());
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(" world", message.delta().text());
  ASSERT_TRUE(stream->Read(&message));
  ASSERT_TRUE(message.has_finished());
  EXPECT_EQ(FINISH_REASON_LENGTH, message.finished().reason());
  EXPECT_EQ(5u, message.finished().usage().total_tokens());
  EXPECT_EQ(1u, message.finished().usage().cached_prompt_tokens());
  EXPECT_EQ(42u, message.finished().seed());
  EXPECT_EQ(0.125, message.finished().timings().stall_seconds());
  EXPECT_EQ(4.0, message.finished().timings().tokens_per_second());
  EXPECT_EQ(30u, message.finished().timings().expert_hits());
  EXPECT_EQ(1000u, message.finished().timings().bytes_ssd());
  EXPECT_EQ(2000u, message.finished().timings().bytes_link());
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(InferenceServiceTest, TokensOfAFastEngineMergeAndNoneIsLost) {
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  engine_.Start("r1", {3, 0, 0}, 0);
  std::string expected;
  constexpr int kTokens = 5000;
  for (int i = 0; i < kTokens; ++i) {
    const std::string text(1, static_cast<char>('a' + i % 26));
    expected += text;
    engine_.Emit("r1", {{i % 1000, -1, {}}}, text);
  }
  engine_.Finish("r1", LengthFinish());
  GenerateStreamResponse message;
  std::string text;
  int tokens = 0;
  bool finished = false;
  while (stream->Read(&message)) {
    EXPECT_FALSE(finished);
    text += message.delta().text();
    for (const uint32_t id : message.delta().token_ids()) {
      EXPECT_EQ(static_cast<uint32_t>(tokens++ % 1000), id);
    }
    finished = message.has_finished();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(finished);
  EXPECT_EQ(kTokens, tokens);
  EXPECT_EQ(expected, text);
}

TEST_F(InferenceServiceTest, IntervalHoldsTokensBackUntilThereAreEnough) {
  StartServer();
  GenerationSpec spec = Spec("r1");
  spec.mutable_output()->set_stream_interval_tokens(4);
  auto context = Context();
  Stream stream = OpenStream(spec, context.get());
  engine_.NextGenerate();
  for (int i = 0; i < 10; ++i) {
    engine_.Emit("r1", {{i, -1, {}}}, "x");
    engine_.Flush();
  }
  engine_.Finish("r1", LengthFinish());
  GenerateStreamResponse message;
  int tokens = 0;
  while (stream->Read(&message)) {
    if (message.has_delta()) {
      tokens += message.delta().token_ids_size();
      EXPECT_TRUE(message.delta().token_ids_size() >= 4 || tokens == 10);
    }
  }
  EXPECT_EQ(10, tokens);
}

TEST_F(InferenceServiceTest, LogprobsAndReportOptionsShapeTheDeltas) {
  StartServer();
  GenerationSpec spec = Spec("r1");
  spec.mutable_output()->set_logprobs(1);
  spec.mutable_output()->set_return_text(false);
  spec.mutable_output()->set_return_token_ids(false);
  auto context = Context();
  Stream stream = OpenStream(spec, context.get());
  EXPECT_EQ(1u, engine_.NextGenerate().logprobs);
  engine_.Emit("r1", {{7, -0.5f, {{9, -0.25f}}}}, "Hello");
  GenerateStreamResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ("", message.delta().text());
  EXPECT_EQ(0, message.delta().token_ids_size());
  ASSERT_EQ(1, message.delta().logprobs_size());
  EXPECT_EQ(7u, message.delta().logprobs(0).chosen().token_id());
  EXPECT_EQ(-0.5f, message.delta().logprobs(0).chosen().logprob());
  ASSERT_EQ(1, message.delta().logprobs(0).candidates_size());
  EXPECT_EQ(9u, message.delta().logprobs(0).candidates(0).token_id());
  engine_.Finish("r1", LengthFinish());
  while (stream->Read(&message)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(InferenceServiceTest, CancelledStreamLeavesNothingBehind) {
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  engine_.Start("r1", {3, 0, 0}, 0);
  GenerateStreamResponse message;
  ASSERT_TRUE(stream->Read(&message));
  context->TryCancel();
  engine_.WaitForCancel("r1");
  EXPECT_EQ(grpc::StatusCode::CANCELLED, stream->Finish().error_code());
  server_->Shutdown(absl::Seconds(20));
  engine_.Flush();
  EXPECT_EQ(0u, engine_.live());
}

TEST_F(InferenceServiceTest, CancelledUnaryCallLeavesTheEngineToo) {
  StartServer();
  auto context = Context();
  std::thread canceller([&] {
    engine_.NextGenerate();
    context->TryCancel();
  });
  inference::v1::GenerateRequest request;
  *request.mutable_spec() = Spec("r1");
  GenerateResponse response;
  EXPECT_EQ(grpc::StatusCode::CANCELLED,
            inference_->Generate(context.get(), request, &response).error_code());
  canceller.join();
  engine_.WaitForCancel("r1");
}

TEST_F(InferenceServiceTest, ClientDeadlineReachesTheEngineAndEndsTheCall) {
  StartServer();
  auto context = Context();
  const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(300);
  context->set_deadline(deadline);
  Stream stream = OpenStream(Spec("r1"), context.get());
  const GenerateSpec spec = engine_.NextGenerate();
  EXPECT_LT(absl::AbsDuration(spec.deadline - absl::FromChrono(deadline)), absl::Seconds(5));
  EXPECT_EQ(grpc::StatusCode::DEADLINE_EXCEEDED, stream->Finish().error_code());
  engine_.WaitForCancel("r1");
}

TEST_F(InferenceServiceTest, EngineFailureAfterDeltasEndsWithItsStatus) {
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  engine_.Emit("r1", {{7, -1, {}}}, "partial");
  engine_.Fail("r1", ReasonError(absl::StatusCode::kDataLoss, "WEIGHT_CORRUPT", "extent 17"));
  GenerateStreamResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ("partial", message.delta().text());
  EXPECT_FALSE(stream->Read(&message));
  const absl::Status status = FromGrpcStatus(stream->Finish());
  EXPECT_EQ(absl::StatusCode::kDataLoss, status.code());
  EXPECT_EQ("WEIGHT_CORRUPT", ReasonOf(status));
}

TEST_F(InferenceServiceTest, ReaderThatLeavesTooMuchUnreadIsCut) {
  context_.limits.max_unsent_bytes = 1 << 20;
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  const std::string chunk(64 << 10, 'x');
  for (int i = 0; i < 512; ++i) {  // 32 MiB, far above gRPC's buffers
    engine_.Emit("r1", {{7, -1, {}}}, chunk);
  }
  engine_.WaitForCancel("r1");
  EXPECT_LE(Stats().gauges().unsent_bytes(), 3u << 20);
  GenerateStreamResponse message;
  size_t read = 0;
  while (stream->Read(&message)) {
    read += message.delta().text().size();
  }
  const absl::Status status = FromGrpcStatus(stream->Finish());
  EXPECT_EQ(absl::StatusCode::kResourceExhausted, status.code());
  EXPECT_EQ("SLOW_CONSUMER", ReasonOf(status));
  EXPECT_LT(read, 512u * chunk.size());
  EXPECT_EQ(1u, Stats().counters().slow_consumers());
}

TEST_F(InferenceServiceTest, StalledReaderIsCut) {
  context_.limits.max_unsent_bytes = 256 << 20;
  context_.limits.stall_timeout = absl::Milliseconds(200);
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  engine_.Emit("r1", {{7, -1, {}}}, std::string(32 << 20, 'x'));
  engine_.WaitForCancel("r1");
  // The reader may get the reason, or a reset if it continues to read only after twice the timeout.
  GenerateStreamResponse message;
  while (stream->Read(&message)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_EQ(1u, Stats().counters().slow_consumers());
}

TEST_F(InferenceServiceTest, UnreadStreamDoesNotDelayOthers) {
  StartServer();
  auto stuck_context = Context();
  Stream stuck = OpenStream(Spec("stuck"), stuck_context.get());
  engine_.NextGenerate();
  engine_.Emit("stuck", {{7, -1, {}}}, std::string(900 << 10, 'x'));
  engine_.AnswerWith(20);
  for (int i = 0; i < 20; ++i) {
    GenerateResponse response;
    EXPECT_TRUE(Generate(Spec(""), &response).ok());
    EXPECT_EQ(20, response.token_ids_size());
  }
  stuck_context->TryCancel();
}

TEST_F(InferenceServiceTest, UnaryCallCollectsTheWholeAnswer) {
  StartServer();
  std::thread driver([&] {
    engine_.NextGenerate();
    engine_.Start("r1", {3, 0, 0}, 0);
    engine_.Emit("r1", {{7, -1, {}}, {8, -1, {}}}, "Hel");
    engine_.Emit("r1", {{9, -1, {}}}, "lo");
    FinishInfo info = LengthFinish();
    info.reason = FinishReason::kStopSequence;
    info.matched_stop_string = "END";
    engine_.Finish("r1", info);
  });
  GenerateResponse response;
  EXPECT_TRUE(Generate(Spec("r1"), &response).ok());
  driver.join();
  EXPECT_EQ("r1", response.request_id());
  EXPECT_EQ(context_.model.id, response.model());
  EXPECT_EQ("Hello", response.text());
  EXPECT_EQ(3, response.token_ids_size());
  EXPECT_EQ(FINISH_REASON_STOP_SEQUENCE, response.finished().reason());
  EXPECT_EQ("END", response.finished().stop_text());
}

TEST_F(InferenceServiceTest, MatchedStopTokenIsReported) {
  StartServer();
  std::thread driver([&] {
    engine_.NextGenerate();
    FinishInfo info;
    info.reason = FinishReason::kStop;
    info.matched_stop_id = 2;
    engine_.Finish("r1", info);
  });
  GenerateResponse response;
  EXPECT_TRUE(Generate(Spec("r1"), &response).ok());
  driver.join();
  EXPECT_EQ(FINISH_REASON_STOP, response.finished().reason());
  EXPECT_EQ(2u, response.finished().stop_token_id());
}

TEST_F(InferenceServiceTest, RequestIdIsEchoedInTheInitialMetadata) {
  StartServer();
  engine_.AnswerWith(1);
  auto context = Context();
  context->AddMetadata("x-request-id", "from-metadata");
  inference::v1::GenerateRequest request;
  *request.mutable_spec() = Spec("");
  GenerateResponse response;
  ASSERT_TRUE(inference_->Generate(context.get(), request, &response).ok());
  EXPECT_EQ("from-metadata", response.request_id());
  const auto& metadata = context->GetServerInitialMetadata();
  const auto echoed = metadata.find("x-request-id");
  ASSERT_NE(metadata.end(), echoed);
  EXPECT_EQ("from-metadata", std::string(echoed->second.data(), echoed->second.size()));
}

TEST_F(InferenceServiceTest, DuplicateIdIsRefusedAndFirstContinues) {
  StartServer();
  auto context = Context();
  Stream first = OpenStream(Spec("same"), context.get());
  engine_.NextGenerate();
  auto second_context = Context();
  Stream second = OpenStream(Spec("same"), second_context.get());
  GenerateStreamResponse message;
  EXPECT_FALSE(second->Read(&message));
  EXPECT_EQ(absl::StatusCode::kAlreadyExists, FromGrpcStatus(second->Finish()).code());
  second_context->TryCancel();
  engine_.Emit("same", {{7, -1, {}}}, "on");
  engine_.Finish("same", LengthFinish());
  ASSERT_TRUE(first->Read(&message));
  EXPECT_EQ("on", message.delta().text());
  while (first->Read(&message)) {
  }
  EXPECT_TRUE(first->Finish().ok());
}

TEST_F(InferenceServiceTest, ManyRandomCancelsLeaveNothingBehind) {
  StartServer();
  engine_.AnswerWith(2000);
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      uint32_t random = 12345u + c;
      for (int i = 0; i < 100; ++i) {
        auto context = Context();
        Stream stream = OpenStream(Spec(""), context.get());
        random = random * 1664525u + 1013904223u;
        GenerateStreamResponse message;
        for (uint32_t k = 0; k < random >> 28 && stream->Read(&message); ++k) {
        }
        context->TryCancel();
        stream->Finish();
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  // Every call has ended for its client; the server finishes slightly later.
  server_->Shutdown(absl::Seconds(20));
  engine_.Flush();
  EXPECT_EQ(0u, engine_.live());
}

TEST_F(InferenceServiceTest, ShutdownRefusesNewAndFinishesRunningRequests) {
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  engine_.Start("r1", {3, 0, 0}, 0);
  GenerateStreamResponse message;
  ASSERT_TRUE(stream->Read(&message));
  std::thread ender([&] { server_->Shutdown(absl::Seconds(20)); });
  auto admin = inference::v1::AdminService::NewStub(admin_channel_);
  inference::v1::GetServerInfoResponse info;
  do {
    ASSERT_TRUE(admin->GetServerInfo(Context().get(), {}, &info).ok());
  } while (info.state() != inference::v1::SERVER_STATE_DRAINING);
  engine_.Emit("r1", {{7, -1, {}}}, "last words");
  engine_.Finish("r1", LengthFinish());
  std::string text;
  while (stream->Read(&message)) {
    text += message.delta().text();
  }
  const absl::Status status = FromGrpcStatus(stream->Finish());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ("last words", text);
  ender.join();
  EXPECT_TRUE(engine_.draining());
}

TEST_F(InferenceServiceTest, ShutdownCutsAStreamThatOutlivesItsPatience) {
  StartServer();
  auto context = Context();
  Stream stream = OpenStream(Spec("r1"), context.get());
  engine_.NextGenerate();
  server_->Shutdown(absl::Milliseconds(50));
  EXPECT_FALSE(stream->Finish().ok());
  engine_.WaitForCancel("r1");
}

TEST_F(InferenceServiceTest, TextIsTokenizedAndBack) {
  auto tokenizer = Tokenizer::Load("deploy/sample");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  context_.tokenizer = tokenizer->get();
  context_.model.vocab = static_cast<uint32_t>((*tokenizer)->vocab_size());
  StartServer();
  inference::v1::TokenizeRequest request;
  request.set_text("Once upon a time");
  inference::v1::TokenizeResponse with_bos;
  ASSERT_TRUE(inference_->Tokenize(Context().get(), request, &with_bos).ok());
  const auto expected = (*tokenizer)->Encode("Once upon a time");
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(expected->size(), static_cast<size_t>(with_bos.token_ids_size()));
  request.set_add_special_tokens(false);
  inference::v1::TokenizeResponse plain;
  ASSERT_TRUE(inference_->Tokenize(Context().get(), request, &plain).ok());
  EXPECT_EQ(with_bos.token_ids_size() - 1, plain.token_ids_size());

  inference::v1::DetokenizeRequest back;
  *back.mutable_token_ids() = with_bos.token_ids();
  back.set_skip_special(true);
  inference::v1::DetokenizeResponse text;
  ASSERT_TRUE(inference_->Detokenize(Context().get(), back, &text).ok());
  EXPECT_EQ("Once upon a time", text.text());
  back.add_token_ids(static_cast<uint32_t>((*tokenizer)->vocab_size()));
  EXPECT_EQ("token_ids", FieldOf(FromGrpcStatus(inference_->Detokenize(Context().get(), back, &text))));

  GenerationSpec spec;
  spec.set_text("Once upon a time");
  auto context = Context();
  Stream stream = OpenStream(spec, context.get());
  EXPECT_EQ(*expected, engine_.NextGenerate().prompt);
}

TEST_F(InferenceServiceTest, HealthFollowsTheEngine) {
  engine_.SetHealth(absl::UnavailableError("weightd lost"));
  StartServer();
  using grpc::health::v1::HealthCheckResponse;
  auto context = Context();
  auto watch = grpc::health::v1::Health::NewStub(channel_)->Watch(context.get(), {});
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(HealthCheckResponse::NOT_SERVING, response.status());
  engine_.SetHealth(absl::OkStatus());
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(HealthCheckResponse::SERVING, response.status());
  engine_.SetHealth(absl::UnavailableError("weightd lost"));
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(HealthCheckResponse::NOT_SERVING, response.status());
  context->TryCancel();
  watch->Finish();
}

TEST_F(InferenceServiceTest, ModelsAreListedWithTheirDefaults) {
  context_.model.generation.do_sample = true;
  context_.model.generation.top_k = 40;
  context_.model.eos = {2};
  StartServer();
  auto models = inference::v1::ModelService::NewStub(channel_);
  inference::v1::ListModelsResponse list;
  ASSERT_TRUE(models->ListModels(Context().get(), {}, &list).ok());
  ASSERT_EQ(1, list.models_size());
  EXPECT_EQ(context_.model.id, list.models(0).id());
  EXPECT_EQ(kContext, list.models(0).context_tokens());
  EXPECT_EQ(40u, list.models(0).generation_defaults().top_k());
  EXPECT_EQ(1.0f, list.models(0).generation_defaults().temperature());
  EXPECT_FALSE(list.models(0).has_tokenizer());
  inference::v1::GetModelRequest request;
  request.set_model("tiny");
  inference::v1::GetModelResponse model;
  ASSERT_TRUE(models->GetModel(Context().get(), request, &model).ok());
  EXPECT_EQ(2u, model.model().eos_token_ids(0));
  request.set_model("other");
  EXPECT_EQ("UNKNOWN_MODEL", ReasonOf(FromGrpcStatus(models->GetModel(Context().get(), request, &model))));
}

}  // namespace
}  // namespace sluice::inferd
