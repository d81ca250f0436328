#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/encoding.h"
#include "kernels/host/rows/rounded_rows.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/simd/row_fetch.h"
#include "kernels/host/work/workspace.h"

namespace sluice::cpu {

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
    uint64_t generation = 0;  // RoundedRows::generation(); 0: none
    const uint32_t* tokens = nullptr;
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
