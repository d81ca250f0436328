// HttpClient: GET requests with libcurl, whose header only http_client.cc includes. Proxies come from the
// environment (https_proxy, no_proxy), certificates from the system.
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
  std::string token;  // sent to the URL's own host and port, never to a redirect's target; empty: none
  uint64_t from = 0;  // requests the bytes from this offset on
};

// Head of the final response, after redirects.
struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::optional<absl::Duration> retry_after;

  // Returns "" without such a header.
  std::string Header(const std::string& name) const;
};

class HttpClient {
 public:
  // Receives a part of the body of a response 200 or 206. An error ends the request; Get() returns it.
  using Sink = std::function<absl::Status(const HttpHead& head, absl::Span<const std::byte> bytes)>;

  // `cancel` may be null and outlives this.
  explicit HttpClient(const std::atomic<bool>* cancel);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Returns the head of a complete response, whatever its status; bodies of responses other than 200 and 206
  // are dropped. UNAVAILABLE: no connection, or it broke or stalled for a minute; FAILED_PRECONDITION: an
  // invalid certificate, too many redirects, or an invalid URL; CANCELLED; errors of `sink`.
  absl::StatusOr<HttpHead> Get(const HttpRequest& request, const Sink& sink);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Escapes `text` as one component of a URL's path.
std::string UrlEscape(const std::string& text);

// Retries of failed requests to a hub.
//
// Thread safety: free functions; a Retries is thread-compatible.

// Status of a response about `subject`: OK for 200 and 206; UNAVAILABLE for 408, 429 and 5xx; UNAUTHENTICATED
// or PERMISSION_DENIED, saying whether a token would help, for 401 and 403; NOT_FOUND for 404 and 410;
// OUT_OF_RANGE for 416; FAILED_PRECONDITION otherwise.
absl::Status StatusOfAnswer(const HttpHead& head, const std::string& subject, bool with_token);

// Receives a text that says what is retried and after how long.
using RetryNote = std::function<void(const std::string& text)>;

// Attempts of one piece of work.
class Retries {
 public:
  Retries(const std::atomic<bool>* cancel, RetryNote note) : cancel_(cancel), note_(std::move(note)) {}

  // Called after a failed attempt: waits and returns OK if there should be another attempt, else returns
  // `failure`. Only UNAVAILABLE is retried, at most six times in a row without `progress`. Waits as long as
  // the hub asks, else twice as long as the last time. CANCELLED during the wait.
  absl::Status Wait(const absl::Status& failure, std::optional<absl::Duration> asked, bool progress);

 private:
  const std::atomic<bool>* const cancel_;
  const RetryNote note_;
  int failures_ = 0;  // in a row
};

}  // namespace sluice::cli
