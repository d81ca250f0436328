// The supported GGUF architectures: the hub's tensor names for their layers, and the conventions in which
// their files differ.
//
// Private to common/model. Thread safety: constants and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace sluice {

// Change that the converter made to a module's weight and that is undone here.
enum class GgufTransform : uint8_t {
  kNone,
  kSqueezed,    // a depthwise convolution's [channels, 1, kernel] lost its 1
  kUnsqueezed,  // a vector is a matrix
  kDecay,       // kUnsqueezed, and values were replaced by -exp(value)
};

// A module of a layer, without ".weight" or ".bias"; or one tensor by its whole name, in which case the hub's
// name is whole too.
struct GgufModule {
  const char* gguf;
  const char* hub;
  GgufTransform change = GgufTransform::kNone;
};

struct GgufArchitecture {
  const char* name;  // general.architecture
  const char* layers = "model.layers.";
  const char* embed = "model.embed_tokens.weight";
  const char* mlp = "mlp.";  // prefix in a layer without experts
  const char* router = "mlp.gate";
  const char* correction = "";  // of the router's selection
  const char* experts = "mlp.experts.";
  const char* gate = "gate_proj";  // parts of an expert
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared = "mlp.shared_expert.";
  absl::Span<const GgufModule> modules = {};  // modules whose names differ from most families'
  const char* final_norm = "model.norm";
  bool correction_is_row = false;  // a matrix of one row
  bool dense_as_experts = false;   // parts of a dense FFN have the names of an expert's
  bool permuted = false;           // rows of q and k are stored as pairs for rope on adjacent values
  bool plus_one = false;           // 1 was added to norm weights, except those of linear attention
  bool tiled_values = false;       // value heads of linear attention are stored in tiles (GgufHeadTiles)
  // True if the norm before the MoE block is named post_attention_norm.
  bool norm_after_attention = false;
};

// Returns null for an unknown architecture.
const GgufArchitecture* FindGgufArchitecture(std::string_view name);

// Returns all names, for messages.
std::string GgufArchitectureNames();

}  // namespace sluice
