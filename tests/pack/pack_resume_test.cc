// Interrupted conversions, and the state of the target folder meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "common/base/status.h"
#include "pack/pack.h"
#include "pack/writer/pack_writer.h"
#include "pack/writer/staging.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

uint64_t SplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

class PackResume : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WriteTinyModel({.layers = 3, .experts = 6}, model_).ok());
    // The folder when everything is written and nothing is committed.
    const auto snapshot = [&](const PackingProgress& p) {
      if (std::string(p.stage) == "finishing") {
        fs::copy(out_ + ".partial", snapshot_,
                 fs::copy_options::recursive | fs::copy_options::overwrite_existing);
      }
    };
    ASSERT_TRUE(PackModel(model_, out_, {}, snapshot, nullptr).ok());
    expected_ = FolderBytes(out_);
    fs::remove_all(out_);
    ASSERT_TRUE(fs::exists(snapshot_ + "/journal"));
  }

  void RestoreSnapshot() {
    fs::remove_all(out_);
    fs::remove_all(out_ + ".partial");
    fs::copy(snapshot_, out_ + ".partial", fs::copy_options::recursive);
  }

  // Packs and expects the bytes of an undisturbed run; returns true if anything was reused.
  bool PackAndCompare(const PackOptions& options = {}) {
    const auto summary = PackModel(model_, out_, options, nullptr, nullptr);
    EXPECT_TRUE(summary.ok()) << summary.status();
    if (!summary.ok()) return false;
    EXPECT_TRUE(FolderBytes(out_) == expected_);
    EXPECT_FALSE(fs::exists(out_ + ".partial"));
    return summary->resumed;
  }

  TempDir dir_;
  const std::string model_ = dir_.File("model");
  const std::string out_ = dir_.File("pack");
  const std::string snapshot_ = dir_.File("snapshot");
  std::string expected_;
};

TEST_F(PackResume, WholeJournalIsReusedAndGivesTheSameBytes) {
  RestoreSnapshot();
  EXPECT_TRUE(PackAndCompare());
}

TEST_F(PackResume, JournalsCutAnywhereGiveTheSameBytes) {
  uint64_t random = 1;
  const uint64_t size = fs::file_size(snapshot_ + "/journal");
  for (int i = 0; i < 40; ++i) {
    RestoreSnapshot();
    fs::resize_file(out_ + ".partial/journal", SplitMix(&random) % (size + 1));
    PackAndCompare({.threads = static_cast<uint32_t>(1 + i % 3)});
  }
}

TEST_F(PackResume, DamagedPayloadOrJournalIsMadeAgain) {
  uint64_t random = 2;
  for (int i = 0; i < 40; ++i) {
    RestoreSnapshot();
    const char* names[] = {"/dense.bin", "/experts.bin", "/journal"};
    const std::string path = out_ + ".partial" + names[i % 3];
    std::string content = ReadAll(path);
    content[SplitMix(&random) % content.size()] ^= static_cast<char>(1 << (i % 8));
    WriteAll(path, content);
    PackAndCompare();
  }
}

TEST_F(PackResume, ProcessKilledAtAnyPointIsResumed) {
  uint64_t random = 3;
  const uint64_t size = fs::file_size(snapshot_ + "/journal");
  for (int i = 0; i < 12; ++i) {
    fs::remove_all(out_);
    const uint64_t kill_at = SplitMix(&random) % size;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(PackModel(model_, out_, {.threads = 2}, nullptr, nullptr).ok() ? 0 : 1);
    }
    // The journal's growth is the clock: no time is measured.
    std::error_code error;
    while (waitpid(child, nullptr, WNOHANG) == 0) {
      const uintmax_t written = fs::file_size(out_ + ".partial/journal", error);
      if (!error && written >= kill_at) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        break;
      }
    }
    EXPECT_TRUE(!fs::exists(out_) || FolderBytes(out_) == expected_);
    if (!fs::exists(out_)) PackAndCompare();
  }
}

TEST_F(PackResume, OtherOptionsOrAnotherSourceStartAnew) {
  RestoreSnapshot();
  const auto q8 = PackModel(model_, out_, {.recipe = UniformRecipe({Encoding::kQ8})}, nullptr, nullptr);
  ASSERT_TRUE(q8.ok()) << q8.status();
  EXPECT_FALSE(q8->resumed);
  RestoreSnapshot();
  ASSERT_TRUE(WriteTinyModel({.layers = 3, .experts = 6, .seed = 2}, model_).ok());
  const auto other = PackModel(model_, out_, {}, nullptr, nullptr);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(other->resumed);
  EXPECT_TRUE(VerifyPack(out_, nullptr, nullptr).ok());
  EXPECT_TRUE(FolderBytes(out_) != expected_);
}

TEST_F(PackResume, CancelLeavesNoTargetAndTheNextRunFinishes) {
  std::atomic<bool> cancel{false};
  const auto cancel_at_first = [&](const PackingProgress&) { cancel.store(true); };
  const auto result = PackModel(model_, out_, {}, cancel_at_first, &cancel);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_TRUE(fs::exists(out_ + ".partial"));
  PackAndCompare();
}

// As on a full disk: a file may not grow beyond a limit, and with more room the next run finishes.
TEST_F(PackResume, FullDiskLeavesNoTargetAndTheNextRunFinishes) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = signal(SIGXFSZ, SIG_IGN);
  const uint64_t payload = fs::file_size(snapshot_ + "/experts.bin");
  for (const uint64_t room : {uint64_t{1}, payload / 2, payload - 1}) {
    const rlimit full{room, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    const auto result = PackModel(model_, out_, {}, nullptr, nullptr);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(out_)) << "no file is named";
    EXPECT_FALSE(fs::exists(out_));
  }
  signal(SIGXFSZ, signal_before);
  PackAndCompare();
}

TEST_F(PackResume, EveryEncodingResumesToTheSameBytes) {
  for (const char* bits : {"q8", "q4", "q3", "q2", "floe"}) {
    for (const int meta_bits : {16, 8}) {
      RecipeOptions words;
      words.recipe = bits;
      words.meta_bits = meta_bits;
      PackOptions options;
      options.recipe = *RecipeFromOptions(words);
      options.threads = 1;
      fs::remove_all(out_);
      ASSERT_TRUE(PackModel(model_, out_, options, nullptr, nullptr).ok());
      const std::string undisturbed = FolderBytes(out_);
      fs::remove_all(out_);
      std::atomic<bool> cancel{false};
      const auto cancel_halfway = [&](const PackingProgress& p) {
        cancel.store(2 * p.bytes_done > p.bytes_total);
      };
      EXPECT_EQ(PackModel(model_, out_, options, cancel_halfway, &cancel).status().code(),
                absl::StatusCode::kCancelled);
      const auto resumed = PackModel(model_, out_, options, nullptr, nullptr);
      ASSERT_TRUE(resumed.ok()) << resumed.status();
      EXPECT_TRUE(resumed->resumed) << bits;
      EXPECT_TRUE(FolderBytes(out_) == undisturbed) << bits << " " << meta_bits;
    }
  }
}

TEST_F(PackResume, SecondRunIntoTheSameTargetIsRefused) {
  absl::Status second;
  const auto run_again = [&](const PackingProgress& p) {
    if (std::string(p.stage) == "finishing") second = PackModel(model_, out_, {}, nullptr, nullptr).status();
  };
  ASSERT_TRUE(PackModel(model_, out_, {}, run_again, nullptr).ok());
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(FolderBytes(out_) == expected_);
}

TEST_F(PackResume, ExistingPacksAreReplacedOnlyByForceAndAtOnce) {
  ASSERT_TRUE(PackModel(model_, out_, {}, nullptr, nullptr).ok());
  PackOptions options;
  options.recipe.layout = ExpertLayout::kUpGatedown;
  EXPECT_EQ(PackModel(model_, out_, options, nullptr, nullptr).status().code(),
            absl::StatusCode::kAlreadyExists);
  options.force = true;
  const auto old_is_whole = [&](const PackingProgress&) { EXPECT_TRUE(FolderBytes(out_) == expected_); };
  const auto summary = PackModel(model_, out_, options, old_is_whole, nullptr);
  ASSERT_TRUE(summary.ok()) << summary.status();
  const auto pack = Pack::Open(out_);
  ASSERT_TRUE(pack.ok());
  EXPECT_EQ((*pack)->model_id(), summary->model_id);
  EXPECT_FALSE(fs::exists(out_ + ".partial"));
}

TEST_F(PackResume, ProfileIsKeptOnlyForTheSameModel) {
  ASSERT_TRUE(PackModel(model_, out_, {}, nullptr, nullptr).ok());
  fs::create_directory(out_ + "/profile");
  WriteAll(out_ + "/profile/usage.json", "measured");
  // The state left by a run that ends between exchange and removal.
  fs::create_directories(out_ + ".partial/profile");
  WriteAll(out_ + ".partial/profile/usage.json", "older");
  PackOptions options;
  options.force = true;
  options.recipe.layout = ExpertLayout::kUpGatedown;
  const auto other_rows = PackModel(model_, out_, options, nullptr, nullptr);
  ASSERT_TRUE(other_rows.ok()) << other_rows.status();
  EXPECT_EQ(other_rows->old_profile, OldProfile::kKept);
  EXPECT_EQ(ReadAll(out_ + "/profile/usage.json"), "measured");
  EXPECT_TRUE(Pack::Open(out_).ok());
  TinyModelSpec spec;
  spec.seed = 99;
  ASSERT_TRUE(WriteTinyModel(spec, dir_.File("other")).ok());
  const auto other_model = PackModel(dir_.File("other"), out_, options, nullptr, nullptr);
  ASSERT_TRUE(other_model.ok()) << other_model.status();
  EXPECT_EQ(other_model->old_profile, OldProfile::kRemoved);
  EXPECT_FALSE(fs::exists(out_ + "/profile"));
  const auto again = PackModel(dir_.File("other"), out_, options, nullptr, nullptr);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->old_profile, OldProfile::kNone);
}

TEST_F(PackResume, PacksAreWrittenWhereLinksLead) {
  fs::create_directory(dir_.File("disk"));
  fs::create_directory_symlink("disk/pack", dir_.File("link"));
  fs::create_directory_symlink(dir_.File("link"), dir_.File("second"));
  for (const bool force : {false, true}) {
    PackOptions options;
    options.force = force;
    const auto summary = PackModel(model_, dir_.File("second") + "/", options, nullptr, nullptr);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(FolderBytes(dir_.File("disk/pack")) == expected_);
    EXPECT_TRUE(fs::is_symlink(dir_.File("link")) && fs::is_symlink(dir_.File("second")));
    EXPECT_FALSE(fs::exists(dir_.File("disk/pack.partial")));
  }
  fs::create_directory(dir_.File("disk/empty"));
  fs::create_directory_symlink("disk/empty", dir_.File("to_empty"));
  EXPECT_TRUE(PackModel(model_, dir_.File("to_empty"), {}, nullptr, nullptr).ok());
  fs::create_directories(dir_.File("dot/inner"));
  EXPECT_EQ(PartialFolder(dir_.File("dot/inner/.")), dir_.File("dot/inner.partial"));
  EXPECT_EQ(PartialFolder(dir_.File("dot/inner/..")), dir_.File("dot.partial"));
  EXPECT_TRUE(PackModel(model_, dir_.File("dot/inner/."), {}, nullptr, nullptr).ok());
  EXPECT_TRUE(Pack::Open(dir_.File("dot/inner")).ok());
  fs::create_directory_symlink("ring", dir_.File("ring"));
  EXPECT_FALSE(PackModel(model_, dir_.File("ring"), {}, nullptr, nullptr).ok());
  fs::create_directory_symlink("nowhere/pack", dir_.File("astray"));
  bool began = false;
  const auto progress = [&](const PackingProgress&) { began = true; };
  EXPECT_TRUE(absl::IsNotFound(PackModel(model_, dir_.File("astray"), {}, progress, nullptr).status()));
  EXPECT_FALSE(began);
}

TEST(Staging, AMountPointIsRefusedBeforeAnythingIsWritten) {
  const absl::Status status = CheckTarget("/proc/", true);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("mounted"));
}

TEST_F(PackResume, FoldersThatAreNoPackAreLeftAlone) {
  WriteAll(dir_.File("file"), "precious");
  fs::create_directory(dir_.File("folder"));
  WriteAll(dir_.File("folder/x"), "precious");
  for (const char* target : {"file", "folder"}) {
    const auto result = PackModel(model_, dir_.File(target), {.force = true}, nullptr, nullptr);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("no pack"));
  }
  EXPECT_EQ(ReadAll(dir_.File("file")), "precious");
  fs::create_directory(dir_.File("empty"));
  EXPECT_TRUE(PackModel(model_, dir_.File("empty") + "/", {}, nullptr, nullptr).ok());
  EXPECT_TRUE(Pack::Open(dir_.File("empty")).ok());
}

TEST_F(PackResume, EstimateNamesTheNeedsOfARun) {
  const auto estimate = EstimatePack(model_, out_, {});
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_GT(estimate->free_bytes, estimate->payload_bytes);
  EXPECT_EQ(estimate->resumable_bytes, 0u);
  ASSERT_TRUE(PackModel(model_, out_, {}, nullptr, nullptr).ok());
  const auto pack = Pack::Open(out_);
  EXPECT_EQ(estimate->payload_bytes, (*pack)->dense_bytes() + (*pack)->total_expert_bytes());
}

TEST(Staging, TooLittleSpaceIsRefusedBeforeWriting) {
  TempDir dir;
  const auto staging = Staging::Open(dir.File("pack"), false, {}, {4096, uint64_t{1} << 55});
  EXPECT_EQ(staging.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(staging.status().message()), HasSubstr("bytes are needed"));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace sluice
