// Tests the start-up profile of masks: it finds a share for every batch size, and its file is used only where
// it fits.
#include "kernels/sparse_profile.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <variant>

#include "gtest/gtest.h"
#include "kernels/forwarding_backend.h"
#include "pack/row_layout.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

SparseProfileSpec SmallSpec() {
  SparseProfileSpec spec;
  spec.order = SparsityOrder::kGate;
  spec.up = spec.gate = spec.down = MakeDescriptor(Encoding::kBf16);
  spec.hidden = 64;
  spec.width = 128;
  spec.experts = 2;
  spec.max_tokens = 8;
  spec.bytes = 1 << 20;
  return spec;
}

std::unique_ptr<Backend> Host(uint32_t threads) {
  auto backend = CreateCpuBackend(TestLimits(), threads);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// The host backend, recording the experts that it computes.
class WatchedBackend final : public ForwardingBackend, public ForwardingQueue {
 public:
  explicit WatchedBackend(std::unique_ptr<Backend> backend)
      : ForwardingBackend(std::move(backend)), ForwardingQueue(&inner_backend().queue()) {}

  absl::Status Enqueue(const Operation& operation) override {
    if (const auto* const* args = std::get_if<const MoeExpertsArgs*>(&operation)) {
      experts.assign((*args)->experts.begin(), (*args)->experts.end());
    }
    return ForwardingQueue::Enqueue(operation);
  }

  Queue& queue() override { return *this; }
  std::vector<ExpertWork> experts;  // of the last call
};

class SparseProfileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  SparseProfile Load(Backend& backend, const SparseProfileSpec& spec) {
    auto profile = LoadOrMeasureSparseSwitch(backend, spec, folder_);
    EXPECT_TRUE(profile.ok()) << profile.status();
    return profile.value_or(SparseProfile{});
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      files.push_back(entry.path());
    }
    return files;
  }

  const std::string folder_ = testing::TempDir() + "/sparse_profile_test/a/b";
};

TEST_F(SparseProfileTest, FindsAShareForEveryBatchThatNeverRises) {
  const std::unique_ptr<Backend> backend = Host(1);
  for (const Encoding encoding :
       {Encoding::kBf16, Encoding::kQ4, Encoding::kMxfp4, blocks::kQ4_K, blocks::kQ6_K, blocks::kIq2Xxs}) {
    SparseProfileSpec spec = SmallSpec();
    if (IsBlockEncoding(encoding)) {
      spec.up = spec.gate = MakeDescriptor(encoding);
    } else {
      spec.down = MakeDescriptor(encoding, 32);
    }
    spec.up = encoding == Encoding::kQ4 ? EncodingDescriptor{Encoding::kQ2, 8, 16, 4} : spec.up;
    const auto found = MeasureSparseSwitch(*backend, spec);
    ASSERT_TRUE(found.ok()) << found.status();
    float before = 1;
    for (const float share : found->dense_above) {
      EXPECT_GE(share, 0);
      EXPECT_LE(share, before);
      before = share;
    }
  }
}

// Same layout as in packs: the place of an expert's kept rows decides how fast they are read.
TEST_F(SparseProfileTest, ExpertsHaveTheirPartsSideBySide) {
  WatchedBackend backend(Host(1));
  SparseProfileSpec spec = SmallSpec();
  spec.gate = MakeDescriptor(Encoding::kQ4, 32);
  ASSERT_TRUE(MeasureSparseSwitch(backend, spec).ok());
  ASSERT_EQ(backend.experts.size(), spec.experts);
  for (const ExpertWork& expert : backend.experts) {
    uint64_t next =
        backend.experts[0].up.base.offset + static_cast<uint64_t>(&expert - backend.experts.data()) *
                                                expert.up.rows * (2 * expert.up.stride + expert.gate.stride);
    for (const WeightView* part : {&expert.up, &expert.gate, &expert.down}) {
      EXPECT_EQ(part->base.buffer, expert.up.base.buffer);
      EXPECT_EQ(part->base.offset, next);
      next += part->rows * part->stride;
    }
  }
}

TEST_F(SparseProfileTest, IsMeasuredOnceForEachMachineAndKind) {
  const std::unique_ptr<Backend> backend = Host(1);
  const SparseProfile first = Load(*backend, SmallSpec());
  EXPECT_TRUE(first.measured);
  EXPECT_TRUE(first.stored.ok()) << first.stored;
  const SparseProfile second = Load(*backend, SmallSpec());
  EXPECT_FALSE(second.measured);
  EXPECT_EQ(second.found, first.found);
  SparseProfileSpec other = SmallSpec();
  other.order = SparsityOrder::kUp;
  EXPECT_TRUE(Load(*backend, other).measured);
  const std::unique_ptr<Backend> two_threads = Host(2);
  EXPECT_TRUE(Load(*two_threads, SmallSpec()).measured);
  EXPECT_EQ(Files().size(), 3u);
}

TEST_F(SparseProfileTest, DamagedFileIsMeasuredAgainAndReplaced) {
  const std::unique_ptr<Backend> backend = Host(1);
  Load(*backend, SmallSpec());
  const std::string path = Files().at(0);
  std::ifstream in(path);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  in.close();
  std::string flipped = whole;
  flipped[whole.find("dense above") + 12] ^= 1;
  for (const std::string& bad : {std::string(), whole.substr(0, whole.size() / 2), flipped, whole + "x"}) {
    std::ofstream(path, std::ios::trunc) << bad;
    EXPECT_TRUE(Load(*backend, SmallSpec()).measured);
    EXPECT_FALSE(Load(*backend, SmallSpec()).measured);
  }
}

TEST_F(SparseProfileTest, FolderThatCannotBeMadeCostsOnlyTheFile) {
  const std::unique_ptr<Backend> backend = Host(1);
  const auto profile = LoadOrMeasureSparseSwitch(*backend, SmallSpec(), "/dev/null/sluice");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(profile->measured);
  EXPECT_FALSE(profile->stored.ok());
}

TEST_F(SparseProfileTest, ImpossibleSpecsAreRefused) {
  const std::unique_ptr<Backend> backend = Host(1);
  SparseProfileSpec spec = SmallSpec();
  spec.order = SparsityOrder::kNone;
  EXPECT_EQ(MeasureSparseSwitch(*backend, spec).status().code(), absl::StatusCode::kInvalidArgument);
  spec = SmallSpec();
  spec.experts = 0;
  EXPECT_EQ(MeasureSparseSwitch(*backend, spec).status().code(), absl::StatusCode::kInvalidArgument);
  spec = SmallSpec();
  spec.hidden = 4096;  // beyond the backend's limits
  EXPECT_EQ(MeasureSparseSwitch(*backend, spec).status().code(), absl::StatusCode::kInvalidArgument);
  spec = SmallSpec();
  spec.gate.group = 24;
  EXPECT_EQ(MeasureSparseSwitch(*backend, spec).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->SetSparseSwitches(std::vector<SparseSwitchEntry>(kMaxSparseSwitches + 1)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SparseProfileTest, LiesInTheUsersCacheFolder) {
  const char* before = getenv("XDG_CACHE_HOME");
  const std::string old = before == nullptr ? "" : before;
  setenv("XDG_CACHE_HOME", "/some/cache", 1);
  EXPECT_EQ(SparseProfileFolder(), "/some/cache/sluice");
  before == nullptr ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", old.c_str(), 1);
}

}  // namespace
}  // namespace sluice
