// The architectures of GGUF files that are families of ours: what their layers' tensors are called in the
// hub's folders, and which of the file's conventions differ.
//
// Private to common/model/gguf. Thread safety: constants and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace sluice {

// What the converter did to a module's weight, to be undone.
enum class GgufChange : uint8_t {
  kNone,
  kSqueezed,    // a depthwise convolution's [channels, 1, kernel] lost its 1
  kUnsqueezed,  // a vector is a matrix
  kDecay,       // the same, and -exp() was taken of its values
};

// A module of a layer, without ".weight" or ".bias"; or one tensor by its whole name, whose hub's name is
// whole too.
struct GgufModule {
  const char* gguf;
  const char* hub;
  GgufChange change = GgufChange::kNone;
};

struct GgufArchitecture {
  const char* name;  // general.architecture
  const char* layers = "model.layers.";
  const char* embed = "model.embed_tokens.weight";
  const char* mlp = "mlp.";  // of a layer without experts
  const char* router = "mlp.gate";
  const char* correction = "";  // of the router's choice
  const char* experts = "mlp.experts.";
  const char* gate = "gate_proj";  // parts of an expert
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared = "mlp.shared_expert.";
  absl::Span<const GgufModule> modules = {};  // that are called otherwise than in most families
  const char* final_norm = "model.norm";
  bool correction_is_row = false;  // a matrix of one row
  bool dense_as_experts = false;   // a dense FFN's parts are called as an expert's
  bool permuted = false;           // rows of q and k stand as pairs for rope over neighbours
  bool plus_one = false;           // 1 was added to the weights of norms, but those of linear attention
  bool tiled_values = false;       // value heads of linear attention stand in tiles (GgufHeadTiles)
  // The norm before the mixture is called post_attention_norm.
  bool norm_after_attention = false;
};

// Null for an architecture that is not known.
const GgufArchitecture* FindGgufArchitecture(std::string_view name);

// All names, for messages.
std::string GgufArchitectureNames();

}  // namespace sluice
