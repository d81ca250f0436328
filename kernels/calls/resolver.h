#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/calls/addresses.h"
#include "kernels/calls/places.h"

namespace sluice {

struct CallScratch;  // expert_calls.h

// Resolves the arguments of one operation; `op` is its name in errors. All arguments must outlive it.
class Resolver {
 public:
  Resolver(const Addresses& memory, const BackendLimits& limits, CallScratch& scratch, const char* op)
      : memory_(memory), limits_(limits), scratch_(scratch), op_(op) {}

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

  // Checks a weight matrix of a valid encoding. `indexed`: an index list is allowed; the caller keeps it.
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
};

// True if two row sets share a byte; `count` rows of `cols` floats each.
bool Overlap(const float* a, uint64_t a_stride, uint64_t a_cols, const float* b, uint64_t b_stride,
             uint64_t b_cols, uint64_t a_count, uint64_t b_count);

}  // namespace sluice
