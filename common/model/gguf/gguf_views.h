// GgufViews: a GGUF model's tensors under the hub's names, each as a range of lines of a file tensor. Inverts
// the converter: experts one by one, gate and up apart, q, k and v apart, rows of q and k in the hub's order,
// layers that predict further tokens left out.
//
// Private to common/model. Thread safety: plain values and a free function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/gguf/gguf_architecture.h"
#include "common/model/gguf/gguf_files.h"

namespace sluice {

// Tile order of the value heads of linear attention: head r * keys + g of the file is the hub's head g *
// sharers + r.
struct GgufHeadTiles {
  uint32_t keys = 0;  // key heads; 0: in the hub's order
  uint32_t sharers = 0;
  uint32_t length = 0;  // lines, or values of a line, per head
  uint64_t first = 0;   // number of those before the first head
  bool columns = false;
};

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
  bool minus_one = false;  // 1 is subtracted from every value
  bool is_decay = false;   // every value becomes log(-value)
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

// Returns a view of every weight tensor of `files`; unknown tensors keep their own names and are refused by
// the family's map.
std::vector<GgufView> GgufViews(const GgufFiles& files, const GgufArchitecture& architecture,
                                const GgufShape& shape);

}  // namespace sluice
