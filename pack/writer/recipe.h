// Storage formats of a pack's rows: encodings of the experts' parts and of the dense matrices, the streams'
// layout, and rules that give some layers or the most used experts other formats.
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
#include "common/base/encoding.h"
#include "common/model/model_config.h"
#include "pack/pack_format.h"

namespace sluice {

// Storage format of the rows of one matrix, before their length is known.
struct RowFormat {
  Encoding encoding = Encoding::kBf16;
  uint16_t group = 64;     // values that share a scale and a zero: 16..128, a multiple of 16
  uint8_t meta_bits = 16;  // of a scale or zero: 16 (f16), or 8 in super-groups of min(256, the row's groups)
  bool operator==(const RowFormat&) const = default;
};

// Formats of some experts that replace the recipe's own choice. An expert of rank r (0: the most used) among
// the E of its layer is at position (r + 0.5) / E.
struct RecipeRule {
  uint32_t first_layer = 0;
  uint32_t last_layer = 0xffffffffu;  // inclusive
  double usage_from = 0;              // experts at positions [usage_from, usage_to)
  double usage_to = 1;
  std::array<std::optional<RowFormat>, kPartCount> parts;  // by Part; absent: unchanged by the rule
  std::optional<ExpertLayout> layout;

  bool ByUsage() const { return usage_from > 0 || usage_to < 1; }
};

struct Recipe {
  std::string name = "custom";
  ExpertLayout layout = ExpertLayout::kUpGateDown;
  std::array<RowFormat, kPartCount> parts;  // by Part
  // Embeddings, attention, shared experts, head. Absent: the experts' widest, but at least q8.
  std::optional<RowFormat> dense;
  std::vector<RecipeRule> rules;  // if several apply, the later one decides
  // Parts whose neuron rows the model stores in MXFP4 stay unchanged, regardless of `parts`.
  bool keep_mxfp4 = false;
  // Likewise rows in the blocks of a GGUF file, dense ones too unless `dense` is given. Rows that cannot stay
  // (transposed down, whose blocks run across neurons) are stored as `recoded`, if it is quantized, else as
  // without this flag. A file's F16 rows stay f16.
  bool keep_blocks = false;
  RowFormat recoded = {Encoding::kQ8, 64, 16};
  // Keeps every value of the source, in rows of the smallest unquantized encoding that can hold it; computing
  // with them rounds no activation either. `parts` is then ignored, and so is `dense` unless it is given.
  bool keep_values = false;
  // With keep_blocks: F32 rows of a GGUF file stay f32, so that no value of the file changes.
  bool keep_f32 = false;
  // Replaces `layout` by kUpGateOutputs for a GGUF file with blocks, so that down's blocks stay too.
  bool down_as_file = false;

  bool NeedsUsage() const;
  RowFormat Dense() const;
};

// Sets all three parts alike.
Recipe UniformRecipe(const RowFormat& choice);

// InvalidArgument naming the part, the number and the possible values; Unimplemented for rows that cannot be
// written.
absl::Status CheckRecipe(const Recipe& recipe);

// The descriptor of rows of `columns` values. REQUIRES: CheckRecipe accepts the choice.
EncodingDescriptor DescriptorOf(const RowFormat& choice, uint32_t columns);

// One line that names every choice: equal lines store equal weights in equal bytes.
std::string RecipeText(const Recipe& recipe);

// Each expert's format, as the manifest and the extent table hold it.
struct ExpertFormats {
  std::vector<ExpertFormat> formats;             // those in use, by first use in (layer, expert) order
  std::vector<std::vector<uint32_t>> of_expert;  // [layer][expert]: index into formats
};

// `usage`: [layer][expert], the number of times each expert was chosen; read only if the recipe needs it,
// equal counts rank by the lower id. FailedPrecondition if it is needed and empty; InvalidArgument if its
// shape differs from the model's, naming both.
absl::StatusOr<ExpertFormats> ResolveFormats(const Recipe& recipe, const ModelConfig& config,
                                             const std::vector<std::vector<uint64_t>>& usage);

// Recipe options of the command line.
struct RecipeOptions {
  // "": bf16; MXFP4 rows and those of a GGUF file unchanged; "source": every value exactly, unquantized; with
  // floe: bits of gate and down.
  std::string bits;
  std::string recipe;            // "", a known name, or the path of a .toml file
  std::optional<int> group;      // replaces the recipe's own for all quantized rows
  std::optional<int> meta_bits;  // likewise
  std::string dense_bits;        // "": the recipe's own
  // With neither bits nor recipe: down transposed, as Recipe::recoded; "": Recipe::down_as_file, or q8 with
  // another layout.
  std::string down_bits;
  std::string layout;               // "": the recipe's own
  std::optional<double> hot_share;  // corm: share of each layer's experts that are kept at 4 bits
};

// InvalidArgument naming the word and the known ones. Reads the file if a path is given.
absl::StatusOr<Recipe> RecipeFromOptions(const RecipeOptions& words);

// "bf16, q8, q4, q2, floe, ...": the names that RecipeFromOptions accepts.
std::string RecipeNames();

// Parses a recipe file (pack/README.md has an example). InvalidArgument with `subject`, line or key.
absl::StatusOr<Recipe> ParseRecipeToml(const std::string& text, const std::string& subject);

}  // namespace sluice
