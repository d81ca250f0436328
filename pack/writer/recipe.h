// What a pack's rows are stored as: encodings of the experts' parts and of the dense matrices, the streams'
// layout, and rules that give some layers or the most used experts something else.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/encoding.h"
#include "common/model/model_config.h"
#include "pack/pack_format.h"

namespace sluice {

// How the rows of one matrix are stored, before their length is known.
struct RowChoice {
  Encoding encoding = Encoding::kBf16;
  uint16_t group = 64;     // values that share a scale and a zero: 16..128, a multiple of 16
  uint8_t meta_bits = 16;  // of a scale or zero: 16 (f16), or 8 in super-groups of min(256, the row's groups)
  bool operator==(const RowChoice&) const = default;
};

// What some experts get instead of the recipe's own choice. An expert of rank r (0: the most used) among the
// E of its layer stands at (r + 0.5) / E.
struct RecipeRule {
  uint32_t first_layer = 0;
  uint32_t last_layer = 0xffffffffu;  // inclusive
  double usage_from = 0;              // experts that stand in [usage_from, usage_to)
  double usage_to = 1;
  std::array<std::optional<RowChoice>, kPartCount> parts;  // by Part; absent: as without the rule
  std::optional<ExpertLayout> layout;

  bool ByUsage() const { return usage_from > 0 || usage_to < 1; }
};

struct Recipe {
  std::string name = "custom";
  ExpertLayout layout = ExpertLayout::kUpGateDown;
  std::array<RowChoice, kPartCount> parts;  // by Part
  // Embeddings, attention, shared experts, head. Absent: the experts' widest, but at least q8.
  std::optional<RowChoice> dense;
  std::vector<RecipeRule> rules;  // where several apply, the later one decides
  // Parts of which the model stores each neuron's row in MXFP4 stay so, whatever `parts` says.
  bool keep_mxfp4 = false;
  // Likewise rows in the blocks of a GGUF file, dense ones too unless `dense` is given. What cannot stay
  // (down, whose blocks run across neurons) is stored as `recoded`, if it is quantized, else as without this.
  // A file's F16 rows stay f16.
  bool keep_blocks = false;
  RowChoice recoded = {Encoding::kQ8, 64, 16};
  // Every value that the source holds is kept, in rows of the smallest unquantized encoding that can:
  // computing with them rounds no activation either. `parts` then says nothing, nor does `dense` unless it is
  // given.
  bool keep_values = false;

  bool NeedsUsage() const;
  RowChoice Dense() const;
};

// All three parts alike.
Recipe UniformRecipe(const RowChoice& choice);

// InvalidArgument naming the part, the number and what is possible; Unimplemented for rows that cannot be
// written.
absl::Status CheckRecipe(const Recipe& recipe);

// The descriptor of rows of `columns` values. REQUIRES: CheckRecipe accepts the choice.
EncodingDescriptor DescriptorOf(const RowChoice& choice, uint32_t columns);

// One line that names every choice: equal texts store equal weights in equal bytes.
std::string RecipeText(const Recipe& recipe);

// Each expert's format, as the manifest and the extent table hold it.
struct ExpertFormats {
  std::vector<ExpertFormat> formats;             // those in use, by first use in (layer, expert) order
  std::vector<std::vector<uint32_t>> of_expert;  // [layer][expert]: index into formats
};

// `usage`: [layer][expert], how often each expert was chosen; read only if the recipe needs it, equal counts
// rank by the lower id. FailedPrecondition if it is needed and empty; InvalidArgument if its shape is not the
// model's, naming both.
absl::StatusOr<ExpertFormats> ResolveFormats(const Recipe& recipe, const ModelConfig& config,
                                             const std::vector<std::vector<uint64_t>>& usage);

// The words of the command line.
struct RecipeWords {
  // "": bf16; MXFP4 rows and those of a GGUF file as they are; "source": every value exactly, unquantized;
  // with floe: of gate and down.
  std::string bits;
  std::string recipe;               // "", a known name, or the path of a .toml file
  std::optional<int> group;         // instead of the recipe's own, wherever rows are quantized
  std::optional<int> meta_bits;     // likewise
  std::string dense_bits;           // "": the recipe's own
  std::string down_bits;            // with neither bits nor recipe: Recipe::recoded; "": q8
  std::string layout;               // "": the recipe's own
  std::optional<double> hot_share;  // corm: share of each layer's experts that are kept at 4 bits
};

// InvalidArgument naming the word and the known ones. Reads the file if a path is given.
absl::StatusOr<Recipe> RecipeFromWords(const RecipeWords& words);

// "bf16, q8, q4, q2, floe, ...": names that RecipeFromWords knows.
std::string RecipeNames();

// A recipe file's text (pack/README.md has an example). InvalidArgument with `subject`, line or key.
absl::StatusOr<Recipe> ParseRecipeToml(const std::string& text, const std::string& subject);

}  // namespace sluice
