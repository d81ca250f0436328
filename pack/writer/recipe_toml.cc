// Recipe files. TOML is converted to the JSON tree that the project's checked access works on.

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "pack/writer/recipe.h"

namespace sluice {
namespace {

using nlohmann::json;

json JsonOf(const toml::node& node) {
  if (const toml::table* table = node.as_table()) {
    json object = json::object();
    for (const auto& [key, value] : *table) object[std::string(key.str())] = JsonOf(value);
    return object;
  }
  if (const toml::array* array = node.as_array()) {
    json list = json::array();
    for (const toml::node& value : *array) list.push_back(JsonOf(value));
    return list;
  }
  if (const auto* text = node.as_string()) return json(text->get());
  if (const auto* number = node.as_integer()) {
    return number->get() < 0 ? json(number->get()) : json(static_cast<uint64_t>(number->get()));
  }
  if (const auto* number = node.as_floating_point()) return json(number->get());
  if (const auto* flag = node.as_boolean()) return json(flag->get());
  // No key accepts this type, so the error that names the value's key will show this text.
  return json("a date or time");
}

// A misspelt key must not pass as a default.
absl::Status OnlyKeys(const JsonObject& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.value().items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return object.Error(key.substr(0, 40), "is not known here");
    }
  }
  return absl::OkStatus();
}

// Parses a value that has names; its error names the position.
template <typename T>
absl::StatusOr<T> Named(const JsonObject& object, const std::string& key, absl::StatusOr<T> value) {
  return value.ok() ? value : object.Error(key, absl::StrCat("is wrong: ", value.status().message()));
}

// "q4", or {bits = "q4", group = 64, meta_bits = 16}. Missing keys are taken from `base`.
absl::StatusOr<RowFormat> ReadChoice(const JsonObject& parent, const std::string& key, RowFormat base) {
  const json& value = *parent.Find(key);
  if (value.is_string()) {
    ASSIGN_OR_RETURN(base.encoding, Named(parent, key, EncodingFromName(value.get<std::string>())));
    return base;
  }
  ASSIGN_OR_RETURN(const JsonObject object, parent.Object(key));
  RETURN_IF_ERROR(OnlyKeys(object, {"bits", "group", "meta_bits"}));
  ASSIGN_OR_RETURN(const std::string bits, object.String("bits"));
  ASSIGN_OR_RETURN(base.encoding, Named(object, "bits", EncodingFromName(bits)));
  ASSIGN_OR_RETURN(base.group, object.UintOr("group", 0, 0xffff, base.group));
  ASSIGN_OR_RETURN(base.meta_bits, object.UintOr("meta_bits", 0, 255, base.meta_bits));
  return base;
}

// `bits`, `group` and `meta_bits` of all parts at once; absent if none is given.
absl::StatusOr<std::optional<RowFormat>> ReadCommonChoice(const JsonObject& object) {
  RowFormat choice;
  ASSIGN_OR_RETURN(choice.group, object.UintOr("group", 0, 0xffff, choice.group));
  ASSIGN_OR_RETURN(choice.meta_bits, object.UintOr("meta_bits", 0, 255, choice.meta_bits));
  if (!object.Has("bits")) {
    if (object.Has("group") || object.Has("meta_bits")) return object.Error("bits", "is missing");
    return std::optional<RowFormat>();
  }
  ASSIGN_OR_RETURN(const std::string bits, object.String("bits"));
  ASSIGN_OR_RETURN(choice.encoding, Named(object, "bits", EncodingFromName(bits)));
  return std::optional<RowFormat>(choice);
}

// Two numbers from `low` to `high`.
absl::StatusOr<std::pair<double, double>> ReadPair(const JsonObject& object, const std::string& key,
                                                   double low, double high) {
  ASSIGN_OR_RETURN(const json* list, object.Array(key));
  if (list->size() != 2 || !(*list)[0].is_number() || !(*list)[1].is_number()) {
    return object.Error(key, "is not a pair of numbers");
  }
  const double first = (*list)[0].get<double>();
  const double second = (*list)[1].get<double>();
  if (!(first >= low && first <= second && second <= high)) {
    return object.Error(key, absl::StrCat("is ", first, " to ", second, "; ", low, " <= from <= to <= ", high,
                                          " is expected"));
  }
  return std::make_pair(first, second);
}

absl::StatusOr<RecipeRule> ReadRule(const JsonObject& object) {
  RETURN_IF_ERROR(
      OnlyKeys(object, {"layers", "usage", "layout", "bits", "group", "meta_bits", "up", "gate", "down"}));
  RecipeRule rule;
  if (object.Has("layers")) {
    constexpr double kMaxRecipeLayers = 1 << 20;
    ASSIGN_OR_RETURN(const auto layers, ReadPair(object, "layers", 0, kMaxRecipeLayers));
    if (layers.first != std::floor(layers.first) || layers.second != std::floor(layers.second)) {
      return object.Error("layers", "is not a pair of whole numbers");
    }
    rule.first_layer = static_cast<uint32_t>(layers.first);
    rule.last_layer = static_cast<uint32_t>(layers.second);
  }
  if (object.Has("usage")) {
    ASSIGN_OR_RETURN(const auto usage, ReadPair(object, "usage", 0, 1));
    rule.usage_from = usage.first;
    rule.usage_to = usage.second;
  }
  if (object.Has("layout")) {
    ASSIGN_OR_RETURN(const std::string layout, object.String("layout"));
    ASSIGN_OR_RETURN(rule.layout, Named(object, "layout", ExpertLayoutFromName(layout)));
  }
  ASSIGN_OR_RETURN(const std::optional<RowFormat> all, ReadCommonChoice(object));
  rule.parts.fill(all);
  for (int p = 0; p < kPartCount; ++p) {
    const std::string part = PartName(static_cast<Part>(p));
    if (!object.Has(part)) continue;
    ASSIGN_OR_RETURN(rule.parts[p], ReadChoice(object, part, all.value_or(RowFormat())));
  }
  return rule;
}

absl::StatusOr<Recipe> ReadRecipe(const JsonObject& object) {
  RETURN_IF_ERROR(OnlyKeys(
      object, {"name", "layout", "bits", "group", "meta_bits", "up", "gate", "down", "dense", "rule"}));
  Recipe recipe;
  ASSIGN_OR_RETURN(recipe.name, object.StringOr("name", recipe.name));
  if (recipe.name.empty() || recipe.name.size() > 64 ||
      recipe.name.find_first_of(" []=\n\t") != std::string::npos) {
    return object.Error("name", "is not one word of at most 64 characters");
  }
  ASSIGN_OR_RETURN(const std::string layout, object.StringOr("layout", ExpertLayoutName(recipe.layout)));
  ASSIGN_OR_RETURN(recipe.layout, Named(object, "layout", ExpertLayoutFromName(layout)));
  ASSIGN_OR_RETURN(const std::optional<RowFormat> all, ReadCommonChoice(object));
  for (int p = 0; p < kPartCount; ++p) {
    const std::string part = PartName(static_cast<Part>(p));
    if (object.Has(part)) {
      ASSIGN_OR_RETURN(recipe.parts[p], ReadChoice(object, part, all.value_or(RowFormat())));
    } else if (all.has_value()) {
      recipe.parts[p] = *all;
    } else {
      return object.Error(part, "is missing, and there are no bits for all parts");
    }
  }
  if (object.Has("dense")) {
    ASSIGN_OR_RETURN(recipe.dense, ReadChoice(object, "dense", all.value_or(RowFormat())));
  }
  if (!object.Has("rule")) return recipe;
  ASSIGN_OR_RETURN(const json* rules, object.Array("rule"));
  for (size_t i = 0; i < rules->size(); ++i) {
    ASSIGN_OR_RETURN(const JsonObject rule,
                     JsonObject::Of((*rules)[i], absl::StrCat(object.subject(), ": rule ", i + 1)));
    ASSIGN_OR_RETURN(RecipeRule parsed, ReadRule(rule));
    recipe.rules.push_back(std::move(parsed));
  }
  return recipe;
}

}  // namespace

absl::StatusOr<Recipe> ParseRecipeToml(const std::string& text, const std::string& subject) {
  json tree;
  try {  // without exceptions this parser goes on after some errors and asserts
    tree = JsonOf(toml::parse(text));
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ":", error.source().begin.line, ": ", std::string(error.description())));
  }
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(tree, subject));
  absl::StatusOr<Recipe> recipe = ReadRecipe(object);
  if (!recipe.ok()) return recipe.status();
  const absl::Status status = CheckRecipe(*recipe);
  if (!status.ok()) return Annotate(status, subject);
  return recipe;
}

}  // namespace sluice
