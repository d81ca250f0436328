#include "inferd/grpc/stream_pump.h"

#include <utility>

#include "common/base/clock.h"

namespace sluice::inferd {

StreamPump::StreamPump(absl::Duration tick) : tick_(tick) {
  thread_ = std::thread([this] { Run(); });
}

StreamPump::~StreamPump() {
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
    wake_.Signal();
  }
  thread_.join();
}

void StreamPump::Add(std::shared_ptr<PumpedCall> call) {
  call->Enter();
  const MutexLock lock(&mutex_);
  PumpedCall* key = call.get();
  live_.emplace(key, std::move(call));
  if (live_.size() == 1 && waiting_) {
    wake_.Signal();  // the pump waits without a tick while there are no calls
  }
}

void StreamPump::Remove(PumpedCall* call) {
  std::shared_ptr<PumpedCall> last;  // destroyed after the lock
  {
    const MutexLock lock(&mutex_);
    const auto it = live_.find(call);
    if (it == live_.end()) {
      return;
    }
    last = std::move(it->second);
    live_.erase(it);
  }
  last->Leave();  // last: whoever waits for the calls may then destroy the pump
}

void StreamPump::Schedule(std::shared_ptr<PumpedCall> call) {
  // A call is in the list at most once. The pump clears the mark before it processes the call, so a
  // concurrent change schedules it again.
  if (call->scheduled_.exchange(true)) {
    return;
  }
  const MutexLock lock(&mutex_);
  ready_.push_back(std::move(call));
  if (waiting_) {
    waiting_ = false;  // one wake is enough until the pump waits again
    wake_.Signal();
  }
}

// Ticks serve to detect stalled readers, and happen only while there are calls: an idle server's thread does
// not wake up.
bool StreamPump::Await(absl::Time next_tick, std::vector<std::shared_ptr<PumpedCall>>* ready) {
  const MutexLock lock(&mutex_);
  while (ready_.empty() && !stop_) {
    waiting_ = true;
    bool woken = true;
    if (live_.empty()) {
      wake_.Wait(&mutex_);
    } else {
      woken = wake_.WaitFor(&mutex_, absl::ToChronoNanoseconds(next_tick - SteadyNow()));
    }
    waiting_ = false;
    if (!woken) {
      break;
    }
  }
  ready->swap(ready_);
  return !stop_;
}

// Calls take the pump's lock when they end, so they are checked outside of it; the references keep them alive
// meanwhile.
void StreamPump::CheckStalls(absl::Time now) {
  std::vector<std::shared_ptr<PumpedCall>> calls;
  {
    const MutexLock lock(&mutex_);
    calls.reserve(live_.size());
    for (const auto& [key, call] : live_) {
      calls.push_back(call);
    }
  }
  for (const auto& call : calls) {
    call->CheckStall(now);
  }
}

void StreamPump::Run() {
  std::vector<std::shared_ptr<PumpedCall>> ready;
  absl::Time next_tick = SteadyNow() + tick_;
  while (Await(next_tick, &ready)) {
    for (const auto& call : ready) {
      call->scheduled_.store(false);
      call->Pump();
    }
    ready.clear();
    const absl::Time now = SteadyNow();
    if (now >= next_tick) {
      CheckStalls(now);
      next_tick = now + tick_;
    }
  }
}

}  // namespace sluice::inferd
