// The operations on compressed entries, checked and resolved: RopeHeads, Compress, CompressedAttention; and
// the weighted sum that makes an entry, which host and reference share to the bit (ARITHMETIC.md 11).
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "kernels/attention_calls.h"
#include "kernels/ops.h"
#include "kernels/resolver.h"
#include "kernels/state_calls.h"

namespace sluice {

// The rotation of some values of a head.
struct CallRope {
  const float* table = nullptr;
  uint32_t dims = 0;
  uint32_t offset = 0;
  bool interleaved = false;
  // cos and sin of a position.
  const float* At(uint32_t position) const { return table + uint64_t{position} * dims; }
};

namespace internal {

template <class Args>
absl::Status ResolveRope(const Resolver& r, const Args& args, uint32_t head_dim, CallRope* out) {
  if (args.rope_offset > head_dim) {
    return r.Invalid(absl::StrCat("rope from value ", args.rope_offset, " of ", head_dim));
  }
  RETURN_IF_ERROR(r.RopeTable(args.rope_table, args.rope_positions, args.rope_dims,
                              head_dim - args.rope_offset, args.sequences, &out->table));
  out->dims = args.rope_dims;
  out->offset = args.rope_offset;
  out->interleaved = args.rope_interleaved;
  return absl::OkStatus();
}

}  // namespace internal

struct RopeHeadsCall {
  OutRows x;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  CallRope rope;
  bool back = false;
  absl::Span<const SequenceRows> sequences;
};

inline absl::StatusOr<RopeHeadsCall> Resolve(const Resolver& r, const RopeHeadsArgs& args) {
  RopeHeadsCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.heads, r.limits().heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.head_dim, r.limits().head_dim, "head_dim"));
  RETURN_IF_ERROR(r.Out(args.x, args.tokens, uint64_t{args.heads} * args.head_dim, "x", &call.x));
  RETURN_IF_ERROR(r.BatchRows(args.sequences, args.tokens, r.limits().max_sequences, r.limits().max_context));
  RETURN_IF_ERROR(internal::ResolveRope(r, args, args.head_dim, &call.rope));
  call.heads = args.heads;
  call.head_dim = args.head_dim;
  call.back = args.back;
  call.sequences = args.sequences;
  return call;
}

struct CompressCall {
  InRows values;
  InRows gates;  // base nullptr: entries are means
  InRows bias;
  uint32_t tokens = 0;
  bool overlap = false;
  CallNorm norm;  // no weight: none
  CallRope rope;
  CallStates states;
  CallEntries entries;
  uint32_t Width() const { return entries.head_dim * (overlap ? 2 : 1); }
  // Rows that a state holds, and floats of one.
  uint32_t Kept() const { return entries.rate * (overlap ? 2 : 1); }
  uint64_t KeptFloats() const { return uint64_t{Width()} * (gates.base == nullptr ? 1 : 2); }
  // Values, then gates of a position: a row of the call, or of the state before it.
  struct Source {
    const float* values = nullptr;
    const float* gates = nullptr;  // none: nullptr
  };
  Source SourceOf(size_t sequence, uint32_t position) const {
    const SequenceRows& rows = states.sequences[sequence];
    if (position >= rows.first_position) {
      const uint32_t t = rows.first_row + (position - rows.first_position);
      return {values.Row(t), gates.base == nullptr ? nullptr : gates.Row(t)};
    }
    const float* kept = states.From(sequence) + (position % Kept()) * KeptFloats();
    return {kept, gates.base == nullptr ? nullptr : kept + Width()};
  }
};

inline absl::StatusOr<CompressCall> Resolve(const Resolver& r, const CompressArgs& args) {
  CompressCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(internal::ResolveEntries(r, args.entries, &call.entries));
  call.overlap = args.overlap;
  const uint32_t width = call.Width();
  RETURN_IF_ERROR(r.In(args.values, args.tokens, width, "values", &call.values));
  if (bool{args.gates.base} != bool{args.bias.base} || (!args.gates.base && args.overlap)) {
    return r.Invalid("gates without a bias, a bias without gates, or means that overlap");
  }
  if (args.gates.base) {
    RETURN_IF_ERROR(r.In(args.gates, args.tokens, width, "gates", &call.gates));
    RETURN_IF_ERROR(r.In(args.bias, args.entries.rate, width, "bias", &call.bias));
  }
  if (args.norm.kind != NormKind::kRms) {
    return r.Unimplemented("layer norm of entries");
  }
  RETURN_IF_ERROR(r.Norm(args.norm, args.entries.head_dim, "norm weight", &call.norm));
  RETURN_IF_ERROR(internal::ResolveStates(r, args, call.Kept() * call.KeptFloats(), &call.states));
  RETURN_IF_ERROR(r.Pages(args.sequences, internal::kOwnPosition, 0, args.entries.pages));
  RETURN_IF_ERROR(internal::ResolveRope(r, args, call.entries.head_dim, &call.rope));
  call.tokens = args.tokens;
  return call;
}

// Makes the mean of the positions of entry `e` in `out`: their sum, ascending, divided by their number.
inline void MeanEntry(const CompressCall& call, size_t sequence, uint32_t e, float* out) {
  const uint32_t dim = call.entries.head_dim;
  const uint32_t rate = call.entries.rate;
  std::memset(out, 0, dim * sizeof(float));
  for (uint32_t i = 0; i < rate; ++i) {
    const float* const values = call.SourceOf(sequence, e * rate + i).values;
    for (uint32_t c = 0; c < dim; ++c) out[c] = out[c] + values[c];
  }
  for (uint32_t c = 0; c < dim; ++c) out[c] = out[c] / static_cast<float>(rate);
}

// Makes entry `e` of a sequence in `out` [head_dim], before norm and rope. `scratch`: 4 * head_dim floats.
// `exp(x, n)` replaces x[i] by section 7's exp(x[i]).
template <class ExpAll>
void CompressEntry(const CompressCall& call, size_t sequence, uint32_t e, const ExpAll& exp, float* scratch,
                   float* out) {
  if (call.gates.base == nullptr) {
    return MeanEntry(call, sequence, e, out);
  }
  const uint32_t dim = call.entries.head_dim;
  const uint32_t rate = call.entries.rate;
  const uint32_t width = call.Width();
  // The first halves of the window before, if there is one, then the last halves of the own one.
  const uint32_t before = call.overlap && e > 0 ? rate : 0;
  const uint32_t count = before + rate;
  float* const largest = scratch;
  float* const sum = scratch + dim;
  float* const weight = scratch + 2 * uint64_t{dim};
  const auto source = [&](uint32_t i, uint32_t* row, uint32_t* column) {
    *row = i < before ? i : i - before;
    *column = i < before ? 0 : width - dim;
    return call.SourceOf(sequence, e * rate - before + i);
  };
  uint32_t row = 0;
  uint32_t column = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const CompressCall::Source from = source(i, &row, &column);
    const float* const gates = from.gates + column;
    const float* const bias = call.bias.Row(row) + column;
    for (uint32_t c = 0; c < dim; ++c) {
      const float gate = gates[c] + bias[c];
      largest[c] = i == 0 || gate > largest[c] ? gate : largest[c];
    }
  }
  std::memset(sum, 0, dim * sizeof(float));
  std::memset(out, 0, dim * sizeof(float));
  for (uint32_t i = 0; i < count; ++i) {
    const CompressCall::Source from = source(i, &row, &column);
    const float* const gates = from.gates + column;
    const float* const bias = call.bias.Row(row) + column;
    const float* const values = from.values + column;
    for (uint32_t c = 0; c < dim; ++c) weight[c] = (gates[c] + bias[c]) - largest[c];
    exp(weight, dim);
    for (uint32_t c = 0; c < dim; ++c) {
      sum[c] = sum[c] + weight[c];
      out[c] = out[c] + weight[c] * values[c];
    }
  }
  for (uint32_t c = 0; c < dim; ++c) out[c] = out[c] / sum[c];
}

// Writes the state after a call's rows: the last positions' rows, zeros where there is none.
inline void KeepSources(const CompressCall& call, size_t sequence) {
  const SequenceRows& rows = call.states.sequences[sequence];
  const uint32_t end = rows.first_position + rows.rows;
  const uint32_t kept = call.Kept();
  const uint32_t width = call.Width();
  float* const to = call.states.To(sequence);
  for (uint32_t i = 0; i < kept; ++i) {
    const uint32_t back = (end - 1 + kept - i) % kept;  // position i mod kept that is nearest to the end
    float* const place = to + i * call.KeptFloats();
    if (back >= end) {
      std::memset(place, 0, call.KeptFloats() * sizeof(float));
      continue;
    }
    const CompressCall::Source from = call.SourceOf(sequence, end - 1 - back);
    std::memcpy(place, from.values, width * sizeof(float));
    if (from.gates != nullptr) {
      std::memcpy(place + width, from.gates, width * sizeof(float));
    }
  }
}

struct CompressedAttentionCall {
  InRows q;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  float scale = 0;
  uint32_t sliding_window = 0;
  const float* sinks = nullptr;
  ChosenCall chosen;
  absl::Span<const SequenceRows> sequences;
  CallKv kv;
  CallEntries entries;  // rate 0: none
  OutRows out;

  // Keys of the row at `position`: positions from `first` on, then entries, all or those of `list`.
  struct Keys {
    uint32_t first = 0;
    uint32_t positions = 0;
    uint32_t entries = 0;
    const int32_t* list = nullptr;
    uint32_t size() const { return positions + entries; }
  };
  Keys KeysOf(uint64_t row, uint32_t position) const {
    Keys keys;
    keys.first = FirstVisible(position, sliding_window, 0);
    keys.positions = position - keys.first + 1;
    if (entries.rate == 0) {
      return keys;
    }
    keys.entries = (position + 1) / entries.rate;
    keys.list = chosen.ListOf(row, 0, position);
    if (keys.list != nullptr) {
      keys.entries = chosen.top - 1;
    }
    return keys;
  }
  // A key's row, and its scale (q8).
  const uint8_t* KeyAt(const SequenceRows& sequence, const Keys& keys, uint32_t i, float* key_scale) const {
    const uint8_t* scale_place = nullptr;
    const uint8_t* row = nullptr;
    if (i < keys.positions) {
      const uint32_t p = keys.first + i;
      const uint8_t* page = kv.k + sequence.pages[p / kPageTokens] * kv.page_stride;
      row = page + KvRowOffset(kv.type, kv.head_dim, 0, p % kPageTokens);
      scale_place = page + KvScaleOffset(1, kv.head_dim, 0, p % kPageTokens);
    } else {
      const uint32_t of_entries = i - keys.positions;
      const uint32_t e = keys.list == nullptr ? of_entries : static_cast<uint32_t>(keys.list[of_entries]);
      row = entries.Row(sequence, e, &scale_place);
    }
    if (kv.type == KvType::kQ8) {
      std::memcpy(key_scale, scale_place, sizeof(float));
    }
    return row;
  }
};

inline absl::StatusOr<CompressedAttentionCall> Resolve(const Resolver& r,
                                                       const CompressedAttentionArgs& args) {
  CompressedAttentionCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Kv(args.kv, false, &call.kv));
  RETURN_IF_ERROR(r.Within(args.heads, r.limits().heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.kv.head_dim, r.limits().head_dim, "head_dim"));
  const uint64_t cols = uint64_t{args.heads} * args.kv.head_dim;
  if (args.kv.kv_heads != 1 || call.kv.k != call.kv.v || call.kv.value_dim != args.kv.head_dim ||
      args.sliding_window == 0) {
    return r.Invalid(absl::StrCat(args.kv.kv_heads, " KV heads, values of ", call.kv.value_dim,
                                  " beside keys of ", args.kv.head_dim, ", a window of ",
                                  args.sliding_window));
  }
  RETURN_IF_ERROR(r.In(args.q, args.tokens, cols, "q", &call.q));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, cols, "out", &call.out));
  if (Overlap(call.q.base, call.q.stride, cols, call.out.base, call.out.stride, cols, args.tokens,
              args.tokens)) {
    return r.Invalid("out overlaps q");
  }
  if (args.entries.rate > 0) {
    RETURN_IF_ERROR(internal::ResolveEntries(r, args.entries, &call.entries));
    if (args.entries.head_dim != args.kv.head_dim || args.entries.type != args.kv.type) {
      return r.Invalid(absl::StrCat("entries of ", args.entries.head_dim, " values beside keys of ",
                                    args.kv.head_dim, ", or of another type"));
    }
  }
  if (args.chosen.blocks) {
    RETURN_IF_ERROR(internal::ResolveChosen(r, args.chosen, args.tokens, &call.chosen));
    if (args.chosen.lists != 1 || !args.chosen.whole || args.entries.rate == 0 ||
        args.chosen.block != args.entries.rate) {
      return r.Invalid(absl::StrCat(args.chosen.lists, " lists of blocks of ", args.chosen.block,
                                    " positions for entries of ", args.entries.rate));
    }
  }
  if (args.sinks) {
    RETURN_IF_ERROR(r.InFloats(args.sinks, args.heads, "sinks", &call.sinks));
  }
  RETURN_IF_ERROR(r.BatchRows(args.sequences, args.tokens, r.limits().max_sequences, r.limits().max_context));
  const uint32_t window = args.entries.rate > 0 ? 0 : args.sliding_window;
  RETURN_IF_ERROR(r.Pages(args.sequences, window, 0, args.kv.pages));
  call.tokens = args.tokens;
  call.heads = args.heads;
  call.scale = args.scale;
  call.sliding_window = args.sliding_window;
  call.sequences = args.sequences;
  return call;
}

}  // namespace sluice
