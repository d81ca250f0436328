#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "daemon/daemon_loop.h"

namespace sluice {
namespace {

TEST(DaemonLogTest, JournalLinesBeginWithTheirPriority) {
  EXPECT_EQ(JournalLine(spdlog::level::critical, "x"), "<2>x");
  EXPECT_EQ(JournalLine(spdlog::level::err, "x"), "<3>x");
  EXPECT_EQ(JournalLine(spdlog::level::warn, "x"), "<4>x");
  EXPECT_EQ(JournalLine(spdlog::level::info, "x"), "<6>x");
  EXPECT_EQ(JournalLine(spdlog::level::debug, "x"), "<7>x");
}

TEST(DaemonLogTest, EveryLineOfAMessageHasThePriority) {
  EXPECT_EQ(JournalLine(spdlog::level::warn, "one\ntwo"), "<4>one\n<4>two");
}

TEST(DaemonLogTest, OnlyTheStreamThatIsNamedIsTheJournals) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  struct stat status;
  ASSERT_EQ(fstat(ends[1], &status), 0);
  const std::string name = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
  EXPECT_TRUE(IsJournalStream(ends[1], name.c_str()));
  EXPECT_FALSE(IsJournalStream(ends[1], nullptr));
  EXPECT_FALSE(IsJournalStream(ends[1], (name + "0").c_str()));
  EXPECT_FALSE(IsJournalStream(ends[1], ""));
  close(ends[0]);
  close(ends[1]);
  EXPECT_FALSE(IsJournalStream(ends[1], name.c_str()));
}

}  // namespace
}  // namespace sluice
