// Checks of operation arguments, the same for every device: buffer references become addresses of the
// device's memory, encodings are checked against the format, sizes against limits. Every error names the
// operation, the argument and the numbers.
//
// Thread safety: thread-compatible; the Addresses must not change meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/operands.h"
#include "kernels/ops.h"

namespace sluice {

// The addresses of a device's buffers, in the memory that its kernels address. Argument checks need nothing
// else of a device.

class Addresses {
 public:
  virtual ~Addresses() = default;

  // Returns the device's address of `ref`, or nullptr if [ref, ref + bytes) is not inside a live buffer
  // (Write: or not writable). For the device's kernels only: the host may not be able to read it.
  virtual const std::byte* Read(BufferRef ref, uint64_t bytes) const = 0;
  virtual std::byte* Write(BufferRef ref, uint64_t bytes) const = 0;

  // Returns the reason why Read or Write returned nullptr, naming `what` and the numbers.
  virtual absl::Status Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const = 0;
};

// The tensors of a resolved call: addresses of the device that computes it, with their shapes. Made by the
// Resolver; valid during the call only. Rows and norms: operands.h.

// An encoded matrix. Row(i) is nullptr for an absent row.
struct CallWeights {
  EncodingDescriptor encoding;
  const uint8_t* base = nullptr;
  uint64_t stride = 0;  // bytes
  uint32_t rows = 0;
  uint32_t cols = 0;
  const int32_t* positions = nullptr;  // [rows], host data; nullptr: row i is the i-th
  const uint8_t* Row(uint32_t i) const {
    if (positions == nullptr) {
      return base + i * stride;
    }
    return positions[i] < 0 ? nullptr : base + static_cast<uint64_t>(positions[i]) * stride;
  }
};

struct CallKv {
  KvType type = KvType::kF16;
  uint8_t* k = nullptr;  // written by RopeKv and LatentKv only
  uint8_t* v = nullptr;  // k where values lie within K rows
  uint64_t page_stride = 0;
  uint32_t pages = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t value_dim = 0;  // at most head_dim
  // Length of V's rows in its cache: value_dim, or head_dim where values lie within K rows.
  uint32_t v_dim = 0;
  uint64_t v_page_stride = 0;
};

// The first position that the query at `position` sees; it never decreases with `position`.
inline uint32_t FirstVisible(uint32_t position, uint32_t sliding_window, uint32_t chunk) {
  const uint32_t window =
      sliding_window == 0 || position < sliding_window ? 0 : position - sliding_window + 1;
  const uint32_t chunk_start = chunk == 0 ? 0 : position / chunk * chunk;
  return window > chunk_start ? window : chunk_start;
}

struct CallScratch;  // expert_calls.h

// Resolves the arguments of one operation; `op` is its name in errors. All arguments must outlive it.
class Resolver {
 public:
  // `file_blocks`: the device computes with rows of file blocks.
  Resolver(const Addresses& memory, const BackendLimits& limits, CallScratch& scratch, const char* op,
           bool file_blocks = true)
      : memory_(memory), limits_(limits), scratch_(scratch), op_(op), file_blocks_(file_blocks) {}

  const BackendLimits& limits() const { return limits_; }
  // Memory for the lists of a call.
  CallScratch& scratch() const { return scratch_; }

  // Checks `count` rows of `cols` floats; count and cols >= 1.
  absl::Status In(const Rows& rows, uint64_t count, uint64_t cols, const char* what, InRows* out) const;
  absl::Status Out(const Rows& rows, uint64_t count, uint64_t cols, const char* what, OutRows* out) const;

  // Checks `count` 4-byte values.
  absl::Status InFloats(BufferRef ref, uint64_t count, const char* what, const float** out) const;
  absl::Status OutFloats(BufferRef ref, uint64_t count, const char* what, float** out) const;
  absl::Status OutInts(BufferRef ref, uint64_t count, const char* what, int32_t** out) const;

  // Checks a weight matrix of a valid encoding; UNIMPLEMENTED for one that the device lacks. `indexed`: an
  // index list is allowed; the caller keeps it.
  absl::Status Weights(const WeightView& view, bool indexed, const char* what, CallWeights* out) const;
  // Checks a matrix for weighted sums of its rows. UNIMPLEMENTED for block encodings.
  absl::Status SummedWeights(const WeightView& view, bool indexed, const char* what, CallWeights* out) const;

  // Checks a norm over `cols` values; `out` stays empty if the spec has no weight.
  absl::Status Norm(const NormSpec& spec, uint64_t cols, const char* what, CallNorm* out) const;

  absl::Status Kv(const KvView& view, bool writing, CallKv* out) const;

  // Checks that every sequence's rows lie inside [0, tokens), in order, at positions below max_context.
  absl::Status BatchRows(absl::Span<const SequenceRows> sequences, uint32_t tokens, uint32_t max_sequences,
                         uint32_t max_context) const;
  // Checks that every sequence has pages for all positions that its rows see.
  absl::Status Pages(absl::Span<const SequenceRows> sequences, uint32_t sliding_window, uint32_t chunk,
                     uint32_t cache_pages) const;
  // Checks a table for `dims` of a head's values and all positions of the sequences; `out` stays empty
  // without dims.
  absl::Status RopeTable(BufferRef table, uint32_t positions, uint32_t dims, uint64_t head_dim,
                         absl::Span<const SequenceRows> sequences, const float** out) const;

  // Checks that `value` is in 1..limit.
  absl::Status Within(uint64_t value, uint64_t limit, const char* what) const;

  absl::Status Invalid(const std::string& message) const;
  absl::Status Unimplemented(const std::string& message) const;

 private:
  absl::Status Place(BufferRef ref, uint64_t count, uint64_t stride, uint64_t row_bytes, bool writing,
                     const char* what, const std::byte** out) const;
  absl::Status CheckEncoding(const EncodingDescriptor& d, const char* what) const;

  const Addresses& memory_;
  const BackendLimits& limits_;
  CallScratch& scratch_;
  const char* const op_;
  const bool file_blocks_;
};

// True if two row sets share a byte; `count` rows of `cols` floats each.
bool Overlap(const float* a, uint64_t a_stride, uint64_t a_cols, const float* b, uint64_t b_stride,
             uint64_t b_cols, uint64_t a_count, uint64_t b_count);
inline bool Overlap(const InRows& a, uint64_t a_cols, const OutRows& b, uint64_t b_cols, uint64_t a_count,
                    uint64_t b_count) {
  return Overlap(a.base, a.stride, a_cols, b.base, b.stride, b_cols, a_count, b_count);
}

}  // namespace sluice
