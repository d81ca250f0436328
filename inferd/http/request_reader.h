// RequestReader: the bytes that a client sends, cut into requests: a head that ParseHead() finds sound, and
// its body.
//
// Nothing of who may ask or how much: the connection decides between head and body.
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

namespace sluice {

class RequestReader {
 public:
  enum class Step : uint8_t {
    kMore,     // bytes are missing
    kDone,     // the head, or the body, is there
    kRefused,  // problem() says why
  };

  void Append(const char* data, size_t size) { in_.append(data, size); }
  // What came and is no part of a request yet.
  size_t waiting_bytes() const { return in_.size(); }
  void DropWaiting() { in_.clear(); }

  // Whether a request has begun, be it with an empty line.
  bool begun() const { return parser_.has_value() || !in_.empty(); }
  bool head_done() const { return head_done_; }

  // REQUIRES: not head_done(). `fresh`: this call saw the request's first bytes. After kDone the body is to
  // be allowed, or the request ended.
  Step ReadHead(const HeadPolicy& policy, bool* fresh);
  // Of the body at most so many bytes are taken. REQUIRES: ReadHead() was done.
  void AllowBody(uint64_t limit);
  // REQUIRES: AllowBody().
  Step ReadBody();
  const HttpProblem& problem() const { return problem_; }

  // Of the last head that was done or begun; stays after End().
  ParsedHead& head() { return head_; }
  const ParsedHead& head() const { return head_; }
  // REQUIRES of these: ReadHead() was done and the request not ended.
  bool chunked() { return parser_->chunked(); }
  std::optional<uint64_t> content_length();
  size_t body_bytes() { return parser_->get().body().size(); }
  std::string TakeBody() { return std::move(parser_->get().body()); }
  // Whether the request's last byte was its head's: what comes then is the next one.
  bool is_head_alone();
  // The next bytes begin a request.
  void End();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  Step Refuse(HttpProblem problem);

  std::string in_;                // came and is not parsed
  size_t scanned_ = 0;            // of in_, for the end of the head
  std::optional<Parser> parser_;  // while a request is read
  bool head_done_ = false;
  uint64_t body_limit_ = 0;
  ParsedHead head_;
  HttpProblem problem_;
};

}  // namespace sluice
