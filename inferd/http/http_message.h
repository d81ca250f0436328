// What the HTTP server and those who answer its requests say to each other. Nothing here knows of Beast.
//
// A request is read whole, then handed to the HttpHandler on a worker thread, with an HttpExchange to answer
// it by. An answer is either whole (Answer) or a stream (Begin, Write.., End); a client that leaves is told
// to the exchange's watcher at once.
//
// Thread safety: as said at each class.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

struct HttpRequest {
  std::string method;  // as sent: "POST"
  std::string path;    // percent-decoded, without query and trailing slash: "/v1/models"
  std::string body;
  std::string client;         // who asks: a key's name ("key:alice"), "owner", "root", "listed" or "tcp"
  std::string request_id;     // x-request-id; empty if there is none or it is no short printable word
  bool foreign_form = false;  // a browser sent it from another site, in a way that asks for no permission
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // empty in the head of a stream
};

// A request that the server refuses by itself, before or without its handler.
struct HttpProblem {
  int status = 400;
  std::string code;  // a word for programs, "" if the status says it
  std::string message;
  int retry_seconds = 0;  // above 0: Retry-After
};

// Hears how an answer fares. Called by the server's thread; must not block.
class HttpWatcher {
 public:
  virtual ~HttpWatcher() = default;
  // The socket has taken everything that was written so far.
  virtual void OnWritten() = 0;
  // The answer has been sent to its end, or (`gone`) the client has left or was cut. Nothing follows.
  virtual void OnOver(bool gone) = 0;
};

// One request's answer. Thread-safe; none of its methods blocks. Calls after the end do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // From now on `watcher` is told; at once if the client has left already.
  virtual void Watch(std::shared_ptr<HttpWatcher> watcher) = 0;
  // The whole answer.
  virtual void Answer(HttpAnswer answer) = 0;
  // A stream's head, its parts and its end. A stream that is not `whole` ends with the connection, so that
  // the client sees that something is missing.
  virtual void Begin(HttpAnswer head) = 0;
  virtual void Write(std::string part) = 0;
  virtual void End(bool whole) = 0;
};

// Answers requests. Thread-safe.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // On a worker thread, which it may keep busy but not wait on. Answers by `exchange`, now or later.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // How a refusal looks to the clients of `path`. On the server's thread.
  virtual HttpAnswer Refusal(const std::string& path, const HttpProblem& problem) = 0;
  // Whether `path` is answered without a key.
  virtual bool IsOpen(const std::string& path) const = 0;
  // Whether requests for `path` count against the limits of their key.
  virtual bool IsCounted(const std::string& path) const = 0;
};

}  // namespace sluice
