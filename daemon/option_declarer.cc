#include "daemon/option_declarer.h"

#include <toml++/toml.h>

#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

// The shortest text that reads back as the same number: 0.1 and not 0.10000000000000001 in messages.
std::string ShortestText(double number) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number).ptr;
  return std::string(buffer, end);
}

// Converts a string, number or flag to its command line form; false for anything else.
bool TextOf(const toml::node& node, std::string* text) {
  if (const auto* value = node.as_string()) {
    *text = value->get();
  } else if (const auto* number = node.as_integer()) {
    *text = std::to_string(number->get());
  } else if (const auto* real = node.as_floating_point()) {
    *text = ShortestText(real->get());
  } else if (const auto* flag = node.as_boolean()) {
    *text = flag->get() ? "true" : "false";
  } else {
    return false;
  }
  return true;
}

bool TextsOf(const toml::node& node, std::vector<std::string>* texts) {
  const toml::array* array = node.as_array();
  if (array == nullptr) {
    return TextOf(node, &texts->emplace_back());
  }
  for (const toml::node& element : *array) {
    if (!TextOf(element, &texts->emplace_back())) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<CLI::ConfigItem> TomlConfig::from_config(std::istream& input) const {
  const std::string path = app_->get_config_ptr()->as<std::string>();
  const auto wrong = [&path](const toml::source_region& where, const std::string& what) {
    return CLI::ConfigError(absl::StrCat(path, ":", where.begin.line, ": ", what));
  };
  std::string text(kMaxConfigBytes + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(input.gcount()));
  if (text.size() > kMaxConfigBytes) {
    throw CLI::ConfigError(absl::StrCat(path, ": is longer than ", kMaxConfigBytes, " bytes"));
  }
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw wrong(error.source(), std::string(error.description()));
  }
  std::vector<CLI::ConfigItem> items;
  for (const auto& [key, value] : table) {
    CLI::ConfigItem item;
    item.name = std::string(key.str());
    // A misspelt key must not pass as a default.
    if (app_->get_option_no_throw(absl::StrCat("--", item.name)) == nullptr) {
      throw wrong(key.source(), absl::StrCat("there is no option \"", item.name, "\""));
    }
    if (!TextsOf(value, &item.inputs)) {
      throw wrong(key.source(), absl::StrCat(item.name, " is no text, number or flag, nor a list of these"));
    }
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace sluice
