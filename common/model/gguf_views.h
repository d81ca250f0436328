// GGUF architectures, and a file's tensors as views under the hub's names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/model/gguf_files.h"

namespace sluice {

// The supported GGUF architectures: the hub's tensor names for their layers, and the conventions in which
// their files differ.
//
// Private to common/model. Thread safety: constants and pure functions.

// Change that the converter made to a module's weight and that is undone here.
enum class GgufTransform : uint8_t {
  kNone,
  kSqueezed,     // a depthwise convolution's [channels, 1, kernel] lost its 1
  kUnsqueezed,   // a vector is a matrix
  kDecay,        // kUnsqueezed, and values were replaced by -exp(value)
  kDecayMatrix,  // values of a matrix were replaced by -exp(value)
  kExp,          // kUnsqueezed, and values were replaced by exp(value)
  kPlusOne,      // 1 was added to values
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
  // Tensors of the whole model, by their whole names, that most families lack or name otherwise.
  absl::Span<const GgufModule> model_modules = {};
  // Parts of an MTP layer (`nextn`) beside its decoder layer; empty: such layers are left out.
  absl::Span<const GgufModule> mtp_modules = {};
  const char* mtp_layers = nullptr;  // before the number of an MTP layer; null: numbered behind the others
  const char* mtp_parts = nullptr;   // before the names of mtp_modules; null: the layer's
  const char* final_norm = "model.norm";
  bool correction_is_row = false;  // a matrix of one row
  bool dense_as_experts = false;   // parts of a dense FFN have the names of an expert's
  bool shared_as_experts = false;  // and so have those of the shared expert
  bool heads_by_layer = false;     // attention.head_count may differ among layers
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

// GgufViews: a GGUF model's tensors under the hub's names, each as a range of lines of a file tensor. Inverts
// the converter: experts one by one, gate and up apart, q, k and v apart, rows of q and k in the hub's order,
// layers that predict further tokens left out or named as MTP layers (common/model/mtp_layers.h).
//
// Private to common/model. Thread safety: plain values and a free function.

// Tile order of the value heads of linear attention: head r * keys + g of the file is the hub's head g *
// sharers + r.
struct GgufHeadTiles {
  uint32_t keys = 0;  // key heads; 0: in the hub's order
  uint32_t sharers = 0;
  uint32_t length = 0;  // lines, or values of a line, per head
  uint64_t first = 0;   // number of those before the first head
  bool columns = false;
};

// How a view's values are computed from those of the file, which are F32 then.
enum class GgufUndo : uint8_t { kNone, kMinusOne, kLogOfNegative, kLog };

struct GgufView {
  std::string name;             // the hub's name
  std::vector<uint64_t> shape;  // slowest dimension first; the last one is a line
  const GgufTensorInfo* source = nullptr;
  uint64_t first_line = 0;  // in the source tensor; a line has dims[0] values
  uint64_t first_column = 0;
  uint32_t paired_head = 0;  // > 0: rows come in pairs within each head of this many lines: line 2i + j of
                             // the source is line i + j * paired_head / 2 of the view
  GgufHeadTiles tiles;
  // > 0: lines come in runs of this length; an equal number of foreign lines lies between two runs.
  uint32_t run = 0;
  // NVFP4: the tensor with one factor for all values, or one for each expert; null: 1.
  const GgufTensorInfo* factors = nullptr;
  uint32_t expert = 0;  // whose factor it is, if there are several
  GgufUndo undo = GgufUndo::kNone;
};

// Dimensions of the model that the views need besides its architecture.
struct GgufShape {
  uint32_t layers = 0;  // without those that predict further tokens
  uint32_t blocks = 0;  // including those that predict further tokens
  uint32_t head_dim = 0;
  uint64_t q_rows = 0;  // rows of q in a fused q, k and v
  uint64_t kv_rows = 0;
  uint32_t linear_keys = 0;     // key heads of linear attention
  uint32_t linear_sharers = 0;  // value heads per key head
  uint32_t linear_values = 0;   // dimension of a value head
};

// Returns a view of every weight tensor of `files`, but of those of MTP layers only if `mtp_layers` and the
// architecture's are known; unknown tensors keep their own names and are refused by the family's map.
std::vector<GgufView> GgufViews(const GgufFiles& files, const GgufArchitecture& architecture,
                                const GgufShape& shape, bool mtp_layers);

}  // namespace sluice
