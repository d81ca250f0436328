#include "weightd/core/weight_store.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status.h"
#include "weightd/core/pump_turn.h"
#include "weightd/core/store_core.h"
#include "weightd/dram/memory_budget.h"
#include "weightd/dram/prefaulter.h"
#include "weightd/fetch/pack_extent_source.h"
#include "weightd/io/pread_reader.h"
#include "weightd/io/uring_reader.h"
#include "weightd/session/poller.h"
#include "weightd/transfer/transfer_engine.h"

namespace sluice {
namespace {

// Two zero pages about as fast as the memory takes them.
constexpr int kPrefaultThreads = 2;

void SleepMs(int ms) {
  const timespec pause{ms / 1000, (ms % 1000) * 1'000'000L};
  nanosleep(&pause, nullptr);
}

absl::StatusOr<uint64_t> NewEpoch() {
  uint64_t epoch = 0;
  while (epoch == 0) {
    if (getrandom(&epoch, sizeof(epoch), 0) != sizeof(epoch)) {
      return ErrnoToStatus(errno, "getrandom");
    }
  }
  return epoch;
}

int CopyThreads(const WeightStoreOptions& options) {
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  return options.copy_threads != 0 ? options.copy_threads : std::clamp(cpus / 4, 1, 4);
}

std::unique_ptr<BlockReader> MakeReader(const WeightStoreOptions& options, const Clock* clock) {
  const FileOpener opener = [direct = options.direct](const std::string& path) {
    return OpenReadFile(path, direct);
  };
  if (options.uring) {
    absl::StatusOr<std::unique_ptr<ReadRing>> ring = MakeReadRing(UringReader::kDepth);
    if (ring.ok()) {
      UringReader::Options uring;
      uring.opener = opener;
      uring.ring = *std::move(ring);
      uring.clock = clock;
      return std::make_unique<UringReader>(std::move(uring));
    }
    if (options.log) {
      options.log(LogSeverity::kWarning, absl::StrCat(std::string(ring.status().message()),
                                                      ". Reading by threads (--io pread) instead"));
    }
  }
  PreadReader::Options pread;
  pread.threads = options.reader_threads;
  pread.clock = clock;
  pread.opener = opener;
  return std::make_unique<PreadReader>(std::move(pread));
}

}  // namespace

class WeightStore::Impl {
 public:
  Impl(WeightStoreOptions options, uint64_t epoch, Poller poller, UniqueFd bell,
       std::unique_ptr<BlockReader> reader)
      : options_(std::move(options)),
        epoch_(epoch),
        poller_(std::move(poller)),
        bell_(std::move(bell)),
        prefaulter_(kPrefaultThreads),
        transfers_(std::make_unique<TransferEngine>(TransferEngine::Options{.threads = CopyThreads(options_)},
                                                    &clock_,
                                                    [this] {
                                                      if (inbox_.Notify()) {
                                                        Ring();
                                                      }
                                                    })),
        core_(CoreOptions(options_, epoch), CoreEnvironment(reader.get())),
        reader_(std::move(reader)) {
    reader_->SetSink([this](ReadResult result) { OnRead(std::move(result)); });
  }

  ~Impl() {
    if (scrub_.joinable()) {
      {
        MutexLock lock(&scrub_mutex_);
        scrub_stop_ = true;
      }
      scrub_wake_.SignalAll();
      scrub_.join();
    }
    if (pump_.joinable()) {
      stop_.store(true);
      Ring();
      pump_.join();
    }
    reader_.reset();     // its threads call OnRead
    transfers_.reset();  // its threads read segments
  }

  absl::Status Start() {
    RETURN_IF_ERROR(poller_.WatchBell(bell_.get(), PollEvent{}));
    pump_ = std::thread([this] { Run(); });
    scrub_ = std::thread([this] { Scrub(); });
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> AddPack(const std::string& dir) {
    ASSIGN_OR_RETURN(std::unique_ptr<Pack> pack, Pack::Open(dir));
    const Pack* opened = pack.get();
    return Add(std::make_unique<PackExtentSource>(std::move(pack)), opened);
  }

  absl::StatusOr<uint32_t> Add(std::unique_ptr<ExtentSource> source, const Pack* pack) {
    MutexLock adding(&add_mutex_);
    {
      MutexLock lock(&mutex_);
      const int known = core_.FindPack(source->model_id());
      if (known >= 0) {
        return static_cast<uint32_t>(known);
      }
    }
    std::vector<int> files;
    for (uint32_t i = 0; i < source->file_count(); ++i) {
      ASSIGN_OR_RETURN(const int file, reader_->Register(source->file_path(i)));
      files.push_back(file);
    }
    const std::string model_id = source->model_id();
    absl::StatusOr<uint32_t> number;
    {
      MutexLock lock(&mutex_);
      number = core_.AddPack(std::move(source), std::move(files));
      if (number.ok()) {
        open_packs_.push_back(pack);
      }
    }
    if (number.ok() && options_.log) {
      const std::string engine = reader_->Describe();
      const bool refused = options_.direct && engine.find("buffered") != std::string::npos;
      options_.log(refused ? LogSeverity::kWarning : LogSeverity::kInfo,
                   absl::StrCat("pack ", *number, " is ", model_id, ", read by ", engine,
                                refused ? ": the page cache will hold a second copy" : ""));
    }
    return number;
  }

  const Pack* pack(uint32_t number) const {
    MutexLock lock(&mutex_);
    return number < open_packs_.size() ? open_packs_[number] : nullptr;
  }
  uint32_t pack_count() const {
    MutexLock lock(&mutex_);
    return static_cast<uint32_t>(open_packs_.size());
  }

  // Runs `work` on the core and lets the pump look at what it changed.
  template <typename Work>
  auto Control(const Work& work) {
    auto result = [&] {
      MutexLock lock(&mutex_);
      return work(&core_);
    }();
    Ring();
    return result;
  }

  void Tune(const StoreTuning& tuning) {
    {
      MutexLock lock(&mutex_);
      core_.Tune(tuning);
    }
    {
      MutexLock lock(&scrub_mutex_);
      scrub_tuned_ = true;
    }
    scrub_wake_.SignalAll();
  }

  StoreStats Stats() const {
    StoreStats stats;
    {
      MutexLock lock(&mutex_);
      stats = core_.Stats();
    }
    stats.io_engine = reader_->Describe();
    return stats;
  }

  const ResidencyEntry* residency(uint32_t pack) const {
    MutexLock lock(&mutex_);
    return core_.residency(pack);
  }

  absl::StatusOr<LocalSession> Local(uint64_t session) const {
    MutexLock lock(&mutex_);
    return core_.Local(session);
  }

  const std::byte* SegmentData(uint32_t segment) const {
    MutexLock lock(&mutex_);
    const SharedMemory* memory = core_.tier().arena().memory(segment);
    return memory == nullptr ? nullptr : memory->map.data();
  }

  bool draining() const {
    MutexLock lock(&mutex_);
    return core_.draining();
  }

  uint64_t boot_epoch() const { return epoch_; }

  const StoreMetrics& metrics() const { return metrics_; }

  StoreProgress Progress() const { return {rounds_.load(), reads_reported_.load(), in_flight_bytes_.load()}; }

  void Ring() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof(one));
  }

 private:
  static StoreCore::Options CoreOptions(const WeightStoreOptions& options, uint64_t epoch) {
    StoreCore::Options core;
    core.boot_epoch = epoch;
    core.arena.budget = options.dram_budget;
    core.policy.eviction = options.eviction;
    core.policy.admission = options.admission;
    core.session_quota = options.session_quota;
    core.scrub_rate = options.scrub_rate;
    core.transfers.chunk_neurons = std::max(1u, options.gather_neurons);
    core.fetcher.slow_read_nanos = int64_t{options.read_deadline_ms} * 1'000'000;
    core.attach_timeout_nanos = int64_t{options.attach_timeout_ms} * 1'000'000;
    return core;
  }

  StoreCore::Environment CoreEnvironment(BlockReader* reader) {
    StoreCore::Environment environment;
    environment.reader = reader;
    environment.clock = &clock_;
    environment.poller = &poller_;
    environment.transfers = transfers_.get();
    environment.metrics = &metrics_;
    environment.prefault = [this](std::shared_ptr<const SharedMemory> memory) {
      prefaulter_.Add(std::move(memory));
    };
    return environment;
  }

  void OnRead(ReadResult result) {
    reads_reported_.fetch_add(1);
    if (inbox_.Add(std::move(result))) {
      Ring();
    }
  }

  void Run() {
    while (!stop_.load()) {
      int timeout_ms = 0;
      std::vector<std::pair<LogSeverity, std::string>> messages;
      {
        MutexLock lock(&mutex_);
        timeout_ms = PumpTurn(&core_, &inbox_, clock_);
        in_flight_bytes_.store(core_.in_flight_bytes());
        rounds_.fetch_add(1);
        messages = core_.TakeLog();
      }
      for (const auto& [severity, message] : messages) {
        if (options_.log) {
          options_.log(severity, message);
        }
      }
      const std::vector<PollEvent> events = poller_.Wait(timeout_ms);
      inbox_.EndSleep();
      MutexLock lock(&mutex_);
      core_.EndSleep();
      for (const PollEvent& event : events) {
        core_.HandleEvent(event);
      }
    }
  }

  // Until the end: one chunk after the other, each verified without the core's lock.
  void Scrub() {
    while (true) {
      std::optional<Scrubber::Chunk> chunk;
      int64_t due = 0;
      {
        MutexLock lock(&mutex_);
        chunk = core_.TakeScrub();
        due = core_.NextScrub();
      }
      if (chunk.has_value()) {
        const absl::Status verdict = chunk->Verify();
        bool again = false;
        {
          MutexLock lock(&mutex_);
          again = core_.FinishScrub(*chunk, verdict);
        }
        if (again) {
          Ring();
        }
      }
      MutexLock lock(&scrub_mutex_);
      const int64_t wait = due - clock_.NowNanos();
      if (due == 0) {  // not before the rate is set
        while (!scrub_stop_ && !scrub_tuned_) {
          scrub_wake_.Wait(&scrub_mutex_);
        }
      } else if (!scrub_stop_ && !scrub_tuned_ && wait > 0) {
        scrub_wake_.WaitFor(&scrub_mutex_, std::chrono::nanoseconds(wait));
      }
      scrub_tuned_ = false;
      if (scrub_stop_) {
        return;
      }
    }
  }

  const WeightStoreOptions options_;
  const uint64_t epoch_;
  const MonotonicClock clock_;
  Poller poller_;
  const UniqueFd bell_;
  std::atomic<bool> stop_{false};
  StoreMetrics metrics_;  // self-synchronised, as the next
  ReadInbox inbox_;
  std::atomic<uint64_t> rounds_{0};
  std::atomic<uint64_t> reads_reported_{0};
  std::atomic<uint64_t> in_flight_bytes_{0};

  Mutex add_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one pack is added at a time
  mutable Mutex mutex_;
  Prefaulter prefaulter_;
  std::unique_ptr<TransferEngine> transfers_;  // const until the destructor
  StoreCore core_ ABSL_GUARDED_BY(mutex_);
  std::deque<const Pack*> open_packs_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<BlockReader> reader_;  // const until the destructor
  std::thread pump_;
  Mutex scrub_mutex_;
  CondVar scrub_wake_;
  bool scrub_stop_ ABSL_GUARDED_BY(scrub_mutex_) = false;
  bool scrub_tuned_ ABSL_GUARDED_BY(scrub_mutex_) = false;
  std::thread scrub_;  // const until the destructor, as pump_
};

WeightStore::WeightStore() = default;
WeightStore::~WeightStore() = default;

absl::StatusOr<std::unique_ptr<WeightStore>> WeightStore::Create(WeightStoreOptions options,
                                                                 std::unique_ptr<BlockReader> reader) {
  if (options.dram_budget == 0) {
    return absl::InvalidArgumentError("--dram-budget must be above 0");
  }
  RETURN_IF_ERROR(WaitForBudget(
      options.dram_budget, options.budget_wait_ms, [] { return ReadMemoryFacts(); }, SleepMs));
  static const MonotonicClock clock;
  if (reader == nullptr) {
    reader = MakeReader(options, &clock);
  }
  ASSIGN_OR_RETURN(const uint64_t epoch, NewEpoch());
  ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  UniqueFd bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) {
    return ErrnoToStatus(errno, "eventfd");
  }
  std::unique_ptr<WeightStore> store(new WeightStore());
  store->impl_ = std::make_unique<Impl>(std::move(options), epoch, std::move(poller), std::move(bell),
                                        std::move(reader));
  RETURN_IF_ERROR(store->impl_->Start());
  return store;
}

absl::StatusOr<uint32_t> WeightStore::AddPack(const std::string& dir) { return impl_->AddPack(dir); }

absl::StatusOr<uint32_t> WeightStore::AddSource(std::unique_ptr<ExtentSource> source) {
  return impl_->Add(std::move(source), nullptr);
}

const Pack* WeightStore::pack(uint32_t number) const { return impl_->pack(number); }
uint32_t WeightStore::pack_count() const { return impl_->pack_count(); }

absl::StatusOr<SessionHandle> WeightStore::OpenSession(const SessionParams& params) {
  return impl_->Control([&](StoreCore* core) { return core->OpenSession(params); });
}

absl::Status WeightStore::AttachSideSocket(uint64_t session, UniqueFd socket) {
  return impl_->Control([&](StoreCore* core) { return core->AttachSideSocket(session, std::move(socket)); });
}

absl::Status WeightStore::CloseSession(uint64_t session) {
  return impl_->Control([&](StoreCore* core) { return core->CloseSession(session); });
}

absl::Status WeightStore::OfferSlab(uint64_t session, uint32_t number, int fd, uint64_t bytes,
                                    const LinkRate& link) {
  ASSIGN_OR_RETURN(std::shared_ptr<Slab> slab, Slab::Map(fd, bytes));
  return impl_->Control(
      [&](StoreCore* core) { return core->AddSlab(session, number, std::move(slab), link); });
}

void WeightStore::OnConnectionLost(uint64_t session) {
  impl_->Control([&](StoreCore* core) {
    core->OnConnectionLost(session);
    return true;
  });
}

void WeightStore::OnProcessExit(uint64_t session) {
  impl_->Control([&](StoreCore* core) {
    core->OnProcessExit(session);
    return true;
  });
}

void WeightStore::Drain() {
  impl_->Control([](StoreCore* core) {
    core->Drain();
    return true;
  });
}

void WeightStore::Tune(const StoreTuning& tuning) { impl_->Tune(tuning); }
bool WeightStore::draining() const { return impl_->draining(); }
uint64_t WeightStore::boot_epoch() const { return impl_->boot_epoch(); }
StoreProgress WeightStore::Progress() const { return impl_->Progress(); }
const StoreMetrics& WeightStore::metrics() const { return impl_->metrics(); }
void WeightStore::Nudge() { impl_->Ring(); }
StoreStats WeightStore::Stats() const { return impl_->Stats(); }
const ResidencyEntry* WeightStore::residency(uint32_t pack) const { return impl_->residency(pack); }
absl::StatusOr<LocalSession> WeightStore::Local(uint64_t session) const { return impl_->Local(session); }
const std::byte* WeightStore::SegmentData(uint32_t segment) const { return impl_->SegmentData(segment); }

}  // namespace sluice
