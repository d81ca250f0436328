#include <cstring>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/support/service_fixture.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;

class EvaluationServiceTest : public ServiceFixture {
 protected:
  using ScoreStream = std::unique_ptr<grpc::ClientReader<v1::ScoreResponse>>;
  ScoreStream Open(const v1::ScoreRequest& request, grpc::ClientContext* context) {
    stub_ = v1::EvaluationService::NewStub(channel_);
    return stub_->Score(context, request);
  }
  static v1::ScoreRequest Request(int tokens) {
    v1::ScoreRequest request;
    request.set_request_id("s1");
    for (int i = 0; i < tokens; ++i) {
      request.add_token_ids(static_cast<uint32_t>(i));
    }
    return request;
  }
  std::unique_ptr<v1::EvaluationService::Stub> stub_;
};

TEST_F(EvaluationServiceTest, RowsComeInOrderThenTheUsage) {
  StartServer();
  auto context = Context();
  ScoreStream stream = Open(Request(4), context.get());
  EXPECT_EQ(4u, engine_.NextScore().input.size());
  engine_.EmitRows("s1", 0, {10, 11}, {-1, -2}, {});
  engine_.EmitRows("s1", 2, {12, 13}, {-3, -4}, {});
  Timings timings;
  timings.prompt_seconds = 2;
  engine_.FinishScore("s1", {4, 0, 0}, timings);
  v1::ScoreResponse message;
  std::vector<uint32_t> argmax;
  std::vector<float> logprobs;
  while (stream->Read(&message) && message.has_rows()) {
    EXPECT_EQ(argmax.size(), message.rows().first_row());
    argmax.insert(argmax.end(), message.rows().argmax().begin(), message.rows().argmax().end());
    logprobs.insert(logprobs.end(), message.rows().target_logprobs().begin(),
                    message.rows().target_logprobs().end());
    EXPECT_EQ("", message.rows().logits());
  }
  EXPECT_EQ((std::vector<uint32_t>{10, 11, 12, 13}), argmax);
  EXPECT_EQ((std::vector<float>{-1, -2, -3, -4}), logprobs);
  ASSERT_TRUE(message.has_finished());
  EXPECT_EQ(4u, message.finished().usage().prompt_tokens());
  EXPECT_EQ(2.0, message.finished().timings().prompt_seconds());
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(EvaluationServiceTest, LogitsAreLittleEndianFloatsInBoundedMessages) {
  StartServer();
  v1::ScoreRequest request = Request(64);
  request.set_want_logits(true);
  auto context = Context();
  ScoreStream stream = Open(request, context.get());
  EXPECT_TRUE(engine_.NextScore().want_logits);
  constexpr size_t kRows = 64;
  constexpr size_t kRowFloats = 50000;
  std::vector<float> logits(kRows * kRowFloats);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i % 8191);
  }
  engine_.EmitRows("s1", 0, std::vector<int32_t>(kRows, 1), {}, logits);
  engine_.FinishScore("s1", {64, 0, 0}, {});
  v1::ScoreResponse message;
  size_t row = 0;
  while (stream->Read(&message) && message.has_rows()) {
    EXPECT_EQ(row, message.rows().first_row());
    EXPECT_LE(message.rows().logits().size(), 1u << 20);
    const size_t count = static_cast<size_t>(message.rows().argmax_size());
    ASSERT_EQ(count * kRowFloats * sizeof(float), message.rows().logits().size());
    EXPECT_EQ(0, std::memcmp(&logits[row * kRowFloats], message.rows().logits().data(),
                             message.rows().logits().size()));
    row += count;
  }
  EXPECT_EQ(kRows, row);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(EvaluationServiceTest, UnreadRowsThrottleTheEngine) {
  StartServer();
  v1::ScoreRequest request = Request(4);
  request.set_want_logits(true);
  auto context = Context();
  ScoreStream stream = Open(request, context.get());
  engine_.NextScore();
  EXPECT_FALSE(engine_.IsCongested("s1"));
  constexpr uint32_t kCalls = 48;
  const std::vector<float> logits(1 << 18, 1.0f);  // 1 MiB a row
  for (uint32_t i = 0; i < kCalls; ++i) {
    engine_.EmitRows("s1", i, {1}, {}, logits);
  }
  engine_.Flush();
  EXPECT_TRUE(engine_.IsCongested("s1"));
  engine_.FinishScore("s1", {4, 0, 0}, {});
  v1::ScoreResponse message;
  uint32_t rows = 0;
  while (stream->Read(&message)) {
    rows += message.has_rows() ? 1 : 0;
  }
  EXPECT_EQ(kCalls, rows);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(EvaluationServiceTest, CancelAndFailureEndTheCall) {
  StartServer();
  auto context = Context();
  ScoreStream stream = Open(Request(4), context.get());
  engine_.NextScore();
  context->TryCancel();
  engine_.WaitForCancel("s1");
  EXPECT_EQ(grpc::StatusCode::CANCELLED, stream->Finish().error_code());
  engine_.Flush();

  auto again = Context();
  stream = Open(Request(4), again.get());
  engine_.NextScore();
  engine_.Fail("s1", absl::DataLossError("extent 3"));
  EXPECT_EQ(absl::StatusCode::kDataLoss, FromGrpcStatus(stream->Finish()).code());
}

TEST_F(EvaluationServiceTest, BadRequestIsRefusedNamingTheField) {
  StartServer();
  v1::ScoreRequest request = Request(4);
  request.add_targets(1);
  auto context = Context();
  ScoreStream stream = Open(request, context.get());
  EXPECT_EQ("targets", FieldOf(FromGrpcStatus(stream->Finish())));
}

}  // namespace
}  // namespace sluice::inferd
