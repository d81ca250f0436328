#include "common/base/status.h"

#include <cerrno>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(StatusTest, ErrnoBecomesCanonicalCodeNamingTheSubject) {
  const absl::Status status = ErrnoToStatus(ENOENT, "open /pack/manifest.json");
  EXPECT_EQ(absl::StatusCode::kNotFound, status.code());
  EXPECT_EQ("open /pack/manifest.json: No such file or directory (errno 2)", std::string(status.message()));
  EXPECT_EQ(absl::StatusCode::kDataLoss, ErrnoToStatus(EIO, "read").code());
}

// A wrong path or a full or read-only disk is for the caller to fix, not an internal error.
TEST(StatusTest, PathErrorsAreNotInternal) {
  for (const int number : {EISDIR, ENOTDIR, ELOOP, ENAMETOOLONG}) {
    EXPECT_EQ(absl::StatusCode::kInvalidArgument, ErrnoToStatus(number, "open").code()) << number;
  }
  EXPECT_EQ(absl::StatusCode::kPermissionDenied, ErrnoToStatus(EROFS, "open").code());
  for (const int number : {ENOSPC, EDQUOT, EFBIG}) {
    EXPECT_EQ(absl::StatusCode::kResourceExhausted, ErrnoToStatus(number, "write").code()) << number;
  }
}

TEST(StatusTest, AnnotateKeepsCodeAndPayloadAndLeavesOkAlone) {
  absl::Status status = absl::DataLossError("chunk 3");
  status.SetPayload("reason", absl::Cord("WEIGHT_CORRUPT"));
  const absl::Status annotated = Annotate(status, "layer 2");
  EXPECT_EQ("layer 2: chunk 3", std::string(annotated.message()));
  EXPECT_EQ("WEIGHT_CORRUPT", annotated.GetPayload("reason").value_or(absl::Cord()));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "layer 2").ok());
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(value, " is odd"));
  }
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(StatusTest, AssignOrReturnPropagatesTheFirstError) {
  EXPECT_EQ(3, *Quarter(12));
  EXPECT_EQ("3 is odd", std::string(Quarter(6).status().message()));
}

}  // namespace
}  // namespace sluice
