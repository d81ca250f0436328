// UpstreamCall against a server of canned bytes: heads, lengths, chunks, truncation, pauses and cancelling.

#include "cli/router/upstream_call.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/temp_dir.h"

namespace sluice::cli {
namespace {

namespace asio = boost::asio;
using Stream = asio::local::stream_protocol;

// Accepts one connection, reads a request's head and its body of `body_bytes`, sends `response` and closes.
class CannedServer {
 public:
  CannedServer(const std::string& path, std::string response, size_t body_bytes)
      : acceptor_(io_, Stream::endpoint(path)), thread_([this, response = std::move(response), body_bytes] {
          Stream::socket socket(io_);
          acceptor_.accept(socket);
          asio::streambuf buffer;
          boost::system::error_code error;
          const size_t head = asio::read_until(socket, buffer, "\r\n\r\n", error);
          while (!error && buffer.size() < head + body_bytes) {
            buffer.commit(socket.read_some(buffer.prepare(4096), error));
          }
          request_.assign(asio::buffers_begin(buffer.data()), asio::buffers_end(buffer.data()));
          asio::write(socket, asio::buffer(response), error);
        }) {}
  ~CannedServer() { Request(); }

  // The request's bytes; waits for the connection's end.
  const std::string& Request() {
    if (thread_.joinable()) thread_.join();
    return request_;
  }

 private:
  asio::io_context io_;
  Stream::acceptor acceptor_;
  std::string request_;
  std::thread thread_;
};

class UpstreamCallTest : public testing::Test {
 protected:
  std::string path() const { return dir_.path() + "/s"; }

  // Sends `request` to a server that answers `response`, and runs until the end.
  std::string Ask(const std::string& response, const HttpRequest& request = {"GET", "/health"}) {
    CannedServer server(path(), response, request.body.size());
    Start(request);
    io_.run();
    return server.Request();
  }
  void Start(const HttpRequest& request) {
    UpstreamCall::Events events;
    events.on_head = [this](HttpResponse head, std::optional<uint64_t> length) {
      head_ = std::move(head);
      length_ = length;
    };
    events.on_body = [this](const std::string& part) {
      body_ += part;
      ++parts_;
      return !pauses_;
    };
    events.on_end = [this](bool whole, const std::string& why) {
      whole_ = whole;
      why_ = why;
      ++ends_;
    };
    call_ = UpstreamCall::Start(io_, path(), request, std::move(events));
  }

  TempDir dir_;
  asio::io_context io_;
  std::shared_ptr<UpstreamCall> call_;
  HttpResponse head_;
  std::optional<uint64_t> length_;
  std::string body_;
  std::string why_;
  int parts_ = 0;
  int ends_ = 0;
  bool whole_ = false;
  bool pauses_ = false;
};

TEST_F(UpstreamCallTest, ARequestIsSentAsItWasRead) {
  HttpRequest request{"POST", "/v1/a b", "{\"x\": 1}"};
  request.request_id = "mine";
  EXPECT_EQ(
      "POST /v1/a%20b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-request-id: mine\r\n"
      "Content-Type: application/json\r\nContent-Length: 8\r\n\r\n{\"x\": 1}",
      Ask("HTTP/1.1 204 No Content\r\n\r\n", request));
  EXPECT_EQ(204, head_.status);
  EXPECT_TRUE(whole_);
}

TEST_F(UpstreamCallTest, AWholeResponseHasItsLength) {
  Ask("HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 3\r\n"
      "Content-Length: 2\r\nConnection: close\r\n\r\n{}");
  EXPECT_EQ(429, head_.status);
  EXPECT_EQ("application/json", head_.content_type);
  ASSERT_EQ(1u, head_.headers.size());
  EXPECT_EQ("Retry-After", head_.headers[0].first);
  EXPECT_EQ("3", head_.headers[0].second);
  EXPECT_EQ(std::optional<uint64_t>(2), length_);
  EXPECT_EQ("{}", body_);
  EXPECT_TRUE(whole_);
}

TEST_F(UpstreamCallTest, ChunksBecomeTheirBytes) {
  Ask("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n");
  EXPECT_FALSE(length_.has_value());
  EXPECT_EQ("abc0123456789", body_);
  EXPECT_TRUE(whole_);
}

TEST_F(UpstreamCallTest, ATruncatedResponseIsNotWhole) {
  for (const char* response :
       {"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "no HTTP at all\r\n\r\n"}) {
    whole_ = true;
    ends_ = 0;
    io_.restart();
    Ask(response);
    EXPECT_FALSE(whole_) << response;
    EXPECT_EQ(1, ends_) << response;
    EXPECT_NE("", why_) << response;
    ASSERT_EQ(0, unlink(path().c_str()));
  }
}

TEST_F(UpstreamCallTest, WithoutAServerTheEndIsReported) {
  Start({"GET", "/health"});
  io_.run();
  EXPECT_EQ(1, ends_);
  EXPECT_FALSE(whole_);
  EXPECT_EQ("no connection: No such file or directory", why_);
}

TEST_F(UpstreamCallTest, APausedCallReadsNoFurther) {
  pauses_ = true;
  const std::string body(1 << 20, 'x');
  CannedServer server(path(), "HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n" + body, 0);
  Start({"GET", "/"});
  io_.run();  // nothing is left to do while it is paused
  EXPECT_EQ(1, parts_);
  EXPECT_EQ(0, ends_);
  pauses_ = false;
  io_.restart();
  call_->Resume();
  io_.run();
  EXPECT_EQ(body, body_);
  EXPECT_TRUE(whole_);
}

TEST_F(UpstreamCallTest, ACancelledCallReportsNothing) {
  CannedServer server(path(), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0);
  Start({"GET", "/"});
  io_.run_one();  // it is connected
  call_->Cancel();
  io_.run();
  EXPECT_EQ(0, ends_);
  EXPECT_FALSE(length_.has_value());
}

}  // namespace
}  // namespace sluice::cli
