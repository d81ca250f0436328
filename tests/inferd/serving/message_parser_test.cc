// Thoughts and tool calls in the syntax of each family, in pieces of every size.
#include "inferd/serving/message_parser.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/serving/call_parsers.h"
#include "tests/support/mutator.h"

namespace sluice::inferd {
namespace {

using Kind = MessageEvent::Kind;

// Returns a message rebuilt from its events: "{thought}text[name args]".
std::string Joined(const std::vector<MessageEvent>& events) {
  std::string out;
  Kind last = Kind::kText;
  for (const MessageEvent& event : events) {
    if (last == Kind::kReasoning && event.kind != Kind::kReasoning) {
      out += "}";
    }
    if ((last == Kind::kCall || last == Kind::kArguments) && event.kind != Kind::kArguments) {
      out += "]";
    }
    out += event.kind == Kind::kReasoning && last != Kind::kReasoning ? "{" : "";
    out += event.kind == Kind::kCall ? "[" : event.kind == Kind::kArguments && last == Kind::kCall ? " " : "";
    out += event.text;
    last = event.kind;
  }
  return out + (last == Kind::kReasoning ? "}" : last == Kind::kText ? "" : "]");
}

std::string Parsed(const Dialect& dialect, const MessageParserOptions& options, const std::string& text,
                   size_t piece) {
  MessageParser parser(dialect, options);
  std::vector<MessageEvent> events;
  for (size_t at = 0; at < text.size(); at += piece) {
    parser.Push(std::string_view(text).substr(at, piece), &events);
  }
  parser.Finish(&events);
  return Joined(events);
}

struct Case {
  const char* name;
  const char* chat_template;  // the part that identifies the family
  const char* text;
  const char* wanted;
};

const Case kCases[] = {
    {"plain text", "", "a <b> c\n", "a <b> c\n"},
    {"a thought and an answer", "</think>", "<think>\nwhy\nnot\n</think>\n\nBecause.", "{why\nnot}Because."},
    {"a thought without an end", "</think>", "<think>so long", "{so long}"},
    {"an empty thought", "</think>", "<think>\n\n</think>\n\nYes", "Yes"},
    {"marks later on are text", "</think>", "No <think>x</think>", "No <think>x</think>"},
    {"Mistral's thought", "[THINK] tools [TOOL_CALLS]", "[THINK]a[/THINK]b", "{a}b"},
    {"Hermes", "tools <tool_call>",
     "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>",
     "Let me look.[f {\"a\": [1, \"}\"]}]"},
    {"Hermes, two calls", "tools <tool_call>",
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
     "\"arguments\": "
     "{\"x\": 1}}\n</tool_call>",
     "[f {}][g {\"x\": 1}]"},
    {"Hermes, arguments first", "tools <tool_call>",
     "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", "[f {\"a\":1}]"},
    {"Hermes, arguments as text", "tools <tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", "[f {\"a\": 1}]"},
    {"no call behind the mark", "tools <tool_call>", "see <tool_call> is a tag", "see <tool_call> is a tag"},
    {"JSON that is no call", "tools <tool_call>", "<tool_call>{\"a\": 1}</tool_call>",
     "<tool_call>{\"a\": 1}</tool_call>"},
    {"cut in the arguments", "tools <tool_call>", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
     "[f {\"a\": \"b]"},
    {"cut in the name", "tools <tool_call>", "<tool_call>{\"name\": \"f", "<tool_call>{\"name\": \"f"},
    {"thought, then a call", "</think> tools <tool_call>",
     "<think>hm</think>\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "{hm}[f {}]"},
    {"XML", "tools <tool_call> <function=",
     "<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=s>\n5\n</"
     "parameter>\n<parameter=u>\nline 1\n"
     "line 2\n</parameter>\n</function>\n</tool_call>",
     "[f {\"n\": 5, \"s\": \"5\", \"u\": \"line 1\\nline 2\"}]"},
    {"XML without parameters",
     "tools <tool_call> <function=", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "[f {}]"},
    {"GLM", "tools <arg_key>",
     "Wait.\n<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n<arg_key>s</"
     "arg_key>\n<arg_value>x "
     "y</arg_value>\n</tool_call>",
     "Wait.[f {\"n\": 5, \"s\": \"x y\"}]"},
    {"Mistral's list", "tools [TOOL_CALLS]",
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
     "[f {\"a\": 1}][g {}]"},
    {"Mistral v11", "tools [TOOL_CALLS]", "ok[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g{}",
     "ok[f {\"a\": 1}][g {}]"},
    {"Ministral", "tools [TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{\"a\": 1}", "[f {\"a\": 1}]"},
    {"DeepSeek V3", "tools <｜tool▁calls▁begin｜>",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
     "1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<"
     "｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     "[f {\"a\": 1}][g {}]"},
    {"DeepSeek V3.1", "tools <｜tool▁calls▁begin｜>",
     "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
     "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "a[f {\"a\": 1}]"},
    {"harmony", "<|channel|>",
     "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>Hello",
     "{think}Hello"},
    {"harmony's call", "<|channel|>",
     "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"a\": 1}<|call|>",
     "{x}[f {\"a\": 1}]"},
    {"harmony without a header", "<|channel|>", "Just text", "Just text"},
    {"Llama 4", "tools <|python_start|>", "[f(a=\"x, y\", b=[1, True], c={'k': None}), g()]",
     "[f {\"a\":\"x, y\",\"b\":[1,true],\"c\":{\"k\":null}}][g {}]"},
    {"Llama 4, marked", "tools <|python_start|>", "So:<|python_start|>[f(a=-1.5)]<|python_end|>",
     "So:[f {\"a\":-1.5}]"},
    {"a bracket that is no call", "tools <|python_start|>", "[1] see there", "[1] see there"},
    {"Seed-OSS", "<seed:tool_call> <function=",
     "<seed:tool_call>\n<function=f>\n<parameter=n>5</parameter>\n</function>\n</seed:tool_call>",
     "[f {\"n\": 5}]"},
    {"MiniMax", "<minimax:tool_call>",
     "Hm.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"n\">5</parameter>\n<parameter "
     "name=\"s\">5</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
     "Hm.[f {\"n\": 5, \"s\": \"5\"}][g {}]"},
    {"DeepSeek V3.2", "set dsml_token = '｜DSML｜'",
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
     "string=\"true\">5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" "
     "string=\"false\">[5]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "[f {\"a\": \"5\", \"b\": [5]}]"},
    {"DeepSeek V4", "｜DSML｜",
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" "
     "string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "[f {\"n\": 5}]"},
    {"Kimi-K2", "<|tool_calls_section_begin|>",
     "So.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": "
     "1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>",
     "So.[f {\"a\": 1}][g {}]"},
    {"LFM2", "<|tool_call_start|>", "<|tool_call_start|>[f(a=\"x\", b=2)]<|tool_call_end|>Done.",
     "[f {\"a\":\"x\",\"b\":2}]Done."},
    {"Gemma 4", "<tool_call|>",
     "<|tool_call>call:f{a:<|\"|>x, {y}<|\"|>,b:2,c:{d:[1,true],e:null}}<tool_call|>",
     "[f {\"a\":\"x, {y}\",\"b\":2,\"c\":{\"d\":[1,true],\"e\":null}}]"},
    {"Gemma 4 without a call", "<tool_call|>", "<|tool_call>call:f(1)<tool_call|>",
     "<|tool_call>call:f(1)<tool_call|>"},
    {"Llama 3.1", "<|start_header_id|> \"parameters\": ", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
     "[f {\"a\": 1}]"},
    {"Llama 3.1, marked", "<|start_header_id|> \"parameters\": ",
     "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}", "[f {\"a\":1}]"},
    {"Llama 3.1, JSON that is no call", "<|start_header_id|> \"parameters\": ", "{\"a\": 1} is it",
     "{\"a\": 1} is it"},
    {"Apriel", "<tool_calls>",
     "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": "
     "{}}]</tool_calls>",
     "[f {\"a\": 1}][g {}]"},
    {"FireFunction", "functools", "functools[{\"name\": \"f\", \"arguments\": {}}]", "[f {}]"},
    {"Hermes, one brace too many", "<tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}}</tool_call>", "[f {\"a\": 1}]"},
    {"GLM, an object as the second argument", "<arg_key>",
     "<tool_call>f<arg_key>n</arg_key><arg_value>5</arg_value><arg_key>o</arg_key><arg_value>{\"x\": "
     "1}</arg_value></tool_call>",
     "[f {\"n\": 5, \"o\": {\"x\":1}}]"},
    {"Granite", "tools <|tool_call|>", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
     "[f {\"a\": 1}]"},
};

MessageParserOptions Tools() {
  MessageParserOptions options;
  options.tools = true;
  options.types = {{"f", {{"n", {"integer"}}, {"s", {"string"}}, {"o", {"object"}}}}};
  return options;
}

TEST(MessageParserTest, EveryFamilyIsReadAlikeInPiecesOfEverySize) {
  for (const Case& one : kCases) {
    const Dialect dialect = DialectOf(one.chat_template);
    const std::string text = one.text;
    for (size_t piece = 1; piece <= text.size(); ++piece) {
      EXPECT_EQ(one.wanted, Parsed(dialect, Tools(), text, piece)) << one.name << ", pieces of " << piece;
    }
  }
}

TEST(MessageParserTest, WithoutToolsCallsAreText) {
  const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  MessageParserOptions options = Tools();
  options.tools = false;
  EXPECT_EQ(text, Parsed(DialectOf("tools <tool_call>"), options, text, 3));
}

TEST(MessageParserTest, AThoughtThatThePromptOpenedNeedsOnlyItsEnd) {
  MessageParserOptions options;
  options.begins_in_thought = true;
  EXPECT_EQ("{why}Because", Parsed(DialectOf("</think>"), options, "why\n</think>\n\nBecause", 2));
}

TEST(MessageParserTest, IdsOfKimisCallsAreTheModels) {
  MessageParser parser(DialectOf("<|tool_calls_section_begin|>"), Tools());
  std::vector<MessageEvent> events;
  parser.Push("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{",
              &events);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ((MessageEvent{Kind::kCall, "f", "functions.f:3"}), events[0]);
}

TEST(MessageParserTest, CallsBeyondTheLimitAreLeftOut) {
  MessageParserOptions options = Tools();
  options.max_calls = 1;
  EXPECT_EQ("[f {}]", Parsed(DialectOf("tools [TOOL_CALLS]"), options, "[TOOL_CALLS]f{}[TOOL_CALLS]g{}", 4));
}

TEST(MessageParserTest, TextIsGivenOutOnceItIsClear) {
  MessageParser parser(DialectOf("tools <tool_call>"), Tools());
  std::vector<MessageEvent> events;
  parser.Push("Hello <tool", &events);
  EXPECT_EQ("Hello", Joined(events));
  parser.Push("s", &events);
  EXPECT_EQ("Hello <tools", Joined(events));
}

TEST(MessageParserTest, ArgumentsComeAsTheyAreWritten) {
  MessageParser parser(DialectOf("tools <tool_call>"), Tools());
  std::vector<MessageEvent> events;
  parser.Push("<tool_call>{\"name\": \"f\", \"arguments\": {\"city\": \"Pa", &events);
  ASSERT_EQ(2u, events.size());
  EXPECT_EQ((MessageEvent{Kind::kCall, "f", ""}), events[0]);
  EXPECT_EQ((MessageEvent{Kind::kArguments, "{\"city\": \"Pa", ""}), events[1]);
}

TEST(MessageParserTest, TextBecomesWhatItsSchemaAllows) {
  EXPECT_EQ("5", JsonOfText("5", {"integer"}));
  EXPECT_EQ("\"5\"", JsonOfText("5", {"string"}));
  EXPECT_EQ("\"5.5\"", JsonOfText("5.5", {"integer"}));
  EXPECT_EQ("5.0", JsonOfText("5.0", {"integer"}));
  EXPECT_EQ("12345678901234567890123", JsonOfText("12345678901234567890123", {"integer"}));
  EXPECT_EQ("true", JsonOfText("True", {"boolean"}));
  EXPECT_EQ("[1]", JsonOfText("[1]", {"array"}));
  EXPECT_EQ("\"[1\"", JsonOfText("[1", {"array"}));
  EXPECT_EQ("null", JsonOfText("null", {"string", "null"}));
  EXPECT_EQ("\"x\"", JsonOfText("x", {}));
}

// Random model output ends, with the same result for every split into pieces.
TEST(MessageParserTest, NoTextBreaksAParser) {
  Mutator mutator(7);
  for (int round = 0; round < 200; ++round) {
    for (const Case& one : kCases) {
      const std::string text = mutator.Mutate(one.text);
      const Dialect dialect = DialectOf(one.chat_template);
      const std::string whole = Parsed(dialect, Tools(), text, text.size() + 1);
      EXPECT_EQ(whole, Parsed(dialect, Tools(), text, 1)) << one.name << ": " << text;
    }
  }
}

}  // namespace
}  // namespace sluice::inferd
