// A whole engine on device cuda: its tokens are the reference's, to the last one, and no check has anything
// to report, whatever order the device runs its work in. And without its waits a check reports, or
// tokens are wrong.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string_view>
#include <vector>

#include "inferd/model/pull_client.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_copier.h"
#include "pack/pack.h"
#include "pack/writer/pack_writer.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/support/engine_running.h"

namespace sluice {
namespace {

constexpr uint32_t kTokens = 12;
constexpr uint64_t kAll = 1000;  // slots, more than there are experts

struct Setting {
  bool cuda = false;
  uint64_t slots = 0;  // experts on the device, copied there by this process; 0: leased where they lie
  uint32_t tokens = kTokens;
  uint32_t chunk = 4;
  uint32_t drafts = 0;                  // verified in each step that has so many
  int32_t words = 0;                    // of the answer; 0: any
  BackendCounters* counters = nullptr;  // the device's in the end, if they are wanted
};

std::unique_ptr<inferd::WeightClient> ClientOf(const std::string& pack, const Setting& run) {
  absl::StatusOr<std::unique_ptr<FakeWeightClient>> client = FakeWeightClient::Open(pack, {});
  EXPECT_TRUE(client.ok()) << client.status();
  if (run.slots == 0) {
    return *std::move(client);
  }
  return std::make_unique<inferd::PullClient>(
      *std::move(client),
      std::vector<std::shared_ptr<Copier>>{std::make_shared<cuda::CudaCopier>(cuda::CudaCopier::Options())});
}

std::vector<inferd::TokenOut> Tokens(const std::string& pack, const Setting& run, absl::Status* status) {
  const std::unique_ptr<inferd::WeightClient> client = ClientOf(pack, run);
  inferd::EngineOptions options;
  options.parallel = 1;
  options.context = 64;
  options.prefill_chunk = run.chunk;
  options.speculate = run.drafts > 0 ? inferd::SpeculateMode::kAuto : inferd::SpeculateMode::kOff;
  options.drafts = run.drafts;
  if (run.slots != 0) {
    options.device = inferd::DeviceKind::kCuda;
    options.slab.transport = inferd::Transport::kPull;
    options.slab.budget = run.slots * client->pack().largest_expert_bytes();
  }
  return AnswerOf(options, run.tokens, client.get(),
                  run.cuda ? BackendMaker(CreateCudaBackend) : BackendMaker(CreateReferenceBackend), status,
                  run.counters, run.words);
}

bool Full() {
  const char* const stress = std::getenv("SLUICE_STRESS");
  return stress != nullptr && std::string_view(stress) == "full";
}

class CudaEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::Status packed = PackFolder("tests/data/tiny/mixtral", pack_, "q4");
    ASSERT_TRUE(packed.ok()) << packed;
    Expect();
  }
  void Expect() {
    expected_ = TokensOf({.cuda = false});
    EXPECT_EQ(expected_.size(), kTokens);
  }
  std::vector<inferd::TokenOut> TokensOf(const Setting& run) {
    absl::Status status;
    std::vector<inferd::TokenOut> tokens = Tokens(pack_, run, &status);
    EXPECT_TRUE(status.ok()) << status;
    return tokens;
  }
  void ExpectClean(const Setting& run, uint64_t seed) {
    cuda_fake::ResetFake({.seed = seed});
    const std::vector<inferd::TokenOut> tokens = TokensOf(run);
    ASSERT_EQ(tokens.size(), run.tokens);
    for (uint32_t i = 0; i < run.tokens; ++i) {
      EXPECT_EQ(tokens[i].token_id, expected_[i].token_id) << "token " << i << ", seed " << seed;
      // Logits are the reference's to the bit; the last bit of their logsumexp may be another.
      EXPECT_NEAR(tokens[i].logprob, expected_[i].logprob, 1e-6) << "token " << i << ", seed " << seed;
    }
    for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
      ADD_FAILURE() << "seed " << seed << ": " << report.text;
    }
  }

  enum class Found { kNot = 3, kReport = 4, kTokens = 5, kError = 6, kDeath = 7 };
  // Runs with wait `number` left out, in a process of its own, since the result may be anything.
  Found Without(uint64_t number, const Setting& run, uint64_t seed) {
    const pid_t child = fork();
    if (child == 0) {
      std::freopen(dir_.File("log").c_str(), "w", stderr);
      std::freopen("/dev/null", "w", stdout);
      alarm(300);
      cuda_fake::ResetFake({.seed = seed, .drop_wait = number});
      absl::Status status;
      const std::vector<inferd::TokenOut> wanted(expected_.begin(), expected_.begin() + run.tokens);
      const std::vector<inferd::TokenOut> tokens = Tokens(pack_, run, &status);
      Found found = Found::kNot;
      if (!cuda_fake::TakeReports().empty()) {
        found = Found::kReport;
      } else if (!status.ok()) {
        found = Found::kError;
      } else if (IdsOf(tokens) != IdsOf(wanted)) {
        found = Found::kTokens;
      }
      std::fflush(stderr);
      _exit(static_cast<int>(found));
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) << "wait " << number << ": it hangs";
    return WIFEXITED(status) ? static_cast<Found>(WEXITSTATUS(status)) : Found::kDeath;
  }

  // The wait that Without() left out: the call, and the operation that it waited for.
  std::string Dropped() {
    constexpr char kBegin[] = "cuda_fake: dropped ";
    std::ifstream file(dir_.File("log"));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(kBegin)) {
        return line.substr(sizeof(kBegin) - 1);
      }
    }
    return "";
  }

  struct Kind {
    int dropped = 0;
    int found = 0;
  };
  // Waits of the engine's own, at which it reads what the device has computed.
  static constexpr char kOwn[] = "cudaEventSynchronize of event record in stream 1";
  // Leaves out waits of a run, one at a time, and counts them by kind: every third one, each with
  // SLUICE_STRESS=full. On a busy machine threads wait less often, since more has ended by itself: then
  // others are left out, until `own` of the engine's were.
  std::map<std::string, Kind> DropEach(const Setting& run, uint64_t seed, int own) {
    ExpectClean(run, seed);
    const uint64_t waits = cuda_fake::CountersOfFake().waits;
    std::map<std::string, Kind> kinds;
    const uint64_t step = Full() ? 1 : 3;
    for (int pass = 0; pass < 6 && kinds[kOwn].dropped < own; ++pass) {
      for (uint64_t number = 1 + static_cast<uint64_t>(pass) % step; number <= waits; number += step) {
        const Found found = Without(number, run, seed);
        const std::string kind = Dropped();
        if (!kind.empty()) {
          kinds[kind].dropped += 1;
          kinds[kind].found += found != Found::kNot ? 1 : 0;
        }
      }
    }
    for (const auto& [kind, count] : kinds) {
      std::printf("seed %d: %s: %d of %d left out were found\n", static_cast<int>(seed), kind.c_str(),
                  count.found, count.dropped);
    }
    EXPECT_GE(kinds[kOwn].dropped, own);
    EXPECT_GE(3 * kinds[kOwn].found, kinds[kOwn].dropped);
    return kinds;
  }

  TempDir dir_;
  std::string pack_ = dir_.File("pack");
  std::vector<inferd::TokenOut> expected_;
};

TEST_F(CudaEngineTest, TokensAreTheReferences) {
  for (const uint64_t seed : {1, 2}) {
    ExpectClean({.cuda = true}, seed);
    ExpectClean({.cuda = true, .slots = 4}, seed);
  }
}

// A file's blocks as they are, Q5_K and Q6_K; a prompt at once, for which tensor cores multiply.
TEST_F(CudaEngineTest, TokensOfTheBlocksOfAGgufFileAreTheReferences) {
  const auto packed =
      PackModel("tests/data/gguf/granitemoe-q5_k_m/model.gguf", dir_.File("gguf"), {}, nullptr, nullptr);
  ASSERT_TRUE(packed.ok()) << packed.status();
  pack_ = dir_.File("gguf");
  Expect();
  ExpectClean({.cuda = true, .chunk = 16}, 1);
  ExpectClean({.cuda = true, .slots = 4}, 2);
}

// A fully resident model, some layers without experts: the cost of eight more tokens.
TEST_F(CudaEngineTest, VerifiedDraftsKeepEveryToken) {
  constexpr uint32_t kLong = 20;
  expected_ = TokensOf({.tokens = kLong, .words = 3});
  for (const uint64_t slots : {uint64_t{4}, kAll}) {
    BackendCounters plain;
    BackendCounters drafting;
    Setting run = {.cuda = true, .slots = slots, .tokens = kLong, .words = 3, .counters = &plain};
    ExpectClean(run, 1);
    run.drafts = 4;
    run.counters = &drafting;
    ExpectClean(run, 1);
    EXPECT_NE(drafting.waits, plain.waits) << "no draft was verified";
  }
}

TEST_F(CudaEngineTest, ATokenOfAResidentModelIsOneGraph) {
  for (const char* const model : {"mixtral", "deepseek_v3", "granitemoehybrid"}) {
    SCOPED_TRACE(model);
    pack_ = dir_.File(std::string("resident_") + model);
    const absl::Status packed = PackFolder(std::string("tests/data/tiny/") + model, pack_, "q4");
    ASSERT_TRUE(packed.ok()) << packed;
    Expect();
    for (const uint64_t seed : {1, 2}) {
      BackendCounters few;
      BackendCounters many;
      ExpectClean({.cuda = true, .slots = kAll, .tokens = 4, .counters = &few}, seed);
      const cuda_fake::FakeCounters before = cuda_fake::CountersOfFake();
      ExpectClean({.cuda = true, .slots = kAll, .tokens = 12, .counters = &many}, seed);
      const cuda_fake::FakeCounters after = cuda_fake::CountersOfFake();
      EXPECT_EQ(many.graph_launches - few.graph_launches, 8u);
      EXPECT_EQ(many.graphs_made, few.graphs_made);
      EXPECT_EQ(many.graphs_updated, few.graphs_updated);
      std::printf("%s, a token: %g kernels, %g copies of %g bytes\n", model,
                  static_cast<double>(many.kernels - few.kernels) / 8,
                  static_cast<double>(after.copies - before.copies) / 8,
                  static_cast<double>(after.copied_bytes - before.copied_bytes) / 8);
      // Only values known before the step are uploaded, and the routers' choices downloaded; candidates lie
      // in staging memory: no table of experts.
      EXPECT_EQ(after.copies - before.copies, 16u);
    }
  }
}

// Each wait of the engine and of the copier left out, one at a time. The check of order is the judge: a run
// without a report, with the right tokens, did nothing that another wait had not ordered (copies of a stream
// arrive in order, so that the last one's event stands for those before it). So not each is found, but waits
// of each kind are, and of the engine's own, at which it reads what the device has computed, a third at least
// (usually most: it depends on which others the threads happened to need).
TEST_F(CudaEngineTest, WithoutAWaitOrderIsMissedOrTokensAreWrong) {
  const Setting run = {.cuda = true, .slots = 4, .tokens = 2};
  const std::vector<uint64_t> seeds = Full() ? std::vector<uint64_t>{1, 2, 3} : std::vector<uint64_t>{1};
  for (const uint64_t seed : seeds) {
    const std::map<std::string, Kind> kinds = DropEach(run, seed, 5);
    EXPECT_GE(kinds.size(), 3u);
    for (const auto& [kind, count] : kinds) {
      if (count.dropped >= 4) {  // fewer may all be waits for what another wait has ordered
        EXPECT_GT(count.found, 0) << "seed " << seed << ": " << kind;
      }
    }
  }
}

// The same of a resident model, a token of which is a graph and one wait: the tokens behind the second one's
// are of graphs that are launched again.
TEST_F(CudaEngineTest, DroppingAGraphsOnlyWaitIsDetected) {
  DropEach({.cuda = true, .slots = kAll, .tokens = 6, .chunk = 16}, 1, 5);
}

}  // namespace
}  // namespace sluice
