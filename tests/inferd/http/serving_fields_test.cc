// Serving fields, accepted by every API: scheduling, and sharing of cached prefixes.
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "tests/inferd/http/endpoint_fixture.h"

namespace sluice::inferd {
namespace {

class ServingFieldsTest : public EndpointFixture {
 protected:
  // Returns a path of each API, and a body with `members`.
  static std::pair<std::string, std::string> Asked(int api, const std::string& members) {
    switch (api) {
      case 0:
        return {"/v1/chat/completions", Chat(members)};
      case 1:
        return {"/v1/completions", absl::StrCat(R"({"prompt": "Hi", )", members, "}")};
      case 2:
        return {"/v1/responses", absl::StrCat(R"({"input": "Hi", )", members, "}")};
      default:
        return {"/v1/messages", Chat(absl::StrCat("\"max_tokens\": 4, ", members))};
    }
  }
};

TEST_F(ServingFieldsTest, ReachTheEngineByEveryApi) {
  Start();
  for (int api = 0; api < 4; ++api) {
    const auto [path, body] = Asked(api, R"("timeout": 1.5, "max_queue_wait": 0.25, "priority": 3,
        "cache_salt": "mine", "cache_prompt": false)");
    RawHttpClient client(port_);
    const absl::Time before = SteadyNow();
    client.Send(Request("POST", path, body));
    const GenerateSpec spec = engine_.NextGenerate();
    EXPECT_GE(spec.deadline, before + absl::Milliseconds(1500)) << path;
    EXPECT_LE(spec.deadline, SteadyNow() + absl::Milliseconds(1500)) << path;
    EXPECT_EQ(absl::Milliseconds(250), spec.max_queue_wait) << path;
    EXPECT_EQ(3, spec.priority) << path;
    EXPECT_EQ("mine", spec.cache_salt) << path;
    EXPECT_TRUE(spec.bypass_prefix_cache) << path;
    engine_.Fail(spec.request_id, absl::DeadlineExceededError("late"));
    EXPECT_NE(std::string::npos, client.ReadTo("\r\n\r\n").find("HTTP/1.1 504 ")) << path;
  }
}

// Not even the JSON is parsed: that makes refusals fast.
TEST_F(ServingFieldsTest, FullQueueRefusesBeforeParsing) {
  Start();
  engine_.SetPlace(WithRetryDelay(ReasonError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full"),
                                  absl::Milliseconds(1500)));
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}) {
    EXPECT_EQ(429, Post(path, "{").first) << path;
  }
  EXPECT_EQ(400, Post("/tokenize", "{").first);
  EXPECT_EQ(200, Post("/v1/messages/count_tokens", Chat("")).first);
}

TEST_F(ServingFieldsTest, FieldsAreNamedAsTheApiNamesThem) {
  Start();
  const std::string tool = R"("tools": [{"type": "function", "name": "f", "parameters": 5}])";
  for (const auto& [members, field] :
       {std::pair<std::string, std::string>{"\"input\": \"Hi\", \"max_output_tokens\": 0",
                                            "max_output_tokens"},
        {"\"input\": \"Hi\", " + tool, "tools[0].parameters"},
        {R"("instructions": "Be", "input": [{"role": "user", "content": [{"type": "input_image"}]}])",
         "input[0].content[0].type"},
        {R"("input": "Hi", "reasoning": {"effort": 5})", "reasoning.effort"}}) {
    const auto [status, answer] = Post("/v1/responses", "{" + members + "}");
    EXPECT_EQ(400, status) << members;
    EXPECT_EQ(field, answer["error"]["param"]) << members;
    EXPECT_EQ(0u, answer["error"]["message"].get<std::string>().find(field + ": ")) << answer;
  }
  const auto [status, answer] =
      Post("/v1/messages", Chat(R"("max_tokens": 4, "stop_sequences": 5, "tools": [])"));
  EXPECT_EQ(400, status);
  EXPECT_EQ(0u, answer["error"]["message"].get<std::string>().find("stop_sequences: ")) << answer;
}

// Bytes that can never become a request are refused at once, not after the head's timeout.
TEST_F(ServingFieldsTest, OtherProtocolIsRefusedAtOnce) {
  options_.head_timeout = absl::Hours(1);
  Start();
  for (const std::string& bytes : {std::string("\x16\x03\x01\x02", 4), std::string("\0\1", 2),
                                   std::string("GET / HTTP/1.1\nHost: localhost\n\n"),
                                   std::string("GET / HTTP/1.1\r\nHost: localhost\nA: b\r\n\r\n")}) {
    RawHttpClient client(port_);
    client.Send(bytes);
    EXPECT_TRUE(absl::StartsWith(client.ReadAll(), "HTTP/1.1 400 ")) << bytes;
  }
}

TEST_F(ServingFieldsTest, OptionsAndAllowSayWhatMayBeAsked) {
  Start();
  RawHttpClient client(port_);
  client.Send(Request("OPTIONS", "/v1/chat/completions", ""));
  EXPECT_TRUE(absl::StartsWith(client.ReadTo("\r\n\r\n"), "HTTP/1.1 204 "));
  client.Send(Request("DELETE", "/v1/chat/completions", ""));
  EXPECT_TRUE(absl::StrContains(client.ReadAnswer().first, "\r\nAllow: POST, OPTIONS\r\n"));
  client.Send(Request("POST", "/v1/models", ""));
  EXPECT_TRUE(absl::StrContains(client.ReadAnswer().first, "\r\nAllow: GET, HEAD, OPTIONS\r\n"));
}

TEST_F(ServingFieldsTest, AreRefusedByName) {
  Start();
  const std::string salt(300, 's');
  for (const auto& [members, field] : {std::pair<std::string, std::string>{"\"timeout\": 0", "timeout"},
                                       {"\"timeout\": -1", "timeout"},
                                       {"\"timeout\": \"1s\"", "timeout"},
                                       {"\"max_queue_wait\": 1e300", "max_queue_wait"},
                                       {"\"cache_salt\": 5", "cache_salt"},
                                       {"\"cache_salt\": \"" + salt + "\"", "cache_salt"},
                                       {"\"cache_prompt\": \"no\"", "cache_prompt"}}) {
    for (int api = 0; api < 3; ++api) {
      const auto [path, body] = Asked(api, members);
      const auto [status, answer] = Post(path, body);
      EXPECT_EQ(400, status) << path << members;
      EXPECT_EQ(field, answer["error"]["param"]) << path << members;
    }
  }
  EXPECT_EQ(0u, engine_.live());
}

}  // namespace
}  // namespace sluice::inferd
