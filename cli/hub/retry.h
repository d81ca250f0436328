// Decides which failures of a hub are retried, and when.
//
// Thread safety: free functions; a Retries is thread-compatible.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/hub/http_client.h"

namespace sluice::cli {

// Status of a response for `subject`: OK for 200 and 206. UNAVAILABLE for 408, 429 and 5xx;
// UNAUTHENTICATED or PERMISSION_DENIED, saying what a token would change, for 401 and 403; NOT_FOUND for 404
// and 410; OUT_OF_RANGE for 416; FAILED_PRECONDITION otherwise.
absl::Status StatusOfAnswer(const HttpHead& head, const std::string& subject, bool with_token);

// Hears what is waited for and how long.
using RetryNote = std::function<void(const std::string& text)>;

// The attempts of one piece of work.
class Retries {
 public:
  Retries(const std::atomic<bool>* cancel, RetryNote note) : cancel_(cancel), note_(std::move(note)) {}

  // After an attempt that failed: waits and returns OK if there should be another, else the failure. Only
  // UNAVAILABLE is tried again, six times in a row unless `progress` was made. Waits as long as the hub asks,
  // twice as long as before if it says nothing; CANCELLED while it waits.
  absl::Status Wait(const absl::Status& failure, std::optional<absl::Duration> asked, bool progress);

 private:
  const std::atomic<bool>* const cancel_;
  const RetryNote note_;
  int failures_ = 0;  // in a row
};

}  // namespace sluice::cli
