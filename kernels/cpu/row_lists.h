// Dot products and weighted sums over lists of weight rows in any encoding, for one worker. A list names rows
// of one encoding anywhere in memory, so rows may be gathered at no cost; it describes their layout, so that
// the right ones are prefetched.
//
// Thread safety: every worker may call with its own index at the same time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_fetch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"
#include "kernels/resolver.h"

namespace sluice::cpu {

// The norm of a row, of any kind.

// y = norm(x) over `cols` values (ARITHMETIC.md 5); y may be x.
inline void NormRow(const KernelTable& kernels, const CallNorm& norm, const float* x, uint32_t cols,
                    float* y) {
  if (norm.kind == NormKind::kLayer) {
    kernels.layer_norm(x, cols, norm.weight, norm.bias, norm.epsilon, y);
  } else {
    kernels.rms_norm(x, cols, norm.weight, norm.epsilon, y);
  }
}

// Rows of activations rounded to int8, one scale for each group (ARITHMETIC.md 2 b), for products with
// quantized weights. Weights request their group size; each size is made once for all requests.

// Memory for rows rounded for one group size at a time.
class RoundedForm {
 public:
  // Reserves up to `rows` of up to `cols` values; `woven`: also for group sizes that are multiplied by bytes.
  absl::Status Reserve(uint64_t rows, uint32_t cols, bool woven, Scratch* scratch);

  // Rounds x, `cols` values long, into row `i`. REQUIRES `woven` for groups of 16, 32, 64 and 128.
  void Round(const KernelTable& kernels, const float* x, uint32_t cols, uint32_t group, uint32_t i) const;
  QuantRow Row(uint32_t i) const;

 private:
  int8_t* codes_ = nullptr;  // [rows][code_stride_]
  int8_t* woven_ = nullptr;  // [rows][3 * code_stride_], or nullptr
  float* scales_ = nullptr;  // [rows][group_stride_]
  float* sums_ = nullptr;
  uint64_t code_stride_ = 0;
  uint64_t group_stride_ = 0;
};

// The rows of a call in every form that its weights need.
class RoundedRows {
 public:
  // Both must outlive it.
  RoundedRows(const KernelTable& kernels, Tiles& tiles) : kernels_(kernels), tiles_(tiles) {}
  // Errors: as Scratch.
  absl::Status Reserve(uint32_t max_tokens, uint32_t max_cols, Scratch* scratch);

  // Requests the form for weights of this encoding in the next Make(); no effect if not quantized.
  void RequestForm(const EncodingDescriptor& encoding);
  // Rounds the rows x[0 .. tokens) of `cols` values in the forms requested since the last Make().
  void Make(const float* const* x, uint32_t tokens, uint32_t cols);
  // Changes with every Make(), so that data derived from earlier rows can be detected.
  uint64_t generation() const { return generation_; }
  // Row `token` for a requested group size.
  QuantRow Row(uint32_t group, uint32_t token) const { return forms_[group / 16 - 1].Row(token); }

  // Memory for kOwnRows rows that the worker rounds itself, for one group size at a time.
  static constexpr uint32_t kOwnRows = 16;
  const RoundedForm& own(uint32_t worker) const { return own_[worker]; }

 private:
  static constexpr uint32_t kForms = 8;  // groups of 16, 32, ..., 128

  const KernelTable& kernels_;
  Tiles& tiles_;
  RoundedForm forms_[kForms];
  bool requested_[kForms] = {};
  uint64_t generation_ = 0;
  std::vector<RoundedForm> own_;  // [workers]
};

// Tokens from which converting weights once per tile and packing x pays.
inline constexpr uint32_t kPackedTokens = 8;

// Number of rows in a tile of a matrix; `packed`: for kPackedTokens and more.
uint32_t RowsOfTile(const CallWeights& weights, bool packed);

struct RowList {
  EncodingDescriptor encoding;
  uint32_t cols = 0;
  const uint8_t* const* rows = nullptr;
  uint32_t count = 0;
  // Number of listed rows that do not follow each other in memory. Rows beyond `count` are only prefetched,
  // for later reads. 0: the rows are one stream.
  uint32_t listed = 0;
  // Set if the rows were fetched before, so they are not prefetched: `fetch` goes on, with `fetch_lines`
  // lines for every row. 0 lines: they were not.
  RowFetch* fetch = nullptr;
  uint32_t fetch_lines = 0;
  bool at_once = false;      // float rows are read several at once: the scattered rows of a mask
  bool two_streams = false;  // RowPrefetch::two_streams, for quantized rows
  bool in_halves = false;    // QuantDownCall::in_halves
};

// Some rows of a matrix that are multiplied at once.
struct RowTile {
  uint32_t row = 0;
  uint32_t rows = 0;
  uint32_t next_rows = 0;  // rows of the matrix's next tile
  bool halves = false;     // its two halves are read in turn
};
// Tile `number` of a matrix cut into tiles of `tile_rows` rows; halves is not set.
RowTile TileOf(const CallWeights& weights, uint32_t number, uint32_t tile_rows);
// Lists the rows of a tile, then the first ones of the next, which nearly always is the same worker's. w:
// [kNeuronBlock + kMaxRowsAhead].
RowList ListTile(const CallWeights& weights, const RowTile& tile, const uint8_t** w);
// Copies a tile's products `from` the order in which its rows were listed.
void PutInOrder(const RowTile& tile, const float* from, float* to);

class RowLists {
 public:
  // All arguments must outlive it.
  RowLists(const KernelTable& kernels, Workspace& space, const RoundedRows& rounded)
      : kernels_(kernels), space_(space), rounded_(rounded) {}
  // Reserves memory for `workers`.
  void Reserve(uint32_t workers) {
    shapes_.resize(workers);
    packed_.resize(workers);
  }

  // The shape of rows of an encoding. Valid until the worker requests another one.
  const RowShape& ShapeFor(const EncodingDescriptor& e, uint32_t cols, uint32_t worker);

  // y[i][r] = dot(Workspace::x_rows[tokens[i]], row r). The operation has set x_rows and, if the encoding is
  // quantized, rounded them for its group.
  void Dot(const RowList& list, absl::Span<const uint32_t> tokens, uint32_t worker, float* const* y);
  // Dot products with the worker's own rows: WorkerSpace::quant[i] if the encoding is quantized, else
  // inputs[i].
  void DotInputs(const RowList& list, uint32_t tokens, uint32_t worker, float* const* y);
  // The same for rows `first` .. `first` + tokens of `rounded`, a form that does not change before the next
  // Make() of the call's rows. REQUIRES a quantized encoding.
  void DotRounded(const RowList& list, const RoundedForm& rounded, uint32_t first, uint32_t tokens,
                  uint32_t worker, float* const* y);
  // Dot products with packed panels. REQUIRES an encoding that is not quantized.
  void DotPanels(const RowList& list, const float* packed, uint32_t tokens, uint32_t worker, float* const* y);
  // y[i] = (y[i] if `add`, else 0) + the block sum of at most 64 neurons, whose down rows are the list and
  // whose coefficients are c[i][j], for all columns.
  void Down(const RowList& list, const float* const* c, uint32_t tokens, bool add, uint32_t worker,
            float* const* y);

 private:
  // Shapes of the worker's last two encodings: an expert's parts have one or two, and computing a shape takes
  // as long as a row of q2.
  struct alignas(64) Shapes {
    EncodingDescriptor encodings[2];
    RowShape shapes[2];
  };

  // The tokens whose rounded rows a worker has packed.
  struct alignas(64) PackedTokens {
    uint64_t generation = 0;       // RoundedRows::generation(); 0: none
    const void* tokens = nullptr;  // their list or their first rounded row
    uint32_t count = 0;
    uint32_t group = 0;
    bool operator==(const PackedTokens&) const = default;
  };

  QuantDotCall QuantDotOf(const RowList& list, uint32_t tokens, uint32_t worker, float* const* y);
  void DotQuantized(const RowList& list, const PackedTokens& packed, uint32_t worker, float* const* y);

  const KernelTable& kernels_;
  Workspace& space_;
  const RoundedRows& rounded_;
  std::vector<Shapes> shapes_;        // [workers]
  std::vector<PackedTokens> packed_;  // [workers]
};

}  // namespace sluice::cpu
