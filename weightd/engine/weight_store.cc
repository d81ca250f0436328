#include "weightd/engine/weight_store.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "weightd/store/in_place_source.h"
#include "weightd/store/memory_budget.h"
#include "weightd/store/pack_extent_source.h"
#include "weightd/store/pread_reader.h"
#include "weightd/store/uring_reader.h"

namespace sluice::weightd {
namespace {

// Two threads zero pages about as fast as the memory allows.
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

FileOpener OpenerOf(const WeightStoreOptions& options) {
  return [direct = options.direct](const std::string& path) { return OpenReadFile(path, direct); };
}

std::unique_ptr<BlockReader> MakeReader(const WeightStoreOptions& options, const Clock* clock) {
  const FileOpener opener = OpenerOf(options);
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

StoreCore::Options CoreOptions(const WeightStoreOptions& options, uint64_t epoch) {
  StoreCore::Options core;
  core.boot_epoch = epoch;
  core.arena.budget = options.dram_budget;
  core.arena.placement = options.placement;
  core.arena.nodes = options.nodes;
  core.policy.eviction = options.eviction;
  core.policy.admission = options.admission;
  core.session_quota = options.session_quota;
  core.scrub_rate = options.scrub_rate;
  core.transfers.chunk_neurons = std::max(1u, options.gather_neurons);
  core.fetcher.slow_read_nanos = int64_t{options.read_timeout_ms} * 1'000'000;
  core.attach_timeout_nanos = int64_t{options.attach_timeout_ms} * 1'000'000;
  return core;
}

}  // namespace

WeightStore::WeightStore(WeightStoreOptions options, uint64_t epoch, Poller poller, UniqueFd bell,
                         std::unique_ptr<BlockReader> reader)
    : options_(std::move(options)),
      poller_(std::move(poller)),
      bell_(std::move(bell)),
      prefaulter_(kPrefaultThreads),
      transfers_(std::make_unique<TransferEngine>(
          TransferEngine::Options{.threads = CopyThreads(options_)}, &clock_,
          [this] {
            if (inbox_.Notify()) {
              Nudge();
            }
          },
          options_.copiers)),
      reader_(std::move(reader)),
      core_(CoreOptions(options_, epoch), CoreEnvironment()) {
  reader_->SetSink([this](ReadResult result) {
    reads_reported_.fetch_add(1);
    if (inbox_.Add(std::move(result))) {
      Nudge();
    }
  });
}

WeightStore::~WeightStore() {
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
    Nudge();
    pump_.join();
  }
  reader_.reset();     // its threads add to the inbox
  transfers_.reset();  // its threads read segments
}

StoreCore::Environment WeightStore::CoreEnvironment() {
  StoreCore::Environment environment;
  environment.reader = reader_.get();
  environment.clock = &clock_;
  environment.poller = &poller_;
  environment.transfers = transfers_.get();
  environment.metrics = &metrics_;
  environment.prefault = [this](std::shared_ptr<const SharedMemory> memory) {
    prefaulter_.Add(std::move(memory));
  };
  environment.prepare = [this](std::byte* dest, uint64_t bytes) { prefaulter_.Ensure(dest, bytes); };
  return environment;
}

absl::Status WeightStore::Start() {
  RETURN_IF_ERROR(poller_.WatchBell(bell_.get(), PollEvent{}));
  pump_ = std::thread([this] { RunPump(); });
  scrub_ = std::thread([this] { RunScrub(); });
  return absl::OkStatus();
}

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
  std::unique_ptr<WeightStore> store(
      new WeightStore(std::move(options), epoch, std::move(poller), std::move(bell), std::move(reader)));
  RETURN_IF_ERROR(store->Start());
  return store;
}

absl::StatusOr<uint32_t> WeightStore::AddPack(const std::string& dir) {
  ASSIGN_OR_RETURN(std::unique_ptr<Pack> pack, Pack::Open(dir));
  if (!pack->in_place()) return AddSource(std::make_unique<PackExtentSource>(std::move(pack)));
  const auto report = [log = options_.log](const std::string& why) {
    if (log) log(LogSeverity::kError, why);
  };
  ASSIGN_OR_RETURN(std::unique_ptr<InPlaceSource> source,
                   InPlaceSource::Open(std::move(pack), OpenerOf(options_), report));
  return AddSource(std::move(source));
}

// Files are opened without the core's lock: sessions are served meanwhile.
absl::StatusOr<uint32_t> WeightStore::AddSource(std::unique_ptr<ExtentSource> source) {
  const MutexLock adding(&add_mutex_);
  const std::string model_id = source->model_id();
  const int known = Look(&StoreCore::FindPack, model_id);
  if (known >= 0) {
    return static_cast<uint32_t>(known);
  }
  std::vector<int> files;
  for (uint32_t i = 0; i < source->file_count(); ++i) {
    std::unique_ptr<ReadFile> own = source->OpenFile(i);
    ASSIGN_OR_RETURN(const int file, own == nullptr
                                         ? reader_->Register(source->file_path(i))
                                         : reader_->RegisterFile(source->file_path(i), std::move(own)));
    files.push_back(file);
  }
  ASSIGN_OR_RETURN(const uint32_t number, Control(&StoreCore::AddPack, std::move(source), std::move(files)));
  if (options_.log) {
    const std::string engine = reader_->Describe();
    const bool refused = options_.direct && engine.find("buffered") != std::string::npos;
    options_.log(refused ? LogSeverity::kWarning : LogSeverity::kInfo,
                 absl::StrCat("pack ", number, " is ", model_id, ", read by ", engine,
                              refused ? ": the page cache will hold a second copy" : ""));
  }
  return number;
}

void WeightStore::Tune(const StoreTuning& tuning) {
  Control(&StoreCore::Tune, tuning);
  {
    const MutexLock lock(&scrub_mutex_);
    scrub_tuned_ = true;
  }
  scrub_wake_.SignalAll();
}

absl::Status WeightStore::SetBudget(uint64_t budget) {
  ASSIGN_OR_RETURN(const MemoryFacts facts, ReadMemoryFacts());
  const uint64_t held = Look(&StoreCore::Stats).segment_bytes;
  const uint64_t more = budget - std::min(budget, held);
  if (more > 0 && more + kProcessReserve > UsableMemory(facts)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a DRAM budget of ", budget, " bytes is ", more, " more than segments take now; ",
        UsableMemory(facts), " are free, of which ", kProcessReserve, " are kept for the process"));
  }
  return Control(&StoreCore::SetBudget, budget);
}

void WeightStore::Nudge() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof(one));
}

void WeightStore::RunPump() {
  while (!stop_.load()) {
    int timeout_ms = 0;
    StoreLog::Messages messages;
    {
      const MutexLock lock(&mutex_);
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
    const MutexLock lock(&mutex_);
    core_.EndSleep();
    for (const PollEvent& event : events) {
      core_.HandleEvent(event);
    }
  }
}

void WeightStore::RunScrub() {
  while (!AwaitScrub(ScrubOne())) {
  }
}

int64_t WeightStore::ScrubOne() {
  std::optional<Scrubber::Chunk> chunk;
  int64_t due = 0;
  {
    const MutexLock lock(&mutex_);
    chunk = core_.TakeScrub();
    due = core_.NextScrub();
  }
  if (!chunk.has_value()) {
    return due;
  }
  const absl::Status verdict = chunk->Verify();
  const MutexLock lock(&mutex_);
  if (core_.FinishScrub(*chunk, verdict)) {
    Nudge();
  }
  return due;
}

bool WeightStore::AwaitScrub(int64_t due) {
  const MutexLock lock(&scrub_mutex_);
  const int64_t wait = due - clock_.NowNanos();
  if (due == 0) {  // none before the rate is set
    while (!scrub_stop_ && !scrub_tuned_) {
      scrub_wake_.Wait(&scrub_mutex_);
    }
  } else if (!scrub_stop_ && !scrub_tuned_ && wait > 0) {
    scrub_wake_.WaitFor(&scrub_mutex_, std::chrono::nanoseconds(wait));
  }
  scrub_tuned_ = false;
  return scrub_stop_;
}

}  // namespace sluice::weightd
