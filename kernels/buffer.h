// Handles of device memory, and views of activations and weights in it. Never raw pointers: a buffer may be
// in a GPU, or in a segment that another process owns.
//
// Units: offsets in bytes; strides as each field says. Source of the encodings: pack/FORMAT.md.
//
// Thread safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/encoding.h"

namespace sluice {

// Names a buffer of one backend; never reused while the backend lives. 0 is no buffer.
using BufferId = uint32_t;
inline constexpr BufferId kNoBuffer = 0;

// An address in a buffer. `offset` is in bytes.
struct BufferRef {
  BufferId buffer = kNoBuffer;
  uint64_t offset = 0;
  explicit operator bool() const { return buffer != kNoBuffer; }
  BufferRef operator+(uint64_t bytes) const { return {buffer, offset + bytes}; }
  bool operator==(const BufferRef&) const = default;
};

// The use of a buffer; a backend may place kinds differently (huge pages, device memory).
enum class BufferKind : uint8_t {
  kActivations = 0,  // written and read each step
  kKvCache = 1,      // large, lives as long as the engine
  kTables = 2,       // written once: rope tables, norm weights
  kStaging = 3,      // host-visible on every device: ids, router results
};

// Float32 rows: row i begins at base + i * stride * 4. Base 4-byte aligned; 64 is faster.
struct Rows {
  BufferRef base;
  uint64_t stride = 0;  // floats from row to row; at least the row's length
};

// One weight matrix, or one part of an expert. Row i is an encoded row of `cols` values at
// base + i * stride, or at base + positions[i] * stride if there is an index list. The down part is stored
// transposed: row j is neuron j's contribution, `hidden` long.
// Base and stride even at least (16-bit values); packs align both to 16 or more.
struct WeightView {
  EncodingDescriptor encoding;
  BufferRef base;
  uint64_t stride = 0;  // bytes from row to row
  uint32_t rows = 0;
  uint32_t cols = 0;
  // [rows], or empty: where row i lies, -1: absent (its neuron counts as coefficient 0). Host data, copied by
  // the call, so that the list may change while earlier work runs. Only MoeExperts accepts it.
  absl::Span<const int32_t> positions;
};

}  // namespace sluice
