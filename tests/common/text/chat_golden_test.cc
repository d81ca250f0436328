// Published templates of the families over data/chat/goldens.json: rendered as transformers renders them.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "common/text/chat_template.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDir[] = "tests/common/text/data/chat/";

std::string FileOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const Json& Goldens() {
  static const Json* const goldens =
      new Json(Json::parse(FileOf(std::string(kDir) + "goldens.json"), nullptr, false));
  return *goldens;
}

class ChatGoldenTest : public testing::TestWithParam<std::string> {};

// Conversations that transformers refuses in Python (a list joined to a string) may be accepted here, but
// never give silently truncated text.
TEST_P(ChatGoldenTest, EveryConversationRendersAsInTransformers) {
  ASSERT_TRUE(Goldens().is_object());
  const Json& golden = Goldens()["templates"][GetParam()];
  std::map<std::string, std::string> special;
  for (const char* name : {"bos_token", "eos_token"}) {
    if (golden[name].is_string()) {
      special[name] = golden[name].get<std::string>();
    }
  }
  const auto made =
      ChatTemplate::Create(FileOf(std::string(kDir) + "templates/" + GetParam() + ".jinja"), special);
  ASSERT_TRUE(made.ok()) << made.status();
  int rendered_count = 0;
  for (size_t i = 0; i < Goldens()["conversations"].size(); ++i) {
    const Json& given = Goldens()["conversations"][i];
    Json conversation = {{"messages", given["messages"]}};
    ChatRenderOptions options;
    options.now = absl::FromUnixSeconds(Goldens()["now"].get<int64_t>());
    options.add_generation_prompt = true;
    for (const auto& [name, value] : given["options"].items()) {
      if (name == "add_generation_prompt") {
        options.add_generation_prompt = value.get<bool>();
      } else {
        conversation[name] = value;
      }
    }
    const auto rendered = (*made)->Render(conversation.dump(), options);
    const Json& expected = golden["expected"][i];
    if (expected.is_null()) {
      EXPECT_FALSE(rendered.ok()) << conversation << " gave " << rendered->text;
      continue;
    }
    ++rendered_count;
    ASSERT_TRUE(rendered.ok()) << conversation << ": " << rendered.status();
    EXPECT_EQ(expected.get<std::string>(), rendered->text) << conversation;
    EXPECT_EQ(rendered->text.size(), rendered->marks.size());
  }
  EXPECT_GE(rendered_count, 20);
}

std::vector<std::string> TemplateNames() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : Goldens()["templates"].items()) {
    names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatGoldenTest, testing::ValuesIn(TemplateNames()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace sluice
