#include "daemon/grpc_status.h"

#include <string>

#include "common/base/status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(GrpcStatusTest, EveryCodeButUnknownSurvivesTheRoundTrip) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status wire = ToGrpcStatus(status);
    const absl::Status back = FromGrpcStatus(wire);
    EXPECT_EQ("why", std::string(back.message()));
    if (status.code() == absl::StatusCode::kUnknown) {
      EXPECT_EQ(absl::StatusCode::kInternal, back.code());
    } else {
      EXPECT_EQ(status.code(), back.code());
    }
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, CodeOutsideTheCanonicalOnesBecomesInternal) {
  EXPECT_EQ(grpc::StatusCode::INTERNAL,
            ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(42), "x")).error_code());
}

TEST(GrpcStatusTest, ReasonFieldAndRetryTravelAsGoogleRpcDetails) {
  absl::Status status = FieldError(absl::StatusCode::kInvalidArgument, "spec.text", "too long");
  status = WithRetryDelay(status, absl::Milliseconds(2500));
  const grpc::Status wire = ToGrpcStatus(status);

  google::rpc::Status packed;
  ASSERT_TRUE(packed.ParseFromString(wire.error_details()));
  EXPECT_EQ(3, packed.code());
  EXPECT_EQ("spec.text: too long", packed.message());
  ASSERT_EQ(3, packed.details_size());
  google::rpc::ErrorInfo info;
  EXPECT_EQ("type.googleapis.com/google.rpc.ErrorInfo", packed.details(0).type_url());
  ASSERT_TRUE(packed.details(0).UnpackTo(&info));
  EXPECT_EQ("INVALID_FIELD", info.reason());
  EXPECT_EQ("sluice", info.domain());
  google::rpc::BadRequest bad;
  ASSERT_TRUE(packed.details(1).UnpackTo(&bad));
  EXPECT_EQ("spec.text", bad.field_violations(0).field());
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(packed.details(2).UnpackTo(&retry));
  EXPECT_EQ(2, retry.retry_delay().seconds());
  EXPECT_EQ(500000000, retry.retry_delay().nanos());

  const absl::Status back = FromGrpcStatus(wire);
  EXPECT_EQ("INVALID_FIELD", ReasonOf(back));
  EXPECT_EQ("spec.text", FieldOf(back));
  EXPECT_EQ(absl::Milliseconds(2500), RetryDelayOf(back));
}

TEST(GrpcStatusTest, StatusWithoutFactsCarriesNoDetails) {
  EXPECT_EQ("", ToGrpcStatus(absl::NotFoundError("x")).error_details());
}

TEST(GrpcStatusTest, MalformedOrForeignDetailsAreLeftOut) {
  EXPECT_EQ("", ReasonOf(FromGrpcStatus(grpc::Status(grpc::StatusCode::ABORTED, "x", "\xff\xff garbage"))));
  google::rpc::ErrorInfo info;
  info.set_reason("THEIRS");
  info.set_domain("example.com");
  google::rpc::Status packed;
  packed.add_details()->PackFrom(info);
  packed.mutable_details(0)->set_value(packed.details(0).value());
  EXPECT_EQ(
      "", ReasonOf(FromGrpcStatus(grpc::Status(grpc::StatusCode::ABORTED, "x", packed.SerializeAsString()))));
}

TEST(GrpcStatusTest, LongMessageIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += "\xc3\xa4";
  }
  const std::string message = ToGrpcStatus(absl::InternalError(text)).error_message();
  EXPECT_LE(message.size(), 2051u);
  EXPECT_EQ("\xc3\xa4...", message.substr(message.size() - 5));
}

}  // namespace
}  // namespace sluice
