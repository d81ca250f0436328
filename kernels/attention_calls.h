// The operations of attention, checked and resolved: RopeKvWrite, LatentKvWrite, IndexSelect, Attention.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "kernels/ops.h"
#include "kernels/resolver.h"

namespace sluice {

struct RopeKvWriteCall {
  OutRows q;
  InRows k;
  InRows v;  // base nullptr: none
  uint32_t tokens = 0;
  uint32_t heads = 0;
  QkNorm qk_norm = QkNorm::kNone;
  CallNorm q_norm;
  CallNorm k_norm;
  bool value_norm = false;  // with k_norm's epsilon
  float clip = 0;           // 0: none
  float temperature_scale = 0;
  uint32_t temperature_floor = 0;
  uint32_t temperature_offset = 0;
  const float* rope_table = nullptr;
  uint32_t rope_dims = 0;
  uint32_t rope_offset = 0;
  bool rope_interleaved = false;
  absl::Span<const SequenceRows> sequences;
  CallKv kv;
};

namespace internal {

// Window of a call in which only the written positions need pages.
inline constexpr uint32_t kOwnPosition = 1;

inline absl::Status CheckTemperature(const Resolver& r, float scale, uint32_t floor) {
  if (!std::isfinite(scale) || (scale != 0 && floor == 0)) {
    return r.Invalid(absl::StrCat("temperature ", scale, " with a floor of ", floor));
  }
  return absl::OkStatus();
}

// Resolves the norms of q and k heads.
inline absl::Status ResolveNorms(const Resolver& r, const RopeKvWriteArgs& args, RopeKvWriteCall* call) {
  uint64_t q_cols = args.kv.head_dim;
  uint64_t k_cols = args.kv.head_dim;
  switch (args.qk_norm) {
    case QkNorm::kNone:
      return absl::OkStatus();
    case QkNorm::kPerHeadAfterRope:
      if (args.q_norm.weight || args.k_norm.weight) {
        return r.Invalid("the norm after rope has no weights");
      }
      call->q_norm.epsilon = args.q_norm.epsilon;
      call->k_norm.epsilon = args.k_norm.epsilon;
      return absl::OkStatus();
    case QkNorm::kWeightedKey:
      if (args.q_norm.weight || args.k_norm.kind != NormKind::kRms || !args.k_norm.weight) {
        return r.Invalid("weights of q's norm, or none of k's RMS norm");
      }
      call->q_norm.epsilon = args.q_norm.epsilon;
      return r.Norm(args.k_norm, k_cols, "k norm weight", &call->k_norm);
    case QkNorm::kPerHead:
    case QkNorm::kWeightedAfterRope:
      break;
    case QkNorm::kAcrossHeads:
      q_cols *= args.heads;
      k_cols *= args.kv.kv_heads;
      break;
    default:
      return r.Unimplemented(absl::StrCat("norm of q and k of kind ", static_cast<int>(args.qk_norm)));
  }
  if (!args.q_norm.weight || !args.k_norm.weight) {
    return r.Invalid("no weights of the norms of q and k");
  }
  if (args.q_norm.kind != NormKind::kRms || args.k_norm.kind != NormKind::kRms) {
    return r.Unimplemented("layer norm of q and k");
  }
  RETURN_IF_ERROR(r.Norm(args.q_norm, q_cols, "q norm weight", &call->q_norm));
  return r.Norm(args.k_norm, k_cols, "k norm weight", &call->k_norm);
}

}  // namespace internal

inline absl::StatusOr<RopeKvWriteCall> Resolve(const Resolver& r, const RopeKvWriteArgs& args) {
  RopeKvWriteCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Kv(args.kv, true, &call.kv));
  RETURN_IF_ERROR(r.Within(args.heads, r.limits().heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.kv.kv_heads, r.limits().heads, "KV heads"));
  RETURN_IF_ERROR(r.Within(args.kv.head_dim, r.limits().head_dim, "head_dim"));
  const uint64_t head_dim = args.kv.head_dim;
  if (call.kv.value_dim != call.kv.v_dim) {
    return r.Invalid(absl::StrCat("values of ", call.kv.value_dim, " within K rows of ", head_dim));
  }
  RETURN_IF_ERROR(r.Out(args.q, args.tokens, args.heads * head_dim, "q", &call.q));
  RETURN_IF_ERROR(r.In(args.k, args.tokens, args.kv.kv_heads * head_dim, "k", &call.k));
  if (args.v.base) {
    RETURN_IF_ERROR(r.In(args.v, args.tokens, uint64_t{args.kv.kv_heads} * call.kv.value_dim, "v", &call.v));
  } else if (call.kv.v != call.kv.k || args.value_norm) {
    return r.Invalid("keys alone with a cache of V or a norm of v");
  }
  RETURN_IF_ERROR(internal::ResolveNorms(r, args, &call));
  call.value_norm = args.value_norm;
  call.k_norm.epsilon = args.k_norm.epsilon;
  if (!(args.clip >= 0)) {
    return r.Invalid(absl::StrCat("clipping at ", args.clip));
  }
  RETURN_IF_ERROR(internal::CheckTemperature(r, args.temperature_scale, args.temperature_floor));
  RETURN_IF_ERROR(r.BatchRows(args.sequences, args.tokens, r.limits().max_sequences, r.limits().max_context));
  RETURN_IF_ERROR(r.Pages(args.sequences, internal::kOwnPosition, 0, args.kv.pages));
  if (args.rope_offset > head_dim) {
    return r.Invalid(absl::StrCat("rope from value ", args.rope_offset, " of ", head_dim));
  }
  RETURN_IF_ERROR(r.RopeTable(args.rope_table, args.rope_positions, args.rope_dims,
                              head_dim - args.rope_offset, args.sequences, &call.rope_table));
  call.rope_offset = args.rope_offset;
  call.tokens = args.tokens;
  call.heads = args.heads;
  call.qk_norm = args.qk_norm;
  call.clip = args.clip;
  call.temperature_scale = args.temperature_scale;
  call.temperature_floor = args.temperature_floor;
  call.temperature_offset = args.temperature_offset;
  call.rope_dims = args.rope_dims;
  call.rope_interleaved = args.rope_interleaved;
  call.sequences = args.sequences;
  return call;
}

struct LatentKvWriteCall {
  InRows q;
  uint32_t nope_dim = 0;
  InRows latent;
  OutRows q_out;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  uint32_t kv_rank = 0;
  CallNorm norm;
  float temperature_scale = 0;
  uint32_t temperature_floor = 0;
  uint32_t temperature_offset = 0;
  const float* rope_table = nullptr;
  uint32_t rope_dims = 0;
  bool rope_interleaved = false;
  absl::Span<const SequenceRows> sequences;
  CallKv kv;
};

inline absl::StatusOr<LatentKvWriteCall> Resolve(const Resolver& r, const LatentKvWriteArgs& args) {
  LatentKvWriteCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Kv(args.kv, true, &call.kv));
  RETURN_IF_ERROR(r.Within(args.heads, r.limits().heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.kv.head_dim, r.limits().head_dim, "head_dim"));
  const uint64_t row = uint64_t{args.kv_rank} + args.rope_dims;
  if (args.kv_rank == 0 || args.kv.kv_heads != 1 || args.kv.head_dim != row ||
      call.kv.value_dim != args.kv_rank) {
    return r.Invalid(absl::StrCat("K rows of ", args.kv.head_dim, " with values of ", call.kv.value_dim, ", ",
                                  args.kv.kv_heads, " heads of them, for a rank of ", args.kv_rank, " and ",
                                  args.rope_dims, " rotated"));
  }
  const uint64_t q_cols = args.heads * (uint64_t{args.nope_dim} + args.rope_dims);
  RETURN_IF_ERROR(r.In(args.q, args.tokens, q_cols, "q", &call.q));
  RETURN_IF_ERROR(r.In(args.latent, args.tokens, row, "latent", &call.latent));
  RETURN_IF_ERROR(r.Out(args.q_out, args.tokens, args.heads * row, "q_out", &call.q_out));
  if (Overlap(call.q.base, call.q.stride, q_cols, call.q_out.base, call.q_out.stride, args.heads * row,
              args.tokens, args.tokens)) {
    return r.Invalid("q_out overlaps q");
  }
  if (args.norm.kind != NormKind::kRms) {
    return r.Unimplemented("layer norm of the compressed kv");
  }
  RETURN_IF_ERROR(r.Norm(args.norm, args.kv_rank, "norm weight", &call.norm));
  RETURN_IF_ERROR(internal::CheckTemperature(r, args.temperature_scale, args.temperature_floor));
  RETURN_IF_ERROR(r.BatchRows(args.sequences, args.tokens, r.limits().max_sequences, r.limits().max_context));
  RETURN_IF_ERROR(r.Pages(args.sequences, internal::kOwnPosition, 0, args.kv.pages));
  RETURN_IF_ERROR(r.RopeTable(args.rope_table, args.rope_positions, args.rope_dims, row, args.sequences,
                              &call.rope_table));
  call.nope_dim = args.nope_dim;
  call.tokens = args.tokens;
  call.heads = args.heads;
  call.kv_rank = args.kv_rank;
  call.temperature_scale = args.temperature_scale;
  call.temperature_floor = args.temperature_floor;
  call.temperature_offset = args.temperature_offset;
  call.rope_dims = args.rope_dims;
  call.rope_interleaved = args.rope_interleaved;
  call.sequences = args.sequences;
  return call;
}

struct ChosenCall {
  int32_t* blocks = nullptr;  // [T, lists, top], written by IndexSelect only; nullptr: every position is seen
  uint32_t lists = 0;
  uint32_t top = 0;
  uint32_t block = 1;
  bool whole = false;
  // The list of a row, or nullptr if the row sees all positions up to `position`.
  int32_t* ListOf(uint64_t row, uint32_t list, uint32_t position) const {
    return blocks == nullptr || SeesAll(position, top, block, whole) ? nullptr
                                                                     : blocks + (row * lists + list) * top;
  }
};
// The i-th of the positions that a list of blocks of this size names.
inline uint32_t PositionAt(const int32_t* list, uint32_t block, uint32_t i) {
  return static_cast<uint32_t>(list[i / block]) * block + i % block;
}

namespace internal {

inline absl::Status ResolveChosen(const Resolver& r, const ChosenBlocks& args, uint32_t tokens,
                                  ChosenCall* call) {
  RETURN_IF_ERROR(r.Within(args.lists, r.limits().chosen_lists, "lists of chosen blocks"));
  if (args.top < (args.whole ? 2 : 1) || args.block == 0 || uint64_t{args.top} * args.block > 0x7fffffff) {
    return r.Invalid(absl::StrCat(args.top, " chosen blocks of ", args.block, " positions"));
  }
  RETURN_IF_ERROR(
      r.OutInts(args.blocks, uint64_t{tokens} * args.lists * args.top, "chosen blocks", &call->blocks));
  call->lists = args.lists;
  call->top = args.top;
  call->block = args.block;
  call->whole = args.whole;
  return absl::OkStatus();
}

}  // namespace internal

// The entries of a compressed cache.
struct CallEntries {
  KvType type = KvType::kF16;
  uint8_t* base = nullptr;  // written by Compress only
  uint64_t page_stride = 0;
  uint32_t head_dim = 0;
  uint32_t rate = 0;
  // The row of entry `e`, and the place of its scale (q8).
  uint8_t* Row(const SequenceRows& sequence, uint32_t e, const uint8_t** scale) const {
    const uint64_t last = (uint64_t{e} + 1) * rate - 1;
    uint8_t* const page = base + sequence.pages[last / kPageTokens] * page_stride;
    const uint32_t row = e % EntriesPerPage(rate);
    *scale = page + EntryScaleOffset(head_dim, rate, row);
    return page + row * KvRowBytes(type, head_dim);
  }
};

namespace internal {

inline absl::Status ResolveEntries(const Resolver& r, const EntryView& view, CallEntries* out) {
  if (view.rate == 0 || (kPageTokens % view.rate != 0 && view.rate % kPageTokens != 0)) {
    return r.Invalid(absl::StrCat("entries of ", view.rate, " positions in pages of ", kPageTokens));
  }
  RETURN_IF_ERROR(r.Within(view.head_dim, r.limits().head_dim, "head_dim of entries"));
  const uint64_t bytes = EntryPageBytes(view.type, view.head_dim, view.rate);
  if (view.head_dim % 2 != 0 || view.page_stride % 4 != 0 || view.page_stride < bytes) {
    return r.Invalid(absl::StrCat("pages of ", bytes, " bytes of entries of ", view.head_dim, " values, ",
                                  view.page_stride, " bytes apart"));
  }
  float* base = nullptr;
  RETURN_IF_ERROR(r.OutFloats(view.base, view.pages * (view.page_stride / 4), "entries", &base));
  *out = {view.type, reinterpret_cast<uint8_t*>(base), view.page_stride, view.head_dim, view.rate};
  return absl::OkStatus();
}

}  // namespace internal

struct IndexSelectCall {
  InRows q;
  InRows weights;  // base nullptr: a list for each head, or with `summed` weights of 1
  bool summed = false;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  float scale = 1;
  uint32_t local = 0;
  absl::Span<const SequenceRows> sequences;
  CallKv keys;          // without entries
  CallEntries entries;  // rate 0: none
  ChosenCall chosen;
  // Keys that the row at `position` chooses among.
  uint32_t KeysOf(uint32_t position) const {
    return entries.rate == 0 ? position + 1 : (position + 1) / entries.rate;
  }
  uint32_t KeyDim() const { return entries.rate == 0 ? keys.head_dim : entries.head_dim; }
  KvType KeyType() const { return entries.rate == 0 ? keys.type : entries.type; }
  // Key `i` of a sequence, and its scale (q8).
  const uint8_t* KeyAt(const SequenceRows& sequence, uint32_t i, float* key_scale) const {
    const uint8_t* scale_place = nullptr;
    const uint8_t* row = nullptr;
    if (entries.rate > 0) {
      row = entries.Row(sequence, i, &scale_place);
    } else {
      const uint8_t* page = keys.k + sequence.pages[i / kPageTokens] * keys.page_stride;
      row = page + KvRowOffset(keys.type, keys.head_dim, 0, i % kPageTokens);
      scale_place = page + KvScaleOffset(1, keys.head_dim, 0, i % kPageTokens);
    }
    if (KeyType() == KvType::kQ8) {
      std::memcpy(key_scale, scale_place, sizeof(float));
    }
    return row;
  }
};

inline absl::StatusOr<IndexSelectCall> Resolve(const Resolver& r, const IndexSelectArgs& args) {
  IndexSelectCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.heads, r.limits().index_heads, "index heads"));
  const bool entries = args.entries.rate > 0;
  if (entries) {
    RETURN_IF_ERROR(internal::ResolveEntries(r, args.entries, &call.entries));
  } else {
    RETURN_IF_ERROR(r.Kv(args.keys, false, &call.keys));
    RETURN_IF_ERROR(r.Within(args.keys.head_dim, r.limits().head_dim, "head_dim"));
  }
  if (!entries && args.keys.kv_heads != 1) {
    return r.Invalid(absl::StrCat(args.keys.kv_heads, " heads of index keys"));
  }
  RETURN_IF_ERROR(r.In(args.q, args.tokens, uint64_t{args.heads} * call.KeyDim(), "q", &call.q));
  if (args.weights.base) {
    RETURN_IF_ERROR(r.In(args.weights, args.tokens, args.heads, "weights", &call.weights));
  }
  RETURN_IF_ERROR(internal::ResolveChosen(r, args.chosen, args.tokens, &call.chosen));
  if (args.summed && args.weights.base) {
    return r.Invalid("weights of heads that count once each");
  }
  call.summed = args.summed;
  const uint32_t lists = args.weights.base || args.summed ? 1 : args.heads;
  if (entries != args.chosen.whole || (entries && args.chosen.block != args.entries.rate)) {
    return r.Invalid(absl::StrCat("blocks of ", args.chosen.block, " positions, whole ones alone: ",
                                  args.chosen.whole, ", with entries of ", args.entries.rate));
  }
  if (call.chosen.lists != lists || args.local > args.chosen.top ||
      (!entries && args.chosen.block > 1 && args.local == 0) || (entries && args.local > 0) ||
      !std::isfinite(args.scale)) {
    return r.Invalid(absl::StrCat(call.chosen.lists, " lists of ", args.chosen.top, " blocks of ",
                                  args.chosen.block, " positions, ", args.local, " of them local, of ", lists,
                                  " scores times ", args.scale));
  }
  RETURN_IF_ERROR(r.BatchRows(args.sequences, args.tokens, r.limits().max_sequences, r.limits().max_context));
  RETURN_IF_ERROR(r.Pages(args.sequences, 0, 0, entries ? args.entries.pages : args.keys.pages));
  call.tokens = args.tokens;
  call.heads = args.heads;
  call.scale = args.scale;
  call.local = args.local;
  call.sequences = args.sequences;
  return call;
}

struct AttentionCall {
  InRows q;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  float scale = 0;
  uint32_t sliding_window = 0;
  uint32_t chunk = 0;
  const float* sinks = nullptr;  // [heads], nullptr: none
  ChosenCall chosen;
  absl::Span<const SequenceRows> sequences;
  CallKv kv;
  OutRows out;
};
inline uint32_t FirstVisible(uint32_t position, const AttentionCall& call) {
  return FirstVisible(position, call.sliding_window, call.chunk);
}

inline absl::StatusOr<AttentionCall> Resolve(const Resolver& r, const AttentionArgs& args) {
  AttentionCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Kv(args.kv, false, &call.kv));
  RETURN_IF_ERROR(r.Within(args.heads, r.limits().heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.kv.head_dim, r.limits().head_dim, "head_dim"));
  if (args.heads % args.kv.kv_heads != 0) {
    return r.Invalid(absl::StrCat(args.heads, " heads do not divide over ", args.kv.kv_heads, " KV heads"));
  }
  const uint64_t q_cols = uint64_t{args.heads} * args.kv.head_dim;
  const uint64_t cols = uint64_t{args.heads} * call.kv.value_dim;
  RETURN_IF_ERROR(r.In(args.q, args.tokens, q_cols, "q", &call.q));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, cols, "out", &call.out));
  if (Overlap(call.q.base, call.q.stride, q_cols, call.out.base, call.out.stride, cols, args.tokens,
              args.tokens)) {
    return r.Invalid("out overlaps q");
  }
  if (args.chosen.blocks) {
    RETURN_IF_ERROR(internal::ResolveChosen(r, args.chosen, args.tokens, &call.chosen));
    const uint32_t lists = args.chosen.lists;
    if (args.heads % lists != 0 || (lists % args.kv.kv_heads != 0 && args.kv.kv_heads % lists != 0) ||
        args.sliding_window != 0 || args.chunk != 0) {
      return r.Invalid(absl::StrCat(lists, " lists of chosen blocks for ", args.heads, " heads over ",
                                    args.kv.kv_heads, " KV heads, a window of ", args.sliding_window,
                                    " and chunks of ", args.chunk));
    }
  }
  if (args.sinks) {
    RETURN_IF_ERROR(r.InFloats(args.sinks, args.heads, "sinks", &call.sinks));
  }
  RETURN_IF_ERROR(r.BatchRows(args.sequences, args.tokens, r.limits().max_sequences, r.limits().max_context));
  RETURN_IF_ERROR(r.Pages(args.sequences, args.sliding_window, args.chunk, args.kv.pages));
  call.tokens = args.tokens;
  call.heads = args.heads;
  call.scale = args.scale;
  call.sliding_window = args.sliding_window;
  call.chunk = args.chunk;
  call.sequences = args.sequences;
  return call;
}

}  // namespace sluice
