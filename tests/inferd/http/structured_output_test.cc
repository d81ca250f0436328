// Structured output constraints under every HTTP name, down to the engine, and their errors back.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/inferd/http/endpoint_fixture.h"

namespace sluice::inferd {
namespace {

using Kind = GrammarSpec::Kind;

constexpr char kTools[] = R"("tools": [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}},
    {"type": "function", "function": {"name": "g"}}])";

class StructuredOutputTest : public EndpointFixture {
 protected:
  // Returns the engine's request, which then stays unanswered.
  GenerateSpec Planned(const std::string& path, const std::string& body) {
    RawHttpClient client(port_);
    client.Send(Request("POST", path, body));
    GenerateSpec spec = engine_.NextGenerate();
    engine_.Finish(spec.request_id, Finish(FinishReason::kStop, 0));
    client.ReadAnswer();
    return spec;
  }
  // Returns the answer to a chat for the model output `said`.
  Json Answered(const std::string& members, const std::string& said) {
    RawHttpClient client(port_);
    client.Send(Request("POST", "/v1/chat/completions", Chat(members)));
    const GenerateSpec spec = engine_.NextGenerate();
    engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, said);
    engine_.Finish(spec.request_id, Finish(FinishReason::kStop, 1));
    return Json::parse(client.ReadAnswer().second)["choices"][0];
  }
  std::string PromptOf(const GenerateSpec& spec) {
    return tokenizer_->Decode(spec.prompt, /*skip_special=*/false).value_or("");
  }
};

TEST_F(StructuredOutputTest, EveryConstraintFieldReachesTheEngine) {
  Start();
  const std::string schema = R"({"type": "object", "properties": {"b": {}, "a": {}}})";
  const std::string dumped = R"({"type":"object","properties":{"b":{},"a":{}}})";
  struct Case {
    std::string members;
    Kind kind;
    std::string text;
  };
  const Case cases[] = {
      {R"("response_format": {"type": "json_object"})", Kind::kJsonObject, ""},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": )" + schema +
           "}}",
       Kind::kJsonSchema, dumped},
      {R"("response_format": {"type": "json_object", "schema": )" + schema + "}", Kind::kJsonSchema, dumped},
      {R"("guided_json": )" + schema, Kind::kJsonSchema, dumped},
      {R"("guided_json": "{}")", Kind::kJsonSchema, "{}"},
      {R"("json_schema": )" + schema, Kind::kJsonSchema, dumped},
      {R"("guided_regex": "a+")", Kind::kRegex, "a+"},
      {R"("guided_grammar": "root ::= \"a\"")", Kind::kGrammar, "root ::= \"a\""},
      {R"("grammar": "root ::= \"a\"")", Kind::kGrammar, "root ::= \"a\""},
      {R"("guided_choice": ["x", "y"])", Kind::kChoice, ""},
      {R"("structured_outputs": {"regex": "a+"})", Kind::kRegex, "a+"},
      {R"("structured_outputs": {"json_object": true})", Kind::kJsonObject, ""},
  };
  for (const Case& one : cases) {
    for (const bool chat : {true, false}) {
      const GenerateSpec spec =
          chat ? Planned("/v1/chat/completions", Chat(one.members))
               : Planned("/v1/completions", absl::StrCat(R"({"prompt": "Hi", )", one.members, "}"));
      ASSERT_TRUE(spec.constraint.has_value()) << one.members;
      EXPECT_EQ(one.kind, spec.constraint->kind) << one.members;
      EXPECT_EQ(one.text, spec.constraint->text) << one.members;
      EXPECT_EQ(one.kind == Kind::kChoice ? 2u : 0u, spec.constraint->choices.size());
    }
  }
  EXPECT_FALSE(
      Planned("/v1/chat/completions", Chat(R"("response_format": {"type": "text"})")).constraint.has_value());
  const std::string format = R"("format": {"type": "json_schema", "name": "n", "schema": )" + schema + "}";
  EXPECT_EQ(dumped,
            Planned("/v1/responses", R"({"input": "Hi", "text": {)" + format + "}}").constraint->text);
  EXPECT_EQ(dumped,
            Planned("/v1/messages", R"({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}],
      "output_config": {)" + format + "}}")
                .constraint->text);
}

TEST_F(StructuredOutputTest, ConstraintErrorsUseTheClientsFieldName) {
  Start();
  const std::string format = R"({"type": "json_schema", "name": "n", "schema": {"not": {}}})";
  engine_.RefuseWith(FieldError(absl::StatusCode::kInvalidArgument, "guided.json_schema",
                                "/not: the keyword is not supported"));
  auto [status, answer] = Post("/v1/responses", R"({"input": "Hi", "text": {"format": )" + format + "}}");
  EXPECT_EQ(400, status);
  EXPECT_EQ("text.format.schema", answer["error"]["param"]);
  EXPECT_EQ("text.format.schema: /not: the keyword is not supported", answer["error"]["message"]);

  engine_.RefuseWith(FieldError(absl::StatusCode::kInvalidArgument, "guided.calls[1]", "is odd"));
  const std::string chat = Chat(absl::StrCat(kTools, R"(, "tool_choice": "required")"));
  EXPECT_EQ("tools[1].function.parameters", Post("/v1/chat/completions", chat).second["error"]["param"]);

  // Errors found by compiling arrive later, and are client errors as well.
  engine_.RefuseWith(absl::OkStatus());
  RawHttpClient client(port_);
  client.Send(Request("POST", "/v1/chat/completions", Chat(R"("guided_regex": "a", "stream": true)")));
  engine_.Fail(engine_.NextGenerate().request_id,
               ReasonError(absl::StatusCode::kInvalidArgument, "INVALID_GUIDE", "guided: no automaton"));
  const auto [head, body] = client.ReadAnswer();
  EXPECT_TRUE(absl::StartsWith(head, "HTTP/1.1 400 ")) << head;
  const Json error = Json::parse(body)["error"];
  EXPECT_EQ("guided_regex", error["param"]);
  EXPECT_EQ("guided_regex: no automaton", error["message"]);
  EXPECT_EQ("invalid_guide", error["code"]);
}

TEST_F(StructuredOutputTest, ForcedCallIsConstrainedAndParsed) {
  Start();
  const std::string path = "/v1/chat/completions";
  const GenerateSpec any = Planned(path, Chat(absl::StrCat(kTools, R"(, "tool_choice": "required")")));
  ASSERT_EQ(2u, any.constraint->calls.size());
  EXPECT_EQ("<tool_call>\n{\"name\": \"f\", \"arguments\": ", any.constraint->calls[0].begin);
  EXPECT_EQ(R"({"type":"object","properties":{"a":{}}})", any.constraint->calls[0].json_schema);
  EXPECT_EQ("}\n</tool_call>", any.constraint->calls[0].end);

  const std::string named =
      absl::StrCat(kTools, R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})");
  ASSERT_EQ(1u, Planned(path, Chat(named)).constraint->calls.size());
  const Json choice = Answered(named, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ("tool_calls", choice["finish_reason"]);
  EXPECT_EQ("g", choice["message"]["tool_calls"][0]["function"]["name"]);
  EXPECT_EQ("{}", choice["message"]["tool_calls"][0]["function"]["arguments"]);
  EXPECT_TRUE(choice["message"]["content"].is_null());

  const std::string flat =
      R"("tools": [{"type": "function", "name": "g"}], "tool_choice": {"type": "function", "name": "g"}})";
  EXPECT_EQ(1u, Planned("/v1/responses", R"({"input": "Hi", )" + flat).constraint->calls.size());
  const std::string anthropic = R"({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}],
      "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": )";
  EXPECT_EQ(1u, Planned("/v1/messages", anthropic + R"("any"}})").constraint->calls.size());
  EXPECT_EQ(1u, Planned("/v1/messages", anthropic + R"("tool", "name": "f"}})").constraint->calls.size());
}

TEST_F(StructuredOutputTest, SchemaWithToolsAllowsEither) {
  Start();
  const std::string members = absl::StrCat(kTools, R"(, "response_format": {"type": "json_object"})");
  const GenerateSpec spec = Planned("/v1/chat/completions", Chat(members));
  ASSERT_EQ(3u, spec.constraint->calls.size());
  EXPECT_EQ("", spec.constraint->calls[2].begin);
  EXPECT_EQ("", spec.constraint->calls[2].end);
  EXPECT_EQ("{\"x\": 1}", Answered(members, "{\"x\": 1}")["message"]["content"]);
}

TEST_F(StructuredOutputTest, TemplateWithoutToolsGetsThemInThePrompt) {
  Start("{% for m in messages %}{{ m.content }}{% endfor %}");
  const std::string forced = absl::StrCat(kTools, R"(, "tool_choice": "required")");
  const GenerateSpec spec = Planned("/v1/chat/completions", Chat(forced));
  EXPECT_TRUE(absl::StrContains(PromptOf(spec), R"({"name":"f",)")) << PromptOf(spec);
  const Json choice =
      Answered(forced, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 2}}\n</tool_call>");
  EXPECT_EQ("{\"a\": 2}", choice["message"]["tool_calls"][0]["function"]["arguments"]);
}

TEST_F(StructuredOutputTest, TemplateWithoutToolsCanStillCallTools) {
  Start("{% for m in messages %}{{ m.content }}{% endfor %}");
  const GenerateSpec spec = Planned("/v1/chat/completions", Chat(kTools));
  EXPECT_FALSE(spec.constraint.has_value());
  EXPECT_TRUE(absl::StrContains(PromptOf(spec), R"({"name":"g")")) << PromptOf(spec);
  EXPECT_TRUE(absl::StrContains(PromptOf(spec), "<tool_call>\n{\"name\": ")) << PromptOf(spec);
  const Json called =
      Answered(kTools, "So.\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ("tool_calls", called["finish_reason"]);
  EXPECT_EQ("So.", called["message"]["content"]);
  EXPECT_EQ("g", called["message"]["tool_calls"][0]["function"]["name"]);
  EXPECT_EQ("No need.", Answered(kTools, "No need.")["message"]["content"]);
  const std::string none = absl::StrCat(kTools, R"(, "tool_choice": "none")");
  EXPECT_FALSE(absl::StrContains(PromptOf(Planned("/v1/chat/completions", Chat(none))), "tool_call"));
}

// Templates without tools support neither calls nor results, and many require alternating roles.
TEST_F(StructuredOutputTest, PastCallsAreTextIfTemplateHasNoTools) {
  Start("{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}");
  const std::string body =
      R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": null,
      "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                     {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "tool", "tool_call_id": "2", "content": "y"},
      {"role": "user", "content": "And?"}]})";
  EXPECT_EQ(
      "[user|Q]"
      "[assistant|<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>]"
      "[user|<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response>\nAnd?]",
      PromptOf(Planned("/v1/chat/completions", body)));
}

TEST_F(StructuredOutputTest, ChannelIsOpenedForConstrainedText) {
  Start("{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant{# <|channel|> tools #}");
  const GenerateSpec spec = Planned("/v1/chat/completions", Chat(R"("guided_regex": "a+")"));
  EXPECT_TRUE(absl::EndsWith(PromptOf(spec), "<|start|>assistant<|channel|>final<|message|>"))
      << PromptOf(spec);
  EXPECT_EQ("aaa", Answered(R"("guided_regex": "a+")", "aaa")["message"]["content"]);
  const GenerateSpec call =
      Planned("/v1/chat/completions", Chat(absl::StrCat(kTools, R"(, "tool_choice": "required")")));
  EXPECT_EQ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
            call.constraint->calls[0].begin);
}

TEST_F(StructuredOutputTest, OpenThoughtEndsBeforeTheConstraint) {
  Start("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}");
  const GenerateSpec spec = Planned("/v1/chat/completions", Chat(R"("guided_regex": "a+")"));
  if (const auto close = tokenizer_->TokenToId("</think>"); close.has_value()) {
    EXPECT_EQ(close, spec.constraint->after_token);
    EXPECT_TRUE(absl::EndsWith(PromptOf(spec), "<think>\n"));
  } else {
    EXPECT_FALSE(spec.constraint->after_token.has_value());
    EXPECT_TRUE(absl::EndsWith(PromptOf(spec), "</think>\n\n")) << PromptOf(spec);
    EXPECT_EQ("aa", Answered(R"("guided_regex": "a+")", "aa")["message"]["content"]);
  }
}

}  // namespace
}  // namespace sluice::inferd
