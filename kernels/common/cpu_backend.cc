#include "kernels/common/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "common/status.h"
#include "kernels/common/resolve.h"

namespace sluice {

CpuBackend::CpuBackend(const BackendLimits& limits) : limits_(limits) {
  // Every routed expert of a layer, and a few shared or dense ones.
  experts_.reserve(uint64_t{limits.experts} + 8);
  leads_.reserve(experts_.capacity());
  slot_taken_.reserve(uint64_t{limits.max_tokens} * (limits.top_k + 1));
}

BackendCounters CpuBackend::Counters() const {
  BackendCounters counters;
  counters.kernel_seconds = static_cast<double>(kernel_nanos_.load(std::memory_order_relaxed)) * 1e-9;
  return counters;
}

absl::StatusOr<BufferId> CpuBackend::Allocate(uint64_t bytes, BufferKind) { return memory_.Allocate(bytes); }

absl::StatusOr<BufferId> CpuBackend::Import(const ImportSpec& spec) {
  if (spec.fd >= 0) {
    return absl::UnimplementedError("import of a descriptor: this device imports mapped memory only");
  }
  return memory_.Import(spec.base, spec.bytes);
}

absl::Status CpuBackend::Free(BufferId buffer) { return memory_.Free(buffer); }

const std::byte* CpuBackend::HostRead(BufferRef ref, uint64_t bytes) { return memory_.Read(ref, bytes); }

std::byte* CpuBackend::HostWrite(BufferRef ref, uint64_t bytes) { return memory_.Write(ref, bytes); }

absl::Status CpuBackend::Upload(const void* source, uint64_t bytes, BufferRef destination) {
  std::byte* place = memory_.Write(destination, bytes);
  if (place == nullptr) {
    return memory_.Explain(destination, bytes, true, "upload");
  }
  if (bytes > 0) {
    std::memcpy(place, source, bytes);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Download(BufferRef source, uint64_t bytes, void* destination) {
  const std::byte* place = memory_.Read(source, bytes);
  if (place == nullptr) {
    return memory_.Explain(source, bytes, false, "download");
  }
  if (bytes > 0) {
    std::memcpy(destination, place, bytes);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Embed(const EmbedArgs& args) {
  const Resolver r(memory_, "Embed");
  EmbedCall call;
  RETURN_IF_ERROR(r.Within(args.ids.size(), limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Weights(args.table, false, "table", &call.table));
  RETURN_IF_ERROR(r.Out(args.y, args.ids.size(), args.table.cols, "y", &call.y));
  for (const int32_t id : args.ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= args.table.rows) {
      return r.Invalid(absl::StrCat("token id ", id, " is not in 0..", args.table.rows - 1));
    }
  }
  call.ids = args.ids;
  call.scale = args.scale;
  Compute(call);
  return absl::OkStatus();
}

absl::Status CpuBackend::Norm(const NormArgs& args) {
  const Resolver r(memory_, "Norm");
  NormCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, args.cols, "x", &call.x));
  RETURN_IF_ERROR(r.Out(args.y, args.tokens, args.cols, "y", &call.y));
  if (!args.norm.weight) {
    return r.Invalid("no norm weight");
  }
  RETURN_IF_ERROR(r.Norm(args.norm, args.cols, "norm weight", &call.norm));
  call.tokens = args.tokens;
  call.cols = args.cols;
  Compute(call);
  return absl::OkStatus();
}

absl::Status CpuBackend::MatMul(const MatMulArgs& args) {
  const Resolver r(memory_, "MatMul");
  MatMulCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.cols, limits_.max_cols, "cols"));
  RETURN_IF_ERROR(r.Within(args.parts.size(), kMaxMatMulParts, "the number of parts"));
  if (!args.row_ids.empty() && args.row_ids.size() != args.tokens) {
    return r.Invalid(absl::StrCat(args.row_ids.size(), " row ids for ", args.tokens, " tokens"));
  }
  uint64_t x_rows = args.row_ids.empty() ? args.tokens : 0;
  for (const uint32_t id : args.row_ids) {
    x_rows = std::max<uint64_t>(x_rows, uint64_t{id} + 1);
  }
  RETURN_IF_ERROR(r.In(args.x, x_rows, args.cols, "x", &call.x));
  RETURN_IF_ERROR(r.Norm(args.norm, args.cols, "norm weight", &call.norm));
  for (const MatMulPart& part : args.parts) {
    MatMulCallPart& resolved = call.parts[call.part_count++];
    RETURN_IF_ERROR(r.Weights(part.weights, false, "weights", &resolved.weights));
    if (part.weights.cols != args.cols) {
      return r.Invalid(absl::StrCat("weights of ", part.weights.cols, " columns for x of ", args.cols));
    }
    RETURN_IF_ERROR(r.Out(part.y, args.tokens, part.weights.rows, "y", &resolved.y));
    if (Overlap(call.x.base, call.x.stride, args.cols, resolved.y.base, resolved.y.stride, part.weights.rows,
                x_rows, args.tokens)) {
      return r.Invalid("y overlaps x");
    }
    resolved.scale = part.scale;
    if (part.bias) {
      RETURN_IF_ERROR(r.InFloats(part.bias, part.weights.rows, "bias", &resolved.bias));
    }
  }
  if (args.residual.base) {
    if (args.parts.size() != 1) {
      return r.Invalid(absl::StrCat("a residual with ", args.parts.size(), " parts"));
    }
    RETURN_IF_ERROR(r.In(args.residual, args.tokens, args.parts[0].weights.rows, "residual", &call.residual));
  }
  call.tokens = args.tokens;
  call.cols = args.cols;
  call.row_ids = args.row_ids;
  Compute(call);
  return absl::OkStatus();
}

absl::Status CpuBackend::TopLogits(const TopLogitsArgs& args) {
  const Resolver r(memory_, "TopLogits");
  TopLogitsCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.vocab, limits_.vocab, "vocab"));
  RETURN_IF_ERROR(r.Within(args.k, std::min(args.vocab, kMaxTopLogits), "k"));
  RETURN_IF_ERROR(r.In(args.logits, args.tokens, args.vocab, "logits", &call.logits));
  RETURN_IF_ERROR(r.OutInts(args.ids, uint64_t{args.tokens} * args.k, "ids", &call.ids));
  RETURN_IF_ERROR(r.OutFloats(args.values, uint64_t{args.tokens} * args.k, "values", &call.values));
  if (args.log_sum_exp) {
    RETURN_IF_ERROR(r.OutFloats(args.log_sum_exp, args.tokens, "log_sum_exp", &call.log_sum_exp));
  }
  call.tokens = args.tokens;
  call.vocab = args.vocab;
  call.k = args.k;
  Compute(call);
  return absl::OkStatus();
}

}  // namespace sluice
