// RequestReader: splits a client's bytes into requests: a head validated by ParseHead(), and its body.
//
// It knows no keys and limits: the connection checks those between head and body.
//
// Thread safety: thread-compatible.
#pragma once

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>  // for Boost 1.74

#include "inferd/http/http_head.h"
#include "inferd/http/http_message.h"

namespace sluice::inferd {

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

}  // namespace sluice::inferd
