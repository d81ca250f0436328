// Bytes that are there before the kernel reports their read: what the uring engine takes and what it leaves.
//
// Thread safety: tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fakes/fake_clock.h"
#include "tests/support/fakes/faulty_read_file.h"
#include "tests/support/temp_dir.h"
#include "weightd/io/arrival_marks.h"
#include "weightd/io/uring_reader.h"

namespace sluice {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMiB = 1024 * 1024;

struct FreeDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, FreeDeleter>;
Buffer Allocate(uint64_t bytes) {
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
  std::memset(buffer.get(), 0, bytes);
  return buffer;
}

// Brings bytes as soon as a read starts and reports nothing by itself.
class LateRing final : public ReadRing {
 public:
  struct Started {
    uint32_t slot = 0;
    std::byte* dest = nullptr;
    uint64_t length = 0;
    bool marked = false;  // its memory was written to before
  };
  using Bring = std::function<void(const Started&, uint64_t offset)>;
  explicit LateRing(Bring bring) : bring_(std::move(bring)) {}

  absl::Status AddFile(ReadFile*) override { return absl::OkStatus(); }
  void Read(uint32_t slot, int, std::byte* dest, uint32_t length, uint64_t offset) override {
    const bool marked = std::any_of(dest + kPage - sizeof(uint64_t), dest + kPage,
                                    [](std::byte b) { return b != std::byte{0}; });
    const Started started{slot, dest, length, marked};
    bring_(started, offset);
    const MutexLock lock(&mutex_);
    started_.push_back(started);
  }
  absl::Status Start() override { return absl::OkStatus(); }
  absl::Status Wait(std::vector<RingCompletion>* completions, int64_t at_most_nanos) override {
    const MutexLock lock(&mutex_);
    ++waits_;
    changed_.SignalAll();
    while (ended_.empty() && !woken_) {
      if (at_most_nanos == kForever) {
        changed_.Wait(&mutex_);
      } else if (!changed_.WaitFor(&mutex_, std::chrono::nanoseconds(at_most_nanos))) {
        break;
      }
    }
    woken_ = false;
    if (!ended_.empty() && last_bytes_) {
      std::exchange(last_bytes_, nullptr)();
    }
    completions->swap(ended_);
    ended_.clear();
    return absl::OkStatus();
  }
  void Wake() override {
    const MutexLock lock(&mutex_);
    woken_ = true;
    changed_.SignalAll();
  }

  std::vector<Started> started() {
    const MutexLock lock(&mutex_);
    return started_;
  }
  // Until the engine has looked at everything that is there now, and waits again.
  void AwaitLook() {
    const MutexLock lock(&mutex_);
    for (const uint64_t enough = waits_ + 3; waits_ < enough;) {
      woken_ = true;
      changed_.SignalAll();
      changed_.WaitFor(&mutex_, std::chrono::milliseconds(10));
    }
  }
  // Brings the last bytes just before the next report, on the engine's thread: it may look at any time.
  void BringBeforeReport(std::function<void()> bring) {
    const MutexLock lock(&mutex_);
    last_bytes_ = std::move(bring);
  }
  // Reports a read that started; `error`: as failed.
  void Report(size_t number, int error = 0) {
    const MutexLock lock(&mutex_);
    const Started& read = started_[number];
    ended_.push_back({read.slot, error != 0 ? -error : static_cast<int64_t>(read.length)});
    changed_.SignalAll();
  }

 private:
  const Bring bring_;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t waits_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Started> started_ ABSL_GUARDED_BY(mutex_);
  std::vector<RingCompletion> ended_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> last_bytes_ ABSL_GUARDED_BY(mutex_);
};

void Fill(const LateRing::Started& read, uint64_t offset) {
  FakeExtentSource::FillBytes(offset, {read.dest, read.length});
}

class EarlyArrivalTest : public ::testing::Test {
 protected:
  void Start(LateRing::Bring bring = Fill) {
    UringReader::Options options;
    options.clock = &clock_;
    options.opener = [](const std::string&) {
      return std::make_unique<FaultyReadFile>(1 << 20, FaultyReadFile::Script{});
    };
    auto ring = std::make_unique<LateRing>(std::move(bring));
    ring_ = ring.get();
    options.ring = std::move(ring);
    reader_ = std::make_unique<UringReader>(std::move(options));
    reader_->SetSink([this](ReadResult result) {
      const MutexLock lock(&mutex_);
      results_[result.tag].push_back(std::move(result));
      changed_.SignalAll();
    });
    ASSERT_TRUE(reader_->Register("a").ok());
  }
  void Submit(uint64_t tag, std::byte* dest, uint64_t length) {
    ReadJob job;
    job.tag = tag;
    job.dest = dest;
    job.length = length;
    job.check = [](uint64_t at, std::span<const std::byte> bytes) {
      std::vector<std::byte> expected(bytes.size());
      FakeExtentSource::FillBytes(at, expected);
      return std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0
                 ? absl::OkStatus()
                 : absl::DataLossError("wrong checksum");
    };
    reader_->Submit(std::move(job));
  }
  ReadOutcome Await(uint64_t tag) {
    const MutexLock lock(&mutex_);
    while (results_[tag].empty()) {
      changed_.Wait(&mutex_);
    }
    return results_[tag].front().outcome;
  }
  size_t reports(uint64_t tag) {
    const MutexLock lock(&mutex_);
    return results_[tag].size();
  }
  void ReportAll(size_t from = 0) {
    for (size_t i = from, count = ring_->started().size(); i < count; ++i) {
      ring_->Report(i);
    }
  }

  FakeClock clock_;
  LateRing* ring_ = nullptr;
  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, std::vector<ReadResult>> results_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<UringReader> reader_;  // last: its threads use the others
};

TEST_F(EarlyArrivalTest, BytesThatAreThereAreTakenBeforeTheirReport) {
  Start();
  const Buffer buffer = Allocate(5 * kMiB);
  Submit(1, buffer.get(), 5 * kMiB - kPage);
  EXPECT_EQ(Await(1), ReadOutcome::kOk);
  {
    const MutexLock lock(&mutex_);
    EXPECT_EQ(results_[1].front().bytes_read, 5 * kMiB - kPage);
  }
  // What the kernel says afterwards changes nothing.
  ring_->Report(0, EIO);
  ReportAll(1);
  reader_.reset();
  EXPECT_EQ(reports(1), 1u);
}

TEST_F(EarlyArrivalTest, APageThatHasNotComeIsWaitedFor) {
  Start([](const LateRing::Started& read, uint64_t offset) {
    std::vector<std::byte> page(read.dest + 7 * kPage, read.dest + 8 * kPage);
    Fill(read, offset);
    std::copy(page.begin(), page.end(), read.dest + 7 * kPage);
  });
  const Buffer buffer = Allocate(kMiB);
  Submit(1, buffer.get(), kMiB);
  ring_->AwaitLook();
  EXPECT_EQ(reports(1), 0u);
  ring_->BringBeforeReport([&buffer] {
    FakeExtentSource::FillBytes(7 * kPage, {buffer.get() + 7 * kPage, kPage});
  });
  ring_->Report(0);
  EXPECT_EQ(Await(1), ReadOutcome::kOk);
}

TEST_F(EarlyArrivalTest, OldBytesThatAreRightDoNotPassForNewOnes) {
  Start([](const LateRing::Started&, uint64_t) {});
  const Buffer buffer = Allocate(kMiB);
  FakeExtentSource::FillBytes(0, {buffer.get(), kMiB});
  Submit(1, buffer.get(), kMiB);
  ring_->AwaitLook();
  EXPECT_EQ(reports(1), 0u);
  ring_->Report(0);
  EXPECT_EQ(Await(1), ReadOutcome::kCorrupt) << "nothing came";
}

TEST_F(EarlyArrivalTest, WrongBytesAreJudgedAtTheirReport) {
  Start([](const LateRing::Started& read, uint64_t) { std::memset(read.dest, 0x11, read.length); });
  const Buffer buffer = Allocate(2 * kMiB);
  Submit(1, buffer.get(), kMiB);
  Submit(2, buffer.get() + kMiB, kMiB);
  ring_->AwaitLook();
  EXPECT_EQ(reports(1) + reports(2), 0u);
  ring_->BringBeforeReport([&buffer] { FakeExtentSource::FillBytes(0, {buffer.get(), kMiB}); });
  ReportAll();
  EXPECT_EQ(Await(1), ReadOutcome::kOk);
  EXPECT_EQ(Await(2), ReadOutcome::kCorrupt);
}

TEST_F(EarlyArrivalTest, MemoryIsNotReadIntoAgainBeforeTheReport) {
  Start();
  const Buffer buffer = Allocate(3 * kMiB);
  Submit(1, buffer.get(), kMiB);
  EXPECT_EQ(Await(1), ReadOutcome::kOk);
  Submit(2, buffer.get() + kMiB - kPage, kMiB);
  ring_->AwaitLook();
  EXPECT_EQ(ring_->started().size(), 1u);
  EXPECT_EQ(reports(2), 0u);
  ring_->Report(0);
  EXPECT_EQ(Await(2), ReadOutcome::kOk);
  ring_->Report(1);
  Submit(3, buffer.get() + kMiB, 2 * kMiB);
  EXPECT_EQ(Await(3), ReadOutcome::kOk);
  ReportAll(2);
}

TEST_F(EarlyArrivalTest, TheQueueRunsEmptyWhenMuchIsUnreported) {
  Start();
  constexpr uint64_t kJobs = 64;
  const Buffer buffer = Allocate(kJobs * kMiB);
  for (uint64_t i = 0; i < kJobs; ++i) {
    Submit(i, buffer.get() + i * kMiB, kMiB);
  }
  ring_->AwaitLook();
  ring_->AwaitLook();
  const size_t before = ring_->started().size();
  EXPECT_GE(before * kMiB, UringReader::kUnreportedBytes);
  EXPECT_LE(before * kMiB, UringReader::kUnreportedBytes + ReadLimits().in_flight_bytes);
  ReportAll();
  for (uint64_t i = 0; i < kJobs; ++i) {
    EXPECT_EQ(Await(i), ReadOutcome::kOk);
  }
  ReportAll(before);
  reader_.reset();
  for (uint64_t i = 0; i < kJobs; ++i) {
    EXPECT_EQ(reports(i), 1u);
  }
}

// One read at a time, reported `late` nanoseconds after the bytes were seen.
TEST_F(EarlyArrivalTest, ADiskThatReportsAtOnceIsNoLongerLookedAt) {
  Start();
  const Buffer buffer = Allocate(64 * 1024);
  const auto read = [&](size_t number, int64_t late) {
    std::memset(buffer.get(), 0, 64 * 1024);
    Submit(number, buffer.get(), 64 * 1024);
    ring_->AwaitLook();
    clock_.Advance(late);
    ring_->Report(number);
    EXPECT_EQ(Await(number), ReadOutcome::kOk);
    ring_->AwaitLook();
    return ring_->started()[number].marked;
  };
  size_t number = 0;
  for (; number < 256; ++number) {
    ASSERT_TRUE(read(number, 50'000)) << number;
  }
  for (int i = 0; i < 2; ++i) {
    for (const size_t end = number + 63; number < end; ++number) {
      ASSERT_FALSE(read(number, 200'000)) << number;
    }
    ASSERT_TRUE(read(number++, i == 0 ? 50'000 : 200'000)) << "one of 64 is tried";
  }
  ASSERT_TRUE(read(number++, 50'000)) << "that brought much";
}

TEST_F(EarlyArrivalTest, ReadsThatComeWithTheirReportsAreNoLongerLookedFor) {
  Start([](const LateRing::Started&, uint64_t) {});
  const Buffer buffer = Allocate(64 * 1024);
  for (size_t number = 0; number < 257; ++number) {
    std::memset(buffer.get(), 0, 64 * 1024);
    Submit(number, buffer.get(), 64 * 1024);
    ring_->AwaitLook();
    ASSERT_EQ(ring_->started()[number].marked, number < 256) << number;
    ring_->BringBeforeReport([&buffer] { FakeExtentSource::FillBytes(0, {buffer.get(), 64 * 1024}); });
    ring_->Report(number);
    EXPECT_EQ(Await(number), ReadOutcome::kOk);
    ring_->AwaitLook();
  }
}

// The kernel's own ring, where there is one.
TEST(ReadRingTest, AWaitEndsWithItsTimeOrWithARead) {
  absl::StatusOr<std::unique_ptr<ReadRing>> ring = MakeReadRing(4);
  if (!ring.ok()) {
    GTEST_SKIP() << ring.status();
  }
  std::vector<RingCompletion> completions{{0, 1}};
  ASSERT_TRUE((*ring)->Wait(&completions, 1'000'000).ok());
  EXPECT_TRUE(completions.empty());
  const TempDir dir;
  std::ofstream(dir.File("f"), std::ios::binary) << std::string(2 * kPage, 'x');
  const auto file = OpenReadFile(dir.File("f"), false);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*ring)->AddFile(file->get()).ok());
  const Buffer buffer = Allocate(2 * kPage);
  for (int i = 0; i < 3; ++i) {
    (*ring)->Read(1, 0, buffer.get(), 2 * kPage, 0);
    completions.clear();
    while (completions.empty()) {
      ASSERT_TRUE((*ring)->Wait(&completions, 1'000'000).ok());
    }
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].slot, 1u);
    EXPECT_EQ(completions[0].result, static_cast<int64_t>(2 * kPage));
  }
}

TEST(LookTimesTest, TheNextLookComesALittleBeforeTheNextArrival) {
  LookTimes looks;
  int64_t now = 1'000'000'000;
  looks.OnBurst(now);
  EXPECT_EQ(looks.pause(), 100'000);
  for (int i = 0; i < 40; ++i) {
    looks.OnLook(now += 800'000, /*arrived=*/2);
  }
  EXPECT_NEAR(static_cast<double>(looks.pause()), 300'000, 3'000);
  looks.OnLook(now += 300'000, /*arrived=*/0);
  EXPECT_EQ(looks.pause(), 100'000);
  looks.OnBurst(now += 50'000'000);
  looks.OnLook(now += 400'000, /*arrived=*/1);
  EXPECT_NEAR(static_cast<double>(looks.pause()), 300'000, 3'000) << "the rest before counts for nothing";
}

TEST(ArrivalMarksTest, AreGoneWhenEveryPageHasBeenWritten) {
  const ArrivalMarks marks;
  const Buffer buffer = Allocate(4 * kPage);
  const std::span<std::byte> dest(buffer.get(), 4 * kPage);
  EXPECT_TRUE(marks.Gone(dest));
  marks.Plant(dest);
  for (const size_t page : {3, 0, 2, 1}) {
    EXPECT_FALSE(marks.Gone(dest)) << page;
    std::memset(buffer.get() + page * kPage, 0x5a, kPage);
  }
  EXPECT_TRUE(marks.Gone(dest));
  EXPECT_TRUE(marks.Gone(dest.first(0)));
}

}  // namespace
}  // namespace sluice
