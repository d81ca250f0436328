// The HTTP server over real sockets, against an engine controlled by the test.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "tests/inferd/http/endpoint_fixture.h"
#include "tests/support/mutator.h"
#include "tests/support/temp_dir.h"

namespace sluice::inferd {
namespace {

class OpenAiEndpointTest : public EndpointFixture {
 protected:
  std::vector<Json> Events(const std::string& body) {
    std::vector<Json> events;
    const std::vector<std::string> blocks = absl::StrSplit(body, "\n\n", absl::SkipEmpty());
    for (const std::string& block : blocks) {
      const size_t data = block.find("data: ");
      if (data != std::string::npos && block != "data: [DONE]") {
        events.push_back(Json::parse(block.substr(data + 6), nullptr, false));
      }
    }
    return events;
  }
};

TEST_F(OpenAiEndpointTest, AStreamSaysRoleTextFinishAndUsage) {
  Start();
  RawHttpClient client(port_);
  client.Send(Request("POST", "/v1/chat/completions",
                      Chat(R"("stream": true, "stream_options": {"include_usage": true}, "max_tokens": 9)")));
  const GenerateSpec spec = engine_.NextGenerate();
  EXPECT_EQ("tcp", spec.client);
  EXPECT_EQ(9u, spec.stopping.max_tokens);
  engine_.Start(spec.request_id, {5, 0, 2}, 0);
  engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, "Hello");
  EXPECT_TRUE(absl::StrContains(client.ReadTo("\"finish_reason\":null}]"), "\"content\":\"Hello\""));
  engine_.Emit(spec.request_id, {{8, -0.5f, {}}}, " world");
  FinishInfo end = Finish(FinishReason::kStop, 2);
  end.usage.drafted_tokens = 4;
  end.usage.accepted_tokens = 1;
  engine_.Finish(spec.request_id, end);
  const std::string rest = client.ReadTo("0\r\n\r\n");
  EXPECT_TRUE(absl::StrContains(rest, "\"finish_reason\":\"stop\""));
  EXPECT_TRUE(absl::StrContains(rest, R"("accepted_prediction_tokens":1,"rejected_prediction_tokens":3)"));
  EXPECT_TRUE(
      absl::StrContains(rest, R"("usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7)"));
  EXPECT_TRUE(absl::StrContains(rest, "\"cached_tokens\":2"));
  EXPECT_TRUE(absl::StrContains(rest, "data: [DONE]\n\n"));
  // The connection stays open.
  client.Send(Request("GET", "/v1/models/tiny", ""));
  EXPECT_TRUE(absl::StrContains(client.ReadAnswer().second, "\"id\":\"tiny\""));
}

TEST_F(OpenAiEndpointTest, ToolCallsAndThoughtsAreDistinguished) {
  Start();
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  const std::string said =
      "<think>hm</think>\n\nLook:\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
  for (const bool stream : {false, true}) {
    RawHttpClient client(port_);
    client.Send(Request("POST", "/v1/chat/completions",
                        Chat(absl::StrCat(tools, stream ? ", \"stream\": true" : ""))));
    const GenerateSpec spec = engine_.NextGenerate();
    for (const char c : said) {
      engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, std::string(1, c));
    }
    engine_.Finish(spec.request_id, Finish(FinishReason::kStop, static_cast<uint32_t>(said.size())));
    const std::string body = client.ReadAnswer().second;
    Json message = {{"content", ""}, {"reasoning_content", ""}};
    std::string finish;
    if (!stream) {
      const Json answer = Json::parse(body)["choices"][0];
      message = answer["message"];
      finish = answer["finish_reason"];
    } else {
      for (const Json& event : Events(body)) {
        const Json& delta = event["choices"][0]["delta"];
        for (const char* name : {"content", "reasoning_content"}) {
          message[name] = message[name].get<std::string>() + delta.value(name, "");
        }
        if (delta.contains("tool_calls")) {
          const Json& call = delta["tool_calls"][0];
          if (call.contains("id")) {
            message["tool_calls"].push_back(call);
          } else {
            Json& arguments = message["tool_calls"][call["index"].get<int>()]["function"]["arguments"];
            arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
          }
        }
        if (!event["choices"][0]["finish_reason"].is_null()) {
          finish = event["choices"][0]["finish_reason"];
        }
      }
    }
    EXPECT_EQ("hm", message["reasoning_content"]) << body;
    EXPECT_EQ("Look:", message["content"]);
    EXPECT_EQ("f", message["tool_calls"][0]["function"]["name"]);
    EXPECT_EQ("{\"a\": 1}", message["tool_calls"][0]["function"]["arguments"]);
    EXPECT_EQ("tool_calls", finish);
  }
}

TEST_F(OpenAiEndpointTest, EveryFieldReachesTheEngine) {
  Start();
  RawHttpClient client(port_);
  client.Send(
      Request("POST", "/v1/chat/completions", Chat(R"("model": "tiny", "temperature": 0.5, "top_p": 0.25,
      "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5, "frequency_penalty": -1, "presence_penalty": 2,
      "seed": 40, "n": 2, "logit_bias": {"3": -100}, "stop": "end", "min_tokens": 1, "max_completion_tokens": 4,
      "stop_token_ids": [9], "ignore_eos": true, "logprobs": true, "top_logprobs": 3, "unknown": {"a": [1]},
      "user": null)")));
  for (int i = 0; i < 2; ++i) {
    const GenerateSpec spec = engine_.NextGenerate();
    EXPECT_EQ(0.5f, spec.sampling.temperature);
    EXPECT_EQ(0.25f, spec.sampling.top_p);
    EXPECT_EQ(7u, spec.sampling.top_k);
    EXPECT_EQ(0.125f, spec.sampling.min_p);
    EXPECT_EQ(1.5f, spec.sampling.repetition_penalty);
    EXPECT_EQ(-1.0f, spec.sampling.frequency_penalty);
    EXPECT_EQ(2.0f, spec.sampling.presence_penalty);
    EXPECT_EQ(40u + i, spec.sampling.seed);
    EXPECT_EQ((std::vector<std::pair<int32_t, float>>{{3, -100.0f}}), spec.sampling.logit_bias);
    EXPECT_EQ(std::vector<std::string>{"end"}, spec.stopping.stop);
    EXPECT_EQ(std::vector<int32_t>{9}, spec.stopping.stop_token_ids);
    EXPECT_EQ(1u, spec.stopping.min_tokens);
    EXPECT_EQ(4u, spec.stopping.max_tokens);
    EXPECT_TRUE(spec.stopping.ignore_eos);
    EXPECT_EQ(3u, spec.logprobs);
    engine_.Emit(spec.request_id, {{65, -0.25f, {{65, -0.25f}, {66, -2}, {67, -3}}}}, "b");
    engine_.Finish(spec.request_id, Finish(FinishReason::kLength, 1));
  }
  const Json answer = Json::parse(client.ReadAnswer().second);
  ASSERT_EQ(2u, answer["choices"].size());
  EXPECT_EQ(5, answer["usage"]["prompt_tokens"]);
  EXPECT_EQ(2, answer["usage"]["completion_tokens"]);
  const Json& token = answer["choices"][1]["logprobs"]["content"][0];
  EXPECT_EQ(-0.25, token["logprob"]);
  EXPECT_EQ(3u, token["top_logprobs"].size());
}

TEST_F(OpenAiEndpointTest, InvalidFieldsAreRefusedByName) {
  Start();
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": 2.5)", "temperature"},
      {R"("top_p": 1.5)", "top_p"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 1.5)", "max_tokens"},
      {R"("max_completion_tokens": true)", "max_completion_tokens"},
      {R"("n": 0)", "n"},
      {R"("stop": [""])", "stop"},
      {R"("stop": [1])", "stop[0]"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"999999999": 1})", "logit_bias"},
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("response_format": {"type": "sound"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": 5}})",
       "response_format.json_schema.schema"},
      {R"("guided_regex": 5)", "guided_regex"},
      {R"("guided_regex": "a", "guided_choice": ["b"])", "guided_choice"},
      {R"("structured_outputs": {})", "structured_outputs"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tools": [{"type": "function"}])", "tools[0].function"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "must")", "tool_choice"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice":
          {"type": "function", "function": {"name": "g"}})",
       "tool_choice.function.name"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}], "guided_regex": "a")", "guided_regex"},
      {R"("messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[0].type"},
      {R"("messages": [{"role": "king", "content": ""}])", "messages[0].role"},
      {R"("messages": [])", "messages"},
  };
  for (const auto& [members, param] : cases) {
    const auto [status, answer] = Post("/v1/chat/completions", Chat(members));
    EXPECT_EQ(400, status) << members;
    EXPECT_EQ(param, answer["error"]["param"]) << members;
    EXPECT_EQ("invalid_request_error", answer["error"]["type"]);
  }
  EXPECT_EQ("model_not_found", Post("/v1/chat/completions", Chat(R"("model": "x")")).second["error"]["code"]);
  EXPECT_EQ(
      "context_length_exceeded",
      Post("/v1/completions", R"({"prompt": ")" + std::string(60000, '1') + "\"}").second["error"]["code"]);
  EXPECT_EQ(400, Post("/v1/chat/completions", std::string(70, '[') + std::string(70, ']')).first);
  EXPECT_EQ(0u, engine_.live());
}

TEST_F(OpenAiEndpointTest, OverloadIs429AndRunningAnswersContinue) {
  Start();
  RawHttpClient running(port_);
  running.Send(Request("POST", "/v1/chat/completions", Chat("")));
  const GenerateSpec spec = engine_.NextGenerate();
  engine_.RefuseWith(WithRetryDelay(ReasonError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full"),
                                    absl::Milliseconds(1500)));
  RawHttpClient refused(port_);
  refused.Send(Request("POST", "/v1/chat/completions", Chat("\"stream\": true")));
  const auto [head, body] = refused.ReadAnswer();
  EXPECT_TRUE(absl::StartsWith(head, "HTTP/1.1 429 "));
  EXPECT_TRUE(absl::StrContains(head, "Retry-After: 2\r\n"));
  EXPECT_EQ("rate_limit_error", Json::parse(body)["error"]["type"]);
  engine_.Finish(spec.request_id, Finish(FinishReason::kStop, 0));
  EXPECT_TRUE(absl::StartsWith(running.ReadAnswer().first, "HTTP/1.1 200 "));
}

TEST_F(OpenAiEndpointTest, AClientThatLeavesCancelsStreamedOrNot) {
  Start();
  for (const char* members : {"\"stream\": true", "\"n\": 2", ""}) {
    RawHttpClient client(port_);
    client.Send(Request("POST", "/v1/chat/completions", Chat(members)));
    const GenerateSpec spec = engine_.NextGenerate();
    client.Close();
    engine_.WaitForCancel(spec.request_id);
    if (std::string(members) == "\"n\": 2") {
      engine_.NextGenerate();
    }
  }
  EXPECT_TRUE(calls_.AwaitIdle(absl::Minutes(1)));
}

TEST_F(OpenAiEndpointTest, AnErrorInTheMiddleOfAStreamEndsItWithoutDone) {
  Start();
  RawHttpClient client(port_);
  client.Send(Request("POST", "/v1/chat/completions", Chat("\"stream\": true")));
  const GenerateSpec spec = engine_.NextGenerate();
  engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, "Hello");
  client.ReadTo("Hello");
  engine_.Fail(spec.request_id, absl::DataLossError("an expert is broken"));
  const std::string rest = client.ReadAll();
  EXPECT_TRUE(absl::StrContains(rest, "data: {\"error\":{\"message\":\"an expert is broken\""));
  EXPECT_FALSE(absl::StrContains(rest, "[DONE]"));
}

TEST_F(OpenAiEndpointTest, MessagesHaveTheirOwnEvents) {
  Start();
  const std::string asked = R"({"max_tokens": 5, "system": "Be short.", "messages": [
      {"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stream": true})";
  RawHttpClient client(port_);
  client.Send(Request("POST", "/v1/messages", asked));
  const GenerateSpec spec = engine_.NextGenerate();
  engine_.Start(spec.request_id, {5, 0, 2}, 0);
  engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, "Hello");
  engine_.Finish(spec.request_id, Finish(FinishReason::kStop, 1));
  const std::string body = client.ReadAnswer().second;
  std::vector<std::string> names;
  const std::vector<std::string> lines = absl::StrSplit(body, '\n');
  for (const std::string& line : lines) {
    if (absl::StartsWith(line, "event: ")) {
      names.push_back(line.substr(7));
    }
  }
  EXPECT_EQ((std::vector<std::string>{"message_start", "content_block_start", "content_block_delta",
                                      "content_block_stop", "message_delta", "message_stop"}),
            names);
  EXPECT_TRUE(absl::StrContains(body, R"("input_tokens":3,"cache_read_input_tokens":2)"));
  const auto [status, answer] = Post("/v1/messages", R"({"messages": []})");
  EXPECT_EQ(400, status);
  EXPECT_EQ("error", answer["type"]);
  EXPECT_LT(0, Post("/v1/messages/count_tokens", asked).second["input_tokens"].get<int>());
}

TEST_F(OpenAiEndpointTest, ResponsesHaveItemsAndEventsInOrder) {
  Start();
  const std::string asked =
      R"({"instructions": "Be short.", "max_output_tokens": 9, "stream": true, "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c1", "output": "5"}],
      "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]})";
  RawHttpClient client(port_);
  client.Send(Request("POST", "/v1/responses", asked));
  const GenerateSpec spec = engine_.NextGenerate();
  EXPECT_EQ(9u, spec.stopping.max_tokens);
  engine_.Start(spec.request_id, {5, 0, 2}, 0);
  engine_.Emit(spec.request_id, {{7, -0.5f, {}}},
               "Hello<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>");
  engine_.Finish(spec.request_id, Finish(FinishReason::kStop, 1));
  const std::vector<Json> events = Events(client.ReadAnswer().second);
  std::string types;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(i, events[i]["sequence_number"]);
    types += events[i]["type"].get<std::string>().substr(9) + " ";
  }
  EXPECT_EQ(
      "created in_progress output_item.added content_part.added output_text.delta output_text.done "
      "content_part.done output_item.done output_item.added function_call_arguments.delta "
      "function_call_arguments.done output_item.done completed ",
      types);
  const Json response = events.back()["response"];
  EXPECT_EQ("Hello", response["output"][0]["content"][0]["text"]);
  EXPECT_EQ("{\"a\": 1}", response["output"][1]["arguments"]);
  EXPECT_EQ(2, response["usage"]["input_tokens_details"]["cached_tokens"]);
  EXPECT_EQ("previous_response_id",
            Post("/v1/responses", R"({"input": "x", "previous_response_id": "y"})").second["error"]["param"]);
}

TEST_F(OpenAiEndpointTest, HeadsThatTwoParsersReadDifferentlyAreRefused) {
  Start();
  const std::string host = "Host: localhost\r\n";
  const std::pair<std::string, int> cases[] = {
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
      {"POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length : 1\r\n\r\nx", 400},
      {"GET / HTTP/1.1\r\n" + host + "A: b\r\n c: d\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + host + "\r\n", 400},
      {"GET /%00 HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
      {"GET / HTTP/1.1\r\n" + host + "A: " + std::string(40000, 'x') + "\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999\r\n\r\n", 413},
  };
  for (const auto& [bytes, status] : cases) {
    RawHttpClient client(port_);
    client.Send(bytes);
    const std::string head = client.ReadAll().substr(0, 12);
    EXPECT_EQ(absl::StrCat("HTTP/1.1 ", status), head) << bytes.substr(0, 120);
  }
}

TEST_F(OpenAiEndpointTest, ChunkedBodiesPipeliningAndExpectAreUnderstood) {
  Start();
  RawHttpClient client(port_);
  client.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.Send("8\r\n{\"conten\r\n9;x=y\r\nt\": \"Hi\"}\r\n0\r\n\r\n" + Request("GET", "/health", ""));
  EXPECT_TRUE(absl::StrContains(client.ReadAnswer().second, "\"tokens\":["));
  EXPECT_EQ("{\"status\":\"ok\"}", client.ReadAnswer().second);
  const std::string body = R"({"content": "Hi"})";
  client.Send(absl::StrCat(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: ", body.size(),
      "\r\n\r\n"));
  EXPECT_EQ("HTTP/1.1 100 Continue\r\n\r\n", client.ReadTo("\r\n\r\n"));
  client.Send(body);
  EXPECT_TRUE(absl::StrContains(client.ReadAnswer().second, "\"tokens\":["));
  // HTTP/1.0 has no chunks: the stream ends with the connection.
  engine_.AnswerWith(2);
  RawHttpClient old(port_);
  const std::string chat = Chat("\"stream\": true");
  old.Send(
      absl::StrCat("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: ", chat.size(), "\r\n\r\n", chat));
  const std::string answer = old.ReadAll();
  EXPECT_FALSE(absl::StrContains(answer, "chunked"));
  EXPECT_TRUE(absl::EndsWith(answer, "data: [DONE]\n\n"));
}

TEST_F(OpenAiEndpointTest, CorsIsOffUnlessNamed) {
  options_.cors_origins = {"https://ui.example"};
  Start();
  const std::string preflight =
      "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\nOrigin: ";
  RawHttpClient client(port_);
  client.Send(preflight + "https://ui.example\r\n\r\n");
  const std::string allowed = client.ReadTo("\r\n\r\n");
  EXPECT_TRUE(absl::StartsWith(allowed, "HTTP/1.1 204 "));
  EXPECT_TRUE(absl::StrContains(allowed, "Access-Control-Allow-Origin: https://ui.example\r\n"));
  client.Send(preflight + "https://evil.example\r\n\r\n");
  const std::string refused = client.ReadAnswer().first;
  EXPECT_TRUE(absl::StartsWith(refused, "HTTP/1.1 403 "));
  EXPECT_FALSE(absl::StrContains(refused, "Access-Control-Allow-Origin"));
  const auto form = Ask(Request("POST", "/v1/completions", "{}", "Origin: https://evil.example\r\n"));
  EXPECT_EQ(403, form.first);
}

TEST_F(OpenAiEndpointTest, KeysAreReloadedAndKeepTheirUsage) {
  TempDir dir;
  options_.keys_file = dir.path() + "/keys";
  const auto write = [this](const std::string& lines) { std::ofstream(options_.keys_file) << lines; };
  // SHA-256 of "alpha" and "beta".
  const std::string alpha = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";
  const std::string beta = "f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753";
  write("# keys\nann " + alpha + " parallel=1\n");
  Start();
  const auto ask = [this](const std::string& key) {
    return Ask(Request("GET", "/v1/models", "", key.empty() ? "" : "Authorization: Bearer " + key + "\r\n"))
        .first;
  };
  EXPECT_EQ(401, ask(""));
  EXPECT_EQ(401, ask("beta"));
  EXPECT_EQ(200, ask("alpha"));
  EXPECT_EQ(200, Ask(Request("GET", "/health", "")).first);
  RawHttpClient running(port_);
  running.Send(Request("POST", "/v1/chat/completions", Chat(""), "x-api-key: alpha\r\n"));
  const GenerateSpec spec = engine_.NextGenerate();
  EXPECT_EQ("key:ann", spec.client);
  EXPECT_EQ(429, ask("alpha"));
  engine_.Finish(spec.request_id, Finish(FinishReason::kStop, 0));
  running.ReadAnswer();
  EXPECT_EQ(200, ask("alpha"));
  write("bob " + beta + "\n");
  EXPECT_TRUE(server_->Reload().ok());
  EXPECT_EQ(401, ask("alpha"));
  EXPECT_EQ(200, ask("beta"));
  write("bob nonsense\n");
  EXPECT_FALSE(server_->Reload().ok());
  EXPECT_EQ(200, ask("beta"));
}

TEST(HttpOptionsTest, BeyondLoopbackKeysOrTlsAreNeeded) {
  HttpServerOptions options;
  options.addresses = {*ParseListenAddress("0.0.0.0:8080")};
  EXPECT_FALSE(CheckHttpOptions(options).ok());
  options.keys_file = "keys";
  EXPECT_TRUE(CheckHttpOptions(options).ok());
  options.tls_key = "half";
  EXPECT_FALSE(CheckHttpOptions(options).ok());
}

// 1,000 almost valid requests; 10,000 of them with SLUICE_STRESS=full. Each is answered or its connection
// closed, and the server continues.
TEST_F(OpenAiEndpointTest, NoRequestBreaksTheEndpoint) {
  options_.max_body_bytes = 1 << 16;
  Start();
  engine_.AnswerWith(3);
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
      "properties": {"a": {"type": ["string", "null"]}}}}}], "tool_choice": "auto")";
  const std::string seeds[] = {
      Request("POST", "/v1/chat/completions", Chat(tools)),
      Request("POST", "/v1/chat/completions",
              Chat(R"("stream": true, "n": 3, "logprobs": true, "top_logprobs": 2)")),
      Request("POST", "/v1/chat/completions",
              R"({"messages": [{"role": "assistant", "content": null, "tool_calls":
          [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
          {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 3})"),
      Request("POST", "/v1/completions",
              R"({"prompt": [[1, 2], [3]], "logprobs": 2, "echo": false, "max_tokens": 2})"),
      Request("POST", "/v1/messages",
              R"({"max_tokens": 5, "system": [{"type": "text", "text": "s"}], "messages": [
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}]})"),
      Request("POST", "/v1/responses",
              R"({"input": [{"role": "user", "content": "x"}, {"type": "function_call",
          "call_id": "c", "name": "f", "arguments": "{}"}], "stream": true, "max_output_tokens": 3})"),
      Request("POST", "/tokenize", R"({"content": "Hi", "add_special": true})"),
      "POST /detokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"tokens\": "
      "[1]\r\n1\r\n}\r\n"
      "0\r\n\r\n",
      Request("GET", "/v1/models/tiny", "", "Origin: http://localhost:1\r\nConnection: close\r\n"),
  };
  const char* stress = std::getenv("SLUICE_STRESS");
  const int rounds = stress != nullptr && std::string(stress) == "full" ? 10'000 : 1'000;
  Mutator mutator(22);
  for (int i = 0; i < rounds; ++i) {
    RawHttpClient client(port_);
    client.Send(mutator.Mutate(seeds[i % std::size(seeds)]));
    client.EndSending();
    client.ReadAll();
  }
  EXPECT_EQ(200, Ask(Request("GET", "/health", "")).first);
  EXPECT_TRUE(calls_.AwaitIdle(absl::Minutes(1)));
}

}  // namespace
}  // namespace sluice::inferd
