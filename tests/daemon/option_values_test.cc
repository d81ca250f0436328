#include "daemon/option_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(OptionValuesTest, ModesAreOctal) {
  FileMode mode;
  EXPECT_TRUE(ParseOptionValue("0660", &mode).ok());
  EXPECT_EQ(mode.bits, 0660u);
  EXPECT_EQ(FormatOptionValue(mode), "0660");
  for (const char* wrong : {"", "0888", "06600", "rw", "-1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseOptionValue(wrong, &mode))) << wrong;
  }
}

TEST(OptionValuesTest, UsersAndGroupsAreNamesOrNumbers) {
  UserId user;
  GroupId group;
  EXPECT_TRUE(ParseOptionValue("root", &user).ok());
  EXPECT_EQ(user.id, 0u);
  EXPECT_TRUE(ParseOptionValue("1234", &user).ok());
  EXPECT_EQ(FormatOptionValue(user), "1234");
  EXPECT_TRUE(ParseOptionValue("root", &group).ok());
  EXPECT_EQ(group.id, 0u);
  EXPECT_TRUE(absl::IsNotFound(ParseOptionValue("no-such-user-here", &user)));
  EXPECT_TRUE(absl::IsNotFound(ParseOptionValue("no-such-group-here", &group)));
}

TEST(OptionValuesTest, ListsAreShownWithCommas) {
  EXPECT_EQ(FormatOptionValue(std::vector<UserId>{{1}, {2}}), "1,2");
  EXPECT_EQ(FormatOptionValue(std::vector<std::string>{}), "");
}

TEST(OptionValuesTest, ReloadListsAppliedAndRestartOptions) {
  const std::vector<OptionText> running = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
  const ReloadPlan plan = PlanReload(running, {{"a", "1"}, {"b", "5"}, {"c", ""}}, {"a", "b"});
  ASSERT_EQ(plan.applied.size(), 1u);
  EXPECT_EQ(plan.applied[0].name, "b");
  EXPECT_EQ(plan.Describe(), "b=5; c needs a restart to become \"\"");
  EXPECT_EQ(PlanReload(running, running, {"a"}).Describe(), "nothing has changed");
}

}  // namespace
}  // namespace sluice
