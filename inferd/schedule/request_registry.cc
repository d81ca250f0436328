#include "inferd/schedule/request_registry.h"

#include "absl/strings/str_cat.h"
#include "common/error_detail.h"

namespace sluice {
namespace {

absl::Status QueueFull(const std::string& what) {
  return WithRetryDelay(ReasonError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                                    absl::StrCat("the queue is full: ", what)),
                        absl::Seconds(1));
}

}  // namespace

void RequestRegistry::SetLimits(const QueueLimits& limits) {
  MutexLock lock(&mutex_);
  limits_ = limits;
}

absl::StatusOr<SequenceId> RequestRegistry::Enter(const std::string& request_id, uint64_t tokens,
                                                  uint64_t bytes) {
  MutexLock lock(&mutex_);
  if (requests_.contains(request_id)) {
    return ReasonError(absl::StatusCode::kAlreadyExists, "REQUEST_EXISTS",
                       absl::StrCat("a request with the id \"", request_id, "\" is live"));
  }
  if (waiting_ >= limits_.count) {
    return QueueFull(absl::StrCat(waiting_, " of ", limits_.count, " requests wait"));
  }
  // One request may always wait, however large it is: limits of tokens and bytes bound the queue, not a
  // prompt.
  if (waiting_ > 0 && waiting_tokens_ + tokens > limits_.tokens) {
    return QueueFull(
        absl::StrCat(waiting_tokens_, " of ", limits_.tokens, " tokens wait, this has ", tokens));
  }
  if (waiting_ > 0 && waiting_bytes_ + bytes > limits_.bytes) {
    return QueueFull(absl::StrCat(waiting_bytes_, " of ", limits_.bytes, " bytes wait, this has ", bytes));
  }
  ++waiting_;
  waiting_tokens_ += tokens;
  waiting_bytes_ += bytes;
  requests_[request_id] = {++last_id_, tokens, bytes, true};
  return last_id_;
}

void RequestRegistry::StopWaiting(Request* request) {
  if (request->waiting) {
    request->waiting = false;
    --waiting_;
    waiting_tokens_ -= request->tokens;
    waiting_bytes_ -= request->bytes;
  }
}

void RequestRegistry::LeaveQueue(const std::string& request_id) {
  MutexLock lock(&mutex_);
  const auto found = requests_.find(request_id);
  if (found != requests_.end()) {
    StopWaiting(&found->second);
  }
}

void RequestRegistry::End(const std::string& request_id) {
  MutexLock lock(&mutex_);
  const auto found = requests_.find(request_id);
  if (found != requests_.end()) {
    StopWaiting(&found->second);
    requests_.erase(found);
  }
}

std::optional<SequenceId> RequestRegistry::Find(const std::string& request_id) const {
  MutexLock lock(&mutex_);
  const auto found = requests_.find(request_id);
  return found == requests_.end() ? std::nullopt : std::optional<SequenceId>(found->second.id);
}

uint64_t RequestRegistry::waiting() const {
  MutexLock lock(&mutex_);
  return waiting_;
}

uint64_t RequestRegistry::live() const {
  MutexLock lock(&mutex_);
  return requests_.size();
}

}  // namespace sluice
