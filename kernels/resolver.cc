#include "kernels/resolver.h"

#include <algorithm>
#include <string>

#include "common/base/status.h"
#include "kernels/ops.h"
#include "pack/pack_format.h"
#include "pack/row_layout.h"

namespace sluice {

absl::Status Resolver::Invalid(const std::string& message) const {
  return absl::InvalidArgumentError(absl::StrCat(op_, ": ", message));
}

absl::Status Resolver::Unimplemented(const std::string& message) const {
  return absl::UnimplementedError(absl::StrCat(op_, ": ", message));
}

absl::Status Resolver::Within(uint64_t value, uint64_t limit, const char* what) const {
  if (value == 0 || value > limit) {
    return Invalid(absl::StrCat(what, " is ", value, ", not in 1..", limit));
  }
  return absl::OkStatus();
}

absl::Status Resolver::Place(BufferRef ref, uint64_t count, uint64_t stride, uint64_t row_bytes, bool writing,
                             const char* what, const std::byte** out) const {
  uint64_t bytes = 0;
  if (count == 0 || row_bytes == 0) {
    return Invalid(absl::StrCat(what, " has ", count, " rows of ", row_bytes, " bytes"));
  }
  if (count > 1 && stride < row_bytes) {
    return Invalid(absl::StrCat(what, ": stride of ", stride, " bytes is below the row's ", row_bytes));
  }
  if (__builtin_mul_overflow(count - 1, stride, &bytes) || __builtin_add_overflow(bytes, row_bytes, &bytes)) {
    return Invalid(absl::StrCat(what, ": ", count, " rows with a stride of ", stride, " bytes overflow"));
  }
  *out = writing ? memory_.Write(ref, bytes) : memory_.Read(ref, bytes);
  return *out != nullptr ? absl::OkStatus() : Annotate(memory_.Explain(ref, bytes, writing, what), op_);
}

namespace {

// True if `place` may be read as 4-byte values.
bool Aligned4(const std::byte* address) { return reinterpret_cast<uintptr_t>(address) % 4 == 0; }

}  // namespace

absl::Status Resolver::In(const Rows& rows, uint64_t count, uint64_t cols, const char* what,
                          InRows* out) const {
  const std::byte* address = nullptr;
  if (rows.stride > UINT64_MAX / 4) {
    return Invalid(absl::StrCat(what, ": stride of ", rows.stride, " floats"));
  }
  RETURN_IF_ERROR(Place(rows.base, count, rows.stride * 4, cols * 4, false, what, &address));
  if (!Aligned4(address)) {
    return Invalid(absl::StrCat(what, " is not aligned to 4 bytes"));
  }
  *out = {reinterpret_cast<const float*>(address), rows.stride};
  return absl::OkStatus();
}

absl::Status Resolver::Out(const Rows& rows, uint64_t count, uint64_t cols, const char* what,
                           OutRows* out) const {
  InRows in;
  RETURN_IF_ERROR(In(rows, count, cols, what, &in));
  const uint64_t bytes = ((count - 1) * rows.stride + cols) * 4;
  std::byte* address = memory_.Write(rows.base, bytes);
  if (address == nullptr) {
    return Annotate(memory_.Explain(rows.base, bytes, true, what), op_);
  }
  *out = {reinterpret_cast<float*>(address), rows.stride};
  return absl::OkStatus();
}

absl::Status Resolver::InFloats(BufferRef ref, uint64_t count, const char* what, const float** out) const {
  InRows rows;
  RETURN_IF_ERROR(In({ref, count}, 1, count, what, &rows));
  *out = rows.base;
  return absl::OkStatus();
}

absl::Status Resolver::OutFloats(BufferRef ref, uint64_t count, const char* what, float** out) const {
  OutRows rows;
  RETURN_IF_ERROR(Out({ref, count}, 1, count, what, &rows));
  *out = rows.base;
  return absl::OkStatus();
}

absl::Status Resolver::OutInts(BufferRef ref, uint64_t count, const char* what, int32_t** out) const {
  float* address = nullptr;
  RETURN_IF_ERROR(OutFloats(ref, count, what, &address));
  *out = reinterpret_cast<int32_t*>(address);
  return absl::OkStatus();
}

absl::Status Resolver::CheckEncoding(const EncodingDescriptor& d, const char* what) const {
  if (!IsValidDescriptor(d)) {
    return Invalid(absl::StrCat(what, ": encoding ", EncodingName(d.encoding), " with groups of ", d.group,
                                ", ", d.meta_bits, "-bit scales and super-groups of ", d.super_group,
                                " is not one of the format"));
  }
  if (IsFileBlock(d.encoding) && !file_blocks_) {
    return Unimplemented(absl::StrCat(what, ": rows of ", EncodingName(d.encoding),
                                      " on this device (host computes with them; sluice pack --bits q4 makes "
                                      "rows that every device can)"));
  }
  return absl::OkStatus();
}

absl::Status Resolver::Weights(const WeightView& view, bool indexed, const char* what,
                               CallWeights* out) const {
  RETURN_IF_ERROR(CheckEncoding(view.encoding, what));
  if (!view.positions.empty() && !indexed) {
    return Unimplemented(absl::StrCat(what, ": an index list is for experts only"));
  }
  const uint64_t row_bytes = RowBytes(view.encoding, view.cols);
  const std::byte* address = nullptr;
  uint64_t stored = view.rows;
  if (!view.positions.empty()) {
    if (view.positions.size() != view.rows) {
      return Invalid(
          absl::StrCat(what, ": an index list of ", view.positions.size(), " for ", view.rows, " rows"));
    }
    out->positions = view.positions.data();
    // The last row in the list: the matrix's memory must reach it.
    const int32_t last = *std::max_element(view.positions.begin(), view.positions.end());
    stored = last < 0 ? 1 : static_cast<uint64_t>(last) + 1;
  }
  RETURN_IF_ERROR(Place(view.base, stored, view.stride, row_bytes, false, what, &address));
  if (reinterpret_cast<uintptr_t>(address) % 2 != 0 || (stored > 1 && view.stride % 2 != 0)) {
    return Invalid(absl::StrCat(what, ": rows are not aligned to 2 bytes"));
  }
  out->encoding = view.encoding;
  out->base = reinterpret_cast<const uint8_t*>(address);
  out->stride = view.stride;
  out->rows = view.rows;
  out->cols = view.cols;
  return absl::OkStatus();
}

absl::Status Resolver::SummedWeights(const WeightView& view, bool indexed, const char* what,
                                     CallWeights* out) const {
  if (IsBlockEncoding(view.encoding.encoding)) {
    return Unimplemented(
        absl::StrCat(what, ": weighted sums of ", EncodingName(view.encoding.encoding), " rows"));
  }
  return Weights(view, indexed, what, out);
}

absl::Status Resolver::Norm(const NormSpec& spec, uint64_t cols, const char* what, CallNorm* out) const {
  if (!spec.weight) {
    return absl::OkStatus();
  }
  if (spec.kind != NormKind::kRms && spec.kind != NormKind::kLayer) {
    return Unimplemented(absl::StrCat(what, ": norm kind ", static_cast<int>(spec.kind)));
  }
  if (spec.bias) {
    if (spec.kind != NormKind::kLayer) {
      return Invalid(absl::StrCat(what, ": a bias with an RMS norm"));
    }
    RETURN_IF_ERROR(InFloats(spec.bias, cols, "norm bias", &out->bias));
  }
  out->kind = spec.kind;
  out->epsilon = spec.epsilon;
  return InFloats(spec.weight, cols, what, &out->weight);
}

absl::Status Resolver::Kv(const KvView& view, bool writing, CallKv* out) const {
  if (view.kv_heads == 0 || view.head_dim == 0 || view.head_dim % 2 != 0 || view.head_dim > 4096 ||
      view.kv_heads > 4096) {
    return Invalid(absl::StrCat("KV cache with ", view.kv_heads, " heads of ", view.head_dim));
  }
  if (view.type != KvType::kF32 && view.type != KvType::kF16 && view.type != KvType::kQ8) {
    return Unimplemented(absl::StrCat("KV cache of type ", static_cast<int>(view.type)));
  }
  if (view.page_stride % 4 != 0) {
    return Invalid(absl::StrCat("KV page stride of ", view.page_stride, " bytes is not a multiple of 4"));
  }
  const uint64_t page_bytes = KvPageBytes(view.type, view.kv_heads, view.head_dim);
  const uint32_t value_dim = view.value_dim == 0 ? view.head_dim : view.value_dim;
  const uint64_t v_page_stride = view.v_page_stride == 0 ? view.page_stride : view.v_page_stride;
  if (value_dim > view.head_dim || value_dim % 2 != 0 || v_page_stride % 4 != 0) {
    return Invalid(absl::StrCat("KV cache with values of ", value_dim, " beside K rows of ", view.head_dim,
                                ", V pages ", v_page_stride, " bytes apart"));
  }
  const uint32_t v_dim = view.v == view.k ? view.head_dim : value_dim;
  const uint64_t v_page_bytes = KvPageBytes(view.type, view.kv_heads, v_dim);
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  RETURN_IF_ERROR(Place(view.k, view.pages, view.page_stride, page_bytes, writing, "K cache", &k));
  RETURN_IF_ERROR(Place(view.v, view.pages, v_page_stride, v_page_bytes, writing, "V cache", &v));
  if (!Aligned4(k) || !Aligned4(v)) {
    return Invalid("the KV cache is not aligned to 4 bytes");
  }
  out->type = view.type;
  // Only RopeKv and LatentKv write through these; they resolve with `writing`.
  out->k = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(k));
  out->v = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(v));
  out->page_stride = view.page_stride;
  out->pages = view.pages;
  out->kv_heads = view.kv_heads;
  out->head_dim = view.head_dim;
  out->value_dim = value_dim;
  out->v_dim = v_dim;
  out->v_page_stride = v_page_stride;
  return absl::OkStatus();
}

absl::Status Resolver::BatchRows(absl::Span<const SequenceRows> sequences, uint32_t tokens,
                                 uint32_t max_sequences, uint32_t max_context) const {
  RETURN_IF_ERROR(Within(sequences.size(), max_sequences, "the number of sequences"));
  uint64_t next_row = 0;
  for (const SequenceRows& s : sequences) {
    const uint64_t end = uint64_t{s.first_position} + s.rows;
    if (s.rows == 0 || s.first_row < next_row || uint64_t{s.first_row} + s.rows > tokens) {
      return Invalid(absl::StrCat("a sequence has rows ", s.first_row, " + ", s.rows, " of ", tokens,
                                  " after row ", next_row));
    }
    next_row = uint64_t{s.first_row} + s.rows;
    if (end > max_context) {
      return Invalid(absl::StrCat("a sequence ends at position ", end, "; the context is ", max_context));
    }
  }
  return absl::OkStatus();
}

absl::Status Resolver::Pages(absl::Span<const SequenceRows> sequences, uint32_t sliding_window,
                             uint32_t chunk, uint32_t cache_pages) const {
  for (const SequenceRows& s : sequences) {
    const uint64_t end = uint64_t{s.first_position} + s.rows;
    if (s.pages.size() < (end + kPageTokens - 1) / kPageTokens) {
      return Invalid(absl::StrCat("a sequence ends at position ", end, " with ", s.pages.size(), " pages"));
    }
    const uint32_t first = FirstVisible(s.first_position, sliding_window, chunk);
    for (uint64_t page = first / kPageTokens; page * kPageTokens < end; ++page) {
      if (s.pages[page] >= cache_pages) {
        return Invalid(absl::StrCat("page ", page, " of a sequence is ", s.pages[page], " of ", cache_pages));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Resolver::RopeTable(BufferRef table, uint32_t positions, uint32_t dims, uint64_t head_dim,
                                 absl::Span<const SequenceRows> sequences, const float** out) const {
  if (dims % 2 != 0 || dims > head_dim) {
    return Invalid(absl::StrCat("rope over ", dims, " of ", head_dim, " values"));
  }
  if (dims == 0) {
    return absl::OkStatus();
  }
  for (const SequenceRows& s : sequences) {
    if (uint64_t{s.first_position} + s.rows > positions) {
      return Invalid(absl::StrCat("position ", s.first_position + s.rows - 1, " is beyond the rope table's ",
                                  positions));
    }
  }
  return InFloats(table, uint64_t{positions} * dims, "rope table", out);
}

bool Overlap(const float* a, uint64_t a_stride, uint64_t a_cols, const float* b, uint64_t b_stride,
             uint64_t b_cols, uint64_t a_count, uint64_t b_count) {
  const float* a_end = a + (a_count - 1) * a_stride + a_cols;
  const float* b_end = b + (b_count - 1) * b_stride + b_cols;
  if (a_end <= b || b_end <= a) {
    return false;
  }
  if (a_stride != b_stride || a_count == 1 || b_count == 1) {
    return true;
  }
  // Column ranges of one matrix interleave without sharing a byte.
  const uint64_t shift = static_cast<uint64_t>(a < b ? b - a : a - b) % a_stride;
  const uint64_t low_cols = a < b ? a_cols : b_cols;
  const uint64_t high_cols = a < b ? b_cols : a_cols;
  return shift < low_cols || shift + high_cols > a_stride;
}

}  // namespace sluice
