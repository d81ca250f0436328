#include "common/text/chat_template.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/model/hf_config.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<RenderedChat> Rendered(const std::string& source, const std::string& conversation) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> made = ChatTemplate::Create(source, {{"bos_token", "<s>"}});
  return made.ok() ? (*made)->Render(conversation, {.add_generation_prompt = false, .now = absl::UnixEpoch()})
                   : absl::StatusOr<RenderedChat>(made.status());
}

std::string TextOf(const std::string& source) {
  absl::StatusOr<RenderedChat> rendered =
      Rendered(source, R"({"messages": [{"role": "user", "content": "hi"}]})");
  return rendered.ok() ? rendered->text : std::string(rendered.status().message());
}

TEST(ChatTemplateTest, RendersAsJinja2DoesOverEveryCase) {
  std::ifstream file("tests/common/text/data/jinja_cases.json");
  const Json data = Json::parse(file, nullptr, false);
  ASSERT_FALSE(data.is_discarded());
  std::map<std::string, std::unique_ptr<ChatTemplate>> templates;
  for (const auto& [name, source] : data["templates"].items()) {
    auto made =
        ChatTemplate::Create(source.get<std::string>(), {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    ASSERT_TRUE(made.ok()) << name << ": " << made.status();
    templates[name] = *std::move(made);
  }
  const absl::Time now = absl::FromUnixSeconds(data["now"].get<int64_t>());
  int compared = 0;
  for (const Json& test : data["cases"]) {
    const std::string conversation = test["conversation"].dump();
    const auto rendered = templates[test["name"].get<std::string>()]->Render(
        conversation, {.add_generation_prompt = test["prompt"], .now = now});
    const std::string where = test["name"].get<std::string>() + " of " + conversation;
    if (test["expected"].is_null()) {
      EXPECT_FALSE(rendered.ok()) << where << " gave " << rendered->text;
    } else {
      ASSERT_TRUE(rendered.ok()) << where << ": " << rendered.status();
      EXPECT_EQ(test["expected"].get<std::string>(), rendered->text) << where;
      EXPECT_EQ(rendered->text.size(), rendered->marks.size());
    }
    ++compared;
  }
  EXPECT_EQ(200, compared);
}

TEST(ChatTemplateTest, JoinedTemplatesRenderAsEachDoes) {
  std::ifstream file("tests/common/text/data/jinja_cases.json");
  const Json data = Json::parse(file, nullptr, false);
  ASSERT_FALSE(data.is_discarded());
  const absl::Time now = absl::FromUnixSeconds(data["now"].get<int64_t>());
  const std::string other = "\n  another\n";
  int with_tools = 0;
  for (const Json& test : data["cases"]) {
    const Json& conversation = test["conversation"];
    const bool tools = conversation.contains("tools") && !conversation["tools"].empty();
    const std::string source = data["templates"][test["name"].get<std::string>()];
    const std::string joined = tools ? JoinChatTemplates(other, source) : JoinChatTemplates(source, other);
    auto made = ChatTemplate::Create(joined, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    ASSERT_TRUE(made.ok()) << made.status();
    const auto rendered =
        (*made)->Render(conversation.dump(), {.add_generation_prompt = test["prompt"], .now = now});
    const std::string where = test["name"].get<std::string>() + " of " + conversation.dump();
    ASSERT_EQ(rendered.ok(), !test["expected"].is_null()) << where << ": " << rendered.status();
    if (rendered.ok()) {
      EXPECT_EQ(test["expected"].get<std::string>(), rendered->text) << where;
    }
    with_tools += tools ? 1 : 0;
  }
  EXPECT_GT(with_tools, 10);
}

TEST(ChatTemplateTest, JoinedTemplatesKeepBlanksAtTheirEnds) {
  const std::string joined = JoinChatTemplates("\n plain  \n  ", "\n\n tools \n \n\n");
  EXPECT_EQ(TextOf(joined), "\n plain  \n  ");
  EXPECT_EQ(
      Rendered(joined, R"({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function",
      "function": {"name": "f"}}]})")
          ->text,
      "\n\n tools \n \n");
  EXPECT_EQ(JoinChatTemplates("a", ""), "a");
  EXPECT_EQ(JoinChatTemplates("", "b"), "");
}

TEST(ChatTemplateTest, EveryConstructRendersAsInJinja2) {
  std::ifstream file("tests/common/text/data/jinja_constructs.json");
  const Json data = Json::parse(file, nullptr, false);
  ASSERT_FALSE(data.is_discarded());
  // The reader keeps the digits of whole numbers that Json does not.
  std::ifstream again("tests/common/text/data/jinja_constructs.json");
  std::string conversation;
  std::getline(again, conversation);
  conversation = conversation.substr(conversation.find(": ") + 2);
  conversation.pop_back();  // the comma
  ASSERT_GT(data["cases"].size(), 500u);
  for (const Json& test : data["cases"]) {
    const std::string source = test["template"];
    const auto made = ChatTemplate::Create(source, {{"bos_token", "<s>"}});
    const auto rendered = made.ok()
                              ? (*made)->Render(conversation, {.add_generation_prompt = false,
                                                               .now = absl::FromUnixSeconds(1'700'000'000)})
                              : absl::StatusOr<RenderedChat>(made.status());
    if (test["expected"].is_null()) {
      EXPECT_FALSE(rendered.ok()) << source << " gave " << rendered->text;
    } else {
      ASSERT_TRUE(rendered.ok()) << source << ": " << rendered.status();
      EXPECT_EQ(test["expected"].get<std::string>(), rendered->text) << source;
      EXPECT_EQ(rendered->text.size(), rendered->marks.size()) << source;
    }
  }
}

TEST(ChatTemplateTest, IntegersKeepAllOfTheirDigits) {
  const auto rendered =
      Rendered("{{ n }} {{ n | tojson }} {{ n is integer }}",
               R"({"messages": [], "n": 1234567890123456789012345678901234567890123456789})");
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(
      "1234567890123456789012345678901234567890123456789 1234567890123456789012345678901234567890123456789 "
      "True",
      rendered->text);
}

TEST(ChatTemplateTest, NamedCharactersOutsideTheTableAreNamed) {
  EXPECT_EQ("—", TextOf("{{ '\\N{EM DASH}' }}"));
  EXPECT_EQ("chat template: template line 1: the character name 'SNOWMAN' is not supported",
            TextOf("{{ '\\N{SNOWMAN}' }}"));
}

TEST(ChatTemplateTest, VariablesThatTemplatesReadAreFound) {
  const auto reads = [](const char* source) { return (*ChatTemplate::Create(source, {}))->reads_tools(); };
  EXPECT_TRUE(reads("{% if tools %}x{% endif %}"));
  EXPECT_TRUE(reads("{%- set t = tools | tojson -%}"));
  EXPECT_FALSE(reads("tools {{ messages[0].tools }} {{ 'tools' }}"));
}

std::string RenderedWith(const std::string& source, const std::string& conversation, MessageForms forms) {
  const auto made = ChatTemplate::Create(source, {});
  const auto rendered = (*made)->Render(conversation, {.add_generation_prompt = false, .forms = forms});
  return rendered.ok() ? rendered->text : std::string(rendered.status().message());
}

std::string WithArguments(const std::string& arguments) {
  return absl::StrCat(
      R"({"messages": [{"role": "assistant", "content": "t", "reasoning": "r", "tool_calls":)",
      R"( [{"id": "call_1", "function": {"name": "f", "arguments": )", arguments,
      R"(}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "x"}]})");
}

TEST(ChatTemplateTest, ArgumentsTakeTheFormAskedFor) {
  const std::string source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
  const std::string text = R"("{\"k\":12345678901234567890123}")";
  EXPECT_EQ(R"({"k": 12345678901234567890123})",
            RenderedWith(source, WithArguments(text), {.arguments = ArgumentsAs::kObject}));
  EXPECT_EQ(text, RenderedWith(source, WithArguments(text), {.arguments = ArgumentsAs::kText}));
  EXPECT_EQ(R"("{")", RenderedWith(source, WithArguments(R"("{")"), {.arguments = ArgumentsAs::kObject}));
  EXPECT_EQ(R"({"arguments": "{"})",
            RenderedWith(source, WithArguments(R"("{")"), {.arguments = ArgumentsAs::kObjectAlways}));
}

TEST(ChatTemplateTest, ShortIdsAreTheSameInCallsAndResults) {
  const std::string ids = RenderedWith("{{ messages[0].tool_calls[0].id }} {{ messages[1].tool_call_id }}",
                                       WithArguments("{}"), {.short_ids = true});
  ASSERT_EQ(19u, ids.size());
  EXPECT_EQ(ids.substr(0, 9), ids.substr(10));
}

TEST(ChatTemplateTest, MergedThoughtsLoseNoText) {
  EXPECT_EQ("|r\n\nt", RenderedWith("{{ messages[0].content }}|{{ messages[0].thinking }}",
                                    WithArguments("{}"), {.merge_thoughts = true}));
}

TEST(ChatTemplateTest, MarksFollowTheClientsBytesThroughFilters) {
  const auto rendered = Rendered(
      "<|a|>{{ messages[0].content | trim | upper | replace('X', '<|b|>') }}{{ messages[0] | tojson }}",
      R"({"messages": [{"content": " <|a|>x "}]})");
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ("<|a|><|A|><|b|>{\"content\": \" <|a|>x \"}", rendered->text);
  const std::string own = std::string(5, 0) + std::string(5, 1) + std::string(5, 0);
  EXPECT_EQ(own, rendered->marks.substr(0, 15));
  EXPECT_EQ(std::string(7, 1), rendered->marks.substr(17, 7)) << "a client's keys are the client's";
}

TEST(ChatTemplateTest, WhatItCannotRunIsNamedWithItsLine) {
  EXPECT_EQ("chat template: template line 2: the tag 'include' is not supported",
            TextOf("a\n{% include 'x' %}"));
  EXPECT_EQ("chat template: template line 1: the filter 'wordwrap' is not supported",
            TextOf("{{ 'x' | wordwrap }}"));
  EXPECT_EQ("chat template: template line 1: the test 'weird' is not supported", TextOf("{{ 1 is weird }}"));
  EXPECT_EQ("chat template: template line 1: the function 'lipsum' is not supported",
            TextOf("{{ lipsum() }}"));
  EXPECT_EQ("chat template: template line 3: no tools here",
            TextOf("\n\n{{ raise_exception('no tools here') }}"));
}

TEST(ChatTemplateTest, MappingsMayHaveIntegerKeys) {
  EXPECT_EQ("b None 3 1=a,3=b,{3: 'b', 1: 'a'},{\"3\": \"b\", \"1\": \"a\"}",
            TextOf("{% set m = {3: 'b', 1: 'a'} %}{{ m[3] }} {{ m.get(2) }} {{ m | list | max }} "
                   "{% for k, v in m | dictsort %}{{ k ~ '=' ~ v }},{% endfor %}{{ m }},{{ m | tojson }}"));
  EXPECT_EQ("{1: 2, 'a': 3, None: 4}", TextOf("{{ {1: 2, 'a': 3, none: 4} }}"));
}

TEST(ChatTemplateTest, SortingIgnoresCaseUnlessTold) {
  EXPECT_EQ("aBc Bac cBa", TextOf("{{ ['c', 'B', 'a'] | sort | join }} "
                                  "{{ ['c', 'B', 'a'] | sort(case_sensitive=true) | join }} "
                                  "{{ ['c', 'B', 'a'] | sort(reverse=true) | join }}"));
}

TEST(ChatTemplateTest, EveryKindOfNewlineIsOne) {
  EXPECT_EQ("a\nb\nc", TextOf("a\r\n{% if true %}\r\nb\rc{% endif %}\r\n"));
}

TEST(ChatTemplateTest, JsonCanBeAscii) {
  EXPECT_EQ(R"("\u00e9\ud83d\udc69")", TextOf("{{ 'é👩' | tojson(ensure_ascii=true) }}"));
}

TEST(ChatTemplateTest, AKnownRoleIsTheTemplatesText) {
  const auto rendered = Rendered("<|{{ messages[0].role }}|>{{ messages[1].role }}",
                                 R"({"messages": [{"role": "user"}, {"role": "|><|x|>"}]})");
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(std::string(8, 0) + std::string(7, 1), rendered->marks);
}

TEST(ChatTemplateTest, TheLastMessageCanBeContinued) {
  for (const bool trims : {false, true}) {
    const auto made = ChatTemplate::Create(
        absl::StrCat("{% for m in messages %}<{{ m.content", trims ? "|trim" : "", " }}>{% endfor %}"), {});
    ASSERT_TRUE(made.ok());
    const ChatRenderOptions options{.add_generation_prompt = false, .continue_final_message = true};
    const auto rendered =
        (*made)->Render(R"({"messages": [{"role": "user", "content": "a"}, {"content": "b c "}]})", options);
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_EQ(trims ? "<a><b c" : "<a><b c ", rendered->text);
    EXPECT_EQ(rendered->text.size(), rendered->marks.size());
    EXPECT_FALSE((*made)->Render(R"({"messages": []})", options).ok());
  }
}

TEST(ChatTemplateTest, AClientCannotSetTheTemplatesTokens) {
  for (const char* name : {"bos_token", "add_generation_prompt"}) {
    const auto rendered = Rendered("x", absl::StrCat("{\"messages\": [], \"", name, "\": \"y\"}"));
    EXPECT_EQ(absl::StatusCode::kInvalidArgument, rendered.status().code());
  }
}

TEST(ChatTemplateTest, LargeConversationsAreRefused) {
  std::string values = "{\"messages\": [], \"x\": [";
  for (int i = 0; i < 100'001; ++i) {
    values += "0,";
  }
  EXPECT_FALSE(Rendered("x", values + "0]}").ok());
  std::string members = "{\"messages\": [], \"x\": {";
  for (int i = 0; i < 1025; ++i) {
    absl::StrAppend(&members, i > 0 ? "," : "", "\"", i, "\": 0");
  }
  EXPECT_FALSE(Rendered("x", members + "}}").ok());
  EXPECT_FALSE(Rendered("x", "{\"messages\": []}" + std::string(17 << 20, ' ')).ok());
}

TEST(ChatTemplateTest, BrokenTemplatesAreErrors) {
  for (const char* source : {"{{", "{% if %}", "{% for x in %}{% endfor %}", "{{ 'open }}", "{# open",
                             "{% if true %}", "{{ a b }}", "{% endfor %}", "{{ [1, }}", "{% macro %}",
                             "{{ x[ }}", "{% raw %}", "{{ $ }}", "{{ 0x }}", "{{ '\\u12' }}"}) {
    EXPECT_FALSE(ChatTemplate::Create(source, {}).ok()) << source;
  }
}

TEST(ChatTemplateTest, EndlessTemplatesMeetTheirLimits) {
  EXPECT_NE(std::string::npos,
            TextOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("nested deeper"));
  EXPECT_NE(
      std::string::npos,
      TextOf("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}").find("steps"));
  EXPECT_NE(std::string::npos, TextOf("{{ 'x' * 99999999 }}").find("more than"));
  EXPECT_NE(std::string::npos, TextOf("{{ range(9999999) }}").find("more than"));
  EXPECT_NE(
      std::string::npos,
      TextOf("{% set ns = namespace(t='x' * 1000) %}{% for i in range(99999) %}{% set ns.t = ns.t ~ ns.t %}"
             "{% endfor %}")
          .find("more than"))
      << "doubling a text is more than a step";
  std::string deep;
  for (int i = 0; i < 5000; ++i) {
    deep += "{% if true %}";
  }
  EXPECT_NE(std::string::npos, TextOf(deep).find("nested deeper"));
  EXPECT_FALSE(ChatTemplate::Create(absl::StrCat("{{ ", std::string(5000, '('), " }}"), {}).ok());
}

TEST(ChatTemplateTest, ConversationsMustBeObjectsWithMessages) {
  for (const char* conversation : {"", "[]", "{}", "{\"messages\": 3}", "{\"messages\": [", "null"}) {
    EXPECT_FALSE(Rendered("x", conversation).ok()) << conversation;
  }
}

}  // namespace
}  // namespace sluice
