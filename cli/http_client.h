// HttpClient: GET requests over libcurl, whose header is read by http_client.cc alone. Proxies are those of
// the environment (https_proxy, no_proxy), certificates the system's.
//
// Thread safety: thread-compatible.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace sluice::cli {

struct HttpRequest {
  std::string url;    // https, or http
  std::string token;  // sent to the URL's own host and port, not where it redirects to; empty: none
  uint64_t from = 0;  // asks for the bytes from here on
};

// Header of the response behind the last redirect.
struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::optional<absl::Duration> retry_after;

  // Empty without such a header.
  std::string Header(const std::string& name) const;
};

class HttpClient {
 public:
  // A piece of the body of an answer 200 or 206. An error ends the request and is what Get() returns.
  using Sink = std::function<absl::Status(const HttpHead& head, absl::Span<const std::byte> bytes)>;

  // `cancel` may be null and outlives this.
  explicit HttpClient(const std::atomic<bool>* cancel);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The head of a whole answer, whatever its status; other bodies than those of 200 and 206 are dropped.
  // UNAVAILABLE: no connection, or it broke off or stood still for a minute; FAILED_PRECONDITION: a
  // certificate that does not hold, too many redirects, an URL that is none; CANCELLED; what `sink` returned.
  absl::StatusOr<HttpHead> Get(const HttpRequest& request, const Sink& sink);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// `text` as one component of an URL's path.
std::string UrlEscape(const std::string& text);

// Decides which failures of a hub are retried, and when.
//
// Thread safety: free functions; a Retries is thread-compatible.

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
