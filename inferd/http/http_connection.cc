#include "inferd/http/http_connection.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "inferd/http/connection_exchange.h"

namespace sluice {
namespace {

namespace http = boost::beast::http;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxHeadBytes = 32 << 10;
// What a client may send ahead while it is being answered.
constexpr size_t kMaxAheadBytes = 64 << 10;
constexpr absl::Duration kLingerPatience = absl::Seconds(2);
constexpr size_t kBodyBytesPerSecond = 8 << 10;
// Why the beginning of a head cannot become one, for which the rest need not be waited for: another protocol
// (TLS on a plain port), or lines that end otherwise. Null if it can. What stands before `from` was seen.
const char* WhyNoHead(const std::string& in, size_t from) {
  if (const char first = in[0]; !absl::ascii_isalpha(static_cast<unsigned char>(first))) {
    return first == 0x16 ? "this port speaks plain HTTP, and TLS came" : "it begins with no method";
  }
  for (size_t at = in.find('\n', from); at != std::string::npos; at = in.find('\n', at + 1)) {
    if (in[at - 1] != '\r') {
      return "a line ends without CR";
    }
    if (at >= 3 && in[at - 2] == '\n') {
      break;  // the head's end: the body is not looked at
    }
  }
  return nullptr;
}

constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpCore> core, std::shared_ptr<Transport> transport,
                               std::shared_ptr<const HttpOrigin> origin)
    : core_(std::move(core)),
      transport_(std::move(transport)),
      origin_(std::move(origin)),
      since_(absl::Now()),
      progress_(since_) {}

void HttpConnection::Start() {
  transport_->Handshake([self = shared_from_this()](boost::system::error_code error, size_t) {
    if (error || self->state_ != State::kHandshake) {
      self->Drop();
      return;
    }
    self->state_ = State::kReading;
    self->since_ = absl::Now();
    self->StartRead();
  });
}

std::optional<absl::Time> HttpConnection::idle_since() const {
  return state_ == State::kReading && in_.empty() && !parser_.has_value() ? std::optional(since_)
                                                                          : std::nullopt;
}

void HttpConnection::Tick(absl::Time now) {
  const HttpLimits& limits = core_->limits;
  if ((!writing_.empty() || !out_.empty()) && now > progress_ + core_->stall_timeout()) {
    Drop();
    return;
  }
  if (state_ == State::kHandshake && now > since_ + limits.head_patience) {
    Drop();
  } else if (idle_since().has_value()) {
    if (now > since_ + limits.idle_patience) {
      Drop();
    }
  } else if (state_ == State::kReading && !head_done_) {
    if (now > since_ + limits.head_patience) {
      Refuse({408, "", "the head of the request took too long"});
    }
  } else if (state_ == State::kReading) {
    const auto earned =
        absl::Seconds(static_cast<int64_t>(parser_->get().body().size() / kBodyBytesPerSecond));
    if (now > since_ + limits.body_patience + earned) {
      Refuse({408, "", "the body of the request came too slowly"});
    }
  } else if (state_ == State::kLingering && now > since_ + kLingerPatience) {
    Drop();
  }
}

void HttpConnection::Drop() {
  if (state_ == State::kClosed) {
    return;
  }
  const std::shared_ptr<HttpConnection> self = shared_from_this();  // the core may hold the last one
  const bool answering = state_ == State::kAnswering;
  state_ = State::kClosed;
  transport_->Close();
  if (answering) {
    core_->metrics.Left();
    if (watcher_ != nullptr) {
      watcher_->OnOver(/*gone=*/true);
    }
  }
  ForgetRequest();
  core_->connections.erase(self);
  core_->metrics.ConnectionsAre(core_->connections.size());
}

void HttpConnection::Drain() {
  keep_alive_ = false;
  if (state_ == State::kReading || state_ == State::kHandshake) {
    Drop();
  }
}

void HttpConnection::StartRead() {
  if (reading_ || state_ == State::kClosed) {
    return;
  }
  reading_ = true;
  read_buffer_.resize(kReadBytes);
  transport_->Read(read_buffer_.data(), read_buffer_.size(),
                   [self = shared_from_this()](boost::system::error_code error, size_t size) {
                     self->OnRead(error, size);
                   });
}

void HttpConnection::OnRead(boost::system::error_code error, size_t size) {
  reading_ = false;
  if (state_ == State::kClosed) {
    return;
  }
  if (error) {
    Drop();  // a client that has stopped sending is taken for gone: there is no telling them apart
    return;
  }
  if (state_ != State::kLingering) {
    in_.append(read_buffer_.data(), size);
    if (state_ == State::kAnswering && in_.size() > kMaxAheadBytes) {
      Drop();
      return;
    }
    Advance();
  }
  StartRead();
}

void HttpConnection::Advance() {
  while (state_ == State::kReading) {
    if (!head_done_ ? !ReadHead() : !ReadBody()) {
      return;
    }
  }
}

bool HttpConnection::ReadHead() {
  if (!parser_.has_value()) {
    const size_t first = in_.find_first_not_of("\r\n");  // empty lines before a request are nothing
    in_.erase(0, first == std::string::npos ? in_.size() : first);
    if (in_.empty()) {
      return false;
    }
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // AdmitHead() sets the one that holds
    since_ = absl::Now();
    scanned_ = 0;
    head_ = {};
  }
  if (const char* why = WhyNoHead(in_, scanned_); why != nullptr) {
    Refuse({400, "bad_request", absl::StrCat("this is no HTTP request: ", why)});
    return false;
  }
  const size_t end = in_.find("\r\n\r\n", scanned_ > 3 ? scanned_ - 3 : 0);
  if (end == std::string::npos ? in_.size() > kMaxHeadBytes : end > kMaxHeadBytes) {
    Refuse({431, "", absl::StrCat("the head of the request is longer than ", kMaxHeadBytes, " bytes")});
    return false;
  }
  if (end == std::string::npos) {
    scanned_ = in_.size();
    return false;
  }
  boost::system::error_code error;
  const size_t used = parser_->put(boost::asio::buffer(in_.data(), end + 4), error);
  if (error == http::error::need_more) {
    error = {};
  }
  if (error || !parser_->is_header_done() || used != end + 4) {
    Refuse({400, "bad_request", absl::StrCat("this is no HTTP request: ", error.message())});
    return false;
  }
  const std::optional<HttpProblem> problem =
      ParseHead(parser_->get(), std::string_view(in_).substr(0, end + 4), origin_->policy, &head_);
  if (problem.has_value()) {
    head_.keep_alive = false;
    Refuse(*problem);
    return false;
  }
  in_.erase(0, end + 4);
  return AdmitHead();
}

// Before a byte of the body is read: who asks, and how much is to come.
bool HttpConnection::AdmitHead() {
  if (head_.request.method == "OPTIONS") {
    AnswerOptions();
    return false;
  }
  if (const std::optional<HttpProblem> problem = CheckKey(); problem.has_value()) {
    Refuse(*problem);
    return false;
  }
  const boost::optional<uint64_t> length = parser_->content_length();
  const HttpLimits& limits = core_->limits;
  if (length.has_value() && *length > limits.max_body_bytes) {
    Refuse({413, "", absl::StrCat("the body has ", *length, " bytes, at most ", limits.max_body_bytes)});
    return false;
  }
  // A chunked body does not say how long it will be, so the most is set aside for it.
  reserved_bytes_ = parser_->chunked() ? limits.max_body_bytes : static_cast<size_t>(length.value_or(0));
  if (core_->bodies_bytes + reserved_bytes_ > std::max(limits.max_bodies_bytes, limits.max_body_bytes)) {
    reserved_bytes_ = 0;
    Refuse({429, "", "too many bytes of requests are being read", /*retry_seconds=*/1});
    return false;
  }
  core_->bodies_bytes += reserved_bytes_;
  if (head_.expects_continue && reserved_bytes_ > 0) {
    Send(kContinue);
  }
  parser_->body_limit(limits.max_body_bytes);
  parser_->eager(true);
  head_done_ = true;
  return true;
}

std::optional<HttpProblem> HttpConnection::CheckKey() {
  head_.request.client = origin_->client;
  if (core_->keys == nullptr || core_->handler->IsOpen(head_.request.path)) {
    return std::nullopt;
  }
  const std::shared_ptr<HttpKeyUse> use = core_->keys->Find(head_.key);
  if (use == nullptr) {
    return origin_->needs_key ? std::optional(HttpProblem{
                                    401, "invalid_api_key",
                                    head_.key.empty() ? "no key was given: send Authorization: Bearer KEY"
                                                      : "this key is not known here"})
                              : std::nullopt;
  }
  head_.request.client = absl::StrCat("key:", use->name);
  if (!core_->handler->IsCounted(head_.request.path)) {
    return std::nullopt;
  }
  if (const std::optional<absl::Duration> wait = use->Enter(absl::Now()); wait.has_value()) {
    return HttpProblem{
        429, "rate_limit_exceeded", "this key's limit of requests is reached",
        std::max(1, static_cast<int>(absl::ToInt64Seconds(absl::Ceil(*wait, absl::Seconds(1)))))};
  }
  use_ = use;
  return std::nullopt;
}

bool HttpConnection::ReadBody() {
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
    Refuse({large ? 413 : 400, "",
            large ? absl::StrCat("the body has more than ", core_->limits.max_body_bytes, " bytes")
                  : absl::StrCat("the body is broken: ", error.message())});
    return false;
  }
  if (!parser_->is_done()) {
    return false;
  }
  Dispatch();
  return false;
}

void HttpConnection::Dispatch() {
  HttpRequest request = head_.request;
  if (request.method == "HEAD") {
    request.method = "GET";  // the same, and the body stays away
  }
  request.body = std::move(parser_->get().body());
  const size_t reserved = std::exchange(reserved_bytes_, 0);
  parser_.reset();
  head_done_ = false;
  state_ = State::kAnswering;
  since_ = absl::Now();
  keep_alive_ = head_.keep_alive && !core_->draining;
  const auto exchange = std::make_shared<ConnectionExchange>(core_, weak_from_this(), number_);
  boost::asio::post(core_->workers,
                    [core = core_, exchange, reserved, request = std::move(request)]() mutable {
                      core->handler->Handle(std::move(request), exchange);
                      core->Post([core, reserved] { core->bodies_bytes -= reserved; });
                    });
}

void HttpConnection::Refuse(const HttpProblem& problem) {
  // What is left of the request's body would be taken for the next request.
  const bool whole = head_.keep_alive && parser_.has_value() && parser_->is_header_done() &&
                     !parser_->chunked() && parser_->content_length().value_or(0) == 0;
  HttpAnswer answer = core_->handler->Refusal(head_.request.path, problem);
  if (problem.retry_seconds > 0) {
    answer.headers.emplace_back("Retry-After", absl::StrCat(problem.retry_seconds));
  }
  if (problem.status == 401) {
    answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  parser_.reset();
  head_done_ = false;
  state_ = State::kAnswering;
  keep_alive_ = whole && !core_->draining;
  Answer(number_, std::move(answer));
}

// What may be asked says nothing of what there is, so nobody needs a key for it: a browser asks without.
void HttpConnection::AnswerOptions() {
  HttpAnswer answer;
  answer.status = 204;
  if (!head_.preflight) {
    answer.headers = {{"Allow", "GET, HEAD, POST, OPTIONS"}};
  } else if (head_.origin_allowed) {
    answer.headers = {
        {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
        {"Access-Control-Allow-Headers",
         "authorization, content-type, x-api-key, x-request-id, anthropic-version, anthropic-beta, "
         "x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, "
         "x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, "
         "x-stainless-timeout, x-stainless-helper-method, x-stainless-async"},
        {"Access-Control-Max-Age", "600"}};
  } else {
    answer = core_->handler->Refusal(
        head_.request.path,
        {403, "foreign_origin", "this origin is not among those that may ask (--http-cors)"});
  }
  // A body would be taken for the next request.
  const bool whole = !parser_->chunked() && parser_->content_length().value_or(0) == 0;
  parser_.reset();
  head_done_ = false;
  state_ = State::kAnswering;
  keep_alive_ = head_.keep_alive && whole && !core_->draining;
  Answer(number_, std::move(answer));
}

void HttpConnection::Watch(uint64_t request, std::shared_ptr<HttpWatcher> watcher) {
  if (!IsCurrent(request)) {
    watcher->OnOver(/*gone=*/true);
    return;
  }
  watcher_ = std::move(watcher);
}

void HttpConnection::Answer(uint64_t request, HttpAnswer answer) {
  if (!IsCurrent(request) || begun_) {
    return;
  }
  if (!head_.request.request_id.empty()) {
    answer.headers.emplace_back("x-request-id", head_.request.request_id);
  }
  core_->metrics.Answered(head_.request.client.empty() ? origin_->client : head_.request.client,
                          answer.status);
  std::string bytes = AnswerHead(answer, head_, keep_alive_, answer.body.size());
  if (head_.request.method != "HEAD" && answer.status != 204) {
    bytes += answer.body;
  }
  ending_ = true;
  Send(std::move(bytes));
}

void HttpConnection::Begin(uint64_t request, HttpAnswer head) {
  if (!IsCurrent(request) || begun_) {
    return;
  }
  begun_ = true;
  keep_alive_ = keep_alive_ && head_.chunks;
  if (!head_.request.request_id.empty()) {
    head.headers.emplace_back("x-request-id", head_.request.request_id);
  }
  core_->metrics.Answered(head_.request.client, head.status);
  Send(AnswerHead(head, head_, keep_alive_, std::nullopt));
}

void HttpConnection::Write(uint64_t request, std::string part) {
  if (!IsCurrent(request) || !begun_ || part.empty()) {
    return;
  }
  if (head_.chunks) {
    part = absl::StrCat(absl::Hex(part.size()), "\r\n", part, "\r\n");
  }
  Send(std::move(part));
}

void HttpConnection::End(uint64_t request, bool whole) {
  if (!IsCurrent(request) || !begun_) {
    return;
  }
  keep_alive_ = keep_alive_ && whole;
  ending_ = true;
  if (head_.chunks && whole) {
    Send("0\r\n\r\n");
  } else if (writing_.empty()) {
    AnswerIsOver();
  }
}

void HttpConnection::Send(std::string bytes) {
  if (out_.empty() && writing_.empty()) {
    progress_ = absl::Now();
  }
  out_ += bytes;
  if (writing_.empty()) {
    StartWrite();
  }
}

void HttpConnection::StartWrite() {
  if (written_ == writing_.size()) {
    writing_ = std::exchange(out_, {});
    written_ = 0;
  }
  transport_->Write(writing_.data() + written_, writing_.size() - written_,
                    [self = shared_from_this()](boost::system::error_code error, size_t size) {
                      self->OnWrite(error, size);
                    });
}

void HttpConnection::OnWrite(boost::system::error_code error, size_t size) {
  if (state_ == State::kClosed) {
    return;
  }
  if (error) {
    Drop();
    return;
  }
  written_ += size;
  progress_ = absl::Now();
  if (written_ < writing_.size() || !out_.empty()) {
    StartWrite();
    return;
  }
  writing_.clear();
  written_ = 0;
  if (state_ != State::kAnswering) {
    return;  // "100 Continue" is out
  }
  if (ending_) {
    AnswerIsOver();
  } else if (watcher_ != nullptr) {
    watcher_->OnWritten();
  }
}

void HttpConnection::AnswerIsOver() {
  if (watcher_ != nullptr) {
    watcher_->OnOver(/*gone=*/false);
  }
  ForgetRequest();
  if (!keep_alive_ || core_->draining) {
    Linger();
    return;
  }
  state_ = State::kReading;
  since_ = absl::Now();
  Advance();  // the next request may be here already
}

void HttpConnection::ForgetRequest() {
  watcher_.reset();
  begun_ = false;
  ending_ = false;
  ++number_;
  core_->bodies_bytes -= std::exchange(reserved_bytes_, 0);
  if (use_ != nullptr) {
    use_->Leave();
    use_.reset();
  }
}

void HttpConnection::Linger() {
  state_ = State::kLingering;
  since_ = absl::Now();
  in_.clear();
  transport_->ShutDownSending();
}

}  // namespace sluice
