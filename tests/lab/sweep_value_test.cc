#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "lab/preset_rows.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

TEST(SweepValueTest, UnknownNameOrValueIsAnError) {
  CommonOptions options;
  options.pack = "p";
  const auto parallel = WithSweepValue(options, "parallel", "3");
  ASSERT_TRUE(parallel.ok()) << parallel.status();
  EXPECT_EQ(parallel->ValueOr("parallel", ""), "3");
  EXPECT_EQ(WithSweepValue(options, "attention_ms", "2")->ValueOr("virtual-costs", ""), "attention_ms=2");
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  for (const auto& [name, value, why] : std::vector<std::tuple<const char*, const char*, const char*>>{
           {"x", "1", "neither an option"},
           {"pack", "1", "neither an option"},
           {"help", "1", "neither an option"},
           {"parallel", "0", "parallel=0: "},
           {"device-budget", "-5%", "device-budget=-5%: "},
           {"verbose", "1", "verbose=1: "}}) {
    const absl::Status status = WithSweepValue(options, name, value).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace sluice::cli
