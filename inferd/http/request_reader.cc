#include "inferd/http/request_reader.h"

#include <limits>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sluice::inferd {
namespace {

namespace http = boost::beast::http;

constexpr size_t kMaxHeadBytes = 32 << 10;

// Returns the reason for which the bytes cannot become a head, so that there is no need to wait for the rest:
// another protocol (TLS on a plain port), or wrong line ends. Null if they can. Bytes before `from` were
// checked before.
const char* HeadError(const std::string& in, size_t from) {
  if (const char first = in[0]; !absl::ascii_isalpha(static_cast<unsigned char>(first))) {
    return first == 0x16 ? "this port speaks plain HTTP, and TLS came" : "it begins with no method";
  }
  for (size_t at = in.find('\n', from); at != std::string::npos; at = in.find('\n', at + 1)) {
    if (in[at - 1] != '\r') {
      return "a line ends without CR";
    }
    if (at >= 3 && in[at - 2] == '\n') {
      break;  // the head's end: the body is not examined
    }
  }
  return nullptr;
}

}  // namespace

RequestReader::Step RequestReader::Refuse(HttpProblem problem) {
  problem_ = std::move(problem);
  return Step::kRefused;
}

RequestReader::Step RequestReader::ReadHead(const HeadPolicy& policy, bool* fresh) {
  *fresh = false;
  if (!parser_.has_value()) {
    const size_t first = in_.find_first_not_of("\r\n");  // empty lines before a request are ignored
    in_.erase(0, first == std::string::npos ? in_.size() : first);
    if (in_.empty()) {
      return Step::kMore;
    }
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // AllowBody() sets the actual limit
    scanned_ = 0;
    head_ = {};
    *fresh = true;
  }
  if (const char* why = HeadError(in_, scanned_); why != nullptr) {
    return Refuse({400, "bad_request", absl::StrCat("this is no HTTP request: ", why)});
  }
  const size_t end = in_.find("\r\n\r\n", scanned_ > 3 ? scanned_ - 3 : 0);
  if (end == std::string::npos ? in_.size() > kMaxHeadBytes : end > kMaxHeadBytes) {
    return Refuse(
        {431, "", absl::StrCat("the head of the request is longer than ", kMaxHeadBytes, " bytes")});
  }
  if (end == std::string::npos) {
    scanned_ = in_.size();
    return Step::kMore;
  }
  boost::system::error_code error;
  const size_t used = parser_->put(boost::asio::buffer(in_.data(), end + 4), error);
  if (error == http::error::need_more) {
    error = {};
  }
  if (error || !parser_->is_header_done() || used != end + 4) {
    return Refuse({400, "bad_request", absl::StrCat("this is no HTTP request: ", error.message())});
  }
  if (std::optional<HttpProblem> problem =
          ParseHead(parser_->get(), std::string_view(in_).substr(0, end + 4), policy, &head_);
      problem.has_value()) {
    head_.keep_alive = false;
    return Refuse(*std::move(problem));
  }
  in_.erase(0, end + 4);
  return Step::kDone;
}

void RequestReader::AllowBody(uint64_t limit) {
  body_limit_ = limit;
  parser_->body_limit(limit);
  parser_->eager(true);
  head_done_ = true;
}

RequestReader::Step RequestReader::ReadBody() {
  boost::system::error_code error;
  while (!in_.empty() && !parser_->is_done()) {
    const size_t used = parser_->put(boost::asio::buffer(in_), error);
    in_.erase(0, used);
    if (error == http::error::need_more) {
      error = {};
      break;
    }
    if (error || used == 0) {
      break;
    }
  }
  if (error) {
    head_.keep_alive = false;
    const bool large = error == http::error::body_limit;
    return Refuse({large ? 413 : 400, "",
                   large ? absl::StrCat("the body has more than ", body_limit_, " bytes")
                         : absl::StrCat("the body is broken: ", error.message())});
  }
  return parser_->is_done() ? Step::kDone : Step::kMore;
}

std::optional<uint64_t> RequestReader::content_length() {
  const boost::optional<uint64_t> length = parser_->content_length();
  return length.has_value() ? std::optional<uint64_t>(*length) : std::nullopt;
}

bool RequestReader::is_head_alone() {
  return parser_.has_value() && parser_->is_header_done() && !parser_->chunked() &&
         parser_->content_length().value_or(0) == 0;
}

void RequestReader::End() {
  parser_.reset();
  head_done_ = false;
}

}  // namespace sluice::inferd
