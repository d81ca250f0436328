// A GGUF model's tensors under the names that folders of the hub have: which lines of which tensor each one
// is. The inverse of what the converter does: experts one by one, gate and up apart, q, k and v apart, rows
// of q and k in the hub's order, layers that predict further tokens left out.
//
// Private to common/model/gguf. Thread safety: plain values and a free function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/gguf/gguf_architecture.h"
#include "common/model/gguf/gguf_files.h"

namespace sluice {

// Value heads of linear attention as the converter tiled them: head r * keys + g of the file is the hub's
// g * sharers + r.
struct GgufHeadTiles {
  uint32_t keys = 0;  // key heads; 0: in the hub's order
  uint32_t sharers = 0;
  uint32_t length = 0;  // lines, or values of a line, of a head
  uint64_t first = 0;   // those before the first head
  bool columns = false;
};

struct GgufView {
  std::string name;             // the hub's
  std::vector<uint64_t> shape;  // slowest first; the last one is a line
  const GgufTensorInfo* source = nullptr;
  uint64_t first_line = 0;  // of the source, a line being dims[0] values
  uint64_t first_column = 0;
  uint32_t paired_head = 0;  // > 0: within each head of so many lines, halves stand as pairs: line 2i + j of
                             // the source is line i + j * paired_head / 2 of the view
  GgufHeadTiles tiles;
  // > 0: lines come in runs of so many, and between two of them are as many that are not the view's.
  uint32_t run = 0;
  bool minus_one = false;  // 1 is taken from every value
  bool is_decay = false;   // log(-value) is taken of every value
};

// What views need to know of the model beside its architecture.
struct GgufShape {
  uint32_t layers = 0;  // those that predict further tokens not counted
  uint32_t blocks = 0;  // those counted too
  uint32_t head_dim = 0;
  uint64_t q_rows = 0;  // of a fused q, k and v
  uint64_t kv_rows = 0;
  uint32_t linear_keys = 0;     // key heads of linear attention
  uint32_t linear_sharers = 0;  // value heads that share one
  uint32_t linear_values = 0;   // of a value head
};

// Every tensor of `files` that weights are in; those that nothing here knows keep their own names, for the
// family's map to refuse.
std::vector<GgufView> GgufViews(const GgufFiles& files, const GgufArchitecture& architecture,
                                const GgufShape& shape);

}  // namespace sluice
