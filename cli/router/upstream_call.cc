#include "cli/router/upstream_call.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr size_t kReadBytes = 64 << 10;

// Encodes a decoded path again.
std::string EncodePath(const std::string& path) {
  std::string out;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || absl::StrContains("/-_.~", c)) {
      out += c;
    } else {
      absl::StrAppend(&out, "%", absl::Hex(byte, absl::kZeroPad2));
    }
  }
  return out;
}

std::string RequestText(const HttpRequest& request) {
  std::string text = absl::StrCat(request.method, " ", EncodePath(request.path),
                                  " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
  if (!request.request_id.empty()) {
    absl::StrAppend(&text, "x-request-id: ", request.request_id, "\r\n");
  }
  if (request.method == "POST") {
    absl::StrAppend(&text, "Content-Type: application/json\r\nContent-Length: ", request.body.size(), "\r\n");
  }
  absl::StrAppend(&text, "\r\n", request.body);
  return text;
}

// True for headers of one connection, and for those that the answer to the client gets from its own server.
bool IsOfConnection(http::field name) {
  switch (name) {
    case http::field::connection:
    case http::field::content_length:
    case http::field::content_type:
    case http::field::keep_alive:
    case http::field::transfer_encoding:
      return true;
    default:
      return false;
  }
}

std::string Text(boost::beast::string_view view) { return std::string(view.data(), view.size()); }

}  // namespace

UpstreamCall::UpstreamCall(asio::io_context& io, const HttpRequest& request, Events events)
    : socket_(io), out_(RequestText(request)), events_(std::move(events)) {
  parser_.body_limit(std::numeric_limits<uint64_t>::max());
  parser_.eager(true);
}

std::shared_ptr<UpstreamCall> UpstreamCall::Start(asio::io_context& io, const std::string& socket_path,
                                                  const HttpRequest& request, Events events) {
  auto call = std::make_shared<UpstreamCall>(io, request, std::move(events));
  call->socket_.async_connect(
      asio::local::stream_protocol::endpoint(socket_path), [call](boost::system::error_code error) {
        if (error) {
          call->End(/*whole=*/false, absl::StrCat("no connection: ", error.message()));
          return;
        }
        asio::async_write(call->socket_, asio::buffer(call->out_),
                          [call](boost::system::error_code failed, size_t) {
                            call->out_ = {};
                            // A refusal may come before all of a long body was sent: what it says is read all
                            // the same.
                            static_cast<void>(failed);
                          });
        call->Read();
      });
  return call;
}

void UpstreamCall::Resume() {
  if (paused_ && !over_) {
    paused_ = false;
    Parse();
  }
}

void UpstreamCall::Cancel() {
  over_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  // Later, since an event may be running; they may hold the last references to their owner.
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->events_ = {}; });
}

void UpstreamCall::Read() {
  if (reading_ || paused_ || over_) {
    return;
  }
  reading_ = true;
  buffer_.resize(kReadBytes);
  socket_.async_read_some(
      asio::buffer(buffer_), [self = shared_from_this()](boost::system::error_code error, size_t size) {
        self->reading_ = false;
        if (self->over_) {
          return;
        }
        if (error) {
          self->End(/*whole=*/false, absl::StrCat("the connection broke: ", error.message()));
          return;
        }
        self->OnRead(size);
      });
}

void UpstreamCall::OnRead(size_t size) {
  in_.append(buffer_.data(), size);
  Parse();
}

void UpstreamCall::Parse() {
  boost::system::error_code error;
  while (!in_.empty() && !parser_.is_done()) {
    const size_t used = parser_.put(asio::buffer(in_), error);
    in_.erase(0, used);
    if (error || used == 0) {
      break;
    }
  }
  if (error && error != http::error::need_more) {
    End(/*whole=*/false, absl::StrCat("no HTTP response: ", error.message()));
    return;
  }
  if (parser_.is_header_done() && !head_reported_) {
    ReportHead();
  }
  if (std::string part = std::exchange(parser_.get().body(), {}); !over_ && !part.empty()) {
    paused_ = !events_.on_body(std::move(part));
  }
  if (over_) {
    return;  // an event cancelled it
  }
  if (parser_.is_done()) {
    End(/*whole=*/true, "");
    return;
  }
  Read();
}

void UpstreamCall::ReportHead() {
  head_reported_ = true;
  HttpResponse head;
  head.status = parser_.get().result_int();
  head.content_type = Text(parser_.get()[http::field::content_type]);
  for (const auto& field : parser_.get()) {
    if (!IsOfConnection(field.name())) {
      head.headers.emplace_back(Text(field.name_string()), Text(field.value()));
    }
  }
  const boost::optional<uint64_t> length = parser_.content_length();
  events_.on_head(std::move(head), length.has_value() ? std::optional<uint64_t>(*length) : std::nullopt);
}

void UpstreamCall::End(bool whole, const std::string& why) {
  if (over_) {
    return;
  }
  over_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  const Events events = std::exchange(events_, {});  // they may hold the last references to their owner
  events.on_end(whole, why);
}

}  // namespace sluice::cli
