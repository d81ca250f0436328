// Requests of agents and other clients, written after the forms that they send, and the answers in their
// forms.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/inferd/http/endpoint_fixture.h"

namespace sluice::inferd {
namespace {

// Prints messages as JSON: the template shows what of a request reaches the model.
constexpr char kPrinting[] =
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages | tojson }}{# <tool_call> </think> #}";

class ClientRequestsTest : public EndpointFixture {
 protected:
  // Posts a request, lets the model answer `said`, and returns the answer's body.
  std::string Answered(const std::string& path, const Json& body, const std::string& said,
                       const std::string& fields = "") {
    RawHttpClient client(port_);
    client.Send(Request("POST", path, body.dump(), fields));
    const GenerateSpec spec = engine_.NextGenerate();
    prompt_ = *tokenizer_->Decode(spec.prompt, /*skip_special=*/false);
    engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, said);
    engine_.Finish(spec.request_id, Finish(FinishReason::kStop, 1));
    return client.ReadAnswer().second;
  }
  bool Prompted(const std::string& text) const { return absl::StrContains(prompt_, text); }

  std::string prompt_;  // of the last request
};

TEST_F(ClientRequestsTest, EveryClientsRequestIsServed) {
  Start(kPrinting);
  std::ifstream file("tests/inferd/http/data/client_requests.json");
  const Json requests = Json::parse(file, nullptr, false);
  ASSERT_GE(requests.size(), 12u);
  for (const Json& request : requests) {
    RawHttpClient client(port_);
    client.Send(Request("POST", request["path"], request["body"].dump(), request.value("fields", "")));
    const GenerateSpec spec = engine_.NextGenerate();  // waits for ever if the request is refused
    engine_.Emit(spec.request_id, {{7, -0.5f, {}}}, "Yes");
    engine_.Finish(spec.request_id, Finish(FinishReason::kStop, 1));
    EXPECT_TRUE(absl::StrContains(client.ReadAnswer().second, "Yes")) << request["client"];
  }
}

Json ToolsOfCodex() {
  return Json::parse(R"([{"type": "function", "name": "f", "strict": false, "parameters": {"type": "object"}},
      {"type": "custom", "name": "patch", "description": "Edits."}, {"type": "local_shell"}, {"type": "web_search"},
      {"type": "namespace", "name": "docs", "tools": [{"type": "function", "name": "look", "parameters": {}}]}])");
}

TEST_F(ClientRequestsTest, ToolsOfOtherTypesAreFunctions) {
  Start(kPrinting);
  Answered("/v1/responses", {{"input", "Hi"}, {"tools", ToolsOfCodex()}}, "Yes");
  EXPECT_TRUE(Prompted(R"({"name": "f", "strict": false, "parameters": {"type": "object"}})")) << prompt_;
  EXPECT_TRUE(Prompted(R"("name": "patch", "description": "Edits.")")) << prompt_;
  EXPECT_TRUE(Prompted(R"("name": "local_shell")"));
  EXPECT_TRUE(Prompted(R"("name": "look")"));
  EXPECT_FALSE(Prompted("web_search"));
}

TEST_F(ClientRequestsTest, CallsComeBackInTheirToolsForm) {
  Start(kPrinting);
  const Json request = {{"input", "Hi"}, {"tools", ToolsOfCodex()}};
  const auto called = [&](const std::string& name, const std::string& arguments) {
    const std::string said =
        absl::StrCat("<tool_call>{\"name\": \"", name, "\", \"arguments\": ", arguments, "}</tool_call>");
    return Json::parse(Answered("/v1/responses", request, said), nullptr, false)["output"][0];
  };
  const Json patch = called("patch", R"({"input": "*** Begin"})");
  EXPECT_EQ("custom_tool_call", patch["type"]);
  EXPECT_EQ("*** Begin", patch["input"]);
  EXPECT_EQ("completed", patch["status"]);
  const Json shell = called("local_shell", R"({"command": ["ls", "-l"], "timeout_ms": 9})");
  EXPECT_EQ("local_shell_call", shell["type"]);
  EXPECT_EQ(Json::parse(R"(["ls", "-l"])"), shell["action"]["command"]);
  EXPECT_EQ(9, shell["action"]["timeout_ms"]);
  const Json look = called("look", "{}");
  EXPECT_EQ("function_call", look["type"]);
  EXPECT_EQ("docs", look["namespace"]);
}

TEST_F(ClientRequestsTest, StreamedCustomInputIsOneDelta) {
  Start(kPrinting);
  const std::string body =
      Answered("/v1/responses", {{"input", "Hi"}, {"tools", ToolsOfCodex()}, {"stream", true}},
               R"(<tool_call>{"name": "patch", "arguments": {"input": "a\nb"}}</tool_call>)");
  EXPECT_TRUE(absl::StrContains(body, "event: response.custom_tool_call_input.delta")) << body;
  EXPECT_TRUE(absl::StrContains(body, R"("delta":"a\nb")"));
  EXPECT_FALSE(absl::StrContains(body, "function_call_arguments"));
}

TEST_F(ClientRequestsTest, PastItemsReachTheTemplate) {
  Start(kPrinting);
  Answered("/v1/responses", {{"input", Json::parse(R"([{"type": "message", "role": "user", "content": "q"},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
      {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "x"},
      {"type": "custom_tool_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "ok"}]},
      {"type": "web_search_call", "id": "ws"}])")}},
           "Yes");
  EXPECT_TRUE(Prompted(R"("reasoning_content": "hm")")) << prompt_;
  EXPECT_TRUE(Prompted(R"("arguments": {"input": "x"})"));
  EXPECT_TRUE(Prompted(R"("content": "ok")"));
  EXPECT_FALSE(Prompted("web_search"));
}

TEST_F(ClientRequestsTest, BrokenArgumentsOfThePastAreTaken) {
  Start(kPrinting);
  for (const std::string arguments : {"{", "null", "[1]", "{} and more"}) {
    Json request = Json::parse(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant",
        "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "no"}]})");
    request["messages"][1]["tool_calls"][0]["function"]["arguments"] = arguments;
    EXPECT_TRUE(absl::StrContains(Answered("/v1/chat/completions", request, "Yes"), "Yes"));
    EXPECT_TRUE(Prompted(Json(arguments).dump())) << prompt_;
  }
}

TEST_F(ClientRequestsTest, TextPartsStayAListIfTheTemplateLoops) {
  const Json request = Json::parse(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})");
  Start(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
      "<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}");
  Answered("/v1/chat/completions", request, "Yes");
  EXPECT_EQ("<a><b>", prompt_);
  Stop();
  Start("{% for m in messages %}{{ m.content }}{% endfor %}");
  Answered("/v1/chat/completions", request, "Yes");
  EXPECT_EQ("a\nb", prompt_);
}

TEST_F(ClientRequestsTest, IdsAreNineLettersWhereTheTemplateAsks) {
  Start(
      "{# [TOOL_CALLS] #}{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
      "{{ raise_exception('nine') }}{% endif %}{{ c.function.name }} {{ c.id }} {% endfor %}"
      "{{ m.tool_call_id }}{% endfor %}");
  Answered("/v1/chat/completions",
           Json::parse(R"({"messages": [{"role": "assistant", "content": "", "tool_calls":
      [{"id": "toolu_0123", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "toolu_0123", "content": "x"}]})"),
           "Yes");
  ASSERT_EQ(21u, prompt_.size()) << prompt_;
  EXPECT_EQ(prompt_.substr(2, 9), prompt_.substr(12));
}

TEST_F(ClientRequestsTest, TypesOfArgumentsFollowTheWholeSchema) {
  Start("{{ tools }}{{ messages }}{# <tool_call> <function= #}");
  const Json request =
      Json::parse(R"({"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function",
      "function": {"name": "f", "parameters": {"type": "object", "$defs": {"P": {"type": "object"}, "N": {"$ref":
      "#/$defs/I"}, "I": {"type": "integer"}}, "properties": {"p": {"$ref": "#/$defs/P"}, "n": {"$ref": "#/$defs/N"},
      "e": {"enum": [1, 2, 3]}, "c": {"const": 5}, "i": {"items": {}}, "o": {"properties": {}},
      "a": {"allOf": [{"$ref": "#/$defs/N"}]}, "s": {"type": "string"}}}}}]})");
  std::string said = "<tool_call>\n<function=f>\n";
  for (const auto& [key, text] : std::vector<std::pair<std::string, std::string>>{{"p", "{\"x\": 1}"},
                                                                                  {"n", "7"},
                                                                                  {"e", "2"},
                                                                                  {"c", "5"},
                                                                                  {"i", "[1]"},
                                                                                  {"o", "{}"},
                                                                                  {"a", "8"},
                                                                                  {"s", "9"}}) {
    absl::StrAppend(&said, "<parameter=", key, ">\n", text, "\n</parameter>\n");
  }
  const Json answer = Json::parse(
      Answered("/v1/chat/completions", request, said + "</function>\n</tool_call>"), nullptr, false);
  EXPECT_EQ(Json::parse(R"({"p": {"x": 1}, "n": 7, "e": 2, "c": 5, "i": [1], "o": {}, "a": 8, "s": "9"})"),
            Json::parse(
                answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>()))
      << answer;
}

TEST_F(ClientRequestsTest, ModelsHaveTheMembersOfBothApis) {
  Start();
  const Json models = Json::parse(Ask(Request("GET", "/v1/models", "")).second, nullptr, false);
  EXPECT_EQ("list", models["object"]);
  EXPECT_EQ(false, models["has_more"]);
  EXPECT_EQ("tiny", models["first_id"]);
  EXPECT_EQ("model", models["data"][0]["object"]);
  EXPECT_EQ("model", models["data"][0]["type"]);
  EXPECT_EQ("tiny", models["data"][0]["display_name"]);
}

}  // namespace
}  // namespace sluice::inferd
