// CpuBackend's operations of attention: arguments to resolved calls.
#include "common/status.h"
#include "kernels/common/cpu_backend.h"
#include "kernels/common/resolve.h"

namespace sluice {

absl::Status CpuBackend::RopeKvWrite(const RopeKvArgs& args) {
  const Resolver r(memory_, "RopeKvWrite");
  RopeKvCall call;
  if (args.qk_norm > QkNorm::kPerHead || args.clip != 0 || args.temperature_scale != 0) {
    return r.Unimplemented("q and k norms across heads or after rope, clipping and temperatures");
  }
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Kv(args.kv, true, &call.kv));
  RETURN_IF_ERROR(r.Within(args.heads, limits_.heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.kv.head_dim, limits_.head_dim, "head_dim"));
  const uint64_t head_dim = args.kv.head_dim;
  RETURN_IF_ERROR(r.Out(args.q, args.tokens, args.heads * head_dim, "q", &call.q));
  RETURN_IF_ERROR(r.In(args.k, args.tokens, args.kv.kv_heads * head_dim, "k", &call.k));
  RETURN_IF_ERROR(r.In(args.v, args.tokens, args.kv.kv_heads * head_dim, "v", &call.v));
  RETURN_IF_ERROR(r.Norm(args.q_norm, head_dim, "q norm weight", &call.q_norm));
  RETURN_IF_ERROR(r.Norm(args.k_norm, head_dim, "k norm weight", &call.k_norm));
  // Only the written positions need pages: a window of 1.
  RETURN_IF_ERROR(
      r.Sequences(args.sequences, args.tokens, 1, limits_.max_sequences, limits_.max_context, args.kv.pages));
  if (args.rope_dims % 2 != 0 || args.rope_dims > head_dim) {
    return r.Invalid(absl::StrCat("rope over ", args.rope_dims, " of ", head_dim, " values"));
  }
  if (args.rope_dims > 0) {
    RETURN_IF_ERROR(r.InFloats(args.rope_table, uint64_t{args.rope_positions} * args.rope_dims, "rope table",
                               &call.rope_table));
    for (const SequenceRows& s : args.sequences) {
      if (uint64_t{s.first_position} + s.rows > args.rope_positions) {
        return r.Invalid(absl::StrCat("position ", s.first_position + s.rows - 1,
                                      " is beyond the rope table's ", args.rope_positions));
      }
    }
  }
  call.tokens = args.tokens;
  call.heads = args.heads;
  call.rope_dims = args.rope_dims;
  call.rope_interleaved = args.rope_interleaved;
  call.sequences = args.sequences;
  Run(call);
  return absl::OkStatus();
}

absl::Status CpuBackend::Attention(const AttentionArgs& args) {
  const Resolver r(memory_, "Attention");
  AttentionCall call;
  if (args.chunk != 0 || args.sinks || args.kv.value_dim != 0) {
    return r.Unimplemented("chunked attention, sinks and values within K rows");
  }
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Kv(args.kv, false, &call.kv));
  RETURN_IF_ERROR(r.Within(args.heads, limits_.heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.kv.head_dim, limits_.head_dim, "head_dim"));
  if (args.heads % args.kv.kv_heads != 0) {
    return r.Invalid(absl::StrCat(args.heads, " heads do not divide over ", args.kv.kv_heads, " KV heads"));
  }
  const uint64_t cols = uint64_t{args.heads} * args.kv.head_dim;
  RETURN_IF_ERROR(r.In(args.q, args.tokens, cols, "q", &call.q));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, cols, "out", &call.out));
  if (Overlap(call.q.base, call.q.stride, cols, call.out.base, call.out.stride, cols, args.tokens,
              args.tokens)) {
    return r.Invalid("out overlaps q");
  }
  RETURN_IF_ERROR(r.Sequences(args.sequences, args.tokens, args.sliding_window, limits_.max_sequences,
                              limits_.max_context, args.kv.pages));
  call.tokens = args.tokens;
  call.heads = args.heads;
  call.scale = args.scale;
  call.sliding_window = args.sliding_window;
  call.sequences = args.sequences;
  Run(call);
  return absl::OkStatus();
}

}  // namespace sluice
