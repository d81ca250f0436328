#include "common/text/chat_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/text/jinja/interpreter.h"
#include "common/text/jinja/parser.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxJsonDepth = 64;
constexpr size_t kMaxTemplateBytes = 1 << 20;

// Everything in the conversation is a client's, keys too.
absl::StatusOr<jinja::Value> ToValue(const Json& json, int depth) {
  if (depth > kMaxJsonDepth) {
    return absl::InvalidArgumentError(absl::StrCat("conversation: nested deeper than ", kMaxJsonDepth));
  }
  switch (json.type()) {
    case Json::value_t::string:
      return jinja::Value(jinja::String::Client(json.get_ref<const std::string&>()));
    case Json::value_t::boolean:
      return jinja::Value(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return jinja::Value(json.get<int64_t>());
    case Json::value_t::number_float:
      return jinja::Value(json.get<double>());
    case Json::value_t::array: {
      jinja::List list;
      for (const Json& item : json) {
        ASSIGN_OR_RETURN(jinja::Value value, ToValue(item, depth + 1));
        list.push_back(std::move(value));
      }
      return jinja::Value(std::move(list));
    }
    case Json::value_t::object: {
      jinja::Map map;
      map.client = true;
      for (const auto& [key, item] : json.items()) {
        ASSIGN_OR_RETURN(jinja::Value value, ToValue(item, depth + 1));
        map.emplace_back(key, std::move(value));
      }
      return jinja::Value(std::move(map));
    }
    default:
      return jinja::Value(jinja::None{});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(
    const std::string& source, std::map<std::string, std::string> special_tokens) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat template: ", source.size(), " bytes, more than ", kMaxTemplateBytes));
  }
  auto made = std::unique_ptr<ChatTemplate>(new ChatTemplate());
  absl::StatusOr<jinja::Block> block = jinja::Parse(source);
  if (!block.ok()) {
    return Annotate(block.status(), "chat template");
  }
  made->block_ = *std::move(block);
  made->special_tokens_ = std::move(special_tokens);
  return made;
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const std::string& conversation, bool add_generation_prompt,
                                                  absl::Time now) const {
  const Json json = Json::parse(conversation, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object() || !json.contains("messages") ||
      !json["messages"].is_array()) {
    return absl::InvalidArgumentError("conversation: expected a JSON object with a list `messages`");
  }
  ASSIGN_OR_RETURN(const jinja::Value given, ToValue(json, 0));
  jinja::Map variables = *given.map();
  variables.client = false;
  for (const auto& [name, token] : special_tokens_) {
    jinja::SetKey(variables, name, jinja::Value(jinja::String::Own(token)));
  }
  jinja::SetKey(variables, "add_generation_prompt", jinja::Value(add_generation_prompt));
  for (const char* name : {"tools", "documents"}) {
    if (jinja::FindKey(variables, name) == nullptr) {
      jinja::SetKey(variables, name, jinja::Value(jinja::None{}));
    }
  }
  absl::StatusOr<jinja::String> rendered = jinja::Render(block_, variables, now);
  if (!rendered.ok()) {
    return Annotate(rendered.status(), "chat template");
  }
  return RenderedChat{std::move(rendered->text), std::move(rendered->marks)};
}

}  // namespace sluice
