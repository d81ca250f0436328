// The simulation's one scheduler: tasks that pass the thread to each other by seed, and the virtual clock.
//
// A task is ready, or blocked until a condition is true or a time has come. When none is ready the clock
// jumps to the next time; when there is no such time either, all tasks wait for each other: a deadlock.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/protocol/protocol_step.h"
#include "tests/simulation/fiber.h"

namespace sluice {

using SimRandom = std::mt19937_64;

class Scheduler final : public Clock {
 public:
  class Task {
   public:
    const std::string& name() const { return name_; }

   private:
    friend class Scheduler;
    Task(std::string name, std::function<void()> body) : name_(std::move(name)), fiber_(std::move(body)) {}
    const std::string name_;
    Fiber fiber_;
    std::function<bool()> ready_;  // empty: ready
    int64_t wake_nanos_ = 0;       // 0: no time
    uint32_t weight_ = 1;
    uint64_t stalled_until_ = 0;  // no turn before this event while others are ready
  };

  explicit Scheduler(uint64_t seed);
  ~Scheduler() override;

  int64_t NowNanos() const override { return now_; }
  // The one stream of random numbers: it decides everything.
  SimRandom& random() { return random_; }
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }

  Task* Spawn(std::string name, std::function<void()> body);
  // Unwinds and forgets a task. REQUIRES: not called by the task itself.
  void Kill(Task* task);
  void KillAll();

  // Called by a task: lets others run.
  void Yield();
  // Called by a task: lets others run or not, possibly for a while, by seed; no effect outside of a task.
  void MaybeYield(uint64_t stall_one_in = 48);
  // Called by a task: gives it no turn for `events` events while others are ready.
  void StallCurrent(uint64_t events) { current_->stalled_until_ = events_ + events; }
  // Called by a task: waits until `ready` or for `nanos` (-1: no limit). False: the time has passed first.
  bool Block(std::function<bool()> ready, int64_t nanos = -1);
  void Sleep(int64_t nanos) {
    Block([] { return false; }, nanos);
  }

  // Runs tasks until `events` resumptions, a failure, or all tasks are done. `each` runs after every one.
  void Run(uint64_t events, const std::function<void()>& each);

  // True if the task could go on now.
  bool IsReady(Task* task);

  // Records the first failure and ends Run(); a task that calls it does not go on.
  void Fail(const std::string& why);
  const std::string& failure() const { return failure_; }
  uint64_t events() const { return events_; }
  // A hash of the run: equal for two runs only if they were the same.
  uint64_t digest() const { return digest_; }
  bool InTask() const { return current_ != nullptr; }
  std::string TaskNames() const;

  // Called twice for each protocol step: before the task may lose the thread to others, and right before the
  // operation.
  std::function<void(ProtocolPoint, const volatile void*, bool before_switch)> on_step;
  // Called when all tasks wait and no time will come: it may change something and return true; otherwise it
  // is a deadlock. Also called when no task is left: true if there is one now.
  std::function<bool()> on_idle;
  static Scheduler* Current();

 private:
  Task* Pick();
  void Reweigh();

  SimRandom random_;
  std::list<std::unique_ptr<Task>> tasks_;
  Task* current_ = nullptr;
  int64_t now_ = 1'000'000'000;
  uint64_t events_ = 0;
  uint64_t digest_ = 0;
  std::string failure_;
};

}  // namespace sluice
