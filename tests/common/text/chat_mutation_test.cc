// Damaged and spliced templates end with a text or an error, within their budget.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "common/text/chat_template.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

constexpr char kDir[] = "tests/common/text/data/chat/templates";
constexpr char kConversation[] = R"({
  "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "<|im_end|> é \n"},
    {"role": "assistant", "content": "", "reasoning_content": "r",
     "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]},
    {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "1"}],
  "tools": [{"type": "function", "function": {"name": "f", "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}], "enable_thinking": true})";

std::vector<std::string> Sources() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kDir)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> sources;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    sources.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return sources;
}

// Parts of templates: spliced in, these reach further than random bytes do.
constexpr const char* kParts[] = {"{%",
                                  "%}",
                                  "{{",
                                  "}}",
                                  "{#",
                                  "#}",
                                  "-",
                                  "for x in ",
                                  "endfor",
                                  "if ",
                                  "else",
                                  "endif",
                                  "set ",
                                  "endset",
                                  "macro f(a, b=f)",
                                  "endmacro",
                                  "f(f)",
                                  "call f()",
                                  "endcall",
                                  "range(999999)",
                                  "namespace(a=1)",
                                  "loop.index",
                                  "loop.nextitem",
                                  "[::-1]",
                                  "[-9223372036854775808:]",
                                  " * 99999999",
                                  " ** 999",
                                  " // 0",
                                  " % -1",
                                  "| tojson(indent=16)",
                                  "| join(messages)",
                                  "| map('upper')",
                                  "| selectattr('role')",
                                  "| sort",
                                  "| dictsort",
                                  "| items",
                                  "messages",
                                  "messages[0]",
                                  "not ",
                                  "is defined",
                                  "in messages",
                                  "~ messages",
                                  "(",
                                  ")",
                                  "[",
                                  "]",
                                  "{1: 2}",
                                  "'",
                                  "\"",
                                  "break",
                                  "continue",
                                  "{% generation %}",
                                  "{% filter upper %}",
                                  "strftime_now('%')",
                                  "|length",
                                  ".split('')"};

std::string Mutated(const std::vector<std::string>& sources, std::mt19937_64* random) {
  const auto below = [random](size_t n) { return static_cast<size_t>((*random)() % n); };
  std::string text = sources[below(sources.size())];
  for (size_t edits = 1 + below(6); edits > 0; --edits) {
    const size_t at = below(text.size() + 1);
    switch (below(5)) {
      case 0:
        text.erase(at, below(40));
        break;
      case 1:
        text.insert(at, kParts[below(std::size(kParts))]);
        break;
      case 2:
        if (at < text.size()) {
          text[at] = static_cast<char>((*random)());
        }
        break;
      case 3: {
        const std::string& other = sources[below(sources.size())];
        text.insert(at, other, below(other.size()), below(200));
        break;
      }
      default:
        text.resize(at);
        break;
    }
    text += text.empty() ? "x" : "";
  }
  return text;
}

TEST(ChatMutationTest, EveryDamagedTemplateEnds) {
  const std::vector<std::string> sources = Sources();
  ASSERT_GE(sources.size(), 15u);
  std::mt19937_64 random(20250801);
  ChatRenderOptions options;
  options.limits.steps = 20'000;
  options.limits.output_bytes = 1 << 20;
  int parsed = 0;
  int rendered = 0;
  for (int round = 0; round < 6000; ++round) {
    const auto made =
        ChatTemplate::Create(Mutated(sources, &random), {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    if (!made.ok()) {
      continue;
    }
    ++parsed;
    const auto chat = (*made)->Render(kConversation, options);
    if (chat.ok()) {
      ++rendered;
      ASSERT_EQ(chat->text.size(), chat->marks.size());
      ASSERT_LE(chat->text.size(), options.limits.output_bytes);
    }
  }
  EXPECT_GT(parsed, 500) << "mutations that never parse test the parser only";
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace sluice
