#include "inferd/daemon/inferd_options.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/base/renamed_names.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inferd/policy/policies.h"
#include "tests/support/temp_dir.h"

namespace sluice::inferd {
namespace {

InferdCommand Parse(std::vector<std::string> args) {
  std::vector<const char*> argv = {"inferd"};
  for (const std::string& arg : args) {
    argv.push_back(arg.c_str());
  }
  return ParseInferdCommand(static_cast<int>(argv.size()), argv.data());
}

std::map<std::string, ReportedOption> Report(const InferdCommand& command, uint32_t context,
                                             uint32_t threads) {
  EnginePlan plan;
  plan.options.context = context;
  plan.kv_bytes = 4096;
  std::map<std::string, ReportedOption> result;
  for (const ReportedOption& option : ReportOptionsOf(command.options, command.set, plan, threads)) {
    result[option.name] = option;
  }
  return result;
}

TEST(InferdOptionsTest, OldOptionNamesAreAcceptedAndLogged) {
  const std::string old_name = absl::StrCat("--", kRenamedOptions[0].old_name);
  testing::internal::CaptureStderr();
  const InferdCommand command = Parse({"--pack", "/p", old_name, "1024"});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(command.exit_code.has_value());
  EXPECT_EQ(command.options.max_prefill_chunk, 1024u);
  EXPECT_THAT(command.set, testing::Contains(kRenamedOptions[0].name));
  EXPECT_THAT(log, testing::AllOf(testing::HasSubstr(kRenamedOptions[0].old_name),
                                  testing::HasSubstr(kRenamedOptions[0].name)));
}

TEST(InferdOptionsTest, OldOptionNamesAreAcceptedInTheFile) {
  const TempDir dir;
  const std::string path = dir.path() + "/inferd.toml";
  std::ofstream(path) << kRenamedOptions[0].old_name << " = 1024\n";
  const InferdCommand command = Parse({"--pack", "/p", "--config", path});
  EXPECT_FALSE(command.exit_code.has_value());
  EXPECT_EQ(command.options.max_prefill_chunk, 1024u);
}

TEST(InferdOptionsTest, OldPolicyKeysAreAccepted) {
  Policies policies;
  policies.token_draft = true;
  EXPECT_TRUE(SetPolicy(absl::StrCat(kRenamedPolicyKeys[0].old_name, "=off"), &policies).ok());
  EXPECT_FALSE(policies.token_draft);
  EXPECT_FALSE(SetPolicy("no_such_key=off", &policies).ok());
}

TEST(InferdOptionsTest, FlagsReachTheirMembers) {
  const InferdCommand command = Parse({"--pack",
                                       "/p",
                                       "--weightd",
                                       "/w.sock",
                                       "--listen",
                                       "unix:/a",
                                       "--listen",
                                       "127.0.0.1:5",
                                       "--admin",
                                       "unix:/b",
                                       "--context",
                                       "256",
                                       "--parallel",
                                       "2",
                                       "--kv",
                                       "f32",
                                       "--kv-budget",
                                       "512MiB",
                                       "--prefill-chunk=7",
                                       "--threads",
                                       "3",
                                       "--prefix-cache=off",
                                       "--prefetch",
                                       "off",
                                       "--keep",
                                       "10m",
                                       "--max-queue",
                                       "5",
                                       "--allow-uid",
                                       "7"});
  ASSERT_FALSE(command.exit_code.has_value());
  const InferdOptions& o = command.options;
  EXPECT_EQ("/p", o.pack);
  EXPECT_EQ("/w.sock", o.weightd);
  EXPECT_EQ((std::vector<std::string>{"unix:/a", "127.0.0.1:5"}), o.listen);
  EXPECT_EQ(std::vector<std::string>{"unix:/b"}, o.admin);
  ASSERT_EQ(1u, o.allow_uid.size());
  EXPECT_EQ(7u, o.allow_uid[0].id);
  EXPECT_EQ(absl::Minutes(10), o.keep);
  const EngineOptions engine = EngineOptionsOf(o);
  EXPECT_EQ(256u, engine.context);
  EXPECT_EQ(2u, engine.parallel);
  EXPECT_EQ(KvType::kF32, engine.kv);
  EXPECT_EQ(512ull << 20, engine.kv_budget);
  EXPECT_EQ(7u, engine.prefill_chunk);
  EXPECT_EQ(5u, engine.queue.count);
  EXPECT_FALSE(engine.prefetch);
  EXPECT_FALSE(engine.prefix_cache);
}

TEST(InferdOptionsTest, SocketsDefaultToTheRuntimeDirectory) {
  ASSERT_EQ(0, setenv("SLUICE_RUNTIME_DIR", "/run/some", 1));
  const InferdCommand command = Parse({"--pack", "/p"});
  unsetenv("SLUICE_RUNTIME_DIR");
  EXPECT_EQ("/run/some/weightd.sock", command.options.weightd);
  EXPECT_EQ(std::vector<std::string>{"unix:/run/some/inferd.sock"}, command.options.listen);
  EXPECT_EQ(std::vector<std::string>{"unix:/run/some/inferd-admin.sock"}, command.options.admin);
}

// Same rule as weightd's --socket.
TEST(InferdOptionsTest, RelativeSocketsLieInTheWorkingDirectory) {
  const InferdCommand command =
      Parse({"--pack", "/p", "--listen", "unix:run/inferd.sock", "--admin", "unix:./ops.sock"});
  ASSERT_FALSE(command.exit_code.has_value());
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(std::vector<std::string>{"unix:" + here + "/run/inferd.sock"}, command.options.listen);
  EXPECT_EQ(std::vector<std::string>{"unix:" + here + "/ops.sock"}, command.options.admin);
}

TEST(InferdOptionsTest, FileUsesFlagNamesAndFlagsOverrideIt) {
  const TempDir dir;
  std::ofstream(dir.File("inferd.toml")) << "pack = \"/from-file\"\ncontext = 128\nkv-budget = \"1GiB\"\n"
                                         << "listen = [\"unix:/a\", \"unix:/b\"]\n";
  const InferdCommand command = Parse({"--config", dir.File("inferd.toml"), "--context", "64"});
  ASSERT_FALSE(command.exit_code.has_value());
  EXPECT_EQ("/from-file", command.options.pack);
  EXPECT_EQ(64u, command.options.context);
  EXPECT_EQ(1ull << 30, command.options.kv_budget.bytes);
  EXPECT_EQ((std::vector<std::string>{"unix:/a", "unix:/b"}), command.options.listen);
  EXPECT_TRUE(command.set.count("kv-budget") == 1 && command.set.count("context") == 1);
  EXPECT_EQ(0u, command.set.count("parallel"));
}

TEST(InferdOptionsTest, UsageErrorsExitWithTwo) {
  const TempDir dir;
  std::ofstream(dir.File("bad.toml")) << "pack = \"/p\"\nno-such-option = 1\n";
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"--pack", "/p", "--no-such-option"},
      {"--pack", "/p", "--context", "many"},
      {"--pack", "/p", "--context", "-1"},
      {"--pack", "/p", "--kv", "f64"},
      {"--pack", "/p", "--kv-budget", "big"},
      {"--pack", "/p", "--prefetch", "maybe"},
      {"--pack", "/p", "--keep", "soon"},
      {"--pack", "/p", "--device", "tpu"},
      {"--pack", "/p", "--log-level", "loud"},
      {"--pack", "/p", "--preset", "fast"},
      {"--pack", "/p", "--sparsity", "some"},
      {"--pack", "/p", "--policy", "no_such_key=1"},
      {"--pack", "/p", "--listen", "nowhere"},
      {"--pack", "/p", "--admin", "5"},
      {"--pack", "/p", "--metrics", "9400"},
      {"--pack", "/p", "--check-config", "--metrics", "0.0.0.0:9401"},
      {"--pack", "/p", "--config", dir.File("absent.toml")},
      {"--config", dir.File("bad.toml")},
  };
  for (const std::vector<std::string>& args : cases) {
    testing::internal::CaptureStderr();
    const InferdCommand command = Parse(args);
    const std::string complaint = testing::internal::GetCapturedStderr();
    EXPECT_EQ(2, command.exit_code) << testing::PrintToString(args);
    EXPECT_FALSE(complaint.empty()) << testing::PrintToString(args);
  }
}

TEST(InferdOptionsTest, AFileIsReadWholeOrRefusedNamingFileAndLine) {
  const TempDir dir;
  const std::string path = dir.File("inferd.toml");
  const struct {
    const char* line;
    const char* expected;
  } cases[] = {
      {"\xff\xfe", ":1: "},
      {"drain-timeout 5s", ":2: "},
      {"kv = \"f32", ":2: "},
      {"pack = \"/q\"", ":2: "},
      {"contxt = 64", ":2: there is no option \"contxt\""},
      {"[inferd]\ncontext = 64", ":2: there is no option \"inferd\""},
      {"context = 1979-05-27", ":2: context is no text, number or flag"},
      {"listen = [[\"unix:/a\"]]", ":2: listen is no text, number or flag"},
  };
  for (const auto& c : cases) {
    std::ofstream(path) << "pack = \"/p\"\n" << c.line << "\n";
    testing::internal::CaptureStderr();
    const InferdCommand command = Parse({"--config", path});
    const std::string complaint = testing::internal::GetCapturedStderr();
    EXPECT_EQ(2, command.exit_code) << c.line;
    EXPECT_THAT(complaint, testing::HasSubstr(path + c.expected)) << c.line;
  }
}

TEST(InferdOptionsTest, NumbersAndFlagsOfAFileNeedNoQuotes) {
  const TempDir dir;
  std::ofstream(dir.File("inferd.toml"))
      << "pack = '/p'  # a text\ndevice = \"sim\"\nlink-gbps = 0.1\nparallel = 2\n"
      << "listen = [\n  \"unix:/a\",\n]\n";
  const InferdCommand command = Parse({"--config", dir.File("inferd.toml")});
  ASSERT_FALSE(command.exit_code.has_value());
  EXPECT_EQ(0.1, command.options.link_gbps);
  EXPECT_EQ(2u, command.options.parallel);
  EXPECT_EQ(std::vector<std::string>{"unix:/a"}, command.options.listen);
}

TEST(InferdOptionsTest, HelpNamesEveryOptionAndExitsWithZero) {
  testing::internal::CaptureStdout();
  const InferdCommand command = Parse({"--help"});
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_EQ(0, command.exit_code);
  InferdOptions options;
  ForEachOption(&options, [&](const OptionSpec& spec, const auto*) {
    EXPECT_THAT(help, testing::HasSubstr(std::string("--") + spec.name));
  });
}

TEST(InferdOptionsTest, OptionsOfASlabAreRefusedByNameOnTheHost) {
  for (const auto& [flag, value] : std::map<std::string, std::string>{{"--link-gbps", "16"},
                                                                      {"--device-budget", "8GiB"},
                                                                      {"--tile-neurons", "64"},
                                                                      {"--clock", "virtual"}}) {
    const InferdCommand command = Parse({"--pack", "/p", flag, value});
    EXPECT_EQ(2, command.exit_code.value_or(0)) << flag;
    const InferdCommand sim = Parse({"--pack", "/p", "--device", "sim", flag, value});
    ASSERT_FALSE(sim.exit_code.has_value()) << flag;
    EXPECT_TRUE(CheckInferdOptions(sim.options, sim.set).ok()) << flag;
  }
  EXPECT_EQ(2, Parse({"--pack", "/p", "--device", "sim", "--tile-neurons", "63"}).exit_code.value_or(0));
  EXPECT_EQ(2,
            Parse({"--pack", "/p", "--device", "sim", "--virtual-costs", "link_ms=1"}).exit_code.value_or(0));
}

TEST(InferdOptionsTest, ARealDeviceHasNoModelledLink) {
  const InferdCommand cuda = Parse({"--pack", "/p", "--device", "cuda", "--device-budget", "8GiB",
                                    "--transport", "pull", "--tile-neurons", "64"});
  ASSERT_FALSE(cuda.exit_code.has_value());
  EXPECT_EQ(EngineOptionsOf(cuda.options).device, DeviceKind::kCuda);
  EXPECT_EQ(EngineOptionsOf(cuda.options).slab.handle, SharedHandle::kBest);
  for (const auto& [word, handle] : std::map<std::string, SharedHandle>{
           {"auto", SharedHandle::kBest}, {"vmm", SharedHandle::kVmm}, {"ipc", SharedHandle::kIpc}}) {
    const InferdCommand with = Parse({"--pack", "/p", "--device", "cuda", "--slab-handle", word});
    ASSERT_FALSE(with.exit_code.has_value()) << word;
    EXPECT_EQ(EngineOptionsOf(with.options).slab.handle, handle) << word;
  }
  EXPECT_EQ(2, Parse({"--pack", "/p", "--device", "cuda", "--slab-handle", "fd"}).exit_code.value_or(0));
  EXPECT_EQ(2, Parse({"--pack", "/p", "--device", "sim", "--slab-handle", "ipc"}).exit_code.value_or(0));
  EXPECT_EQ(EngineOptionsOf(cuda.options).prefill_math, PrefillMath::kExact);
  for (const auto& [word, math] : std::map<std::string, PrefillMath>{
           {"exact", PrefillMath::kExact}, {"fast", PrefillMath::kFast}, {"auto", PrefillMath::kAuto}}) {
    const InferdCommand with = Parse({"--pack", "/p", "--device", "cuda", "--prefill-math", word});
    ASSERT_FALSE(with.exit_code.has_value()) << word;
    EXPECT_EQ(EngineOptionsOf(with.options).prefill_math, math) << word;
  }
  for (const char* const device : {"host", "sim"}) {
    EXPECT_EQ(2, Parse({"--pack", "/p", "--device", device, "--prefill-math", "fast"}).exit_code.value_or(0));
    EXPECT_FALSE(Parse({"--pack", "/p", "--device", device, "--prefill-math", "auto"}).exit_code.has_value());
  }
  for (const auto& [flag, value] : std::map<std::string, std::string>{
           {"--link-gbps", "16"}, {"--link-latency-us", "1"}, {"--clock", "virtual"}}) {
    EXPECT_EQ(2, Parse({"--pack", "/p", "--device", "cuda", flag, value}).exit_code.value_or(0)) << flag;
  }
}

TEST(InferdOptionsTest, ASimulatedDeviceIsWhatTheOptionsSay) {
  const InferdCommand command = Parse({"--pack", "/p", "--device", "sim", "--device-budget", "1KiB",
                                       "--link-gbps", "2.5", "--link-latency-us", "30", "--clock", "virtual",
                                       "--virtual-costs", "link_ms=15,compute_ms=0.5"});
  ASSERT_FALSE(command.exit_code.has_value());
  const InferdCommand share = Parse({"--pack", "/p", "--device", "sim", "--device-budget", "37.5%"});
  EXPECT_EQ(37.5, share.options.device_budget.percent);
  EXPECT_EQ("37.5%", FormatOptionValue(share.options.device_budget));
  for (const char* wrong : {"0%", "101%", "%", "-1%", "1 GiB%"}) {
    EXPECT_EQ(2, Parse({"--pack", "/p", "--device", "sim", "--device-budget", wrong}).exit_code.value_or(0))
        << wrong;
  }
  const EngineOptions engine = EngineOptionsOf(command.options);
  EXPECT_EQ(DeviceKind::kSim, engine.device);
  EXPECT_EQ(1024u, command.options.device_budget.bytes);
  EXPECT_EQ(2.5, engine.slab.link_gbps);
  EXPECT_EQ(30, engine.slab.link_latency_us);
  EXPECT_TRUE(engine.virtual_clock);
  EXPECT_EQ(15, engine.costs.link_ms);
  EXPECT_EQ(0.5, engine.costs.compute_ms);
}

TEST(InferdOptionsTest, ReportShowsWhatWasSetAndWhatDefaultsBecame) {
  const InferdCommand command = Parse({"--pack", "/p", "--kv-budget", "1KiB", "--parallel", "9"});
  const auto report = Report(command, 8192, 6);
  EXPECT_EQ("8192", report.at("context").value);
  EXPECT_FALSE(report.at("context").is_set);
  EXPECT_EQ("6", report.at("threads").value);
  EXPECT_EQ("1024", report.at("kv-budget").value);
  EXPECT_TRUE(report.at("kv-budget").is_set);
  EXPECT_EQ("9", report.at("parallel").value);
  EXPECT_EQ("host", report.at("device").value);
  EXPECT_EQ("on", report.at("prefetch").value);
  EXPECT_EQ("4096", Report(Parse({"--pack", "/p"}), 1, 1).at("kv-budget").value);
}

TEST(InferdOptionsTest, OnlyDevicesOnTheCpuNeedItsInstructions) {
  for (const char* device : {"host", "sim", "cuda"}) {
    EXPECT_TRUE(CheckCpuOf(device, true).ok()) << device;
  }
  EXPECT_TRUE(CheckCpuOf("cuda", false).ok());
  for (const char* device : {"host", "sim"}) {
    const absl::Status status = CheckCpuOf(device, false);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), testing::HasSubstr(device));
  }
}

}  // namespace
}  // namespace sluice::inferd
