// EndpointFixture: the HTTP server on a loopback port, with a FakeEngine behind and plain sockets in front.
//
// Thread safety: thread-compatible; a test's own thread uses it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "daemon/http/http_server.h"
#include "gtest/gtest.h"
#include "inferd/http/openai_endpoint.h"
#include "inferd/serving/server_state.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/null_sink.h"
#include "tests/support/fakes/fake_engine.h"

namespace sluice::inferd {

// One connection. Reads time out after a minute, so that a test fails and does not hang.
class RawHttpClient {
 public:
  explicit RawHttpClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval timeout{60, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    EXPECT_EQ(0, connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  }
  ~RawHttpClient() { Close(); }
  void Close() {
    if (fd_ >= 0) {
      close(std::exchange(fd_, -1));
    }
  }
  void Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) {
        return;  // the server has closed: its answer can still be read
      }
      sent += static_cast<size_t>(n);
    }
  }
  void EndSending() { shutdown(fd_, SHUT_WR); }
  // Reads until `end` has arrived, and returns all of it; less if the server closes.
  std::string ReadTo(const std::string& end) {
    while (in_.find(end) == std::string::npos && ReadSome()) {
    }
    const size_t at = in_.find(end);
    return Take(at == std::string::npos ? in_.size() : at + end.size());
  }
  std::string ReadAll() {
    while (ReadSome()) {
    }
    return Take(in_.size());
  }
  // Reads one answer: its head and its body, chunks joined.
  std::pair<std::string, std::string> ReadAnswer() {
    const std::string head = ReadTo("\r\n\r\n");
    if (head.find("Transfer-Encoding: chunked") != std::string::npos) {
      std::string body;
      for (;;) {
        const size_t size = std::strtoul(ReadTo("\r\n").c_str(), nullptr, 16);
        const std::string part = ReadBytes(size + 2);
        if (size == 0 || part.size() != size + 2) {
          return {head, body};
        }
        body += part.substr(0, size);
      }
    }
    const size_t at = head.find("Content-Length: ");
    return {head,
            at == std::string::npos ? "" : ReadBytes(std::strtoul(head.c_str() + at + 16, nullptr, 10))};
  }

 private:
  bool ReadSome() {
    char buffer[16384];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n > 0) {
      in_.append(buffer, static_cast<size_t>(n));
    }
    return n > 0;
  }
  std::string ReadBytes(size_t size) {
    while (in_.size() < size && ReadSome()) {
    }
    return Take(std::min(size, in_.size()));
  }
  std::string Take(size_t size) {
    std::string out = in_.substr(0, size);
    in_.erase(0, size);
    return out;
  }

  int fd_;
  std::string in_;
};

class EndpointFixture : public testing::Test {
 protected:
  using Json = nlohmann::ordered_json;

  EndpointFixture() : log_("test", std::make_shared<spdlog::sinks::null_sink_mt>()) {
    auto tokenizer = Tokenizer::Load("tests/common/text/data/bytebpe_qwen2");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    state_.SetEngine(&engine_);
    context_.state = &state_;
    context_.tokenizer = tokenizer_.get();
    context_.model.id = "0123456789abcdef0123456789abcdef";
    context_.model.name = "tiny";
    context_.model.vocab = static_cast<uint32_t>(tokenizer_->vocab_size());
    context_.model.context = 4096;
    context_.log = &log_;
    context_.calls = &calls_;
    options_.addresses = {*ParseListenAddress("127.0.0.1:0")};
  }
  ~EndpointFixture() override { Stop(); }

  void Start(const std::string& chat_template = kHermes) {
    auto chat = ChatFormatter::Create(chat_template, *tokenizer_);
    ASSERT_TRUE(chat.ok()) << chat.status();
    chat_ = *std::move(chat);
    context_.chat = chat_.get();
    context_.dialect = DialectOf(chat_template);
    endpoint_ = std::make_unique<OpenAiEndpoint>(context_, [] { return std::string("# none\n"); });
    auto server = HttpServer::Start(options_, endpoint_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->addresses()[0].port;
  }
  void Stop() { server_.reset(); }

  static std::string Request(const std::string& method, const std::string& path, const std::string& body,
                             const std::string& fields = "") {
    return absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                        "\r\n", fields, "\r\n", body);
  }
  static std::string Chat(const std::string& members) {
    return absl::StrCat(R"({"messages": [{"role": "user", "content": "Hi"}])", members.empty() ? "" : ", ",
                        members, "}");
  }
  // Returns the status of one request's answer, and its body.
  std::pair<int, std::string> Ask(const std::string& bytes) {
    RawHttpClient client(port_);
    client.Send(bytes);
    const auto [head, body] = client.ReadAnswer();
    return {head.size() > 12 ? std::atoi(head.c_str() + 9) : 0, body};
  }
  std::pair<int, Json> Post(const std::string& path, const std::string& body,
                            const std::string& fields = "") {
    const auto [status, text] = Ask(Request("POST", path, body, fields));
    return {status, Json::parse(text, nullptr, false)};
  }
  static FinishInfo Finish(FinishReason reason, uint32_t tokens) {
    FinishInfo info;
    info.reason = reason;
    info.usage = {5, tokens, 2};
    return info;
  }

  static constexpr char kHermes[] =
      "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}<|im_start|>{{ m.role "
      "}}\n"
      "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif "
      "%}"
      "{# </think> #}";

  spdlog::logger log_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatFormatter> chat_;
  LiveCalls calls_;
  FakeEngine engine_;
  ServerState state_{ServerInfo()};
  ServingContext context_;
  HttpServerOptions options_;
  std::unique_ptr<OpenAiEndpoint> endpoint_;
  std::unique_ptr<HttpServer> server_;
  uint16_t port_ = 0;
};

}  // namespace sluice::inferd
