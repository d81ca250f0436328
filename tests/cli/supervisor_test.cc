#include "cli/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/unix_listener.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kPatienceMs = 20000;  // an upper bound for a loaded machine; nothing waits this long

// Waits for something to happen to `fd`; a failed expectation if nothing does.
void WaitReadable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, kPatienceMs), 1) << "nothing happened";
}

// Built beside this test.
std::string FakeDaemon() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake_daemon";
}

// A user of the daemons.
class User {
 public:
  explicit User(const std::string& path) : fd_(*ConnectUnix(path, UnixSocketType::kSeqPacket)) {}
  void Say(const std::string& text) { ASSERT_TRUE(SendPacket(fd_.get(), text)); }
  // The next packet, "" at the end of the connection.
  std::string ReadMessage() {
    WaitReadable(fd_.get());
    std::string text;
    return ReceivePacket(fd_.get(), &text) == Receive::kPacket ? text : "";
  }
  void Vanish() { fd_.reset(); }

 private:
  UniqueFd fd_;
};

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() {
    char name[] = "/tmp/sluice-test-XXXXXX";
    root_ = mkdtemp(name);
    options_.socket_path = absl::StrCat(root_, "/s");
    options_.lock_path = absl::StrCat(root_, "/lock");
    Add("one", "serve");
    Add("two", "serve");
  }

  ~SupervisorTest() override {
    if (supervisor_ > 0) {
      kill(supervisor_, SIGKILL);
      waitpid(supervisor_, nullptr, 0);
    }
    EXPECT_EQ(std::system(absl::StrCat("rm -rf ", root_).c_str()), 0);
  }

  void Add(const std::string& name, const std::string& mode) {
    options_.daemons.push_back({name,
                                {FakeDaemon(), mode, absl::StrCat(root_, "/", name, ".pids")},
                                absl::StrCat(root_, "/", name, ".log")});
  }

  void Start() {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    supervisor_ = fork();
    if (supervisor_ == 0) {
      close(ends[0]);
      _exit(Supervise(options_, ends[1], -1).ok() ? 0 : 1);
    }
    close(ends[1]);
    char byte = 0;
    ASSERT_EQ(read(ends[0], &byte, 1), 1) << "the supervisor did not start";
    close(ends[0]);
  }

  // Ends with the supervisor's own exit.
  void ExpectEnds() {
    int status = -1;
    ASSERT_EQ(waitpid(supervisor_, &status, 0), supervisor_);
    EXPECT_EQ(status, 0);
    supervisor_ = -1;
  }

  // Process ids of all lives of a daemon, at least `count`. The file fills as the daemon gets to run.
  std::vector<pid_t> Pids(const std::string& name, size_t count) {
    const std::string path = absl::StrCat(root_, "/", name, ".pids");
    for (int round = 0; round < kPatienceMs; ++round) {
      std::vector<pid_t> pids;
      std::ifstream file(path);
      for (pid_t pid = 0; file >> pid;) {
        pids.push_back(pid);
      }
      if (pids.size() >= count) {
        return pids;
      }
      poll(nullptr, 0, 1);
    }
    ADD_FAILURE() << name << " was not started " << count << " times";
    return std::vector<pid_t>(count, -1);
  }

  static bool Gone(pid_t pid) { return kill(pid, 0) != 0; }

  std::string root_;
  SupervisorOptions options_;
  pid_t supervisor_ = -1;
};

TEST_F(SupervisorTest, DaemonsEndWithTheLastUserWhoHearsIt) {
  Start();
  User user(options_.socket_path);
  const pid_t one = Pids("one", 1)[0];
  const pid_t two = Pids("two", 1)[0];
  user.Say(kByeWord);
  EXPECT_EQ(user.ReadMessage(), "");
  EXPECT_TRUE(Gone(one));
  EXPECT_TRUE(Gone(two));
  ExpectEnds();
}

TEST_F(SupervisorTest, DaemonsEndWhenTheLastUserIsKilled) {
  Start();
  User user(options_.socket_path);
  const pid_t one = Pids("one", 1)[0];
  user.Vanish();
  ExpectEnds();
  EXPECT_TRUE(Gone(one));
}

TEST_F(SupervisorTest, SecondUserKeepsThemAlive) {
  Start();
  User first(options_.socket_path);
  User second(options_.socket_path);
  const pid_t one = Pids("one", 1)[0];
  first.Say(kByeWord);
  EXPECT_EQ(first.ReadMessage(), "");
  EXPECT_FALSE(Gone(one));
  second.Say(kByeWord);
  EXPECT_EQ(second.ReadMessage(), "");
  EXPECT_TRUE(Gone(one));
  ExpectEnds();
}

TEST_F(SupervisorTest, KeptDaemonsServeALaterUser) {
  Start();
  pid_t one = -1;
  {
    User user(options_.socket_path);
    one = Pids("one", 1)[0];
    user.Say("keep 600000");
    user.Say(kByeWord);
    EXPECT_EQ(user.ReadMessage(), "");
  }
  EXPECT_FALSE(Gone(one));
  User later(options_.socket_path);
  later.Say("keep 0");
  EXPECT_THAT(Pids("one", 1), ElementsAre(one));
}

TEST_F(SupervisorTest, YieldingUserEndsUnusedKeptDaemons) {
  Start();
  User first(options_.socket_path);
  User second(options_.socket_path);
  first.Say("keep 600000");
  const pid_t one = Pids("one", 1)[0];
  second.Say(kYieldWord);
  EXPECT_EQ(second.ReadMessage(), "");
  EXPECT_FALSE(Gone(one));
  first.Say(kByeWord);
  EXPECT_EQ(first.ReadMessage(), "");
  EXPECT_FALSE(Gone(one)) << "kept, as another's yield changes nothing";
  User third(options_.socket_path);
  third.Say(kYieldWord);
  EXPECT_EQ(third.ReadMessage(), "");
  EXPECT_TRUE(Gone(one));
  ExpectEnds();
}

TEST_F(SupervisorTest, KeepEndsAfterItsTime) {
  Start();
  User user(options_.socket_path);
  user.Say("keep 20");
  user.Say(kByeWord);
  EXPECT_EQ(user.ReadMessage(), "");
  ExpectEnds();
  EXPECT_TRUE(Gone(Pids("one", 1)[0]));
}

TEST_F(SupervisorTest, KilledDaemonIsStartedAgainAndUsersAreTold) {
  Start();
  User user(options_.socket_path);
  kill(Pids("one", 1)[0], SIGKILL);
  EXPECT_EQ(user.ReadMessage(), "restarted one");
  const std::vector<pid_t> lives = Pids("one", 2);
  EXPECT_NE(lives[0], lives[1]);
  EXPECT_FALSE(Gone(lives[1]));
}

TEST_F(SupervisorTest, WithoutRestartAKilledDaemonStaysGone) {
  options_.restart = false;
  Start();
  User user(options_.socket_path);
  const pid_t two = Pids("two", 1)[0];
  kill(Pids("one", 1)[0], SIGKILL);
  EXPECT_THAT(user.ReadMessage(), StartsWith("failed one signal 9"));
  EXPECT_FALSE(Gone(two));
}

TEST_F(SupervisorTest, DaemonThatDiesAgainAndAgainIsGivenUp) {
  Start();
  User user(options_.socket_path);
  std::string heard;
  for (size_t life = 1; life <= 5; ++life) {
    kill(Pids("one", life).back(), SIGKILL);
    heard = user.ReadMessage();
    if (life < 5) {
      EXPECT_EQ(heard, "restarted one");
    }
  }
  // On a machine so slow that five deaths take more than a second it is rightly started again.
  EXPECT_THAT(heard, ::testing::AnyOf(StartsWith("failed one"), "restarted one"));
}

TEST_F(SupervisorTest, DaemonThatEndsItselfIsReportedAlsoToNewcomers) {
  Add("three", "fail");
  Start();
  User user(options_.socket_path);
  EXPECT_EQ(user.ReadMessage(), "failed three exit code 3");
  User newcomer(options_.socket_path);
  EXPECT_EQ(newcomer.ReadMessage(), "failed three exit code 3");
  std::ifstream log(absl::StrCat(root_, "/three.log"));
  std::string line;
  std::getline(log, line);
  EXPECT_EQ(line, "no room on this host");
}

TEST_F(SupervisorTest, MissingProgramIsReported) {
  options_.daemons.push_back({"absent", {"/nonexistent/daemon"}, absl::StrCat(root_, "/absent.log")});
  Start();
  User user(options_.socket_path);
  EXPECT_THAT(user.ReadMessage(), HasSubstr("cannot start /nonexistent/daemon"));
}

TEST_F(SupervisorTest, DaemonsEndWhenTheSupervisorIsKilled) {
  Start();
  User user(options_.socket_path);
  const pid_t one = Pids("one", 1)[0];
  const UniqueFd watch = OpenPidfd(one);
  kill(supervisor_, SIGKILL);
  WaitReadable(watch.get());
}

TEST_F(SupervisorTest, SuccessorWaitsForTheLock) {
  Start();
  SupervisorOptions successor = options_;
  successor.lock_patience = absl::Milliseconds(30);
  EXPECT_EQ(Supervise(successor, -1, -1).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(SupervisorArgumentsTest, RoundTripKeepsEveryWord) {
  SupervisorOptions options;
  options.socket_path = "/r/s";
  options.lock_path = "/r/l";
  options.restart = false;
  options.daemons = {{"a", {"/bin/a", "--x", ""}, "/r/a.log"}, {"b", {"/bin/b"}, "/r/b.log"}};
  const auto parsed = ParseSupervisorArguments(SupervisorArguments(options));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->socket_path, "/r/s");
  EXPECT_FALSE(parsed->restart);
  ASSERT_EQ(parsed->daemons.size(), 2u);
  EXPECT_THAT(parsed->daemons[0].argv, ElementsAre("/bin/a", "--x", ""));
  EXPECT_EQ(parsed->daemons[1].log_path, "/r/b.log");
}

TEST(SupervisorArgumentsTest, GarbageIsRefused) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {}, {"a", "b", "c"}, {"a", "b", "once", "name", "log", "/bin/x"}}) {
    EXPECT_EQ(ParseSupervisorArguments(args).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice::cli
