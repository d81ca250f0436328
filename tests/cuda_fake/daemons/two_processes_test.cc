// Two real processes on the fake: an engine in a process of the test's, and a real weightd that copies into
// its slab. Nothing is found of them as they are; and each wait that orders the one's kernels and the other's
// copies, left out, is found by the check of order between processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "inferd/session/session_weight_client.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/support/engine_running.h"
#include "tests/support/fakes/hasty_client.h"
#include "tests/support/weightd_process.h"

namespace sluice {
namespace {

constexpr uint32_t kTokens = 4;
constexpr uint64_t kSlots = 4;
constexpr uint64_t kDram = 32 << 20;

// The waits that are left out, everywhere and always.
struct Haste {
  const char* name = "nothing";
  std::string weightd;  // words for its fake
  std::string engine;   // the call by which this process' host waits for the device
  HastyClient::Haste client;
};
void PrintTo(const Haste& haste, std::ostream* out) { *out << haste.name; }

struct Found {
  std::vector<std::string> reports;  // of both processes
  bool right = false;                // the engine came to its end, and tokens are the reference's
  bool OfPeers() const {
    for (const std::string& report : reports) {
      if (absl::StrContains(report, "of memory shared with process")) {
        return true;
      }
    }
    return false;
  }
};

class TwoProcessesTest : public testing::TestWithParam<Haste> {
 protected:
  // The pack, and the tokens that are right; made once.
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    TinyModelSpec model;
    model.hidden = 64;
    model.layers = 2;
    model.experts = 8;
    model.width = 256;  // four tiles
    ASSERT_TRUE(PackTiny(model, dir_->File("model"), PackDir()).ok());
    const auto client = *FakeWeightClient::Open(PackDir(), {});
    inferd::EngineOptions options = Options(*client);
    options.device = inferd::DeviceKind::kHost;
    absl::Status status;
    expected_ = IdsOf(AnswerOf(options, kTokens, client.get(), CreateReferenceBackend, &status));
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(expected_.size(), kTokens);
    const std::filesystem::path build = std::filesystem::path(ProgramPath("weightd")).parent_path() / "..";
    setenv("SLUICE_CUDA_MODULE", (build / "tests" / "libsluice_cuda_fake.so").c_str(), 1);
  }
  static void TearDownTestSuite() { dir_.reset(); }
  static std::string PackDir() { return dir_->File("pack"); }

  // Slots for fewer experts than a layer of the prompt wants, so that they are filled again within it.
  static inferd::EngineOptions Options(const inferd::WeightClient& client) {
    inferd::EngineOptions options;
    options.parallel = 1;
    options.context = 64;
    options.prefill_chunk = 4;
    options.device = inferd::DeviceKind::kCuda;
    options.slab.transport = inferd::Transport::kPush;
    options.slab.tile_neurons = 64;
    options.slab.budget = kSlots * client.pack().largest_expert_bytes();
    return options;
  }

  static std::vector<std::string> LinesOf(const std::string& path) {
    std::vector<std::string> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      lines.push_back(line);
    }
    return lines;
  }

  // Both kinds of handle, by the seed: what orders the two is the same.
  static SharedHandle HandleOf(uint64_t seed) {
    return seed % 2 == 0 ? SharedHandle::kVmm : SharedHandle::kIpc;
  }

  // Runs the engine's process. Returns 0 on success.
  static int RunEngine(const Haste& haste, uint64_t seed, const std::string& socket, const TempDir& run) {
    alarm(120);
    std::freopen(run.File("engine.log").c_str(), "w", stderr);
    cuda_fake::ResetFake({.seed = seed, .drop_call = haste.engine});
    inferd::SessionWeightClientOptions options;
    options.socket = socket;
    options.pack_dir = PackDir();
    auto session = inferd::SessionWeightClient::Connect(options, SteadyNow() + absl::Seconds(30));
    if (!session.ok()) {
      return 2;
    }
    HastyClient client(*std::move(session), haste.client);
    absl::Status status;
    inferd::EngineOptions engine = Options(client);
    engine.slab.handle = HandleOf(seed);
    const std::vector<int32_t> ids = IdsOf(AnswerOf(engine, kTokens, &client, CreateCudaBackend, &status));
    std::ofstream file(run.File("engine"));
    for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
      file << report.text << std::endl;
    }
    return status.ok() && ids == expected_ ? 0 : 1;
  }

  static Found Run(const Haste& haste, uint64_t seed) {
    const TempDir run;
    setenv("SLUICE_FAKE_CUDA",
           absl::StrCat("seed=", seed, " reports=", run.File("weightd"), " ", haste.weightd).c_str(), 1);
    WeightdProcess weightd(run.path(), {PackDir()}, kDram);
    weightd.Start();
    const pid_t engine = fork();
    if (engine == 0) {
      _exit(RunEngine(haste, seed, weightd.socket(), run));
    }
    int status = 0;
    EXPECT_EQ(waitpid(engine, &status, 0), engine);
    EXPECT_FALSE(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) << haste.name << ": it hangs";
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << weightd.log();
    EXPECT_TRUE(absl::StrContains(weightd.log(),
                                  HandleOf(seed) == SharedHandle::kIpc ? "shared by ipc" : "shared by vmm"))
        << weightd.log();
    weightd.process().Signal(SIGTERM);
    EXPECT_TRUE(weightd.process().AwaitExit(absl::Seconds(30))) << weightd.log();
    Found found;
    found.right = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    found.reports = LinesOf(run.File("engine"));
    const std::vector<std::string> of_weightd = LinesOf(run.File("weightd"));
    EXPECT_FALSE(of_weightd.empty()) << weightd.log();
    for (const std::string& line : of_weightd) {
      if (!absl::StrContains(line, ": none (")) {
        found.reports.push_back(line);
      }
    }
    return found;
  }

  static std::unique_ptr<TempDir> dir_;
  static std::vector<int32_t> expected_;
};
std::unique_ptr<TempDir> TwoProcessesTest::dir_;
std::vector<int32_t> TwoProcessesTest::expected_;

TEST_F(TwoProcessesTest, AreOrderedAsTheyAre) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const Found found = Run({}, seed);
    EXPECT_TRUE(found.right) << "seed " << seed;
    for (const std::string& report : found.reports) {
      ADD_FAILURE() << "seed " << seed << ": " << report;
    }
  }
}

TEST_P(TwoProcessesTest, WithoutAWaitIsFound) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const Found found = Run(GetParam(), seed);
    std::printf("%s, seed %d: %d reports, tokens %s; %s\n", GetParam().name, static_cast<int>(seed),
                static_cast<int>(found.reports.size()), found.right ? "right" : "wrong",
                found.reports.empty() ? "" : found.reports.front().c_str());
    EXPECT_TRUE(found.OfPeers()) << "seed " << seed;
  }
}

// The device that is asked slowly is one whose copies take a while beside the hosts' messages.
constexpr char kSlow[] = "questions=50";
INSTANTIATE_TEST_SUITE_P(Waits, TwoProcessesTest,
                         testing::Values(Haste{"CopysEnd", "drop_call=cudaEventQuery", "", {}},
                                         Haste{"TileLanded", kSlow, "", {.landed = true}},
                                         Haste{"TransferComplete", kSlow, "", {.completed = true}},
                                         Haste{"SlotsLastReader", "", "cudaEventQuery", {}},
                                         Haste{"NewSlabsZeros", "", "cudaStreamSynchronize", {}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice
