// The architectures of GGUF files that are families of ours: what their layers' tensors are called in the
// hub's folders, and which of the file's conventions differ.
//
// Private to common/model/gguf. Thread safety: constants and pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace sluice {

// A module of a layer, without ".weight" or ".bias".
struct GgufModule {
  const char* gguf;
  const char* hub;
};

struct GgufArchitecture {
  const char* name;          // general.architecture
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
  // The norm before the mixture is called post_attention_norm.
  bool norm_after_attention = false;
};

// Null for an architecture that is not known.
const GgufArchitecture* FindGgufArchitecture(std::string_view name);

// All names, for messages.
std::string GgufArchitectureNames();

}  // namespace sluice
