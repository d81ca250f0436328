#include "tests/simulation/sim_server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// The core's lock: one task at a time, the others wait.
class Locked {
 public:
  Locked(Scheduler* scheduler, bool* locked) : locked_(locked) {
    scheduler->Block([locked] { return !*locked; });
    *locked_ = true;
  }
  ~Locked() { *locked_ = false; }

 private:
  bool* const locked_;
};

}  // namespace

SimServer::SimServer(Scheduler* scheduler, Options options, uint64_t* next_fill, SimReader::Hooks hooks)
    : scheduler_(scheduler),
      options_(std::move(options)),
      poller_(*weightd::Poller::Create()),
      bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  hooks.filled = [this, next_fill](uint64_t read, uint64_t fill) {
    const uint32_t tag = static_cast<uint32_t>(read);  // the extent; the rest distinguishes its reads
    last_fill_.resize(std::max<size_t>(last_fill_.size(), tag + 1));
    LastFillOf& last = last_fill_[tag];
    // Among concurrent reads, the first with good bytes makes its slot the extent's.
    if (fill > last.begun) {
      last = {fill, *next_fill};
    }
  };
  reader_ = std::make_unique<SimReader>(scheduler, options_.disk, next_fill, std::move(hooks));
  reader_->write_late = options_.write_late;
  reader_->SetSink([this](weightd::ReadResult result) {
    if (inbox_.Add(std::move(result)) && !options_.forget_wakes) {
      Ring();
    }
  });
  late_copier_ = std::make_shared<LateCopier>(options_.epoch);
  transfers_ = std::make_unique<TransferEngine>(
      TransferEngine::Options{.threads = 0}, scheduler,
      [this] {
        if (inbox_.Notify()) {
          Ring();
        }
      },
      std::vector<std::shared_ptr<Copier>>{late_copier_});
  weightd::StoreCore::Options core;
  core.boot_epoch = options_.epoch;
  core.arena.budget = options_.budget;
  core.arena.min_segments = 6;
  core.policy = options_.policy;
  core.scrub_rate = options_.scrub_rate;
  core.fetcher.started_bytes = 48 * 1024;
  core.fetcher.prefetch_bytes = 24 * 1024;
  if (options_.forget_wakes || options_.epoch % 2 != 0) {
    core.fetcher.slow_read_nanos = 0;  // a timeout would wake the pump and hide lost wakes
  }
  core.attach_timeout_nanos = 500'000'000;
  weightd::StoreCore::Environment environment;
  environment.reader = reader_.get();
  environment.clock = scheduler;
  environment.poller = &poller_;
  environment.transfers = transfers_.get();
  core_ = std::make_unique<weightd::StoreCore>(core, environment);
  for (const SimPack::Shape& shape : options_.packs) {
    const auto added = core_->AddPack(std::make_unique<SimPack>(shape), {static_cast<int>(shape.number)});
    if (!added.ok()) {
      scheduler_->Fail(added.status().ToString());
    }
  }
  if (!poller_.WatchBell(bell_.get(), weightd::PollEvent{}).ok()) {
    scheduler_->Fail("epoll");
  }
  pump_ = scheduler_->Spawn("pump", [this] { RunPump(); });
  control_ = scheduler_->Spawn("control", [this] { RunControl(); });
  copier_ = scheduler_->Spawn("copier", [this] { RunCopier(); });
  if (options_.scrub_rate != 0) {
    scrub_ = scheduler_->Spawn("scrub", [this] { RunScrub(); });
  }
}

SimServer::~SimServer() {
  late_copier_->Die();
  scheduler_->Kill(pump_);
  scheduler_->Kill(control_);
  scheduler_->Kill(copier_);
  if (scrub_ != nullptr) {
    scheduler_->Kill(scrub_);
  }
  reader_->SetSink([](weightd::ReadResult) {});
}

void SimServer::Ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof(one));
}

bool SimServer::HasEvents() {
  if (events_.empty()) {
    events_ = poller_.Wait(0);
  }
  return !events_.empty() || !exits_.empty();
}

bool SimServer::SleepsSoundly() { return asleep_ && !HasEvents(); }

// WeightStore's pump thread, with a virtual sleep.
void SimServer::RunPump() {
  while (true) {
    int timeout_ms = 0;
    {
      const Locked lock(scheduler_, &locked_);
      timeout_ms = weightd::PumpTurn(core_.get(), &inbox_, *scheduler_);
      core_->TakeLog();
    }
    if (timeout_ms != 0) {
      asleep_ = true;
      scheduler_->Block([this] { return HasEvents(); },
                        timeout_ms < 0 ? -1 : int64_t{timeout_ms} * 1'000'000);
      asleep_ = false;
    } else {
      HasEvents();
      scheduler_->Yield();
    }
    inbox_.EndSleep();
    const Locked lock(scheduler_, &locked_);
    core_->EndSleep();
    for (const weightd::PollEvent& event : std::exchange(events_, {})) {
      core_->HandleEvent(event);
    }
    while (!exits_.empty()) {
      const uint64_t session = exits_.front();
      exits_.pop_front();
      core_->HandleEvent({session, weightd::PollKind::kProcess});
    }
  }
}

// The engine's threads: one chunk per turn, and arrivals on the modelled link.
void SimServer::RunCopier() {
  while (true) {
    const int64_t arrival = transfers_->NextArrival();
    scheduler_->Block([this] { return transfers_->Step(); },
                      arrival == 0 ? -1 : std::max<int64_t>(1, arrival - scheduler_->NowNanos()));
  }
}

// WeightStore's scrub thread.
void SimServer::RunScrub() {
  while (true) {
    std::optional<weightd::Scrubber::Chunk> chunk;
    int64_t due = 0;
    {
      const Locked lock(scheduler_, &locked_);
      chunk = core_->TakeScrub();
      due = core_->NextScrub();
      scrubbing_ = chunk.has_value();
    }
    if (chunk.has_value()) {
      scheduler_->MaybeYield();
      const absl::Status verdict = chunk->Verify();
      scheduler_->MaybeYield();
      bool again = false;
      {
        const Locked lock(scheduler_, &locked_);
        again = core_->FinishScrub(*chunk, verdict);
        scrubbing_ = false;
      }
      if (again) {
        Ring();
      }
    }
    scheduler_->Sleep(std::max<int64_t>(1, due - scheduler_->NowNanos()));
  }
}

void SimServer::RunControl() {
  while (true) {
    auto next = calls_.end();
    scheduler_->Block([this, &next] {
      next = std::find_if(calls_.begin(), calls_.end(),
                          [](const std::shared_ptr<Call>& call) { return !call->ready || call->ready(); });
      return next != calls_.end();
    });
    const std::shared_ptr<Call> call = *next;
    calls_.erase(next);
    {
      const Locked lock(scheduler_, &locked_);
      call->run(core_.get());
    }
    call->done = true;
    Ring();
  }
}

}  // namespace sluice
