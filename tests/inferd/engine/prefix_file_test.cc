// The prefix cache in a file across restarts: found again to the same bits, and used only if intact and of
// the same model, options and program.
#include "inferd/forward/prefix_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/base/file_io.h"
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
  PrefixCache::Saved Save(uint64_t limit = kNoLimit) {
    AwaitQuiet(engine());
    auto saved = engine().SavePrefixes(file_, limit);
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.value_or(PrefixCache::Saved());
  }
  PrefixCache::Saved Load() {
    auto loaded = engine().LoadPrefixes(file_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.value_or(PrefixCache::Saved());
  }
  // Flips a bit.
  void Damage(uint64_t offset) {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
  absl::Status LoadError() { return engine().LoadPrefixes(file_).status(); }

  const std::string file_ = dir_.File("prefixes");
};

TEST_F(PrefixFileTest, PrefixIsFoundAfterARestart) {
  Start();
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

TEST_F(PrefixFileTest, RecurrentModelContinuesFromItsState) {
  StartFamily("qwen3_5_moe");
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
  Say(Text(1, 64), 1);
  Say(Text(2, 64), 1);
  const uint64_t page = PrefixRecordBytes(KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16));
  EXPECT_EQ(Save(3 * page).pages, 3u);
  EXPECT_LE(std::filesystem::file_size(file_), 3 * page + 100);
  Restart();
  EXPECT_EQ(Load().pages, 3u);
  EXPECT_EQ(Say(Text(2, 64), 1).cached, 63u);
  EXPECT_LT(Say(Text(1, 64), 1).cached, 63u);
}

TEST_F(PrefixFileTest, SmallerCacheLoadsTheMostRecent) {
  Start();
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
  const Said first = Say(Text(1, 100), 4);
  Save();
  const uint64_t record = PrefixRecordBytes(KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16));
  // Records are in the order in which pages were released, the sequence's end first: of four the third is its
  // second page.
  Damage(96 + 2 * record + record / 2);
  Restart();
  const PrefixCache::Saved loaded = Load();
  EXPECT_EQ(loaded.damaged, 1u);
  EXPECT_EQ(loaded.pages, 3u);
  const Said again = Say(Text(1, 100), 4);
  EXPECT_EQ(again.cached, 32u);
  ExpectSame(again, first);
}

TEST_F(PrefixFileTest, ForeignFilesAreRefusedByName) {
  Start();
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kNotFound);
  Say(Text(1, 80));
  Save();
  options_.engine.kv = KvType::kF32;  // other options
  Restart();
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kFailedPrecondition);
  options_.engine.kv = KvType::kF16;
  TinyModelSpec other = SmallModel();
  other.seed += 1;
  ASSERT_TRUE(PackTiny(other, dir_.File("other_model"), dir_.File("other")).ok());
  const std::string mine = std::exchange(pack_, dir_.File("other"));
  Restart();
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(LoadError().message()), HasSubstr("another model"));
  pack_ = mine;
  Restart();
  ASSERT_EQ(chmod(file_.c_str(), 0644), 0);
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(chmod(file_.c_str(), 0600), 0);
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 1);
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kDataLoss);
  std::filesystem::resize_file(file_, 50);
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Say(Text(1, 80)).cached, 0u);
  Save();
  Damage(20);  // the identity in the head
  Restart();
  EXPECT_EQ(LoadError().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PrefixFileTest, FailedWriteKeepsTheOldFile) {
  Start();
  Say(Text(1, 80));
  Save();
  const auto whole = ReadFile(file_, kNoLimit);
  ASSERT_TRUE(std::filesystem::create_directory(file_ + ".new"));
  EXPECT_FALSE(engine().SavePrefixes(file_, kNoLimit).ok());
  EXPECT_EQ(*ReadFile(file_, kNoLimit), *whole);
  EXPECT_FALSE(engine().SavePrefixes(dir_.File("no/folder"), kNoLimit).ok());
}

TEST_F(PrefixFileTest, SaveFailsWithoutTheCache) {
  options_.engine.prefix_cache = false;
  Start();
  EXPECT_EQ(engine().SavePrefixes(file_, kNoLimit).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice::inferd
