// The weightd program: its options, its sockets, its ends.
#include "tests/support/weightd_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/base/unix_listener.h"
#include "inferd/session/session_weight_client.h"
#include "tests/support/prometheus_text.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pack.h"
#include "tests/support/weight_client_calls.h"

namespace sluice::weightd {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr uint64_t kBudget = 32 << 20;

class WeightdProcessTest : public testing::Test {
 protected:
  std::unique_ptr<inferd::SessionWeightClient> Connect() {
    inferd::SessionWeightClientOptions options;
    options.socket = weightd_.socket();
    options.pack_dir = pack_.dir();
    auto client = inferd::SessionWeightClient::Connect(options, SteadyNow() + kPatience);
    EXPECT_TRUE(client.ok()) << client.status() << "\n" << weightd_.log();
    return client.ok() ? *std::move(client) : nullptr;
  }

  void ExpectServes() {
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    inferd::ExtentLease lease;
    if (!client->TryLease(0, &lease)) {
      ASSERT_TRUE(FetchAndLease(client.get(), 1, 0, &lease).ok());
    }
    EXPECT_TRUE(pack_.Matches(0, lease));
    client->Release(0, 1);
  }

  // Runs weightd with these arguments to its end; returns its exit code and output.
  std::pair<int, std::string> Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ProgramPath("weightd"));
    const std::string log = folder_.File("run.log");
    std::ofstream(log, std::ios::trunc);
    ChildProcess process(arguments, log);
    EXPECT_TRUE(process.AwaitExit(kPatience));
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    return {process.exit_code(), text.str()};
  }

  TempDir folder_;
  TestPack pack_;
  WeightdProcess weightd_{folder_.path(), {pack_.dir()}, kBudget};
};

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(WeightdProcessTest, ServesAndStatesItsOptionsOnOneLine) {
  weightd_.Start({"--threads", "2", "--direct", "off"});
  ExpectServes();
  std::istringstream log(weightd_.log());
  std::string line;
  while (std::getline(log, line) && !Has(line, "weightd serves")) {
  }
  for (const char* part :
       {"--dram-budget 32.0 MiB", "--io uring", "--direct off", "--threads 2", "boot epoch"}) {
    EXPECT_TRUE(Has(line, part)) << part << " in " << line;
  }
  EXPECT_TRUE(Has(line, pack_.dir()) && Has(line, weightd_.socket())) << line;
}

TEST_F(WeightdProcessTest, SecondInstanceFailsNamingTheFirst) {
  weightd_.Start();
  ExpectServes();
  const auto [code, output] =
      Run({"--socket", weightd_.socket(), "--pack", pack_.dir(), "--dram-budget", "32MiB"});
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(Has(output, "process " + std::to_string(weightd_.process().pid()))) << output;
  ExpectServes();
}

TEST_F(WeightdProcessTest, APackThatIsGivenTwiceIsServedAndCountedOnce) {
  const std::string link = folder_.File("link");
  const std::string copy = folder_.File("copy");
  std::filesystem::create_directory_symlink(pack_.dir(), link);
  std::filesystem::copy(pack_.dir(), copy, std::filesystem::copy_options::recursive);
  // 0: the default, which follows from the packs. The socket is weightd_'s.
  WeightdProcess weightd(folder_.path(), {pack_.dir(), link, copy}, 0);
  weightd.Start();
  ExpectServes();
  const uint64_t bytes = pack_.pack().dense_bytes() + pack_.pack().total_expert_bytes();
  EXPECT_TRUE(Has(weightd_.log(), "--dram-budget " + FormatSize(bytes) + ",")) << weightd_.log();
  EXPECT_TRUE(Has(weightd_.log(), "--pack " + link + " is given twice")) << weightd_.log();
  EXPECT_TRUE(Has(weightd_.log(), "--pack " + copy + " holds the same model as " + pack_.dir()))
      << weightd_.log();
}

TEST_F(WeightdProcessTest, NextInstanceReplacesWhatAKilledOneLeft) {
  weightd_.Start();
  ExpectServes();
  weightd_.Kill();
  EXPECT_EQ(access(weightd_.socket().c_str(), F_OK), 0);
  weightd_.Start();
  ExpectServes();
}

TEST_F(WeightdProcessTest, SigtermEndsItWithZeroThoughASessionIsOpen) {
  weightd_.Start({"--drain-timeout", "50ms"});
  const auto client = Connect();
  weightd_.process().Signal(SIGTERM);
  ASSERT_TRUE(weightd_.process().AwaitExit(kPatience)) << weightd_.log();
  EXPECT_EQ(weightd_.process().exit_code(), 0);
  EXPECT_FALSE(client->connected());
  EXPECT_NE(access(weightd_.socket().c_str(), F_OK), 0);
  EXPECT_NE(access((weightd_.socket() + ".side").c_str(), F_OK), 0);
}

TEST_F(WeightdProcessTest, SigtermWaitsForSessionsToEnd) {
  weightd_.Start({"--drain-timeout", "1h"});
  auto client = Connect();
  weightd_.process().Signal(SIGTERM);
  inferd::OpenSessionParams params;
  params.model_id = pack_.pack().model_id();
  inferd::WeightsRpcClient rpc(weightd_.socket());
  auto other = rpc.OpenSession(params, SteadyNow() + kPatience);
  while (other.ok()) {  // draining begins a moment after the signal
    ASSERT_TRUE(rpc.CloseSession(other->session, other->boot_epoch, SteadyNow() + kPatience).ok());
    other = rpc.OpenSession(params, SteadyNow() + kPatience);
  }
  EXPECT_TRUE(absl::IsUnavailable(other.status())) << other.status();
  EXPECT_EQ(ReasonOf(other.status()), "DRAINING");
  EXPECT_TRUE(client->connected());
  client.reset();
  ASSERT_TRUE(weightd_.process().AwaitExit(kPatience)) << weightd_.log();
  EXPECT_EQ(weightd_.process().exit_code(), 0);
}

TEST_F(WeightdProcessTest, EndsWithItsParentsLifeline) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  weightd_.Start({"--parent-lifeline", std::to_string(read_end.get())}, read_end.get());
  read_end.reset();
  ExpectServes();
  write_end.reset();
  ASSERT_TRUE(weightd_.process().AwaitExit(kPatience)) << weightd_.log();
  EXPECT_EQ(weightd_.process().exit_code(), 0);
}

TEST_F(WeightdProcessTest, KeepDelaysTheStopAfterTheParentEnds) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  weightd_.Start({"--keep", "1h", "--parent-lifeline", std::to_string(read_end.get())}, read_end.get());
  write_end.reset();
  ExpectServes();
  weightd_.process().Signal(SIGTERM);
  ASSERT_TRUE(weightd_.process().AwaitExit(kPatience)) << weightd_.log();
  EXPECT_EQ(weightd_.process().exit_code(), 0);
}

TEST_F(WeightdProcessTest, MetricsPassAStrictReaderAndCountFetches) {
  weightd_.Start({"--metrics", "127.0.0.1:0"});
  ExpectServes();
  const std::string log = weightd_.log();
  const std::string mark = "http://127.0.0.1:";
  const size_t at = log.find(mark);
  ASSERT_NE(at, std::string::npos) << log;
  const auto text = HttpGet(std::stoi(log.substr(at + mark.size())), "/metrics");
  ASSERT_TRUE(text.ok()) << text.status();
  const auto parsed = ParsePrometheus(*text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  // The test fetch of the start; extent 0 by the client unless that was it.
  EXPECT_GE(
      SampleOf(*parsed, "weightd_requests_total", "weightd_requests_total{class=\"demand\",tier=\"ssd\"}"),
      1);
  EXPECT_EQ(
      SampleOf(*parsed, "weightd_io_seconds", "weightd_io_seconds_count{class=\"demand\"}"),
      SampleOf(*parsed, "weightd_requests_total", "weightd_requests_total{class=\"demand\",tier=\"ssd\"}"));
  EXPECT_EQ(SampleOf(*parsed, "weightd_dram_budget_bytes", "weightd_dram_budget_bytes"), double{kBudget});
  EXPECT_EQ(parsed->at("weightd_io_engine_info").samples.size(), 1u);
  for (const char* name : {"weightd_slow_reads_total", "weightd_hedged_reads_total",
                           "weightd_hedged_reads_won_total", "weightd_timed_out_requests_total"}) {
    EXPECT_EQ(SampleOf(*parsed, name, name), 0) << name;
  }
}

TEST_F(WeightdProcessTest, AddressesThatCannotBeOpenedAreWrongOptions) {
  const std::string path = folder_.File(std::string(kMaxUnixPath, 'x'));
  for (const auto& [option, value, why] :
       std::vector<std::tuple<std::string, std::string, std::string>>{{"--metrics", "0.0.0.0:0", "loopback"},
                                                                      {"--metrics", "9400", "host:port"},
                                                                      {"--metrics", "unix:/tmp/m", "TCP"},
                                                                      {"--socket", path, "at most 107"}}) {
    for (const std::string check : {"--check-config", "--direct=on"}) {
      const auto [code, output] =
          Run({"--pack", pack_.dir(), "--dram-budget", "32MiB", option, value, check});
      EXPECT_EQ(code, 2) << output;
      EXPECT_TRUE(Has(output, option) && Has(output, why)) << output;
    }
  }
}

TEST_F(WeightdProcessTest, ConfigFileSetsWhatFlagsDo) {
  std::ofstream(folder_.File("weightd.toml"))
      << "# weights\nsocket = \"" << weightd_.socket() << "\"\npack = [\"" << pack_.dir()
      << "\"]\ndram-budget = \"8MiB\"\ndirect = \"off\"\nthreads = 3\n";
  ChildProcess process({ProgramPath("weightd"), "--config", folder_.File("weightd.toml"), "--threads", "1"},
                       weightd_.log_path());
  ExpectServes();
  EXPECT_TRUE(Has(weightd_.log(), "--dram-budget 8.0 MiB")) << weightd_.log();
  EXPECT_TRUE(Has(weightd_.log(), "--direct off")) << weightd_.log();
  EXPECT_TRUE(Has(weightd_.log(), "--threads 1")) << weightd_.log();
}

TEST_F(WeightdProcessTest, UsageErrorsEndWithTwoNamingTheOption) {
  std::ofstream(folder_.File("bad.toml")) << "pack = [\"" << pack_.dir() << "\"]\ndram-buget = \"8MiB\"\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "--pack"},
      {{"--pack", pack_.dir(), "--dram-budget", "8QiB"}, "8QiB"},
      {{"--pack", pack_.dir(), "--io", "mmap"}, "mmap"},
      {{"--pack", pack_.dir(), "--direct", "maybe"}, "maybe"},
      {{"--pack", pack_.dir(), "--threads", "0"}, "--threads"},
      {{"--pack", pack_.dir(), "--socket-mode", "0888"}, "0888"},
      {{"--pack", pack_.dir(), "--keep", "-1s"}, "-1s"},
      {{"--config", folder_.File("none.toml")}, "none.toml"},
      {{"--config", folder_.File("bad.toml")}, "dram-buget"},
  };
  for (const auto& [arguments, part] : cases) {
    const auto [code, output] = Run(arguments);
    EXPECT_EQ(code, 2) << output;
    EXPECT_TRUE(Has(output, part)) << part << " in " << output;
  }
}

TEST_F(WeightdProcessTest, FailuresToStartEndWithOneNamingTheCause) {
  const auto [no_pack, no_pack_output] = Run({"--socket", weightd_.socket(), "--pack", folder_.File("none")});
  EXPECT_EQ(no_pack, 1);
  EXPECT_TRUE(Has(no_pack_output, folder_.File("none"))) << no_pack_output;
  const auto [small, small_output] =
      Run({"--socket", weightd_.socket(), "--pack", pack_.dir(), "--dram-budget", "64KiB"});
  EXPECT_EQ(small, 1);
  EXPECT_TRUE(Has(small_output, "65536")) << small_output;
  const auto [huge, huge_output] = Run({"--socket", weightd_.socket(), "--pack", pack_.dir(), "--dram-budget",
                                        "900TiB", "--budget-wait", "0s"});
  EXPECT_EQ(huge, 1);
  EXPECT_TRUE(Has(huge_output, "MemAvailable")) << huge_output;
}

}  // namespace
}  // namespace sluice::weightd
