#include "common/base/status.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(ErrorDetailTest, ReasonIsReadBack) {
  const absl::Status status = ReasonError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "64 waiting");
  EXPECT_EQ(absl::StatusCode::kResourceExhausted, status.code());
  EXPECT_EQ("64 waiting", std::string(status.message()));
  EXPECT_EQ("QUEUE_FULL", ReasonOf(status));
  EXPECT_EQ("", FieldOf(status));
  EXPECT_FALSE(RetryDelayOf(status).has_value());
}

TEST(ErrorDetailTest, FieldErrorNamesTheFieldInMessageAndPayload) {
  const absl::Status bad = FieldError(absl::StatusCode::kInvalidArgument, "spec.sampling.top_p", "is 2");
  EXPECT_EQ("spec.sampling.top_p: is 2", std::string(bad.message()));
  EXPECT_EQ("spec.sampling.top_p", FieldOf(bad));
  EXPECT_EQ("INVALID_FIELD", ReasonOf(bad));
  EXPECT_EQ("UNSUPPORTED_FIELD",
            ReasonOf(FieldError(absl::StatusCode::kUnimplemented, "spec.cache", "later")));
}

TEST(ErrorDetailTest, RetryDelayHasMillisecondsAndKeepsOk) {
  const absl::Status status = WithRetryDelay(absl::UnavailableError("starting"), absl::Microseconds(1500900));
  EXPECT_EQ(absl::Milliseconds(1500), RetryDelayOf(status));
  EXPECT_TRUE(WithRetryDelay(absl::OkStatus(), absl::Seconds(1)).ok());
  EXPECT_FALSE(RetryDelayOf(absl::OkStatus()).has_value());
}

TEST(ErrorDetailTest, StatusWithoutPayloadHasNoDetail) {
  EXPECT_EQ("", ReasonOf(absl::InternalError("x")));
  EXPECT_EQ("", ReasonOf(absl::OkStatus()));
}

}  // namespace
}  // namespace sluice
