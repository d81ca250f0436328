// The engines and their reads: every outcome of a read, in one table for both.
#include "weightd/store/block_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/unique_fd.h"
#include "tests/support/fakes/fake_clock.h"
#include "tests/support/fakes/faulty_read_file.h"
#include "tests/support/fakes/scripted_ring.h"
#include "tests/support/temp_dir.h"
#include "weightd/engine/weight_store.h"
#include "weightd/store/pread_reader.h"
#include "weightd/store/uring_reader.h"

namespace sluice::weightd {
namespace {

constexpr uint64_t kBlock = 4096;

struct FreeDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, FreeDeleter>;
Buffer Allocate(uint64_t bytes) { return Buffer(static_cast<std::byte*>(std::aligned_alloc(kBlock, bytes))); }

bool Right(const std::byte* bytes, uint64_t offset, uint64_t length) {
  std::vector<std::byte> expected(length);
  FakeExtentSource::FillBytes(offset, expected);
  return std::memcmp(bytes, expected.data(), length) == 0;
}

struct Case {
  const char* name;
  FaultyReadFile::Script script;
  uint64_t file_bytes;
  ReadOutcome outcome;
  int error_number;
  int calls;  // of the system, 0: not checked
};

std::vector<Case> Cases() {
  const uint64_t whole = 64 * kBlock;
  return {
      {"whole", {}, whole, ReadOutcome::kOk, 0, 1},
      {"short, on a block's border", {2 * 4096}, whole, ReadOutcome::kOk, 0, 2},
      {"short, within a block", {2 * 4096 + 512}, whole, ReadOutcome::kOk, 0, 2},
      {"short, within the first block", {512}, whole, ReadOutcome::kOk, 0, 2},
      {"interrupted", {-EINTR, -EINTR}, whole, ReadOutcome::kOk, 0, 3},
      {"again, then whole", {-EAGAIN, -EAGAIN, -EAGAIN}, whole, ReadOutcome::kOk, 0, 4},
      {"again and again", FaultyReadFile::Script(100, -EAGAIN), whole, ReadOutcome::kIoError, EAGAIN,
       kMaxReadRetries + 1},
      {"interrupted for ever", FaultyReadFile::Script(100, -EINTR), whole, ReadOutcome::kIoError, EINTR,
       kMaxReadRetries + 1},
      {"disk error", {-EIO}, whole, ReadOutcome::kIoError, EIO, 1},
      {"disk error after a part", {4096, -EIO}, whole, ReadOutcome::kIoError, EIO, 2},
      {"file ends before", {}, 0, ReadOutcome::kEndOfFile, 0, 1},
      {"file ends on a border", {}, 3 * kBlock, ReadOutcome::kEndOfFile, 0, 2},
      {"file ends within a block", {}, 3 * kBlock + 100, ReadOutcome::kEndOfFile, 0, 0},
  };
}

TEST(ReadRangeTest, EveryOutcomeOfARead) {
  const uint64_t length = 8 * kBlock;
  for (const Case& c : Cases()) {
    FaultyReadFile file(c.file_bytes, c.script);
    Buffer buffer = Allocate(length);
    const RangeRead range = ReadRange(file, buffer.get(), length, 0, /*past_cache=*/false);
    EXPECT_EQ(range.outcome, c.outcome) << c.name;
    EXPECT_EQ(range.error_number, c.error_number) << c.name;
    EXPECT_TRUE(file.aligned()) << c.name;
    EXPECT_LE(file.calls(), kMaxReadRetries + 3) << c.name;
    if (c.calls != 0) {
      EXPECT_EQ(file.calls(), c.calls) << c.name;
    }
    if (c.outcome == ReadOutcome::kOk) {
      EXPECT_TRUE(Right(buffer.get(), 0, length)) << c.name;
    }
  }
}

// An engine over one faulty file; collects reports.
class BlockReaderTest : public ::testing::TestWithParam<std::string> {
 protected:
  void Start(uint64_t file_bytes, FaultyReadFile::Script script, int threads = 4, uint64_t cached = 0) {
    const FileOpener opener = [this, file_bytes, script,
                               cached](const std::string&) -> absl::StatusOr<std::unique_ptr<ReadFile>> {
      auto file = std::make_unique<FaultyReadFile>(file_bytes, script, cached);
      file_ = file.get();
      return file;
    };
    std::unique_ptr<BlockReader> reader;
    if (GetParam() == "pread") {
      PreadReader::Options options;
      options.threads = threads;
      options.clock = &clock_;
      options.opener = opener;
      reader = std::make_unique<PreadReader>(std::move(options));
    } else {
      UringReader::Options options;
      options.clock = &clock_;
      options.opener = opener;
      options.ring = std::make_unique<ScriptedRing>();
      reader = std::make_unique<UringReader>(std::move(options));
    }
    Attach(std::move(reader));
  }
  void Attach(std::unique_ptr<BlockReader> reader) {
    reader_ = std::move(reader);
    reader_->SetSink([this](ReadResult result) {
      MutexLock lock(&mutex_);
      results_[result.tag].push_back(std::move(result));
      arrived_.SignalAll();
    });
    ASSERT_EQ(*reader_->Register("a"), 0);
  }
  ReadResult Await(uint64_t tag) {
    MutexLock lock(&mutex_);
    while (results_[tag].empty()) {
      arrived_.Wait(&mutex_);
    }
    return results_[tag].front();
  }
  ReadJob Job(uint64_t tag, uint64_t offset, std::byte* dest, uint64_t length) {
    ReadJob job;
    job.tag = tag;
    job.offset = offset;
    job.dest = dest;
    job.length = length;
    job.check = [offset](uint64_t at, std::span<const std::byte> bytes) {
      return Right(bytes.data(), offset + at, bytes.size()) ? absl::OkStatus()
                                                            : absl::DataLossError("checksum");
    };
    return job;
  }

  FakeClock clock_;
  FaultyReadFile* file_ = nullptr;
  Mutex mutex_;
  CondVar arrived_;
  std::map<uint64_t, std::vector<ReadResult>> results_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<BlockReader> reader_;  // last: its threads use the others
};

TEST_P(BlockReaderTest, EveryOutcomeOfAReadReachesTheReport) {
  for (const Case& c : Cases()) {
    {
      const MutexLock lock(&mutex_);
      results_.clear();
    }
    Start(c.file_bytes, c.script, /*threads=*/1);
    Buffer buffer = Allocate(8 * kBlock);
    reader_->Submit(Job(7, 0, buffer.get(), 8 * kBlock));
    const ReadResult result = Await(7);
    EXPECT_EQ(result.outcome, c.outcome) << c.name;
    EXPECT_EQ(result.status.ok(), c.outcome == ReadOutcome::kOk) << c.name;
    reader_.reset();
  }
}

TEST_P(BlockReaderTest, LargeJobsArriveWholeFromSeveralThreads) {
  const uint64_t length = 3 * 1024 * 1024 + kBlock;
  Start(8 * 1024 * 1024, {5000, -EINTR, 4096, -EAGAIN});
  std::vector<Buffer> buffers;
  for (uint64_t i = 0; i < 4; ++i) {
    buffers.push_back(Allocate(length));
    reader_->Submit(Job(i, i * kBlock, buffers[i].get(), length));
  }
  for (uint64_t i = 0; i < 4; ++i) {
    const ReadResult result = Await(i);
    EXPECT_EQ(result.outcome, ReadOutcome::kOk) << result.status;
    EXPECT_GE(result.bytes_read, length);
    EXPECT_TRUE(Right(buffers[i].get(), i * kBlock, length));
  }
  MutexLock lock(&mutex_);
  for (const auto& [tag, results] : results_) {
    EXPECT_EQ(results.size(), 1u) << "job " << tag;
  }
}

TEST_P(BlockReaderTest, CachedJobsNeedNoReadOfTheFile) {
  constexpr uint64_t kBytes = 1024 * 1024 + kBlock;
  Start(64 * 1024 * 1024, {}, /*threads=*/4, /*cached=*/64 * 1024 * 1024);
  std::vector<Buffer> buffers;
  for (uint64_t i = 0; i < 32; ++i) {
    buffers.push_back(Allocate(kBytes));
    reader_->Submit(Job(i, i * kBytes / kBlock * kBlock, buffers[i].get(), kBytes));
  }
  for (uint64_t i = 0; i < 32; ++i) {
    const ReadResult result = Await(i);
    EXPECT_EQ(result.outcome, ReadOutcome::kOk) << result.status;
    EXPECT_EQ(result.bytes_read, kBytes);
    EXPECT_EQ(result.cached_bytes, kBytes);
  }
  EXPECT_EQ(file_->calls(), 0);
}

TEST_P(BlockReaderTest, RestOfAPartlyCachedJobIsRead) {
  Start(64 * kBlock, {}, /*threads=*/1, /*cached=*/3 * kBlock);
  Buffer buffer = Allocate(8 * kBlock);
  reader_->Submit(Job(1, kBlock, buffer.get(), 8 * kBlock));
  const ReadResult result = Await(1);
  EXPECT_EQ(result.outcome, ReadOutcome::kOk) << result.status;
  EXPECT_EQ(result.bytes_read, 8 * kBlock);
  EXPECT_EQ(result.cached_bytes, 2 * kBlock);
  EXPECT_EQ(file_->calls(), 1);
}

TEST_P(BlockReaderTest, JobPastTheCacheReadsTheFile) {
  Start(64 * kBlock, {}, /*threads=*/1, /*cached=*/64 * kBlock);
  Buffer buffer = Allocate(8 * kBlock);
  ReadJob job = Job(1, 0, buffer.get(), 8 * kBlock);
  job.past_cache = true;
  reader_->Submit(std::move(job));
  const ReadResult result = Await(1);
  EXPECT_EQ(result.outcome, ReadOutcome::kOk) << result.status;
  EXPECT_EQ(result.cached_bytes, 0u);
  EXPECT_EQ(file_->calls(), 1);
}

TEST_P(BlockReaderTest, BytesThatTheCheckRefusesAreCorruptAndSaySo) {
  Start(64 * kBlock, {});
  Buffer buffer = Allocate(kBlock);
  ReadJob job = Job(1, 0, buffer.get(), kBlock);
  job.check = [](uint64_t, std::span<const std::byte>) { return absl::DataLossError("wrong checksum"); };
  reader_->Submit(std::move(job));
  const ReadResult result = Await(1);
  EXPECT_EQ(result.outcome, ReadOutcome::kCorrupt);
  EXPECT_EQ(result.status.message(), "wrong checksum");
}

TEST_P(BlockReaderTest, CancelledJobsAreReportedExactlyOnce) {
  Start(64 * 1024 * 1024, {});
  std::vector<Buffer> buffers;
  for (uint64_t i = 0; i < 32; ++i) {
    buffers.push_back(Allocate(1024 * 1024));
    reader_->Submit(Job(i, 0, buffers[i].get(), 1024 * 1024));
    if (i % 2 == 0) {
      reader_->Cancel(i);
    }
  }
  for (uint64_t i = 0; i < 32; ++i) {
    const ReadResult result = Await(i);
    EXPECT_TRUE(result.outcome == ReadOutcome::kOk ||
                (i % 2 == 0 && result.outcome == ReadOutcome::kCancelled));
  }
  reader_.reset();
  MutexLock lock(&mutex_);
  for (const auto& [tag, results] : results_) {
    EXPECT_EQ(results.size(), 1u) << "job " << tag;
  }
}

// Reads of the first block never end before Release().
class StuckFile final : public ReadFile {
 public:
  int64_t ReadAt(std::byte* dest, uint64_t length, uint64_t offset) override {
    MutexLock lock(&mutex_);
    reading_ = true;
    changed_.SignalAll();
    while (offset == 0 && !released_) {
      changed_.Wait(&mutex_);
    }
    FakeExtentSource::FillBytes(offset, {dest, length});
    return static_cast<int64_t>(length);
  }
  std::string how() const override { return "O_DIRECT"; }
  void AwaitRead() {
    MutexLock lock(&mutex_);
    while (!reading_) {
      changed_.Wait(&mutex_);
    }
  }
  void Release() {
    MutexLock lock(&mutex_);
    released_ = true;
    changed_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

class PreadReaderTest : public BlockReaderTest {};

TEST_P(PreadReaderTest, AbandonedReadsGetReplacementThreads) {
  StuckFile* stuck = nullptr;
  PreadReader::Options options;
  options.threads = 1;
  options.clock = &clock_;
  options.opener = [&stuck](const std::string&) -> absl::StatusOr<std::unique_ptr<ReadFile>> {
    auto file = std::make_unique<StuckFile>();
    stuck = file.get();
    return file;
  };
  Attach(std::make_unique<PreadReader>(std::move(options)));
  Buffer first = Allocate(kBlock);
  Buffer second = Allocate(kBlock);
  reader_->Submit(Job(1, 0, first.get(), kBlock));
  stuck->AwaitRead();
  reader_->Abandon(1);
  reader_->Submit(Job(2, kBlock, second.get(), kBlock));
  EXPECT_EQ(Await(2).outcome, ReadOutcome::kOk);
  stuck->Release();
  EXPECT_EQ(Await(1).outcome, ReadOutcome::kOk);
}

// A ring whose reads end together, eight at a time.
class GatheringRing final : public ReadRing {
 public:
  static constexpr size_t kTogether = 8;
  absl::Status AddFile(ReadFile*) override { return absl::OkStatus(); }
  void Read(uint32_t slot, int, std::byte*, uint32_t length, uint64_t) override {
    ended_.push_back({slot, length});
  }
  absl::Status Start() override { return absl::OkStatus(); }
  absl::Status Wait(std::vector<RingCompletion>* completions) override {
    const MutexLock lock(&mutex_);
    while (ended_.size() < kTogether && !woken_) {
      wake_.Wait(&mutex_);
    }
    woken_ = false;
    completions->clear();
    if (ended_.size() >= kTogether) {
      completions->swap(ended_);
    }
    return absl::OkStatus();
  }
  void Wake() override {
    const MutexLock lock(&mutex_);
    woken_ = true;
    wake_.Signal();
  }

 private:
  Mutex mutex_;
  CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<RingCompletion> ended_;  // the engine thread's
};

TEST(UringReaderTest, SmallJobsThatEndTogetherAreReportedInGroups) {
  constexpr uint64_t kBytes = 64 * 1024;
  FakeClock clock;
  UringReader::Options options;
  options.clock = &clock;
  options.opener = [](const std::string&) {
    return std::make_unique<FaultyReadFile>(1 << 20, FaultyReadFile::Script{});
  };
  options.ring = std::make_unique<GatheringRing>();
  UringReader reader(std::move(options));
  Mutex mutex;
  CondVar arrived;
  size_t checked = 0;  // the engine thread's until all have arrived
  std::vector<size_t> checked_at_report;
  reader.SetSink([&](ReadResult) {
    const MutexLock lock(&mutex);
    checked_at_report.push_back(checked);
    arrived.Signal();
  });
  ASSERT_TRUE(reader.Register("a").ok());
  Buffer buffer = Allocate(GatheringRing::kTogether * kBytes);
  for (uint64_t i = 0; i < GatheringRing::kTogether; ++i) {
    ReadJob job;
    job.tag = i;
    job.dest = buffer.get() + i * kBytes;
    job.length = kBytes;
    job.check = [&checked](uint64_t, std::span<const std::byte>) {
      ++checked;
      return absl::OkStatus();
    };
    reader.Submit(std::move(job));
  }
  const MutexLock lock(&mutex);
  while (checked_at_report.size() < GatheringRing::kTogether) {
    arrived.Wait(&mutex);
  }
  EXPECT_THAT(checked_at_report, testing::ElementsAre(4, 4, 4, 4, 8, 8, 8, 8)) << "256 KiB at a time";
}

INSTANTIATE_TEST_SUITE_P(Engine, PreadReaderTest, testing::Values("pread"));
INSTANTIATE_TEST_SUITE_P(Engines, BlockReaderTest, testing::Values("pread", "uring"),
                         [](const auto& param) { return param.param; });

// The kernel's own ring, where there is one.
TEST(ReadRingTest, ReadsARealFileAndEndsAWaitWhenWoken) {
  absl::StatusOr<std::unique_ptr<ReadRing>> ring = MakeReadRing(4);
  if (!ring.ok()) {
    GTEST_SKIP() << ring.status();
  }
  TempDir dir;
  std::vector<std::byte> bytes(5 * kBlock);
  FakeExtentSource::FillBytes(0, bytes);
  std::ofstream(dir.File("f"), std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  auto file = OpenReadFile(dir.File("f"), true);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*ring)->AddFile(file->get()).ok());
  Buffer buffer = Allocate(4 * kBlock);
  for (uint32_t slot = 0; slot < 4; ++slot) {
    (*ring)->Read(slot, 0, buffer.get() + slot * kBlock, kBlock, (slot + 1) * kBlock);
  }
  std::vector<RingCompletion> completions;
  uint32_t ended = 0;
  while (ended < 4) {
    ASSERT_TRUE((*ring)->Wait(&completions).ok());
    for (const RingCompletion& completion : completions) {
      EXPECT_EQ(completion.result, static_cast<int64_t>(kBlock));
      ++ended;
    }
  }
  EXPECT_TRUE(Right(buffer.get(), kBlock, 4 * kBlock));
  (*ring)->Wake();
  ASSERT_TRUE((*ring)->Wait(&completions).ok());
  EXPECT_TRUE(completions.empty());
}

// Runs `work` in a process of its own in which one system call fails with `error_number`, as under a
// container's seccomp profile. Returns the result of `work`, or -1.
int InSandbox(long system_call, int error_number, const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(system_call), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error_number)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(rules), rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      _exit(255);
    }
    _exit(work());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ReadRingTest, TrialDetectsASandboxThatForbidsAnyStep) {
  for (const long call : {SYS_io_uring_setup, SYS_io_uring_register, SYS_io_uring_enter}) {
    for (const int error : {EPERM, ENOSYS, ENOMEM}) {
      EXPECT_NE(InSandbox(call, error, TryReadRing), 0) << "call " << call << ", errno " << error;
    }
  }
  EXPECT_EQ(InSandbox(SYS_io_uring_setup, ENOSYS, TryReadRing), ENOSYS);
  EXPECT_EQ(InSandbox(SYS_io_uring_register, ENOMEM, TryReadRing), ENOMEM);
}

TEST(ReadRingTest, StoreWithoutRingsWarnsOnceAndReadsByThreads) {
  const int wrong = InSandbox(SYS_io_uring_setup, EPERM, [] {
    int warnings = 0;
    WeightStoreOptions options;
    options.dram_budget = 1024 * 1024;
    options.log = [&warnings](LogSeverity severity, const std::string& text) {
      warnings += severity == LogSeverity::kWarning && text.find("--io pread") != std::string::npos &&
                  text.find("seccomp") != std::string::npos;
    };
    auto store = WeightStore::Create(options);
    return !store.ok()                                              ? 1
           : (*store)->Look(&StoreCore::Stats).io_engine != "pread" ? 2
           : warnings != 1                                          ? 3
                                                                    : 0;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(OpenReadFileTest, ReadsARealFileBothWaysAndNamesAMissingOne) {
  TempDir dir;
  std::vector<std::byte> bytes(5 * kBlock);
  FakeExtentSource::FillBytes(0, bytes);
  std::ofstream(dir.File("f"), std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  for (bool direct : {true, false}) {
    auto file = OpenReadFile(dir.File("f"), direct);
    ASSERT_TRUE(file.ok()) << file.status();
    Buffer buffer = Allocate(4 * kBlock);
    for (const bool past_cache : {false, true}) {
      std::memset(buffer.get(), 0, 4 * kBlock);
      EXPECT_EQ(ReadRange(**file, buffer.get(), 4 * kBlock, kBlock, past_cache).outcome, ReadOutcome::kOk);
      EXPECT_TRUE(Right(buffer.get(), kBlock, 4 * kBlock));
      EXPECT_EQ(ReadRange(**file, buffer.get(), 4 * kBlock, 2 * kBlock, past_cache).outcome,
                ReadOutcome::kEndOfFile);
    }
    if (!direct) {
      EXPECT_EQ((*file)->how(), "buffered (asked for)");
    }
  }
  auto missing = OpenReadFile(dir.File("g"), true);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("/g"), absl::string_view::npos);
}

// A file of 300 blocks, which the page cache holds once it is written.
class CachedFileTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 300 * kBlock;

  void SetUp() override {
    std::vector<std::byte> bytes(kBytes);
    FakeExtentSource::FillBytes(0, bytes);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    fd_.reset(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(fsync(fd_.get()), 0);
    map_ = mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED, fd_.get(), 0);
    ASSERT_NE(map_, MAP_FAILED);
    auto file = OpenReadFile(path_, true);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    if (file_->how() != "O_DIRECT") GTEST_SKIP() << "not run: " << file_->how();
  }
  void TearDown() override { munmap(map_, kBytes); }

  uint64_t CachedBlocks() const {
    std::vector<unsigned char> pages(kBytes / kBlock);
    EXPECT_EQ(mincore(map_, kBytes, pages.data()), 0);
    return static_cast<uint64_t>(
        std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
  }
  // Drops all of the file from the page cache; false: the file system keeps it in memory.
  bool Drop() const {
    EXPECT_EQ(posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    return CachedBlocks() == 0;
  }
  // Bytes that the process has had read from disks.
  static uint64_t DiskBytes() {
    std::ifstream io("/proc/self/io");
    std::string word;
    uint64_t value = 0;
    while (io >> word >> value && word != "read_bytes:") {
    }
    return value;
  }

  TempDir dir_;
  const std::string path_ = dir_.File("f");
  UniqueFd fd_;
  void* map_ = MAP_FAILED;
  std::unique_ptr<ReadFile> file_;
  Buffer buffer_ = Allocate(kBytes);
};

TEST_F(CachedFileTest, CachedBytesComeWithoutADiskRead) {
  const uint64_t before = DiskBytes();
  const RangeRead range = ReadRange(*file_, buffer_.get(), kBytes, 0, /*past_cache=*/false);
  EXPECT_EQ(range.outcome, ReadOutcome::kOk);
  EXPECT_EQ(range.cached_bytes, kBytes);
  EXPECT_EQ(DiskBytes(), before);
  EXPECT_TRUE(Right(buffer_.get(), 0, kBytes));
  std::memset(buffer_.get(), 0, kBytes);
  EXPECT_EQ(file_->CopyCached(buffer_.get(), 5000, 704), 5000u) << "whatever the alignment";
  EXPECT_TRUE(Right(buffer_.get(), 704, 5000));
  EXPECT_EQ(file_->CopyCached(buffer_.get(), 2 * kBlock, kBytes), 0u) << "behind the end";
}

TEST_F(CachedFileTest, ColdFileStaysOutOfThePageCache) {
  if (!Drop()) GTEST_SKIP() << "not run: " << path_ << " stays in memory";
  EXPECT_EQ(file_->CopyCached(buffer_.get(), kBytes, 0), 0u);
  const RangeRead range = ReadRange(*file_, buffer_.get(), kBytes, 0, /*past_cache=*/false);
  EXPECT_EQ(range.outcome, ReadOutcome::kOk);
  EXPECT_EQ(range.cached_bytes, 0u);
  EXPECT_TRUE(Right(buffer_.get(), 0, kBytes));
  EXPECT_EQ(CachedBlocks(), 0u);
}

TEST_F(CachedFileTest, PartlyCachedRangeIsReadFromBoth) {
  if (!Drop()) GTEST_SKIP() << "not run: " << path_ << " stays in memory";
  // Blocks 0 to 2 and 280; random access reads nothing ahead.
  EXPECT_EQ(posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM), 0);
  ASSERT_EQ(pread(fd_.get(), buffer_.get(), 3 * kBlock, 0), static_cast<ssize_t>(3 * kBlock));
  ASSERT_EQ(pread(fd_.get(), buffer_.get(), kBlock, 280 * kBlock), static_cast<ssize_t>(kBlock));
  ASSERT_EQ(CachedBlocks(), 4u);
  EXPECT_EQ(file_->CopyCached(buffer_.get(), kBytes, kBlock), 2 * kBlock);
  EXPECT_EQ(file_->CopyCached(buffer_.get(), kBytes, 3 * kBlock), 0u);
  const RangeRead range = ReadRange(*file_, buffer_.get(), kBytes, 0, /*past_cache=*/false);
  EXPECT_EQ(range.outcome, ReadOutcome::kOk);
  EXPECT_EQ(range.cached_bytes, 3 * kBlock);
  EXPECT_EQ(range.bytes_read, kBytes);
  EXPECT_TRUE(Right(buffer_.get(), 0, kBytes));
  EXPECT_EQ(CachedBlocks(), 4u);
}

TEST_F(CachedFileTest, ChangedBytesAreSeenWhereverTheyAre) {
  const std::byte other{0x5a};
  ASSERT_EQ(pwrite(fd_.get(), &other, 1, 77), 1);
  for (const bool past_cache : {false, true}) {  // not written back before the direct read
    const RangeRead range = ReadRange(*file_, buffer_.get(), kBlock, 0, past_cache);
    EXPECT_EQ(range.outcome, ReadOutcome::kOk);
    EXPECT_EQ(buffer_.get()[77], other);
  }
}

// Opens the file and reads it; 0: all bytes are right, and none came from the page cache.
int ReadUncached(const std::string& path, uint64_t bytes) {
  auto file = OpenReadFile(path, true);
  Buffer buffer = Allocate(bytes);
  if (!file.ok()) return 1;
  const RangeRead range = ReadRange(**file, buffer.get(), bytes, 0, /*past_cache=*/false);
  return range.outcome != ReadOutcome::kOk || !Right(buffer.get(), 0, bytes) ? 2
         : range.cached_bytes != 0                                           ? 3
                                                                             : 0;
}

TEST_F(CachedFileTest, RefusingSystemIsReadPastTheCache) {
  const auto read = [this] { return ReadUncached(path_, kBytes); };
  EXPECT_EQ(InSandbox(SYS_mincore, EPERM, read), 0);
  EXPECT_EQ(InSandbox(SYS_preadv2, EOPNOTSUPP, read), 0) << "a file system without RWF_NOWAIT";
}

// To others mincore(2) says that all is cached.
TEST_F(CachedFileTest, FileOfAnotherUserIsReadPastTheCache) {
  if (geteuid() != 0) GTEST_SKIP() << "not run: takes root";
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  const auto read = [this] { return seteuid(65534) != 0 ? 4 : ReadUncached(path_, kBytes); };
  EXPECT_EQ(InSandbox(SYS_io_uring_setup, EPERM, read), 0);
}

}  // namespace
}  // namespace sluice::weightd
