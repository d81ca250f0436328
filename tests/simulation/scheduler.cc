#include "tests/simulation/scheduler.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// The scheduler whose tasks run on this thread: protocol steps are free functions and must find it.
thread_local Scheduler* current_scheduler = nullptr;

constexpr uint64_t kReweighEvery = 400;
constexpr uint64_t kLongestStall = 150;

}  // namespace

Scheduler::Scheduler(uint64_t seed) : random_(seed) { current_scheduler = this; }

Scheduler::~Scheduler() {
  KillAll();
  current_scheduler = nullptr;
}

Scheduler* Scheduler::Current() { return current_scheduler; }

Scheduler::Task* Scheduler::Spawn(std::string name, std::function<void()> body) {
  tasks_.push_back(std::unique_ptr<Task>(new Task(std::move(name), std::move(body))));
  return tasks_.back().get();
}

void Scheduler::Kill(Task* task) {
  Task* const caller = std::exchange(current_, task);
  task->fiber_.Kill();
  current_ = caller;
  tasks_.remove_if([task](const std::unique_ptr<Task>& t) { return t.get() == task; });
}

void Scheduler::KillAll() {
  while (!tasks_.empty()) {
    Kill(tasks_.front().get());
  }
}

void Scheduler::Yield() { current_->fiber_.Pause(); }

void Scheduler::MaybeYield(uint64_t stall_one_in) {
  // A task that is being unwound only runs destructors: no other task may see it any more.
  if (current_ == nullptr || std::uncaught_exceptions() != 0) {
    return;
  }
  if (Chance(stall_one_in)) {
    StallCurrent(Below(kLongestStall));  // it is preempted at the worst moment
  }
  if (!Chance(3)) {
    Yield();
  }
}

bool Scheduler::Block(std::function<bool()> ready, int64_t nanos) {
  Task* const task = current_;
  task->ready_ = std::move(ready);
  task->wake_nanos_ = nanos < 0 ? 0 : now_ + nanos;
  Yield();
  const bool came = task->ready_();
  task->ready_ = nullptr;
  task->wake_nanos_ = 0;
  return came;
}

bool Scheduler::IsReady(Task* task) {
  return !task->ready_ || (task->wake_nanos_ != 0 && task->wake_nanos_ <= now_) || task->ready_();
}

// Some tasks are slow for a while and some fast: this gives orders that an even choice would hardly ever
// give.
void Scheduler::Reweigh() {
  for (const auto& task : tasks_) {
    task->weight_ = Chance(3) ? 1 : Chance(3) ? 30 : 6;
  }
}

Scheduler::Task* Scheduler::Pick() {
  uint64_t total = 0;
  for (const auto& task : tasks_) {
    total += task->weight_;
  }
  uint64_t left = total == 0 ? 0 : Below(total);
  auto at = tasks_.begin();
  while (at != tasks_.end() && left >= (*at)->weight_) {
    left -= (*at)->weight_;
    ++at;
  }
  // Picks the first ready task from the drawn one on; a stalled one only if there is no other. Only the task
  // that will run is asked whether it is ready: the question may consume the event it waits for.
  for (const bool stalled : {false, true}) {
    for (size_t looked = 0; looked < tasks_.size(); ++looked) {
      at = at == tasks_.end() ? tasks_.begin() : at;
      Task* const task = at->get();
      if ((task->stalled_until_ > events_) == stalled && IsReady(task)) {
        return task;
      }
      ++at;
    }
  }
  int64_t next = 0;
  for (const auto& task : tasks_) {
    if (task->wake_nanos_ != 0 && (next == 0 || task->wake_nanos_ < next)) {
      next = task->wake_nanos_;
    }
  }
  if (next == 0 && on_idle && on_idle()) {
    return Pick();
  }
  if (next == 0) {
    Fail(absl::StrCat("deadlock: everybody waits:", TaskNames()));
    return nullptr;
  }
  now_ = next;
  return Pick();
}

std::string Scheduler::TaskNames() const {
  std::string names;
  for (const auto& task : tasks_) {
    absl::StrAppend(&names, " ", task->name_, task->ready_ ? " (blocked)" : "");
  }
  return names;
}

void Scheduler::Run(uint64_t events, const std::function<void()>& each) {
  const uint64_t end = events_ + events;
  while (events_ < end && failure_.empty() && (!tasks_.empty() || (on_idle && on_idle()))) {
    if (events_ % kReweighEvery == 0) {
      Reweigh();
    }
    Task* const task = Pick();
    if (task == nullptr) {
      return;
    }
    ++events_;
    now_ += static_cast<int64_t>(50 + Below(2000));
    digest_ = (digest_ ^ std::hash<std::string>()(task->name_) ^ static_cast<uint64_t>(now_)) *
              0x9e3779b97f4a7c15ull;
    current_ = task;
    task->fiber_.Resume();
    current_ = nullptr;
    if (task->fiber_.done()) {
      tasks_.remove_if([task](const std::unique_ptr<Task>& t) { return t.get() == task; });
    }
    each();
  }
}

void Scheduler::Fail(const std::string& why) {
  if (failure_.empty()) {
    failure_ =
        absl::StrCat("event ", events_, ", ", current_ == nullptr ? "nobody" : current_->name_, ": ", why);
  }
  if (current_ != nullptr && std::uncaught_exceptions() == 0) {
    Yield();  // never to be resumed: its next action might crash
  }
}

// ---------------------------------------------------------------- common/protocol/protocol_step.h

void ProtocolStep(ProtocolPoint point, const volatile void* word) {
  Scheduler* const scheduler = Scheduler::Current();
  if (scheduler == nullptr || !scheduler->InTask()) {
    return;
  }
  if (scheduler->on_step) {
    scheduler->on_step(point, word, /*before_switch=*/true);
  }
  // Where two sides decide by each other's words, a task is preempted more often.
  const bool decisive = point == ProtocolPoint::kEvictMark || point == ProtocolPoint::kEvictDecide ||
                        point == ProtocolPoint::kLeaseCheck || point == ProtocolPoint::kSleepCheck;
  scheduler->MaybeYield(decisive ? 6 : 48);
  if (scheduler->on_step) {
    scheduler->on_step(point, word, /*before_switch=*/false);
  }
}

int ProtocolPoll(pollfd* fds, nfds_t count, int timeout_ms) {
  Scheduler* const scheduler = Scheduler::Current();
  // Clients express "no limit" as an hour.
  const bool limited = timeout_ms >= 0 && timeout_ms < 3'600'000;
  scheduler->Block([fds, count] { return poll(fds, count, 0) > 0; },
                   limited ? int64_t{timeout_ms} * 1'000'000 : -1);
  return poll(fds, count, 0);
}

int ProtocolEpollWait(int epoll, epoll_event* events, int max_events, int timeout_ms) {
  pollfd polled{epoll, POLLIN, 0};
  ProtocolPoll(&polled, 1, timeout_ms);
  return epoll_wait(epoll, events, max_events, 0);
}

}  // namespace sluice
