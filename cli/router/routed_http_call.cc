#include "cli/router/routed_http_call.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "inferd/http/answer_format.h"

namespace sluice::cli {
namespace {

using inferd::ErrorStyle;

// As inferd's own (inferd/http/answer_call.cc).
constexpr absl::Duration kPingInterval = absl::Seconds(5);
constexpr char kPing[] = ": ping\n\n";
// The response is read on while the client has yet to read less than this.
constexpr size_t kMaxUnsent = 256 << 10;

}  // namespace

RoutedHttpCall::RoutedHttpCall(boost::asio::io_context& io, size_t model, bool streams, HttpRequest request,
                               std::shared_ptr<HttpExchange> exchange)
    : RoutedCall(model),
      io_(io),
      streams_(streams),
      request_(std::move(request)),
      exchange_(std::move(exchange)),
      arrived_(SteadyNow()),
      pinged_(arrived_) {}

void RoutedHttpCall::Begin(std::function<void()> on_left) {
  on_left_ = std::move(on_left);
  exchange_->SetObserver(shared_from_this());
}

void RoutedHttpCall::Forward(const ModelServers& servers, OnEnd on_end) {
  waits_ = false;
  ++attempts_;
  on_end_ = std::move(on_end);
  UpstreamCall::Events events;
  events.on_head = [self = shared_from_this()](HttpResponse head, std::optional<uint64_t> length) {
    self->OnHead(std::move(head), length);
  };
  events.on_body = [self = shared_from_this()](std::string part) { return self->OnBody(std::move(part)); };
  events.on_end = [self = shared_from_this()](bool whole, const std::string& why) {
    self->OnUpstreamEnd(whole, why);
  };
  upstream_ = UpstreamCall::Start(io_, servers.http_socket, request_, std::move(events));
}

void RoutedHttpCall::Fail(const absl::Status& status) {
  over_ = true;
  waits_ = false;
  if (!begun_) {
    exchange_->Answer(inferd::ErrorAnswer(status, inferd::ErrorStyleOf(request_.path)));
  } else {
    WriteErrorEvent(inferd::ErrorObject(status, inferd::ErrorStyleOf(request_.path)));
  }
  on_left_ = nullptr;
}

void RoutedHttpCall::WriteErrorEvent(const std::string& object) {
  const bool named =
      request_.path == "/v1/responses" || inferd::ErrorStyleOf(request_.path) == ErrorStyle::kAnthropic;
  exchange_->Write(absl::StrCat(named ? "event: error\n" : "", "data: ", object, "\n\n"));
  exchange_->End(/*whole=*/false);
}

void RoutedHttpCall::OnHead(HttpResponse head, std::optional<uint64_t> length) {
  responded_ = true;
  request_.body = {};
  if (!request_.request_id.empty()) {  // the connection adds it
    std::erase_if(head.headers,
                  [](const auto& field) { return absl::EqualsIgnoreCase(field.first, "x-request-id"); });
  }
  if (begun_ && head.status == 200) {
    return;  // its head was sent with the first ping
  }
  if (begun_ || length.has_value()) {
    whole_ = std::move(head);
    return;
  }
  begun_ = true;
  exchange_->Begin(std::move(head));
}

bool RoutedHttpCall::OnBody(std::string part) {
  if (whole_.has_value()) {
    whole_->body += part;
    return true;
  }
  unsent_ += part.size();
  exchange_->Write(std::move(part));
  return unsent_ <= kMaxUnsent;
}

void RoutedHttpCall::OnUpstreamEnd(bool whole, const std::string& why) {
  upstream_.reset();
  if (!responded_) {
    waits_ = true;
    const auto on_end = std::exchange(on_end_, nullptr);
    on_end(/*lost=*/true, why);
    return;
  }
  if (!whole_.has_value()) {
    exchange_->End(whole);
  } else if (!whole) {
    Fail(absl::UnavailableError(absl::StrCat("the model was lost within the answer: ", why)));
  } else if (begun_) {
    WriteErrorEvent(whole_->body);
  } else {
    exchange_->Answer(*std::move(whole_));
  }
  Finish();
}

void RoutedHttpCall::Finish() {
  over_ = true;
  on_left_ = nullptr;
  if (const auto on_end = std::exchange(on_end_, nullptr); on_end != nullptr) {
    on_end(/*lost=*/false, "");
  }
}

void RoutedHttpCall::OnTick(absl::Time now) {
  if (streams_ && waits_ && now >= pinged_ + kPingInterval) {
    pinged_ = now;
    boost::asio::post(io_, [self = shared_from_this()] { self->Ping(); });
  }
}

void RoutedHttpCall::Ping() {
  if (over_ || upstream_ != nullptr) {
    return;
  }
  if (!std::exchange(begun_, true)) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    exchange_->Begin(std::move(head));
  }
  exchange_->Write(kPing);
}

void RoutedHttpCall::OnWritten() {
  boost::asio::post(io_, [self = shared_from_this()] {
    self->unsent_ = 0;
    if (self->upstream_ != nullptr) {
      self->upstream_->Resume();
    }
  });
}

void RoutedHttpCall::OnEnded(bool) {
  boost::asio::post(io_, [self = shared_from_this()] { self->OnClientEnd(); });
}

void RoutedHttpCall::OnClientEnd() {
  if (over_) {
    return;
  }
  if (upstream_ != nullptr) {
    upstream_->Cancel();
    upstream_.reset();
    Finish();
    return;
  }
  over_ = true;
  waits_ = false;
  if (const auto on_left = std::exchange(on_left_, nullptr); on_left != nullptr) {
    on_left();
  }
}

}  // namespace sluice::cli
