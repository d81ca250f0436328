// The named recipes, and the words of the command line.

#include "common/file_io.h"
#include "common/status.h"
#include "pack/writer/recipe.h"

namespace sluice {
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
