#include "pack/writer/recipe.h"

#include <algorithm>
#include <numeric>

#include "common/base/file_io.h"
#include "common/base/status.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxSuperGroup = 256;
constexpr size_t kMaxRules = 1024;

absl::Status CheckChoice(const RowFormat& choice, const std::string& what) {
  if (!CanEncode(choice.encoding)) {
    return absl::UnimplementedError(absl::StrCat(what, ": writing ", EncodingName(choice.encoding),
                                                 " rows is not supported (known: bf16, f16, f32, q8, q4, "
                                                 "q3, q2)"));
  }
  if (choice.group < 16 || choice.group > 128 || choice.group % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": group is ", choice.group, "; a multiple of 16 from 16 to 128 is expected"));
  }
  if (choice.meta_bits != 16 && choice.meta_bits != 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": meta bits are ", choice.meta_bits, "; 16 or 8 is expected"));
  }
  return absl::OkStatus();
}

absl::Status CheckRule(const RecipeRule& rule, const std::string& what) {
  if (!rule.layout.has_value() &&
      std::none_of(rule.parts.begin(), rule.parts.end(), [](const auto& part) { return part.has_value(); })) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": has neither bits nor a layout"));
  }
  if (rule.first_layer > rule.last_layer) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": layers ", rule.first_layer, " to ", rule.last_layer, " are none"));
  }
  if (!(rule.usage_from >= 0 && rule.usage_from <= rule.usage_to && rule.usage_to <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": usage ", rule.usage_from, " to ", rule.usage_to,
                                                   " is no share; 0 <= from <= to <= 1 is expected"));
  }
  for (int p = 0; p < kPartCount; ++p) {
    if (!rule.parts[p].has_value()) continue;
    RETURN_IF_ERROR(CheckChoice(*rule.parts[p], absl::StrCat(what, ", ", PartName(static_cast<Part>(p)))));
  }
  return absl::OkStatus();
}

std::string ChoiceText(const RowFormat& choice) {
  std::string text = EncodingName(choice.encoding);
  if (IsQuantized(choice.encoding)) absl::StrAppend(&text, ":", choice.group);
  if (IsQuantized(choice.encoding) && choice.meta_bits != 16) absl::StrAppend(&text, ":", choice.meta_bits);
  return text;
}

std::string RuleText(const RecipeRule& rule) {
  std::string text = " rule[";
  if (rule.first_layer != 0 || rule.last_layer != RecipeRule().last_layer) {
    absl::StrAppend(&text, "layers=", rule.first_layer, "-", rule.last_layer, " ");
  }
  if (rule.ByUsage()) absl::StrAppend(&text, "usage=", rule.usage_from, "-", rule.usage_to, " ");
  if (rule.layout.has_value()) absl::StrAppend(&text, "layout=", ExpertLayoutName(*rule.layout), " ");
  for (int p = 0; p < kPartCount; ++p) {
    if (!rule.parts[p].has_value()) continue;
    absl::StrAppend(&text, PartName(static_cast<Part>(p)), "=", ChoiceText(*rule.parts[p]), " ");
  }
  text.back() = ']';
  return text;
}

absl::Status CheckUsageShape(const ModelConfig& config, const std::vector<std::vector<uint64_t>>& usage) {
  if (usage.size() != ModelLayers(config)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the usage profile has ", usage.size(), " layers, the model has ", ModelLayers(config)));
  }
  for (size_t layer = 0; layer < usage.size(); ++layer) {
    if (usage[layer].size() != config.layers[layer].moe.experts) {
      return absl::InvalidArgumentError(absl::StrCat("the usage profile has ", usage[layer].size(),
                                                     " experts in layer ", layer, ", the model has ",
                                                     config.layers[layer].moe.experts));
    }
  }
  return absl::OkStatus();
}

// Position of each expert of a layer among the others, the most used at the lowest position.
std::vector<double> PlacesByUsage(const std::vector<uint64_t>& usage) {
  std::vector<uint32_t> order(usage.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return usage[a] > usage[b]; });
  std::vector<double> usage_positions(usage.size());
  for (size_t rank = 0; rank < order.size(); ++rank) {
    // Each expert is at the middle of its share of the order: of eight the most used at 1/16.
    usage_positions[order[rank]] = (static_cast<double>(rank) + 0.5) / static_cast<double>(order.size());
  }
  return usage_positions;
}

// Rules apply in their order, each to the parts and the layout that it names, so a later one wins.
ExpertFormat FormatOf(const Recipe& recipe, uint32_t layer, double usage_position,
                      const ModelConfig& config) {
  ExpertLayout layout = recipe.layout;
  std::array<RowFormat, kPartCount> parts = recipe.parts;
  for (const RecipeRule& rule : recipe.rules) {
    if (layer < rule.first_layer || layer > rule.last_layer) continue;
    if (rule.ByUsage() && !(usage_position >= rule.usage_from && usage_position < rule.usage_to)) continue;
    layout = rule.layout.value_or(layout);
    for (int p = 0; p < kPartCount; ++p) parts[p] = rule.parts[p].value_or(parts[p]);
  }
  ExpertFormat format;
  format.layout = layout;
  const MoeConfig& moe = config.layers[layer].moe;
  for (int p = 0; p < kPartCount; ++p) {
    const bool by_outputs = IsByOutputs(layout) && static_cast<Part>(p) == Part::kDown;
    format.parts[p] = DescriptorOf(parts[p], by_outputs ? moe.expert_width : ExpertHidden(config));
  }
  format.gates = HasGates(moe.activation);
  if (!format.gates) {
    format.layout = IsByOutputs(layout) ? layout : ExpertLayout::kUpGateDown;
    format.parts[static_cast<size_t>(Part::kGate)] = format.parts[static_cast<size_t>(Part::kUp)];
  }
  return format;
}

uint32_t IndexOf(const ExpertFormat& format, std::vector<ExpertFormat>* formats) {
  const auto it = std::find(formats->begin(), formats->end(), format);
  if (it != formats->end()) return static_cast<uint32_t>(it - formats->begin());
  formats->push_back(format);
  return static_cast<uint32_t>(formats->size() - 1);
}

}  // namespace

bool Recipe::NeedsUsage() const {
  return std::any_of(rules.begin(), rules.end(), [](const RecipeRule& rule) { return rule.ByUsage(); });
}

RowFormat Recipe::Dense() const {
  // Dense weights are used by every token and are few compared to the experts: they get the most bits that
  // the recipe gives any part, and never less than q8.
  if (dense.has_value()) return *dense;
  RowFormat widest = parts[0];
  widest.encoding = Encoding::kQ8;
  const auto widen = [&](const RowFormat& choice) {
    if (BitsOf(choice.encoding) > BitsOf(widest.encoding)) widest = choice;
  };
  for (const RowFormat& choice : parts) widen(choice);
  for (const RecipeRule& rule : rules) {
    for (const std::optional<RowFormat>& choice : rule.parts) {
      if (choice.has_value()) widen(*choice);
    }
  }
  return widest;
}

Recipe UniformRecipe(const RowFormat& choice) {
  Recipe recipe;
  recipe.name = EncodingName(choice.encoding);
  recipe.parts.fill(choice);
  return recipe;
}

absl::Status CheckRecipe(const Recipe& recipe) {
  const std::string what = absl::StrCat("recipe ", recipe.name);
  for (int p = 0; p < kPartCount; ++p) {
    RETURN_IF_ERROR(CheckChoice(recipe.parts[p], absl::StrCat(what, ", ", PartName(static_cast<Part>(p)))));
  }
  RETURN_IF_ERROR(CheckChoice(recipe.Dense(), absl::StrCat(what, ", dense")));
  if (recipe.rules.size() > kMaxRules) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": has ", recipe.rules.size(), " rules; at most ", kMaxRules, " are expected"));
  }
  for (size_t i = 0; i < recipe.rules.size(); ++i) {
    RETURN_IF_ERROR(CheckRule(recipe.rules[i], absl::StrCat(what, ", rule ", i + 1)));
    const ExpertLayout layout = recipe.rules[i].layout.value_or(recipe.layout);
    if (IsByOutputs(layout) != IsByOutputs(recipe.layout)) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ", rule ", i + 1, ": layout ", ExpertLayoutName(layout), " beside ",
                       ExpertLayoutName(recipe.layout), "; down is by outputs in all experts or in none"));
    }
  }
  return absl::OkStatus();
}

EncodingDescriptor DescriptorOf(const RowFormat& choice, uint32_t columns) {
  EncodingDescriptor descriptor = MakeDescriptor(choice.encoding, choice.group);
  if (choice.meta_bits == 8 && IsQuantized(choice.encoding) && choice.encoding != Encoding::kMxfp4) {
    descriptor.meta_bits = 8;
    descriptor.super_group =
        static_cast<uint16_t>(std::min(kMaxSuperGroup, GroupsPerRow(descriptor, columns)));
  }
  return descriptor;
}

std::string RecipeText(const Recipe& recipe) {
  std::string text = absl::StrCat("recipe=", recipe.name);
  for (int p = 0; p < kPartCount; ++p) {
    absl::StrAppend(&text, " ", PartName(static_cast<Part>(p)), "=", ChoiceText(recipe.parts[p]));
  }
  for (const RecipeRule& rule : recipe.rules) text += RuleText(rule);
  const bool as_source = recipe.keep_values && !recipe.dense.has_value();
  absl::StrAppend(&text, " dense=", as_source ? "source" : ChoiceText(recipe.Dense()),
                  " layout=", ExpertLayoutName(recipe.layout));
  return text;
}

absl::StatusOr<ExpertFormats> ResolveFormats(const Recipe& recipe, const ModelConfig& config,
                                             const std::vector<std::vector<uint64_t>>& usage) {
  if (recipe.NeedsUsage()) {
    if (usage.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("recipe ", recipe.name,
                       " gives experts bits by how often they are used; name a "
                       "profile with --profile DIR (`sluice calibrate --pack PACK --text FILE` on any pack "
                       "of this model writes PACK/profile)"));
    }
    RETURN_IF_ERROR(CheckUsageShape(config, usage));
  }
  for (size_t i = 0; i < recipe.rules.size(); ++i) {
    if (recipe.rules[i].first_layer >= config.layers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("recipe ", recipe.name, ", rule ", i + 1,
                                                     ": begins at layer ", recipe.rules[i].first_layer,
                                                     ", the model has ", config.layers.size(), " layers"));
    }
  }
  ExpertFormats result;
  result.of_expert.resize(config.layers.size());
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const uint32_t experts = config.layers[layer].moe.experts;
    // No profile knows the use of MTP layers: their experts count as used most.
    const bool used = recipe.NeedsUsage() && !IsMtpLayer(config, layer);
    const std::vector<double> usage_positions =
        used ? PlacesByUsage(usage[layer]) : std::vector<double>(experts);
    for (uint32_t expert = 0; expert < experts; ++expert) {
      result.of_expert[layer].push_back(
          IndexOf(FormatOf(recipe, layer, usage_positions[expert], config), &result.formats));
    }
  }
  // A model whose layers are all dense still has a format, because readers expect one.
  if (result.formats.empty()) result.formats.push_back(FormatOf(recipe, 0, 0, config));
  return result;
}

// The named recipes, and the words of the command line.

namespace {

constexpr uint64_t kMaxRecipeBytes = 1 << 20;
constexpr double kHotShare = 0.5;

RowFormat Choice(Encoding encoding, uint16_t group = 64) { return {encoding, group, 16}; }

// FloE 3.2: up loses least by quantization and stays resident in 2 bits; a neuron's gate and down rows are
// fetched together.
Recipe Floe() {
  Recipe recipe;
  recipe.layout = ExpertLayout::kUpGatedown;
  recipe.parts = {Choice(Encoding::kQ2), Choice(Encoding::kF16), Choice(Encoding::kF16)};
  recipe.dense = Choice(Encoding::kBf16);
  return recipe;
}

// CORM 4.1: the hottest experts of each layer in 4 bits, the rest in 2; gate is read first, up and down are
// fetched together.
Recipe Corm(double hot_share) {
  Recipe recipe = UniformRecipe(Choice(Encoding::kQ2, 16));
  recipe.layout = ExpertLayout::kGateUpdown;
  RecipeRule hot;
  hot.usage_to = hot_share;
  hot.parts.fill(Choice(Encoding::kQ4));
  recipe.rules.push_back(hot);
  recipe.dense = Choice(Encoding::kQ8);
  return recipe;
}

// The smallest pack: every expert in 2 bits, so that the whole model is resident (FloE's baseline
// Mixtral-GPU).
Recipe ResidentQ2() {
  Recipe recipe = UniformRecipe(Choice(Encoding::kQ2));
  recipe.dense = Choice(Encoding::kQ4);
  return recipe;
}

// mixtral-offloading's and AdapMoE's: attention in 4 bits, experts in 2 bits of groups of 16.
Recipe FourPlusTwo() {
  Recipe recipe = UniformRecipe(Choice(Encoding::kQ2, 16));
  recipe.dense = Choice(Encoding::kQ4);
  return recipe;
}

Recipe AllQ4() {
  Recipe recipe = UniformRecipe(Choice(Encoding::kQ4));
  recipe.dense = Choice(Encoding::kQ4);
  return recipe;
}

absl::StatusOr<Encoding> BitsFromWord(const std::string& word) {
  absl::StatusOr<Encoding> encoding = EncodingFromName(word);
  if (!encoding.ok() || *encoding == Encoding::kF32 || *encoding == Encoding::kMxfp4) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown bits \"", word.substr(0, 40),
                     "\" (known: bf16, f16, q8, q4, q3, q2, and source without a recipe)"));
  }
  return encoding;
}

absl::StatusOr<Recipe> NamedRecipe(const std::string& name, double hot_share) {
  Recipe recipe;
  if (name == "floe") {
    recipe = Floe();
  } else if (name == "corm") {
    recipe = Corm(hot_share);
  } else if (name == "resident-q2") {
    recipe = ResidentQ2();
  } else if (name == "q4+2") {
    recipe = FourPlusTwo();
  } else if (name == "q4-all") {
    recipe = AllQ4();
  } else {
    const absl::StatusOr<Encoding> encoding = BitsFromWord(name);
    if (!encoding.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown recipe \"", name.substr(0, 40),
                                                     "\" (known: ", RecipeNames(), ", or a .toml file)"));
    }
    recipe = UniformRecipe(Choice(*encoding));
  }
  recipe.name = name;
  return recipe;
}

absl::StatusOr<Recipe> BaseRecipe(const RecipeOptions& words) {
  if (words.hot_share.has_value() && words.recipe != "corm") {
    return absl::InvalidArgumentError("a hot share is for the recipe corm only");
  }
  if (words.recipe.ends_with(".toml")) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(words.recipe, kMaxRecipeBytes));
    return ParseRecipeToml(text, words.recipe);
  }
  const std::string bits = words.bits.empty() ? "bf16" : words.bits;
  if (words.recipe.empty() && bits == "source") {
    Recipe recipe = UniformRecipe(Choice(Encoding::kF32));
    recipe.name = bits;
    recipe.keep_values = true;
    return recipe;
  }
  if (words.recipe.empty()) {
    ASSIGN_OR_RETURN(const Encoding encoding, BitsFromWord(bits));
    Recipe recipe = UniformRecipe(Choice(encoding));
    recipe.keep_mxfp4 = words.bits.empty();
    recipe.keep_blocks = words.bits.empty();
    return recipe;
  }
  ASSIGN_OR_RETURN(Recipe recipe, NamedRecipe(words.recipe, words.hot_share.value_or(kHotShare)));
  return recipe;
}

// Applies `--bits` beside a recipe, which is allowed only for floe.
absl::Status ApplyBits(const RecipeOptions& words, Recipe* recipe) {
  if (words.bits.empty() || words.recipe.empty()) return absl::OkStatus();
  if (words.recipe != "floe") {
    return absl::InvalidArgumentError(absl::StrCat("bits \"", words.bits, "\" beside the recipe ",
                                                   words.recipe,
                                                   ": only floe leaves bits open (those of gate and down)"));
  }
  ASSIGN_OR_RETURN(const Encoding encoding, BitsFromWord(words.bits));
  recipe->parts[static_cast<size_t>(Part::kGate)].encoding = encoding;
  recipe->parts[static_cast<size_t>(Part::kDown)].encoding = encoding;
  // The recipe stores dense weights in bf16 because FloE quantizes only up; with fewer bits they follow the
  // rule of all other recipes.
  if (encoding != Encoding::kF16) recipe->dense.reset();
  return absl::OkStatus();
}

// Sets a number of every choice of the recipe; unquantized rows ignore it.
template <typename T>
void SetEverywhere(T RowFormat::*member, T value, Recipe* recipe) {
  for (RowFormat& choice : recipe->parts) choice.*member = value;
  if (recipe->dense.has_value()) (*recipe->dense).*member = value;
  recipe->recoded.*member = value;
  for (RecipeRule& rule : recipe->rules) {
    for (std::optional<RowFormat>& choice : rule.parts) {
      if (choice.has_value()) (*choice).*member = value;
    }
  }
}

absl::Status ApplyNumbers(const RecipeOptions& words, Recipe* recipe) {
  if (words.group.has_value()) {
    if (*words.group < 16 || *words.group > 128 || *words.group % 16 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("group is ", *words.group, "; a multiple of 16 from 16 to 128 is expected"));
    }
    SetEverywhere(&RowFormat::group, static_cast<uint16_t>(*words.group), recipe);
  }
  if (words.meta_bits.has_value()) {
    if (*words.meta_bits != 8 && *words.meta_bits != 16) {
      return absl::InvalidArgumentError(
          absl::StrCat("meta bits are ", *words.meta_bits, "; 16 or 8 is expected"));
    }
    SetEverywhere(&RowFormat::meta_bits, static_cast<uint8_t>(*words.meta_bits), recipe);
  }
  return absl::OkStatus();
}

}  // namespace

std::string RecipeNames() { return "bf16, f16, q8, q4, q3, q2, floe, corm, resident-q2, q4+2, q4-all"; }

absl::StatusOr<Recipe> RecipeFromOptions(const RecipeOptions& words) {
  ASSIGN_OR_RETURN(Recipe recipe, BaseRecipe(words));
  RETURN_IF_ERROR(ApplyBits(words, &recipe));
  if (!words.dense_bits.empty()) {
    RowFormat dense = recipe.Dense();
    ASSIGN_OR_RETURN(dense.encoding, BitsFromWord(words.dense_bits));
    recipe.dense = dense;
  }
  if (!words.down_bits.empty()) {
    if (!recipe.keep_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("down bits \"", words.down_bits.substr(0, 40),
                                                     "\" are for packing without bits and recipe"));
    }
    ASSIGN_OR_RETURN(recipe.recoded.encoding, BitsFromWord(words.down_bits));
  }
  recipe.down_as_file =
      (recipe.keep_blocks || recipe.keep_values) && words.down_bits.empty() && words.layout.empty();
  RETURN_IF_ERROR(ApplyNumbers(words, &recipe));
  if (!words.layout.empty()) {
    ASSIGN_OR_RETURN(recipe.layout, ExpertLayoutFromName(words.layout));
    // A layout given on the command line is meant for every expert.
    for (RecipeRule& rule : recipe.rules) rule.layout.reset();
  }
  RETURN_IF_ERROR(CheckRecipe(recipe));
  return recipe;
}

}  // namespace sluice
