// The prefix cache in a file across restarts: found again to the same bits, and used only if intact and of
// the same model, options and program.
#include "inferd/forward/prefix_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/inferd/engine/prefix_fixture.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

constexpr uint64_t kNoLimit = uint64_t{1} << 40;

class PrefixFileTest : public PrefixTest {
 protected:
  void Restart() {
    test_ = {};
    Start();
  }
  // Opens the file, or makes it.
  PrefixCache::Saved Load(uint64_t limit = kNoLimit) {
    rejected_ = absl::OkStatus();
    auto loaded = engine().OpenPrefixes(file_, limit, &rejected_, [this](const absl::Status& why) {
      failure_ = why;
      failed_.Notify();
    });
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.value_or(PrefixCache::Saved());
  }
  // Saves what is not saved yet, and closes the file.
  PrefixCache::Saved Save() {
    AwaitQuiet(engine());
    auto saved = engine().ClosePrefixes();
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.value_or(PrefixCache::Saved());
  }
  absl::StatusCode Rejected() {
    Load();
    return rejected_.code();
  }
  absl::Status LoadError() {
    return engine().OpenPrefixes(file_, kNoLimit, &rejected_, [](const absl::Status&) {}).status();
  }
  uint64_t PageRecord() const {
    return PrefixRecordBytes(KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16));
  }
  // Flips a bit.
  void Damage(uint64_t offset) {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
  // Waits until the file has `records` pages that another process would load.
  void AwaitOnDisk(uint64_t records) {
    const auto there = [&] {
      uint64_t count = 0;
      std::ifstream file(file_, std::ios::binary);
      for (uint64_t slot = 0; slot < records; ++slot) {
        uint64_t stamp = 0;
        file.seekg(static_cast<std::streamoff>(96 + slot * PageRecord() + 16));
        file.read(reinterpret_cast<char*>(&stamp), sizeof(stamp));
        count += stamp != 0 ? 1 : 0;
      }
      return count;
    };
    for (int i = 0; i < 3000 && there() < records; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    ASSERT_EQ(there(), records);
  }

  const std::string file_ = dir_.File("prefixes");
  absl::Status rejected_;
  absl::Status failure_;
  absl::Notification failed_;
};

TEST_F(PrefixFileTest, PrefixIsFoundAfterARestart) {
  Start();
  EXPECT_EQ(Load().pages, 0u);
  const std::vector<int32_t> prompt = Text(1, 100);
  const Said first = Say(prompt, 20);
  EXPECT_EQ(Save().pages, 4u);
  struct stat facts {};
  ASSERT_EQ(stat(file_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  Restart();
  EXPECT_EQ(Load().pages, 4u);
  EXPECT_EQ(AwaitQuiet(engine()).kv_pages_cached, 4u);
  const std::vector<int32_t> next = prompt + first.ids + Text(2, 5);
  const Said second = Say(next, 8);
  EXPECT_EQ(second.cached, 119u);
  ExpectSame(second, SayAnew(next, 8));
  // A third time, from the loaded prefix and its continuation.
  const std::vector<int32_t> third = next + second.ids + Text(3, 5);
  Save();
  Restart();
  Load();
  const Said said = Say(third, 4);
  EXPECT_EQ(said.cached, next.size() + 7);
  ExpectSame(said, SayAnew(third, 4));
}

TEST_F(PrefixFileTest, IndexKeysAreFoundAfterARestart) {
  StartFamily("minimax_m3");
  Load();
  const std::vector<int32_t> prompt = Text(1, 100);
  const Said first = Say(prompt, 20);
  EXPECT_EQ(Save().pages, 4u);
  Restart();
  EXPECT_EQ(Load().pages, 4u);
  const std::vector<int32_t> next = prompt + first.ids + Text(2, 5);
  const Said second = Say(next, 8);
  EXPECT_EQ(second.cached, 119u);
  ExpectSame(second, SayAnew(next, 8));
}

TEST_F(PrefixFileTest, AProcessThatDiesLeavesItsPrefixes) {
  Start();
  Load();
  const std::vector<int32_t> prompt = Text(1, 100);
  const Said first = Say(prompt, 20);
  AwaitOnDisk(4);
  // Copies the file as a killed process would leave it.
  const std::string copy = dir_.File("copy");
  std::filesystem::copy_file(file_, copy);
  Restart();
  std::filesystem::rename(copy, file_);
  EXPECT_EQ(Load().pages, 4u);
  const Said second = Say(prompt + first.ids + Text(2, 5));
  EXPECT_EQ(second.cached, 119u);
  ExpectSame(second, SayAnew(prompt + first.ids + Text(2, 5)));
}

TEST_F(PrefixFileTest, WholePagesAreSavedWhileTheTextGrows) {
  Start();
  Load();
  auto running = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(Spec(Text(1, 10), 240), running).ok());
  running->AwaitTokens(100);
  AwaitOnDisk(2);
  EXPECT_TRUE(running->Await().ok());
}

TEST_F(PrefixFileTest, RecurrentModelContinuesFromItsState) {
  StartFamily("qwen3_5_moe");
  Load();
  const std::vector<int32_t> prompt = Text(1, 70);
  const Said first = Say(prompt, 20);
  EXPECT_EQ(Save().states, 2u);
  Restart();
  EXPECT_EQ(Load().states, 2u);
  const std::vector<int32_t> next = prompt + first.ids + Text(2, 5);
  const Said second = Say(next);
  EXPECT_EQ(second.cached, 89u);
  ExpectSame(second, SayAnew(next));
}

TEST_F(PrefixFileTest, SaltsSeparateSequencesInFiles) {
  Start();
  Load();
  GenerateSpec salted = Spec(Text(1, 80), 4);
  salted.cache_salt = "mine";
  Say(salted);
  Save();
  Restart();
  Load();
  EXPECT_EQ(Say(Text(1, 80)).cached, 0u);
  salted.request_id = "again";
  EXPECT_EQ(Say(salted).cached, 79u);
}

TEST_F(PrefixFileTest, LimitKeepsTheMostRecent) {
  Start();
  Load(3 * PageRecord());
  Say(Text(1, 64), 1);
  Say(Text(2, 64), 1);
  EXPECT_EQ(Save().pages, 3u);
  EXPECT_LE(std::filesystem::file_size(file_), 3 * PageRecord() + 100);
  Restart();
  EXPECT_EQ(Load(3 * PageRecord()).pages, 3u);
  EXPECT_EQ(Say(Text(2, 64), 1).cached, 63u);
  EXPECT_LT(Say(Text(1, 64), 1).cached, 63u);
}

TEST_F(PrefixFileTest, AnotherLimitKeepsWhatFits) {
  Start();
  Load();
  Say(Text(1, 64), 1);
  Say(Text(2, 64), 1);
  Save();
  Restart();
  EXPECT_EQ(Load(3 * PageRecord()).pages, 4u);
  EXPECT_EQ(Save().pages, 3u);
  EXPECT_LE(std::filesystem::file_size(file_), 3 * PageRecord() + 100);
  Restart();
  EXPECT_EQ(Load().pages, 3u);
  const Said last = Say(Text(2, 64), 4);
  EXPECT_EQ(last.cached, 63u);
  ExpectSame(last, SayAnew(Text(2, 64), 4));
}

TEST_F(PrefixFileTest, EvictedPagesGiveTheirSlotsAway) {
  options_.engine.kv_budget = 10 * KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16);
  Start();
  Load(12 * PageRecord());
  Said last;
  for (uint32_t text = 1; text < 12; ++text) {
    last = Say(Text(text, 90), 4);
  }
  EXPECT_EQ(Save().pages, 10u);
  Restart();
  EXPECT_EQ(Load(12 * PageRecord()).pages, 10u);
  const Said again = Say(Text(11, 90), 4);
  EXPECT_EQ(again.cached, 89u);
  ExpectSame(again, last);
}

TEST_F(PrefixFileTest, SmallerCacheLoadsTheMostRecent) {
  Start();
  Load();
  for (uint32_t text = 1; text < 8; ++text) {
    Say(Text(text, 64), 1);
  }
  Save();
  options_.engine.kv_budget = 10 * KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16);
  Restart();
  Load();
  EXPECT_EQ(AwaitQuiet(engine()).kv_pages_cached, 10u);
  const Said last = Say(Text(7, 64), 4);
  EXPECT_EQ(last.cached, 63u);
  ExpectSame(last, SayAnew(Text(7, 64), 4));
}

TEST_F(PrefixFileTest, DamagedRecordIsSkippedAndRecomputed) {
  Start();
  Load();
  const Said first = Say(Text(1, 100), 4);
  Save();
  // Whole pages are saved in the order of the text.
  Damage(96 + 1 * PageRecord() + PageRecord() / 2);
  Restart();
  const PrefixCache::Saved loaded = Load();
  EXPECT_EQ(loaded.damaged, 1u);
  EXPECT_EQ(loaded.pages, 3u);
  const Said again = Say(Text(1, 100), 4);
  EXPECT_EQ(again.cached, 32u);
  ExpectSame(again, first);
}

TEST_F(PrefixFileTest, FilesOfAnotherModelAreReplaced) {
  Start();
  EXPECT_EQ(Rejected(), absl::StatusCode::kOk);
  Say(Text(1, 80));
  Save();
  options_.engine.kv = KvType::kF32;  // other options
  Restart();
  EXPECT_EQ(Rejected(), absl::StatusCode::kFailedPrecondition);
  TinyModelSpec other = SmallModel();
  other.seed += 1;
  ASSERT_TRUE(PackTiny(other, dir_.File("other_model"), dir_.File("other")).ok());
  pack_ = dir_.File("other");
  Restart();
  EXPECT_EQ(Rejected(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(rejected_.message()), HasSubstr("another model"));
  EXPECT_EQ(Say(Text(1, 80)).cached, 0u);
  Save();
  Restart();
  EXPECT_GT(Load().pages, 0u);
}

TEST_F(PrefixFileTest, DamagedHeadsAreReplaced) {
  Start();
  const auto expect_replaced = [&](const std::function<void()>& damage) {
    Load();
    Say(Text(1, 80));
    Save();
    damage();
    Restart();
    EXPECT_EQ(Rejected(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Say(Text(1, 80)).cached, 0u);
    Save();
    Restart();
  };
  expect_replaced([&] { std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 1); });
  expect_replaced([&] { std::filesystem::resize_file(file_, 50); });
  expect_replaced([&] { Damage(20); });  // the identity
}

TEST_F(PrefixFileTest, FilesOpenToOthersAreRefused) {
  Start();
  Load();
  EXPECT_EQ(Save().pages, 0u);
  ASSERT_EQ(chmod(file_.c_str(), 0644), 0);
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(chmod(file_.c_str(), 0600), 0);
  auto other = PrefixFile::Create(file_, PrefixFileHead());
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PrefixFileTest, FailuresAreReportedOnce) {
  Start();
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  Load();
  const rlimit small{96 + PageRecord() / 2, old.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Said first = Say(Text(1, 80));
  EXPECT_TRUE(failed_.WaitForNotificationWithTimeout(absl::Seconds(30)));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_FALSE(failure_.ok());
  EXPECT_EQ(engine().ClosePrefixes().status().code(), absl::StatusCode::kNotFound);
  const Said again = Say(Text(1, 80));
  EXPECT_GT(again.cached, 0u);
  EXPECT_EQ(again.ids, first.ids);
  EXPECT_EQ(engine()
                .OpenPrefixes(dir_.File("no/folder"), kNoLimit, &rejected_, [](const absl::Status&) {})
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

TEST_F(PrefixFileTest, OpeningFailsWithoutTheCache) {
  options_.engine.prefix_cache = false;
  Start();
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice::inferd
