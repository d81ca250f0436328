// Limits of the HTTP server for slow, silent and many clients.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/inferd/http/endpoint_fixture.h"

namespace sluice::inferd {
namespace {

class HttpLimitsTest : public EndpointFixture {
 protected:
  // Sends `bytes` one by one until the server closes; returns its answer.
  static std::string Trickle(RawHttpClient* client, const std::string& bytes) {
    for (const char c : bytes) {
      client->Send(std::string(1, c));
      absl::SleepFor(absl::Milliseconds(5));
    }
    return client->ReadAll();
  }
};

TEST_F(HttpLimitsTest, AHeadThatNeverEndsIsRefusedHoweverItTrickles) {
  options_.head_timeout = absl::Milliseconds(200);
  Start();
  RawHttpClient slow(port_);
  const std::string head = Request("GET", "/health", "", "A: " + std::string(2000, 'x') + "\r\n");
  EXPECT_TRUE(absl::StartsWith(Trickle(&slow, head.substr(0, 600)), "HTTP/1.1 408 "));
  RawHttpClient silent(port_);
  silent.Send("GET /hea");
  EXPECT_TRUE(absl::StartsWith(silent.ReadAll(), "HTTP/1.1 408 "));
  EXPECT_EQ(200, Ask(Request("GET", "/health", "")).first);
}

TEST_F(HttpLimitsTest, ABodyThatNeverEndsIsRefused) {
  options_.body_timeout = absl::Milliseconds(200);
  Start();
  RawHttpClient sized(port_);
  sized.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n");
  EXPECT_TRUE(absl::StartsWith(Trickle(&sized, std::string(500, ' ')), "HTTP/1.1 408 "));
  RawHttpClient chunked(port_);
  chunked.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{");
  EXPECT_TRUE(absl::StartsWith(chunked.ReadAll(), "HTTP/1.1 408 "));
  EXPECT_EQ(0u, engine_.live());
}

TEST_F(HttpLimitsTest, StalledReaderIsCutAndItsRequestCancelled) {
  options_.stall_timeout = [] { return absl::Milliseconds(300); };
  context_.limits.max_unsent_bytes = uint64_t{1} << 40;  // so that the timeout cuts first
  Start();
  RawHttpClient idle(port_);
  idle.Send(Request("POST", "/v1/chat/completions", Chat("\"stream\": true")));
  const GenerateSpec spec = engine_.NextGenerate();
  // More than the sockets of both ends hold.
  for (int i = 0; i < 32; ++i) {
    engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, std::string(1 << 20, 'x'));
  }
  engine_.WaitForCancel(spec.request_id);
  EXPECT_TRUE(calls_.AwaitIdle(absl::Minutes(1)));
}

TEST_F(HttpLimitsTest, UnreadBytesAreBounded) {
  context_.limits.max_unsent_bytes = 1 << 20;
  Start();
  RawHttpClient idle(port_);
  idle.Send(Request("POST", "/v1/chat/completions", Chat("\"stream\": true")));
  const GenerateSpec spec = engine_.NextGenerate();
  for (int i = 0; i < 64; ++i) {
    engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, std::string(1 << 19, 'x'));
  }
  engine_.WaitForCancel(spec.request_id);
  EXPECT_TRUE(calls_.AwaitIdle(absl::Minutes(1)));
  EXPECT_EQ(1u, calls_.slow_consumers());
}

TEST_F(HttpLimitsTest, AThousandIdleConnectionsHoldNobodyUp) {
  options_.max_connections = 1000;
  Start();
  std::vector<std::unique_ptr<RawHttpClient>> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(std::make_unique<RawHttpClient>(port_));
  }
  engine_.AnswerWith(2);
  EXPECT_EQ(200, Post("/v1/chat/completions", Chat("")).first);  // replaces the connection that idled longest
  idle.back()->Send(Request("GET", "/health", ""));
  EXPECT_TRUE(absl::StartsWith(idle.back()->ReadAnswer().first, "HTTP/1.1 200 "));
  EXPECT_EQ("", idle.front()->ReadAll());
}

// Request smuggling: bytes that parsers split differently must not reach the server as two requests.
TEST_F(HttpLimitsTest, NoRequestIsSmuggledInAnother) {
  Start();
  const std::string inner = "GET /v1/models/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string host = "Host: localhost\r\n";
  for (const std::string& framing :
       {std::string("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
        std::string("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
        std::string("Content-Length: 0\r\nContent-Length: 44\r\n"),
        std::string("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
        std::string("Transfer-Encoding:\x0b"
                    "chunked\r\n"),
        std::string("Transfer-Encoding : chunked\r\n"), std::string("Transfer-Encoding: \"chunked\"\r\n"),
        std::string("Content-Length: +4\r\n"), std::string("Content-Length: 0x4\r\n"),
        std::string("Content-Length: 4, 4\r\n"), std::string("X: y\nTransfer-Encoding: chunked\r\n"),
        std::string(" Transfer-Encoding: chunked\r\n")}) {
    RawHttpClient client(port_);
    client.Send("POST /tokenize HTTP/1.1\r\n" + host + framing + "\r\n0\r\n\r\n" + inner);
    client.EndSending();
    const std::string answer = client.ReadAll();
    EXPECT_FALSE(absl::StrContains(answer, "smuggled")) << framing << answer;
    EXPECT_FALSE(absl::StartsWith(answer, "HTTP/1.1 200 ")) << framing;
    EXPECT_EQ(answer.find("HTTP/1.1 "), answer.rfind("HTTP/1.1 ")) << framing << answer;
  }
}

}  // namespace
}  // namespace sluice::inferd
