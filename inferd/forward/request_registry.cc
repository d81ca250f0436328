#include "inferd/forward/request_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

// Retry delay of a refused client before any queue place has come free.
constexpr absl::Duration kFirstRetry = absl::Seconds(1);
// A client that holds all but this share (1/8) of the queue's places gets no more.
constexpr uint32_t kShareOfOthers = 8;
// Weight of the latest interval between two freed places.
constexpr double kLatest = 0.2;

}  // namespace

absl::Status RequestRegistry::QueueFull(const std::string& what) {
  const absl::Duration delay = RetryDelayLocked();
  ++refused_;
  return WithRetryDelay(ReasonError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                                    absl::StrCat("the queue is full: ", what)),
                        delay);
}

absl::Duration RequestRegistry::RetryDelay() const {
  MutexLock lock(&mutex_);
  return RetryDelayLocked();
}

absl::Duration RequestRegistry::RetryDelayLocked() const {
  const absl::Duration delay =
      pace_nanos_ == 0 ? kFirstRetry : absl::Nanoseconds(pace_nanos_ * (1.0 + refused_));
  return std::clamp(delay, kMinRetry, kMaxRetry);
}

void RequestRegistry::SetLimits(const QueueLimits& limits) {
  MutexLock lock(&mutex_);
  limits_ = limits;
}

absl::Status RequestRegistry::CheckQueueSpace(const std::string& client) {
  MutexLock lock(&mutex_);
  return CheckQueueSpaceLocked(client);
}

absl::Status RequestRegistry::CheckQueueSpaceLocked(const std::string& client) {
  if (waiting_ >= limits_.count) {
    return QueueFull(absl::StrCat(waiting_, " of ", limits_.count, " requests wait"));
  }
  const uint32_t for_others = limits_.count / kShareOfOthers;
  const auto own = waiting_of_.find(client);
  if (own != waiting_of_.end() && own->second >= for_others && for_others > 0 &&
      waiting_ >= limits_.count - for_others) {
    return QueueFull(absl::StrCat(own->second, " of the ", waiting_,
                                  " requests that wait are this client's, the last ", for_others, " of ",
                                  limits_.count, " places are for others"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SequenceId> RequestRegistry::Enter(const std::string& request_id, uint64_t tokens,
                                                  uint64_t bytes, const std::string& client) {
  MutexLock lock(&mutex_);
  if (requests_.contains(request_id)) {
    return ReasonError(absl::StatusCode::kAlreadyExists, "REQUEST_EXISTS",
                       absl::StrCat("a request with the id \"", request_id, "\" is live"));
  }
  RETURN_IF_ERROR(CheckQueueSpaceLocked(client));
  // One request may always wait, whatever its size: limits of tokens and bytes bound the queue, not a prompt.
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
  waiting_of_[client]++;
  requests_[request_id] = {++last_id_, tokens, bytes, client, true};
  return last_id_;
}

void RequestRegistry::StopWaiting(Request* request) {
  if (request->waiting) {
    request->waiting = false;
    const int64_t now = clock_->NowNanos();
    if (waiting_ > 1 && freed_nanos_ != 0) {  // a single one tells when a request came, not the pace
      const double pace = static_cast<double>(now - freed_nanos_);
      pace_nanos_ = pace_nanos_ == 0 ? pace : kLatest * pace + (1 - kLatest) * pace_nanos_;
    }
    refused_ = 0;
    --waiting_;
    freed_nanos_ = waiting_ > 0 ? now : 0;
    const auto own = waiting_of_.find(request->client);
    if (--own->second == 0) {
      waiting_of_.erase(own);
    }
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

}  // namespace sluice::inferd
