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

struct SampleOptions {
  std::string kind = "a";
  uint32_t count = 3;
  std::string chosen;
};

template <typename Visit>
void ForEachOption(SampleOptions* o, Visit visit) {
  visit(OptionSpec("kind", "Kind").Choices("a|b").Reloadable(), &o->kind);
  visit(OptionSpec("count", "Count").Range(1, 9), &o->count);
  visit(OptionSpec("chosen", "Chosen").Choices("x|y|z").Default("the other's"), &o->chosen);
}

TEST(OptionTableTest, ReloadListsAppliedAndRestartOptions) {
  const SampleOptions running;
  const SampleOptions read = {"b", 5, ""};
  EXPECT_EQ(PlanReload(running, read).Describe(), "kind=b; count needs a restart to become \"5\"");
  EXPECT_EQ(PlanReload(running, running).Describe(), "nothing has changed");
  EXPECT_EQ(WithReloaded(running, read).kind, "b");
  EXPECT_EQ(WithReloaded(running, read).count, 3u);
}

TEST(OptionTableTest, ValuesBeyondChoicesOrRangeAreRefused) {
  EXPECT_TRUE(CheckOptions(SampleOptions{}).ok());
  EXPECT_EQ(CheckOptions(SampleOptions{.kind = "c"}).message(), "--kind is \"c\", must be a or b");
  EXPECT_EQ(CheckOptions(SampleOptions{.count = 0}).message(), "--count is 0, must be 1 to 9");
  EXPECT_EQ(CheckOptions(SampleOptions{.chosen = "w"}).message(), "--chosen is \"w\", must be x, y or z");
}

TEST(OptionTableTest, HelpHasChoicesAndTheDefaultIsApart) {
  const OptionSpec spec = OptionSpec("chosen", "Chosen").Choices("x|y|z").Default("the other's");
  EXPECT_EQ(DescribeOption(spec, std::string()), "Chosen: x, y or z");
  EXPECT_EQ(DefaultOf(spec, std::string()), "the other's");
  EXPECT_EQ(DescribeOption(OptionSpec("flag", "Flag"), true), "Flag: on or off");
  EXPECT_EQ(DefaultOf(OptionSpec("flag", "Flag"), true), "on");
}

}  // namespace
}  // namespace sluice
