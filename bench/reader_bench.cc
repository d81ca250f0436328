// Random O_DIRECT reads of 64 KiB to 1 MiB through weightd, as shares of the rate of bare loops at their best
// depth, with the same reads of the same file in the same run.
//
//   reader_bench [FILE [SIZE]]     (without FILE 2 GiB are written under /tmp; SIZE selects one row:
//                                  "64 KiB", "256 KiB", "1 MiB" or "mixed")
//
// Workloads, for each engine: `reader` the BlockReader alone, with 192 jobs submitted and every chunk hashed
// as weightd verifies it; `store` fill requests over the rings of a WeightStore that must evict for each of
// them. Every round runs all of them in a rotating order; a share is the median over rounds of (workload /
// bare loop of the same round).
//
// Thread safety: runs on the main thread; readers and stores have threads of their own.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/bare_reads.h"
#include "bench/results.h"
#include "bench/round_trips.h"
#include "common/base/checksum.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "tests/support/local_client.h"
#include "tests/support/temp_dir.h"
#include "weightd/engine/weight_store.h"
#include "weightd/store/extent_source.h"
#include "weightd/store/pread_reader.h"
#include "weightd/store/uring_reader.h"

namespace sluice {
namespace {

constexpr uint64_t kFileBytes = 2ull << 30;
constexpr uint64_t kRoundBytes = 384ull << 20;
constexpr uint64_t kStoreBudget = 256ull << 20;
constexpr int kRounds = 7;
constexpr size_t kOutstanding = 192;
// Bytes of the buffers that loops and readers fill in turn, for any size of reads: the store keeps what it
// reads, and a virtual disk copies faster into a few buffers that stay in the cache.
constexpr uint64_t kBufferBytes = 192ull << 20;
constexpr uint64_t kChecksumChunk = 256 * 1024;

// Verifies a chunk at the cost of weightd's check: the same hash over the same bytes.
absl::Status Hash(std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += kChecksumChunk) {
    if (ChunkChecksum(0, at, {bytes.data() + at, std::min<size_t>(kChecksumChunk, bytes.size() - at)}) == 0) {
      return absl::DataLossError("a hash of zero");
    }
  }
  return absl::OkStatus();
}

// The pieces of the file as extents of a pack.
class PieceSource final : public weightd::ExtentSource {
 public:
  PieceSource(std::string path, std::vector<Piece> pieces)
      : path_(std::move(path)), pieces_(std::move(pieces)) {}
  const std::string& model_id() const override { return id_; }
  uint32_t file_count() const override { return 1; }
  std::string file_path(uint32_t) const override { return path_; }
  uint32_t extent_count() const override { return static_cast<uint32_t>(pieces_.size()); }
  weightd::ExtentInfo extent(uint32_t i) const override {
    return {0, pieces_[i].offset, pieces_[i].length, false};
  }
  std::string ExtentName(uint32_t i) const override { return absl::StrCat("piece ", i); }
  uint32_t layer_count() const override { return 1; }
  uint32_t expert_count(uint32_t) const override { return extent_count(); }
  weightd::ExtentList ExpertExtents(uint32_t, uint32_t expert, PartSet) const override {
    return {{expert}, 1};
  }
  weightd::PartRows ExpertPart(uint32_t, uint32_t expert, Part) const override {
    return {expert, 1, 0, pieces_[expert].length, pieces_[expert].length};
  }
  uint64_t dense_bytes() const override { return 0; }
  uint64_t largest_expert_bytes() const override { return 1 << 20; }
  absl::Status Verify(uint32_t, uint64_t, std::span<const std::byte> bytes) const override {
    return Hash(bytes);
  }

 private:
  const std::string id_ = "00000000000000000000000000000001";
  const std::string path_;
  const std::vector<Piece> pieces_;
};

std::unique_ptr<weightd::BlockReader> MakeReader(bool ring, const Clock* clock) {
  const weightd::FileOpener opener = [](const std::string& path) {
    return weightd::OpenReadFile(path, true);
  };
  if (!ring) {
    weightd::PreadReader::Options options;
    options.opener = opener;
    options.clock = clock;
    return std::make_unique<weightd::PreadReader>(std::move(options));
  }
  auto made = weightd::MakeReadRing(weightd::UringReader::kDepth);
  if (!made.ok()) {
    return nullptr;
  }
  weightd::UringReader::Options options;
  options.opener = opener;
  options.ring = *std::move(made);
  options.clock = clock;
  return std::make_unique<weightd::UringReader>(std::move(options));
}

// Runs a BlockReader with kOutstanding jobs, into all buffers in turn.
class ReaderLoop {
 public:
  ReaderLoop(bool ring, const std::string& path, const ReadBuffers* buffers)
      : buffers_(buffers), reader_(MakeReader(ring, &clock_)) {
    if (reader_ != nullptr) {
      reader_->SetSink([this](weightd::ReadResult result) {
        const MutexLock lock(&mutex_);
        failed_ = failed_ || !result.status.ok();
        free_.push_back(result.tag);
        ended_.Signal();
      });
      ready_ = reader_->Register(path).ok();
    }
    for (size_t i = 0; i < buffers->count(); ++i) {
      free_.push_back(i);
    }
  }
  bool ready() const { return ready_; }
  bool Read(std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) {
      weightd::ReadJob job;
      job.tag = Take();
      job.offset = piece.offset;
      job.length = piece.length;
      job.dest = buffers_->at(job.tag);
      job.check = [](uint64_t, std::span<const std::byte> bytes) { return Hash(bytes); };
      job.past_cache = true;
      reader_->Submit(std::move(job));
    }
    const MutexLock lock(&mutex_);
    while (free_.size() < buffers_->count()) {
      ended_.Wait(&mutex_);
    }
    return !failed_;
  }

 private:
  uint64_t Take() {
    const MutexLock lock(&mutex_);
    while (free_.size() + kOutstanding <= buffers_->count()) {
      ended_.Wait(&mutex_);
    }
    const uint64_t tag = free_.front();
    free_.pop_front();
    return tag;
  }
  const ReadBuffers* const buffers_;
  const MonotonicClock clock_;
  Mutex mutex_;
  CondVar ended_;
  std::deque<uint64_t> free_ ABSL_GUARDED_BY(mutex_);
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ready_ = false;
  std::unique_ptr<weightd::BlockReader> reader_;  // last: its threads use the members above
};

// Runs a store that holds an eighth of the file, and requests extents in an order in which none is resident.
class StoreLoop {
 public:
  StoreLoop(bool ring, const std::string& path, const std::vector<Piece>& pieces) {
    weightd::WeightStoreOptions options;
    options.dram_budget = kStoreBudget;
    options.uring = ring;
    options.attach_timeout_ms = 0;  // there is no side socket
    auto store = weightd::WeightStore::Create(std::move(options));
    if (!store.ok()) {
      return;
    }
    store_ = *std::move(store);
    weightd::SessionParams params;
    params.packs = {*store_->AddSource(std::make_unique<PieceSource>(path, pieces))};
    client_ = std::make_unique<LocalClient>(*store_->Look(
        &weightd::StoreCore::Local, store_->Control(&weightd::StoreCore::OpenSession, params)->session));
  }
  bool ready() const { return client_ != nullptr; }
  bool Read(size_t first, size_t count) {
    size_t running = 0;
    for (size_t i = first; i < first + count; ++i) {
      if (running == kOutstanding) {
        if (!Reap()) return false;
        --running;
      }
      client_->Submit(LocalClient::FillExtent(++id_, static_cast<uint32_t>(i)));
      ++running;
    }
    for (; running > 0; --running) {
      if (!Reap()) return false;
    }
    return true;
  }

 private:
  bool Reap() {
    CompletionEntry done;
    if (!client_->Await(&done) || done.code != 0) return false;
    client_->Reap();
    return true;
  }
  std::unique_ptr<weightd::WeightStore> store_;
  std::unique_ptr<LocalClient> client_;
  uint64_t id_ = 0;
};

struct Workload {
  std::string name;
  std::function<bool(size_t first, size_t count)> read;  // reads pieces [first, first + count)
  std::vector<double> shares;
  std::vector<double> rates;
  std::vector<double> cpu;  // CPU seconds of this process per second
};

double CpuSeconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

// Cuts the whole file into pieces of these lengths in turn, in random order.
std::vector<Piece> Cut(uint64_t file_bytes, const std::vector<uint64_t>& lengths) {
  std::vector<Piece> pieces;
  uint64_t at = 0;
  for (size_t i = 0; at + lengths[i % lengths.size()] <= file_bytes; ++i) {
    pieces.push_back({at, lengths[i % lengths.size()]});
    at += pieces.back().length;
  }
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937_64(7));
  return pieces;
}

// Runs all workloads over `pieces`, which begin at number `first`. Workload 0 is the bare loop.
absl::Status RunRound(int round, size_t first, std::span<const Piece> pieces,
                      std::vector<Workload>* workloads) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    bytes += piece.length;
  }
  std::vector<double> rates(workloads->size());
  std::vector<double> cpu(workloads->size());
  for (size_t i = 0; i < workloads->size(); ++i) {
    const size_t turn = (i + static_cast<size_t>(round)) % workloads->size();
    const double cpu_start = CpuSeconds();
    const double start = NowNanos();
    if (!(*workloads)[turn].read(first, pieces.size())) {
      return absl::InternalError(absl::StrCat((*workloads)[turn].name, ": a read failed"));
    }
    const double nanos = NowNanos() - start;
    rates[turn] = static_cast<double>(bytes) / nanos * 1e9;
    cpu[turn] = (CpuSeconds() - cpu_start) / nanos * 1e9;
  }
  for (size_t i = 0; i < workloads->size() && round > 0; ++i) {  // the first round fills the stores
    (*workloads)[i].rates.push_back(rates[i]);
    (*workloads)[i].cpu.push_back(cpu[i]);
    (*workloads)[i].shares.push_back(rates[i] / rates[0]);
  }
  return absl::OkStatus();
}

absl::Status Measure(const char* name, const std::string& path, int fd, const std::vector<Piece>& pieces,
                     const ReadBuffers& buffers, bench::Results* results) {
  const uint64_t total = std::accumulate(pieces.begin(), pieces.end(), uint64_t{0},
                                         [](uint64_t sum, const Piece& piece) { return sum + piece.length; });
  const size_t count = pieces.size() * kRoundBytes / total;
  const std::span<const Piece> all(pieces);
  ASSIGN_OR_RETURN(const BareLoop best, BestBareLoop(fd, all.subspan(0, count / 2), buffers));
  ReaderLoop uring(true, path, &buffers);
  ReaderLoop pread(false, path, &buffers);
  StoreLoop uring_store(true, path, pieces);
  StoreLoop pread_store(false, path, pieces);
  std::vector<Workload> workloads;
  workloads.push_back(
      {"bare",
       [&](size_t first, size_t n) { return ReadBare(best, fd, all.subspan(first, n), buffers).ok(); },
       {},
       {}});
  for (const auto& [label, loop] : {std::pair("uring reader", &uring), std::pair("pread reader", &pread)}) {
    if (loop->ready()) {
      workloads.push_back(
          {label,
           [loop = loop, all](size_t first, size_t n) { return loop->Read(all.subspan(first, n)); },
           {},
           {}});
    }
  }
  for (const auto& [label, loop] :
       {std::pair("uring store", &uring_store), std::pair("pread store", &pread_store)}) {
    if (loop->ready()) {
      workloads.push_back(
          {label, [loop = loop](size_t first, size_t n) { return loop->Read(first, n); }, {}, {}, {}});
    }
  }
  for (int round = 0; round <= kRounds; ++round) {
    // Rounds advance through the file, so that a store meets an extent again only after all the others.
    const size_t first = static_cast<size_t>(round) * count % (pieces.size() - count);
    RETURN_IF_ERROR(RunRound(round, first, all.subspan(first, count), &workloads));
  }
  std::printf("%-8s", name);
  for (size_t i = 0; i < workloads.size(); ++i) {
    const Workload& workload = workloads[i];
    std::printf(" | %s %5.0f (%.2f CPU)", i == 0 ? best.name().c_str() : workload.name.c_str(),
                Quantile(workload.rates, 0.5) / 1e6, Quantile(workload.cpu, 0.5));
    if (i > 0) {
      std::printf(" %5.1f %%", 100 * Quantile(workload.shares, 0.5));
      results->Add(absl::StrCat(name, ", ", workload.name), 100 * Quantile(workload.shares, 0.5),
                   "% of the bare loop");
    }
  }
  std::printf("\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Main(const std::string& named, const std::string& only, bench::Results* results) {
  const TempDir folder;
  const std::string path = named.empty() ? folder.File("noise") : named;
  if (named.empty()) {
    RETURN_IF_ERROR(WriteNoise(path, kFileBytes));
  }
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return ErrnoToStatus(errno, path);
  }
  constexpr uint64_t k64 = 64 * 1024;
  const std::pair<const char*, std::vector<uint64_t>> sizes[] = {
      {"64 KiB", {k64}},
      {"256 KiB", {4 * k64}},
      {"1 MiB", {16 * k64}},
      {"mixed", {k64, 2 * k64, 4 * k64, 8 * k64, 16 * k64}},
  };
  std::printf("MB/s, and the share of the bare loop (median of %d paired rounds)\n", kRounds);
  for (const auto& [name, lengths] : sizes) {
    if (!only.empty() && only != name) {
      continue;
    }
    const uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const ReadBuffers buffers(kBufferBytes / longest, longest);
    RETURN_IF_ERROR(
        Measure(name, path, fd.get(), Cut(static_cast<uint64_t>(info.st_size), lengths), buffers, results));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::bench::Results results("reader_bench", &argc, argv);
  const absl::Status status = sluice::Main(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "", &results);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }
  return status.ok() && results.Write(std::thread::hardware_concurrency()) ? 0 : 1;
}
