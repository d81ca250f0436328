// Work in streams: what waits for what, what is known to be before what, and a seeded scheduler that runs it.
// There are no threads: an operation runs when the host waits for it, or when the scheduler takes its turn
// inside a call.
//
// Clocks: each stream counts its operations. An operation's clock says, for every stream, up to which of its
// operations is known to be done before it begins: by its own stream's order, by the events it waits for, and
// by what the host knew when it submitted it, because it had waited.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda_fake/interp/shadow.h"

namespace sluice::cuda_fake {

using OperationId = uint32_t;  // from 1 on; 0: none

class Operations : public Ordering {
 public:
  // Seed 0: everything as soon as it is submitted; 1: nothing before it is waited for; others: by chance.
  // `questions`: a host that asks whether something is done is told something new each time that it has
  // asked so often.
  explicit Operations(uint64_t seed, uint64_t questions = 1);

  // The legacy default stream. "The legacy default stream ... synchronizes with all other streams in the same
  // context except for non-blocking streams" (Runtime API, Stream synchronization behavior).
  static constexpr uint32_t kLegacy = 0;
  uint32_t NewStream(bool blocking);
  // True if a stream of this number lives.
  bool IsStream(uint32_t stream) const;
  void DropStream(uint32_t stream);

  // Enqueues work. `steps` run in order, other operations may come between them.
  OperationId Submit(uint32_t stream, std::string name, std::vector<std::function<void()>> steps);
  // The number that the next Submit() will give.
  OperationId NextId() const { return static_cast<OperationId>(records_.size() + 1); }
  // Makes later work in `stream` wait for `operation`.
  void WaitFor(uint32_t stream, OperationId operation);
  OperationId Last(uint32_t stream) const { return streams_.at(stream).last; }

  bool IsDone(OperationId operation) const;
  // Runs until it is done; the host knows then that it is.
  void Finish(OperationId operation);
  void FinishStream(uint32_t stream);
  void FinishAll();
  // The host has learnt that it is done, and what it comes behind.
  void HostKnows(OperationId operation);
  // True if the host has learnt so far that the operation is done.
  bool IsKnown(OperationId operation) const;
  // Called when it has.
  std::function<void()> on_host_knows;
  // True if `is` holds for a stream that the legacy stream waits for.
  bool AnyBlocking(const std::function<bool(uint32_t)>& is) const;
  // A turn of the scheduler, by the seed.
  void Turn();
  // A host that asks again and again sees it done at last, whatever the seed: one step on the way to it.
  void Poll(OperationId operation);
  // True if the host has asked often enough to get an answer.
  bool Answers() { return ++asked_ % questions_ == 0; }
  // Forgets everything that waits: the device has failed.
  void Drop();

  // Returns the scope of an operation's accesses: it runs now, in a phase of its own.
  Scope BeginScope(OperationId operation);
  // The lowest phase of what has run and is not known to be done before the operation begins.
  Phase SafePhase(OperationId operation) const;
  Phases phases;

  bool IsBefore(uint32_t earlier, uint32_t later) const override;
  std::string NameOf(uint32_t operation) const override;

  // By a clock that all processes share, in nanoseconds.
  static int64_t Now();
  int64_t SubmittedAt(OperationId operation) const { return At(operation).submitted; }

 private:
  using Clock = std::vector<uint32_t>;
  struct Record {
    std::string name;
    uint32_t stream = 0;
    uint32_t sequence = 0;
    int64_t submitted = 0;
    Clock clock;
    std::vector<OperationId> after;
    std::deque<std::function<void()>> steps;
    bool done = false;
    Phase phase = kNoPhase;  // in which it first ran
  };
  struct Stream {
    bool blocking = true;
    bool alive = true;
    OperationId last = 0;
    uint32_t sequence = 0;
    std::vector<OperationId> waits;  // for the next operation
    std::vector<OperationId> all;    // by sequence
  };

  Record& At(OperationId id) { return records_[id - 1]; }
  const Record& At(OperationId id) const { return records_[id - 1]; }
  bool CanRun(const Record& record) const;
  void Step(OperationId id);
  void FinishChain(OperationId id);
  void StepTo(OperationId operation);
  static void Join(Clock* into, const Clock& from);

  uint64_t seed_;
  uint64_t questions_;
  uint64_t asked_ = 0;
  std::mt19937_64 random_;
  std::deque<Record> records_;
  std::vector<Stream> streams_;
  std::vector<OperationId> pending_;  // in order of submission
  Clock host_;
  bool running_ = false;
};

}  // namespace sluice::cuda_fake
