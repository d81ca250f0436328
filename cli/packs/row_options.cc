#include "cli/packs/row_options.h"

namespace sluice::cli {
RecipeOptions RowOptions::Words() const {
  RecipeOptions words;
  words.bits = bits.value_or("");
  words.recipe = recipe;
  if (group.has_value()) words.group = static_cast<int>(*group);
  if (meta_bits.has_value()) words.meta_bits = *meta_bits == "8" ? 8 : 16;
  words.dense_bits = dense_bits.value_or("");
  words.down_bits = down_bits.value_or("");
  words.layout = layout;
  words.hot_share = hot_share;
  return words;
}

void DeclareRowOptions(ArgParser* parser, RowOptions* o) {
  const std::vector<std::string> bits = {"bf16", "f16", "q8", "q4", "q3", "q2"};
  std::vector<std::string> expert_bits = bits;
  expert_bits.push_back("source");  // exactly what the model's files hold, also in dense rows
  parser->Group("Rows")
      .Choice("--bits", expert_bits, &o->bits,
              "of the experts [bf16; of a GGUF file its own]; with floe of gate, down")
      .Text("--recipe", &o->recipe, "floe, corm, resident-q2, q4+2, q4-all, or a .toml file")
      .Number("--group", &o->group, "values that share a scale [the recipe's, else 64]", 16, 128)
      .Choice("--meta-bits", {"16", "8"}, &o->meta_bits, "of a scale or zero [the recipe's, else 16]")
      .Choice("--dense-bits", bits, &o->dense_bits, "of attention, embeddings, head [--bits, at least q8]")
      .Choice("--down-bits", bits, &o->down_bits,
              "GGUF without --bits: of rows that cannot stay as they are [q8]")
      .Text("--layout", &o->layout, "up|gate|down, up|gate+down or gate|up+down [the recipe's]")
      .Real("--hot-share", &o->hot_share, "corm: share of a layer's experts that get q4 [0.5]", 0, 1);
}

}  // namespace sluice::cli
