#include <thread>

#include "gtest/gtest.h"
#include "inferd/serving/server_state.h"
#include "tests/support/fakes/fake_engine.h"

namespace sluice::inferd {
namespace {

TEST(SelfTestTest, OneTokenIsAskedForAndMade) {
  FakeEngine engine;
  engine.AnswerWith(1);
  EXPECT_TRUE(SelfTest(&engine, 1, absl::Seconds(20)).ok());
}

TEST(SelfTestTest, RefusalAndFailureAreReturned) {
  FakeEngine engine;
  engine.RefuseWith(absl::UnavailableError("no weightd"));
  EXPECT_EQ(absl::StatusCode::kUnavailable, SelfTest(&engine, 1, absl::Seconds(20)).code());
  engine.RefuseWith(absl::OkStatus());
  std::thread driver([&] {
    const GenerateSpec spec = engine.NextGenerate();
    EXPECT_EQ(std::vector<int32_t>{7}, spec.prompt);
    EXPECT_EQ(1u, spec.stopping.max_tokens);
    engine.Fail(spec.request_id, absl::DataLossError("extent 3"));
  });
  const absl::Status status = SelfTest(&engine, 7, absl::Seconds(20));
  driver.join();
  EXPECT_EQ(absl::StatusCode::kDataLoss, status.code());
  EXPECT_EQ("self-test: extent 3", std::string(status.message()));
}

TEST(SelfTestTest, AnswerOfAnotherLengthIsAnError) {
  FakeEngine engine;
  engine.AnswerWith(2);
  EXPECT_EQ(absl::StatusCode::kInternal, SelfTest(&engine, 1, absl::Seconds(20)).code());
}

}  // namespace
}  // namespace sluice::inferd
