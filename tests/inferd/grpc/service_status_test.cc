// Table of statuses: provokes each situation over the socket; checks code, reason and retry hint.
#include <functional>
#include <string>

#include "common/base/status.h"
#include "tests/support/service_fixture.h"

namespace sluice::inferd {
namespace {

using inference::v1::GenerateResponse;
using inference::v1::GenerationSpec;

struct StatusCase {
  const char* situation;
  absl::StatusCode code;
  const char* reason;
  bool retry_hint;
  std::function<void(FakeEngine*)> engine;    // before the call
  std::function<void(GenerationSpec*)> edit;  // of the request
  absl::Status failure;                       // from the engine while the call runs; OK: none
};

class ServiceStatusTest : public ServiceFixture {
 protected:
  absl::Status Unary(const StatusCase& c) {
    GenerationSpec spec = Spec("r1");
    c.edit(&spec);
    std::thread driver;
    if (!c.failure.ok()) {
      driver = std::thread([&] {
        engine_.NextGenerate();
        engine_.Fail("r1", c.failure);
      });
    }
    GenerateResponse response;
    const absl::Status status = Generate(spec, &response);
    if (driver.joinable()) {
      driver.join();
    }
    return status;
  }
  absl::Status Streamed(const StatusCase& c) {
    GenerationSpec spec = Spec("r1");
    c.edit(&spec);
    auto context = Context();
    Stream stream = OpenStream(spec, context.get());
    if (!c.failure.ok()) {
      engine_.NextGenerate();
      engine_.Fail("r1", c.failure);
    }
    inference::v1::GenerateStreamResponse message;
    EXPECT_FALSE(stream->Read(&message));
    return FromGrpcStatus(stream->Finish());
  }
};

std::function<void(FakeEngine*)> Refusing(absl::StatusCode code, const std::string& reason) {
  return [=](FakeEngine* engine) { engine->RefuseWith(ReasonError(code, reason, "refused")); };
}

TEST_F(ServiceStatusTest, EverySituationHasItsCodeAndReason) {
  StartServer();
  using absl::StatusCode;
  const auto nothing = [](FakeEngine*) {};
  const auto as_is = [](GenerationSpec*) {};
  const StatusCase cases[] = {
      {"bad field", StatusCode::kInvalidArgument, "INVALID_FIELD", false, nothing,
       [](GenerationSpec* s) { s->mutable_sampling()->set_top_p(7); }, absl::OkStatus()},
      {"prompt and answer over the context", StatusCode::kInvalidArgument, "CONTEXT_TOO_LONG", false, nothing,
       [](GenerationSpec* s) { s->mutable_stopping()->set_max_tokens(kContext); }, absl::OkStatus()},
      {"unknown field", StatusCode::kInvalidArgument, "UNKNOWN_FIELD", false, nothing,
       [](GenerationSpec* s) { s->GetReflection()->MutableUnknownFields(s)->AddVarint(900, 1); },
       absl::OkStatus()},
      {"unknown model", StatusCode::kNotFound, "UNKNOWN_MODEL", false, nothing,
       [](GenerationSpec* s) { s->set_model("other"); }, absl::OkStatus()},
      {"no tokenizer", StatusCode::kFailedPrecondition, "NO_TOKENIZER", false, nothing,
       [](GenerationSpec* s) { s->set_text("hello"); }, absl::OkStatus()},
      {"option not built", StatusCode::kUnimplemented, "UNSUPPORTED_FIELD", false, nothing,
       [](GenerationSpec* s) { s->mutable_sampling()->set_typical_p(0.5f); }, absl::OkStatus()},
      {"duplicate live request id", StatusCode::kAlreadyExists, "REQUEST_EXISTS", false,
       Refusing(StatusCode::kAlreadyExists, "REQUEST_EXISTS"), as_is, absl::OkStatus()},
      {"queue full", StatusCode::kResourceExhausted, "QUEUE_FULL", true,
       Refusing(StatusCode::kResourceExhausted, "QUEUE_FULL"), as_is, absl::OkStatus()},
      {"the DRAM budget cannot hold the working minimum", StatusCode::kResourceExhausted, "DRAM_TOO_SMALL",
       false, Refusing(StatusCode::kResourceExhausted, "DRAM_TOO_SMALL"), as_is, absl::OkStatus()},
      {"starting", StatusCode::kUnavailable, "STARTING", false,
       Refusing(StatusCode::kUnavailable, "STARTING"), as_is, absl::OkStatus()},
      {"draining", StatusCode::kUnavailable, "DRAINING", false,
       Refusing(StatusCode::kUnavailable, "DRAINING"), as_is, absl::OkStatus()},
      {"weightd lost in mid-answer", StatusCode::kUnavailable, "WEIGHTD_LOST", false, nothing, as_is,
       ReasonError(StatusCode::kUnavailable, "WEIGHTD_LOST", "weightd did not come back")},
      {"deadline passed in the queue", StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED", false, nothing,
       as_is, absl::DeadlineExceededError("waited too long")},
      {"aborted", StatusCode::kCancelled, "CANCELLED", false, nothing, as_is,
       absl::CancelledError("aborted")},
      {"checksum mismatch", StatusCode::kDataLoss, "WEIGHT_CORRUPT", false, nothing, as_is,
       ReasonError(StatusCode::kDataLoss, "WEIGHT_CORRUPT", "extent 17 (layer 2, expert 5)")},
      {"invariant broken", StatusCode::kInternal, "INTERNAL", false, nothing, as_is,
       absl::InternalError("invariant")},
      {"a status that says nothing", StatusCode::kInternal, "INTERNAL", false, nothing, as_is,
       absl::UnknownError("?")},
  };
  for (const StatusCase& c : cases) {
    for (const bool streamed : {false, true}) {
      engine_.RefuseWith(absl::OkStatus());
      c.engine(&engine_);
      const absl::Status status = streamed ? Streamed(c) : Unary(c);
      EXPECT_EQ(c.code, status.code()) << c.situation << ": " << status;
      EXPECT_EQ(c.reason, ReasonOf(status)) << c.situation;
      EXPECT_EQ(c.retry_hint, RetryDelayOf(status).has_value()) << c.situation;
      EXPECT_FALSE(status.message().empty()) << c.situation;
    }
  }
}

TEST_F(ServiceStatusTest, RequestAboveSixteenMiBIsResourceExhausted) {
  StartServer();
  GenerationSpec spec = Spec("r1");
  spec.mutable_token_ids()->mutable_ids()->Resize((16 << 20) + 1, 1);
  GenerateResponse response;
  EXPECT_EQ(absl::StatusCode::kResourceExhausted, Generate(spec, &response).code());
  spec.mutable_token_ids()->mutable_ids()->Truncate((16 << 20) - 64);
  EXPECT_EQ("CONTEXT_TOO_LONG", ReasonOf(Generate(spec, &response)));
}

}  // namespace
}  // namespace sluice::inferd
