// ConnectionExchange: the HttpExchange of a connection's current request.
//
// Thread safety: thread-safe, as HttpExchange.

#include "daemon/http/http_connection.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "daemon/http/http_core.h"
#include "daemon/http/http_message.h"

namespace sluice {

// One request's answer. Calls are posted to the connection's thread; the connection may be gone by then.
class ConnectionExchange final : public HttpExchange,
                                 public std::enable_shared_from_this<ConnectionExchange> {
 public:
  ConnectionExchange(std::shared_ptr<HttpCore> core, std::weak_ptr<HttpConnection> connection,
                     uint64_t request)
      : core_(std::move(core)), connection_(std::move(connection)), request_(request) {}

  void SetObserver(std::shared_ptr<HttpObserver> observer) override {
    const bool posted = core_->Dispatch([connection = connection_, request = request_, observer] {
      if (const auto to = connection.lock(); to != nullptr) {
        to->SetObserver(request, observer);
      } else {
        observer->OnEnded(/*disconnected=*/true);
      }
    });
    if (!posted) {
      observer->OnEnded(/*disconnected=*/true);
    }
  }
  void Wake() override {
    if (woken_.exchange(true)) {
      return;
    }
    core_->Post([self = shared_from_this()] {
      self->woken_ = false;  // before the observer looks, so that what comes later wakes it again
      if (const auto to = self->connection_.lock(); to != nullptr) {
        to->Ready(self->request_);
      }
    });
  }
  void Answer(HttpResponse answer) override { Call(&HttpConnection::Answer, std::move(answer)); }
  void Begin(HttpResponse head) override { Call(&HttpConnection::Begin, std::move(head)); }
  void Write(std::string part) override { Call(&HttpConnection::Write, std::move(part)); }
  void End(bool whole) override { Call(&HttpConnection::End, whole); }

 private:
  template <typename Argument>
  void Call(void (HttpConnection::*method)(uint64_t, Argument), Argument argument) {
    core_->Dispatch(
        [connection = connection_, request = request_, method, argument = std::move(argument)]() mutable {
          if (const auto to = connection.lock(); to != nullptr) {
            (to.get()->*method)(request, std::move(argument));
          }
        });
  }

  const std::shared_ptr<HttpCore> core_;
  const std::weak_ptr<HttpConnection> connection_;
  const uint64_t request_;
  std::atomic<bool> woken_{false};
};

namespace {

constexpr size_t kReadBytes = 16 << 10;
// Maximum bytes of pipelined requests kept while an answer is under way.
constexpr size_t kMaxAheadBytes = 64 << 10;
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);
constexpr size_t kBodyBytesPerSecond = 8 << 10;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpCore> core, std::shared_ptr<HttpTransport> transport,
                               std::shared_ptr<const HttpOrigin> origin)
    : core_(std::move(core)),
      transport_(std::move(transport)),
      origin_(std::move(origin)),
      since_(SteadyNow()),
      progress_(since_) {}

void HttpConnection::Start() {
  transport_->Handshake([self = shared_from_this()](boost::system::error_code error, size_t) {
    if (error || self->state_ != State::kHandshake) {
      self->Drop();
      return;
    }
    self->state_ = State::kReading;
    self->since_ = SteadyNow();
    self->StartRead();
  });
}

std::optional<absl::Time> HttpConnection::idle_since() const {
  return state_ == State::kReading && !reader_.begun() ? std::optional(since_) : std::nullopt;
}

void HttpConnection::Tick(absl::Time now) {
  const HttpLimits& limits = core_->limits;
  if ((!writing_.empty() || !out_.empty()) && now > progress_ + core_->stall_timeout()) {
    Drop();
    return;
  }
  if (state_ == State::kAnswering) {
    if (const std::shared_ptr<HttpObserver> observer = observer_; observer != nullptr && !ending_) {
      observer->OnTick(now);
    }
  } else if (state_ == State::kHandshake && now > since_ + limits.head_timeout) {
    Drop();
  } else if (idle_since().has_value()) {
    if (now > since_ + limits.idle_timeout) {
      Drop();
    }
  } else if (state_ == State::kReading && !reader_.head_done()) {
    if (now > since_ + limits.head_timeout) {
      Refuse({408, "", "the head of the request took too long"});
    }
  } else if (state_ == State::kReading) {
    const auto earned = absl::Seconds(static_cast<int64_t>(reader_.body_bytes() / kBodyBytesPerSecond));
    if (now > since_ + limits.body_timeout + earned) {
      Refuse({408, "", "the body of the request came too slowly"});
    }
  } else if (state_ == State::kLingering && now > since_ + kLingerTimeout) {
    Drop();
  }
}

void HttpConnection::Drop() {
  if (state_ == State::kClosed) {
    return;
  }
  const std::shared_ptr<HttpConnection> self = shared_from_this();  // the core may hold the last reference
  const bool answering = state_ == State::kAnswering;
  state_ = State::kClosed;
  transport_->Close();
  if (answering) {
    core_->metrics.Left();
    if (observer_ != nullptr) {
      observer_->OnEnded(/*disconnected=*/true);
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
    Drop();  // no more input means disconnected: a half-closed client cannot be told from a closed one
    return;
  }
  if (state_ != State::kLingering) {
    reader_.Append(read_buffer_.data(), size);
    if (state_ == State::kAnswering && reader_.waiting_bytes() > kMaxAheadBytes) {
      Drop();
      return;
    }
    Advance();
  }
  StartRead();
}

void HttpConnection::Advance() {
  while (state_ == State::kReading) {
    bool fresh = false;
    const bool head = !reader_.head_done();
    const RequestReader::Step step = head ? reader_.ReadHead(origin_->policy, &fresh) : reader_.ReadBody();
    if (fresh) {
      since_ = SteadyNow();
    }
    if (step == RequestReader::Step::kMore) {
      return;
    }
    if (step == RequestReader::Step::kRefused) {
      Refuse(reader_.problem());
    } else if (head) {
      AdmitHead();
    } else {
      Dispatch();
    }
  }
}

// Checks key, limits and body size before a byte of the body is read.
void HttpConnection::AdmitHead() {
  if (reader_.head().request.method == "OPTIONS") {
    AnswerOptions();
    return;
  }
  if (const std::optional<HttpProblem> problem = CheckKey(); problem.has_value()) {
    Refuse(*problem);
    return;
  }
  const std::optional<uint64_t> length = reader_.content_length();
  const HttpLimits& limits = core_->limits;
  if (length.has_value() && *length > limits.max_body_bytes) {
    Refuse({413, "", absl::StrCat("the body has ", *length, " bytes, at most ", limits.max_body_bytes)});
    return;
  }
  // A chunked body has no known length, so the maximum is reserved for it.
  reserved_bytes_ = reader_.chunked() ? limits.max_body_bytes : static_cast<size_t>(length.value_or(0));
  if (core_->bodies_bytes + reserved_bytes_ > std::max(limits.max_bodies_bytes, limits.max_body_bytes)) {
    reserved_bytes_ = 0;
    Refuse({429, "", "too many bytes of requests are being read", /*retry_seconds=*/1});
    return;
  }
  core_->bodies_bytes += reserved_bytes_;
  if (reader_.head().expects_continue && reserved_bytes_ > 0) {
    Send(kContinue);
  }
  reader_.AllowBody(limits.max_body_bytes);
}

std::optional<HttpProblem> HttpConnection::CheckKey() {
  reader_.head().request.client = origin_->client;
  if (core_->keys == nullptr || core_->handler->IsPublic(reader_.head().request.path)) {
    return std::nullopt;
  }
  const std::shared_ptr<HttpKeyUse> use = core_->keys->Find(reader_.head().key);
  if (use == nullptr) {
    return origin_->needs_key
               ? std::optional(HttpProblem{401, "invalid_api_key",
                                           reader_.head().key.empty()
                                               ? "no key was given: send Authorization: Bearer KEY"
                                               : "this key is not known here"})
               : std::nullopt;
  }
  reader_.head().request.client = absl::StrCat("key:", use->name);
  if (!core_->handler->IsRateLimited(reader_.head().request.path)) {
    return std::nullopt;
  }
  if (const std::optional<absl::Duration> wait = use->Enter(SteadyNow()); wait.has_value()) {
    return HttpProblem{
        429, "rate_limit_exceeded", "this key's limit of requests is reached",
        std::max(1, static_cast<int>(absl::ToInt64Seconds(absl::Ceil(*wait, absl::Seconds(1)))))};
  }
  use_ = use;
  return std::nullopt;
}

void HttpConnection::Dispatch() {
  HttpRequest request = reader_.head().request;
  if (request.method == "HEAD") {
    request.method = "GET";  // same as GET, but without the body
  }
  request.body = reader_.TakeBody();
  const size_t reserved = std::exchange(reserved_bytes_, 0);
  reader_.End();
  state_ = State::kAnswering;
  since_ = SteadyNow();
  keep_alive_ = reader_.head().keep_alive && !core_->draining;
  const auto exchange = std::make_shared<ConnectionExchange>(core_, weak_from_this(), number_);
  boost::asio::post(core_->workers,
                    [core = core_, exchange, reserved, request = std::move(request)]() mutable {
                      core->handler->Handle(std::move(request), exchange);
                      core->Post([core, reserved] { core->bodies_bytes -= reserved; });
                    });
}

void HttpConnection::Refuse(const HttpProblem& problem) {
  // The unread rest of the request's body would be parsed as the next request.
  const bool whole = reader_.head().keep_alive && reader_.is_head_alone();
  HttpResponse answer = core_->handler->Refusal(reader_.head().request.path, problem);
  if (problem.retry_seconds > 0) {
    answer.headers.emplace_back("Retry-After", absl::StrCat(problem.retry_seconds));
  }
  if (problem.status == 401) {
    answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  reader_.End();
  state_ = State::kAnswering;
  keep_alive_ = whole && !core_->draining;
  Answer(number_, std::move(answer));
}

// CORS answers reveal nothing about the server, so they need no key: a browser sends none here.
void HttpConnection::AnswerOptions() {
  HttpResponse answer;
  answer.status = 204;
  if (!reader_.head().preflight) {
    answer.headers = {{"Allow", "GET, HEAD, POST, OPTIONS"}};
  } else if (reader_.head().origin_allowed) {
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
        reader_.head().request.path,
        {403, "foreign_origin", "this origin is not among those that may ask (--http-cors)"});
  }
  // A body would be parsed as the next request.
  const bool whole = reader_.is_head_alone();
  reader_.End();
  state_ = State::kAnswering;
  keep_alive_ = reader_.head().keep_alive && whole && !core_->draining;
  Answer(number_, std::move(answer));
}

void HttpConnection::SetObserver(uint64_t request, std::shared_ptr<HttpObserver> observer) {
  if (!IsCurrent(request)) {
    observer->OnEnded(/*disconnected=*/true);
    return;
  }
  observer_ = std::move(observer);
}

void HttpConnection::Ready(uint64_t request) {
  if (IsCurrent(request) && observer_ != nullptr) {
    const std::shared_ptr<HttpObserver> observer = observer_;  // it may end the answer
    observer->OnReady();
  }
}

void HttpConnection::Answer(uint64_t request, HttpResponse answer) {
  if (!IsCurrent(request) || begun_) {
    return;
  }
  if (!reader_.head().request.request_id.empty()) {
    answer.headers.emplace_back("x-request-id", reader_.head().request.request_id);
  }
  core_->metrics.Answered(
      reader_.head().request.client.empty() ? origin_->client : reader_.head().request.client, answer.status);
  std::string bytes = AnswerHead(answer, reader_.head(), keep_alive_, answer.body.size());
  if (reader_.head().request.method != "HEAD" && answer.status != 204) {
    bytes += answer.body;
  }
  ending_ = true;
  Send(std::move(bytes));
}

void HttpConnection::Begin(uint64_t request, HttpResponse head) {
  if (!IsCurrent(request) || begun_) {
    return;
  }
  begun_ = true;
  keep_alive_ = keep_alive_ && reader_.head().chunks;
  if (!reader_.head().request.request_id.empty()) {
    head.headers.emplace_back("x-request-id", reader_.head().request.request_id);
  }
  core_->metrics.Answered(reader_.head().request.client, head.status);
  Send(AnswerHead(head, reader_.head(), keep_alive_, std::nullopt));
}

void HttpConnection::Write(uint64_t request, std::string part) {
  if (!IsCurrent(request) || !begun_ || part.empty()) {
    return;
  }
  if (reader_.head().chunks) {
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
  if (reader_.head().chunks && whole) {
    Send("0\r\n\r\n");
  } else if (writing_.empty()) {
    AnswerIsOver();
  }
}

void HttpConnection::Send(std::string bytes) {
  if (out_.empty() && writing_.empty()) {
    progress_ = SteadyNow();
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
  progress_ = SteadyNow();
  if (written_ < writing_.size() || !out_.empty()) {
    StartWrite();
    return;
  }
  writing_.clear();
  written_ = 0;
  if (state_ != State::kAnswering) {
    return;  // "100 Continue" was written
  }
  if (ending_) {
    AnswerIsOver();
  } else if (observer_ != nullptr) {
    const std::shared_ptr<HttpObserver> observer = observer_;  // it may end the answer
    observer->OnWritten();
  }
}

void HttpConnection::AnswerIsOver() {
  if (observer_ != nullptr) {
    observer_->OnEnded(/*disconnected=*/false);
  }
  ForgetRequest();
  if (!keep_alive_ || core_->draining) {
    Linger();
    return;
  }
  state_ = State::kReading;
  since_ = SteadyNow();
  Advance();  // the next request may have arrived already
}

void HttpConnection::ForgetRequest() {
  observer_.reset();
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
  since_ = SteadyNow();
  reader_.DropWaiting();
  transport_->ShutDownSending();
}

}  // namespace sluice
