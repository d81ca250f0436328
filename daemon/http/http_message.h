// Interface between the HTTP server and its request handler, independent of Beast.
//
// A request is read whole, then passed to the HttpHandler on a worker thread, with an HttpExchange for the
// answer. An answer is either whole (Answer) or a stream (Begin, Write.., End); the exchange's observer is
// notified of a disconnect at once.
//
// Thread safety: documented at each class.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace sluice {

struct HttpRequest {
  std::string method;  // as sent: "POST"
  std::string path;    // percent-decoded, without query and trailing slash: "/v1/models"
  std::string body;
  std::string client;         // client id: a key's name ("key:alice"), "owner", "root", "listed" or "tcp"
  std::string request_id;     // x-request-id; empty if absent or not a short printable word
  bool foreign_form = false;  // cross-site browser request of a form that needs no CORS permission
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // empty for a stream
};

// A request refused by the server itself, before or without its handler.
struct HttpProblem {
  int status = 400;
  std::string code;  // machine-readable code, "" if the status suffices
  std::string message;
  int retry_seconds = 0;  // Retry-After, if above 0
};

// Counts of a server since its start.
struct HttpCounts {
  uint64_t connections = 0;          // open now
  uint64_t refused_connections = 0;  // closed because there were too many, or their peer may not connect
  uint64_t client_disconnects = 0;   // answers whose client went away, or was cut, before their end
  std::map<std::pair<std::string, int>, uint64_t> responses;  // by client and status
};

// Observer of an answer's delivery. Called on the server's thread; must not block.
class HttpObserver {
 public:
  virtual ~HttpObserver() = default;
  // HttpExchange::Wake() was called.
  virtual void OnReady() = 0;
  // Called about four times a second.
  virtual void OnTick(absl::Time) {}
  // The socket has accepted everything written so far.
  virtual void OnWritten() {}
  // The answer was sent completely, or (`disconnected`) the client disconnected or was cut. Nothing follows.
  virtual void OnEnded(bool disconnected) = 0;
};

// One request's answer. Thread-safe; no method blocks. Calls after the end have no effect. Calls by the
// observer take effect at once, others soon, on the server's thread.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // Sets the observer; notifies it at once if the client has already disconnected.
  virtual void SetObserver(std::shared_ptr<HttpObserver> observer) = 0;
  // Calls the observer's OnReady() on the server's thread, never within this call; calls before that are
  // coalesced.
  virtual void Wake() = 0;
  // Sends the whole answer.
  virtual void Answer(HttpResponse answer) = 0;
  // Head, parts and end of a stream. A stream that is not `whole` ends with the connection, so that the
  // client detects the truncation.
  virtual void Begin(HttpResponse head) = 0;
  virtual void Write(std::string part) = 0;
  virtual void End(bool whole) = 0;
};

// Request handler. Thread-safe.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Runs on a worker thread; may compute, but must not wait. Answers through `exchange`, now or later.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // Returns the answer for a refused request in the format of `path`. Called on the server's thread.
  virtual HttpResponse Refusal(const std::string& path, const HttpProblem& problem) = 0;
  // True if `path` needs no key.
  virtual bool IsPublic(const std::string& path) const = 0;
  // True if requests for `path` count against the limits of their key.
  virtual bool IsRateLimited(const std::string& path) const = 0;
};

}  // namespace sluice
