// ParseHead: parses and validates a request's head. Refuses everything that parsers interpret differently
// (request smuggling), and everything that a browser may be tricked into sending.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>  // for Boost 1.74
#include <vector>

#include "daemon/http/http_message.h"

namespace sluice {

using BeastHead = boost::beast::http::request_header<boost::beast::http::fields>;

struct HeadPolicy {
  // Accepts only names of this machine as Host (DNS rebinding): on a loopback port without keys, a web page
  // whose name resolves to this machine must not get access.
  bool local_names_only = false;
  std::vector<std::string> cors_origins;  // origins allowed for browsers; "*": all
};

struct ParsedHead {
  HttpRequest request;  // without body and client
  std::string key;      // credential of Authorization or x-api-key
  std::string origin;   // empty: none
  bool origin_allowed = false;
  bool preflight = false;  // OPTIONS request of CORS
  bool keep_alive = true;
  bool chunks = true;  // the client supports chunked bodies (HTTP/1.1)
  bool expects_continue = false;
};

// `raw`: the head's bytes, including the empty line. Returns the problem, if any; then the connection must
// not be used for further requests.
std::optional<HttpProblem> ParseHead(const BeastHead& head, std::string_view raw, const HeadPolicy& policy,
                                     ParsedHead* out);

// Returns the head of an answer as sent. `length`: of a known body; otherwise chunked or until the connection
// closes.
std::string AnswerHead(const HttpResponse& answer, const ParsedHead& request, bool keep_alive,
                       std::optional<size_t> length);

// RequestReader: splits a client's bytes into requests: a head validated by ParseHead(), and its body.
//
// It knows no keys and limits: the connection checks those between head and body.
//
// Thread safety: thread-compatible.

class RequestReader {
 public:
  enum class Step : uint8_t {
    kMore,     // more bytes are needed
    kDone,     // the head, or the body, is complete
    kRefused,  // problem() has the reason
  };

  void Append(const char* data, size_t size) { in_.append(data, size); }
  // Number of received bytes that belong to no request yet.
  size_t waiting_bytes() const { return in_.size(); }
  void DropWaiting() { in_.clear(); }

  // True if a request has begun, even with an empty line only.
  bool begun() const { return parser_.has_value() || !in_.empty(); }
  bool head_done() const { return head_done_; }

  // REQUIRES: not head_done(). `fresh`: this call received the request's first bytes. After kDone call
  // AllowBody(), or End().
  Step ReadHead(const HeadPolicy& policy, bool* fresh);
  // Sets the maximum size of the body. REQUIRES: ReadHead() returned kDone.
  void AllowBody(uint64_t limit);
  // REQUIRES: AllowBody().
  Step ReadBody();
  const HttpProblem& problem() const { return problem_; }

  // The current or last head; valid after End().
  ParsedHead& head() { return head_; }
  const ParsedHead& head() const { return head_; }
  // REQUIRES for both: ReadHead() returned kDone and the request has not ended.
  bool chunked() { return parser_->chunked(); }
  std::optional<uint64_t> content_length();
  size_t body_bytes() { return parser_->get().body().size(); }
  std::string TakeBody() { return std::move(parser_->get().body()); }
  // True if the request has no body: the next byte begins the next request.
  bool is_head_alone();
  // Ends the request; the next bytes begin another one.
  void End();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  Step Refuse(HttpProblem problem);

  std::string in_;                // received, not parsed
  size_t scanned_ = 0;            // bytes of in_ already searched for the end of the head
  std::optional<Parser> parser_;  // set while a request is read
  bool head_done_ = false;
  uint64_t body_limit_ = 0;
  ParsedHead head_;
  HttpProblem problem_;
};

}  // namespace sluice
