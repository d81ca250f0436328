#include "tests/cuda_fake/device/operations.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::cuda_fake {

Operations::Operations(uint64_t seed, uint64_t questions)
    : seed_(seed), questions_(questions), random_(seed), streams_(1) {}

int64_t Operations::Now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

uint32_t Operations::NewStream(bool blocking) {
  streams_.emplace_back().blocking = blocking;
  return static_cast<uint32_t>(streams_.size() - 1);
}

bool Operations::IsStream(uint32_t stream) const {
  return stream < streams_.size() && streams_[stream].alive;
}

// "In case the device is still doing work in the stream when cudaStreamDestroy() is called, the function will
// return immediately and the resources will be released automatically once the device has completed all work"
// (Runtime API).
void Operations::DropStream(uint32_t stream) { streams_[stream].alive = false; }

void Operations::Join(Clock* into, const Clock& from) {
  into->resize(std::max(into->size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) {
    (*into)[i] = std::max((*into)[i], from[i]);
  }
}

OperationId Operations::Submit(uint32_t stream, std::string name, std::vector<std::function<void()>> steps) {
  Stream& own = streams_[stream];
  Record record;
  record.name = std::move(name);
  record.stream = stream;
  record.submitted = Now();
  record.sequence = ++own.sequence;
  record.after = std::exchange(own.waits, {});
  record.after.push_back(own.last);
  for (Stream& other : streams_) {
    const bool legacy = &other == &streams_[kLegacy];
    if (&other != &own && ((stream == kLegacy && other.blocking) || (legacy && own.blocking))) {
      record.after.push_back(other.last);
      // Waits of the other stream that no work has followed yet.
      record.after.insert(record.after.end(), other.waits.begin(), other.waits.end());
    }
  }
  std::erase(record.after, 0u);
  record.clock = host_;
  for (const OperationId id : record.after) {
    Join(&record.clock, At(id).clock);
  }
  record.clock.resize(std::max<size_t>(record.clock.size(), stream + 1));
  record.clock[stream] = record.sequence;
  record.steps = {std::make_move_iterator(steps.begin()), std::make_move_iterator(steps.end())};
  records_.push_back(std::move(record));
  const auto id = static_cast<OperationId>(records_.size());
  own.last = id;
  own.all.push_back(id);
  pending_.push_back(id);
  Turn();
  return id;
}

void Operations::WaitFor(uint32_t stream, OperationId operation) {
  if (operation != 0) {
    streams_[stream].waits.push_back(operation);
  }
}

bool Operations::IsDone(OperationId operation) const { return operation == 0 || At(operation).done; }

bool Operations::CanRun(const Record& record) const {
  return std::all_of(record.after.begin(), record.after.end(), [&](OperationId id) { return IsDone(id); });
}

void Operations::Step(OperationId id) {
  Record& record = At(id);
  if (!record.steps.empty()) {
    const std::function<void()> step = std::move(record.steps.front());
    record.steps.pop_front();
    step();
  }
  if (At(id).steps.empty()) {
    At(id).done = true;
    std::erase(pending_, id);
  }
}

void Operations::FinishChain(OperationId id) {
  while (!IsDone(id)) {
    for (const OperationId before : At(id).after) {
      FinishChain(before);
    }
    Step(id);
  }
}

void Operations::Finish(OperationId operation) {
  while (seed_ > 1 && !IsDone(operation)) {
    std::vector<OperationId> ready;
    for (const OperationId id : pending_) {
      if (CanRun(At(id))) {
        ready.push_back(id);
      }
    }
    Step(ready[random_() % ready.size()]);
  }
  FinishChain(operation);
  HostKnows(operation);
}

void Operations::FinishStream(uint32_t stream) {
  Finish(streams_[stream].last);
  for (const OperationId wait : streams_[stream].waits) {
    Finish(wait);
  }
  for (const Stream& other : streams_) {
    if (stream == kLegacy && other.blocking) {
      Finish(other.last);
    }
  }
}

void Operations::FinishAll() {
  for (const Stream& stream : streams_) {
    Finish(stream.last);
  }
}

void Operations::HostKnows(OperationId operation) {
  if (operation == 0 || IsKnown(operation)) {
    return;
  }
  Join(&host_, At(operation).clock);
  if (on_host_knows) {
    on_host_knows();
  }
}

bool Operations::IsKnown(OperationId operation) const {
  const Record& record = At(operation);
  return record.stream < host_.size() && host_[record.stream] >= record.sequence;
}

bool Operations::AnyBlocking(const std::function<bool(uint32_t)>& is) const {
  for (uint32_t stream = 1; stream < streams_.size(); ++stream) {
    if (streams_[stream].blocking && is(stream)) {
      return true;
    }
  }
  return false;
}

void Operations::Turn() {
  if (running_ || seed_ == 1) {
    return;
  }
  running_ = true;
  int64_t steps = seed_ == 0 ? INT64_MAX : static_cast<int64_t>(random_() % 4) - 1;
  while (steps-- > 0 && !pending_.empty()) {
    std::vector<OperationId> ready;
    for (const OperationId id : pending_) {
      if (CanRun(At(id))) {
        ready.push_back(id);
      }
    }
    Step(seed_ == 0 ? ready.front() : ready[random_() % ready.size()]);
  }
  running_ = false;
}

void Operations::Poll(OperationId operation) {
  if (Answers()) {
    StepTo(operation);
  }
}

void Operations::StepTo(OperationId operation) {
  for (const OperationId before : At(operation).after) {
    if (!IsDone(before)) {
      return StepTo(before);
    }
  }
  Step(operation);
}

void Operations::Drop() {
  for (const OperationId id : pending_) {
    At(id).steps.clear();
    At(id).done = true;
  }
  pending_.clear();
}

Phase Operations::SafePhase(OperationId operation) const {
  const Clock& clock = At(operation).clock;
  Phase safe = kNoPhase;
  for (size_t stream = 0; stream < streams_.size(); ++stream) {
    // The first of the stream that the clock does not have: what comes behind it has run behind it.
    const std::vector<OperationId>& all = streams_[stream].all;
    size_t next = stream < clock.size() ? clock[stream] : 0;
    while (next < all.size() && At(all[next]).done && At(all[next]).phase == kNoPhase) {
      ++next;  // it has touched nothing
    }
    if (next < all.size()) {
      safe = std::min(safe, At(all[next]).phase);
    }
  }
  return safe;
}

Scope Operations::BeginScope(OperationId operation) {
  const Phase first = phases.Begin(operation);
  Record& record = At(operation);
  record.phase = std::min(record.phase, first);
  return {operation, first, first, first, std::min(SafePhase(operation), first), &phases, this};
}

bool Operations::IsBefore(uint32_t earlier, uint32_t later) const {
  const Record& first = At(earlier);
  const Record& second = At(later);
  return first.stream < second.clock.size() && second.clock[first.stream] >= first.sequence;
}

std::string Operations::NameOf(uint32_t operation) const {
  return absl::StrCat(At(operation).name, " in stream ", At(operation).stream);
}

}  // namespace sluice::cuda_fake
