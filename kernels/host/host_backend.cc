#include "kernels/host/host_backend.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/status.h"
#include "kernels/host/host_isa.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// Below this much work (multiply-adds and the like; about 10 us on one thread) a fork-join costs more than it
// brings. Chosen so that the router of a 128-expert model stays on the calling thread for one token.
constexpr uint64_t kParallelWork = (uint64_t{1} << 18) + 1;

// Partial sums of fused experts and split attention: 64 MiB, touched only as far as used.
constexpr uint64_t kPartialFloats = uint64_t{16} << 20;

}  // namespace

using host::RoundUp;

absl::StatusOr<std::unique_ptr<HostBackend>> HostBackend::Create(const BackendLimits& limits,
                                                                 uint32_t threads,
                                                                 const host::KernelTable& kernels,
                                                                 const host::MemoryTuning& tuning) {
  std::unique_ptr<HostBackend> backend(new HostBackend(limits, threads, kernels, tuning));
  RETURN_IF_ERROR(backend->AllocateScratch());
  return backend;
}

HostBackend::HostBackend(const BackendLimits& limits, uint32_t threads, const host::KernelTable& kernels,
                         const host::MemoryTuning& tuning)
    : CpuBackend(limits), kernels_(kernels), tuning_(tuning), pool_(threads), workers_(threads) {}

template <class T>
absl::Status HostBackend::Reserve(uint64_t count, const char* what, T** out) {
  ASSIGN_OR_RETURN(MappedArray array, MappedArray::Create(std::max<uint64_t>(count, 1) * sizeof(T), what));
  *out = reinterpret_cast<T*>(array.data());
  memory_.push_back(std::move(array));
  return absl::OkStatus();
}

absl::Status HostBackend::AllocateScratch() {
  const BackendLimits& l = limits();
  const uint64_t tokens = l.max_tokens;
  const uint32_t cols = std::max({l.max_cols, l.hidden, 16u});
  const uint64_t slots = tokens * (uint64_t{l.top_k} + 1);
  x_stride_ = RoundUp(cols, host::kLaneCount);
  // A line or two beyond a power of two: the same place of many tokens' rows is read one after the other, and
  // would otherwise fall into a few sets of the first-level cache.
  code_stride_ = RoundUp(cols, host::kCodeAlign) + 64;
  group_stride_ = RoundUp(RoundUp(cols, 16) / 16, 8) + 16;
  coefficient_stride_ = RoundUp(l.expert_width, kNeuronBlock);
  partial_floats_ = kPartialFloats;
  RETURN_IF_ERROR(Reserve(tokens * x_stride_, "normed rows", &normed_));
  RETURN_IF_ERROR(Reserve(tokens, "row pointers", &x_rows_));
  RETURN_IF_ERROR(Reserve(tokens, "token numbers", &all_tokens_));
  std::iota(all_tokens_, all_tokens_ + tokens, 0u);
  // An expert's rows begin a panel of their own.
  const uint64_t panels = std::max(tokens, slots + 8 * uint64_t{l.experts + 8}) + 8;
  RETURN_IF_ERROR(Reserve(panels * x_stride_, "packed rows", &packed_));
  for (QuantForm& form : forms_) {
    RETURN_IF_ERROR(Reserve(tokens * code_stride_, "rounded rows", &form.codes));
    if ((&form - forms_ + 1) % 4 == 0) {  // groups of 64 and 128
      RETURN_IF_ERROR(Reserve(4 * tokens * code_stride_, "rounded rows cut into bytes", &form.bytes));
    }
    RETURN_IF_ERROR(Reserve(tokens * group_stride_, "scales of rounded rows", &form.scales));
    RETURN_IF_ERROR(Reserve(tokens * group_stride_, "sums of rounded rows", &form.sums));
  }
  RETURN_IF_ERROR(Reserve(partial_floats_, "partial sums", &partials_));
  RETURN_IF_ERROR(Reserve(panels * coefficient_stride_, "expert coefficients", &coefficients_));
  uint8_t* zeros = nullptr;
  RETURN_IF_ERROR(Reserve(uint64_t{std::max(cols, l.head_dim)} * 4 + 64, "zero row", &zeros));
  zero_row_ = zeros;
  for (WorkerScratch& w : workers_) {
    RETURN_IF_ERROR(AllocateWorker(cols, &w));
  }
  head_forms_.resize(workers_.size());
  for (QuantForm& form : head_forms_) {
    RETURN_IF_ERROR(Reserve(kHeadTokens * code_stride_, "rounded rows of a head", &form.codes));
    RETURN_IF_ERROR(Reserve(4 * kHeadTokens * code_stride_, "bytes of a head's rows", &form.bytes));
    RETURN_IF_ERROR(Reserve(kHeadTokens * group_stride_, "scales of a head's rows", &form.scales));
    RETURN_IF_ERROR(Reserve(kHeadTokens * group_stride_, "sums of a head's rows", &form.sums));
  }
  // Attention: blocks of kSpanQueries queries, and a task per span for the few blocks that are split.
  const uint64_t blocks = tokens * l.heads / host::kSpanQueries + uint64_t{l.max_sequences} * l.heads + 1;
  max_blocks_ = static_cast<uint32_t>(blocks);
  tasks_.reserve(blocks + 4 * uint64_t{pool_.threads()} * (l.max_context / kSpanTokens + 2));
  countdown_ = std::make_unique<std::atomic<uint32_t>[]>(max_blocks_);
  experts_.reserve(l.experts + 8);
  max_flags_ = (l.experts + 8) * static_cast<uint32_t>(coefficient_stride_ / kNeuronBlock);
  orders_ = std::make_unique<ExpertOrder[]>(l.experts + 8);
  block_done_ = std::make_unique<std::atomic<bool>[]>(max_flags_);
  RETURN_IF_ERROR(Reserve(max_flags_, "block counts", &block_kept_));
  return absl::OkStatus();
}

absl::Status HostBackend::AllocateWorker(uint32_t cols, WorkerScratch* w) {
  const BackendLimits& l = limits();
  const uint64_t tokens = l.max_tokens;
  RETURN_IF_ERROR(Reserve(host::GemmScratchFloats(std::max(cols, l.head_dim)), "tile scratch", &w->gemm));
  RETURN_IF_ERROR(Reserve(host::DownScratchFloats(cols), "down scratch", &w->down));
  RETURN_IF_ERROR(Reserve(host::QuantDownWords(cols), "quantized down scratch", &w->quant_down));
  RETURN_IF_ERROR(Reserve(host::QuantGemmFloats(cols), "quantized tile scratch", &w->quant_gemm));
  RETURN_IF_ERROR(Reserve(host::kSpanScratchFloats + 2 * host::kSpanQueries * (uint64_t{l.head_dim} + 2),
                          "attention scratch", &w->span));
  RETURN_IF_ERROR(Reserve(host::PackedFloats(host::kSpanQueries, l.head_dim, kernels_.gemm_tokens),
                          "packed queries", &w->queries));
  RETURN_IF_ERROR(Reserve(4 * uint64_t{l.experts}, "router scratch", &w->router));
  RETURN_IF_ERROR(Reserve(uint64_t{l.heads} * l.head_dim, "heads of a row", &w->heads));
  RETURN_IF_ERROR(Reserve(uint64_t{kMaxConvKernel + 2} * 3 * l.head_dim, "delta scratch", &w->delta));
  RETURN_IF_ERROR(Reserve(kFusedTokens * x_stride_, "block sums", &w->sums));
  RETURN_IF_ERROR(Reserve(3 * tokens * kNeuronBlock, "tile outputs", &w->tile));
  RETURN_IF_ERROR(Reserve(3 * tokens, "tile rows", &w->pointers));
  RETURN_IF_ERROR(Reserve(tokens, "tile inputs", &w->inputs));
  RETURN_IF_ERROR(Reserve(tokens, "tile rounded inputs", &w->quant));
  RETURN_IF_ERROR(Reserve(tokens, "tile targets", &w->outputs));
  RETURN_IF_ERROR(Reserve(tokens, "block masks", &w->keep));
  RETURN_IF_ERROR(Reserve((uint64_t{l.experts} + 8) * kFusedTokens, "kept coefficients", &w->kept));
  for (uint64_t i = 0; i < 3 * tokens; ++i) {
    w->pointers[i] = w->tile + i * kNeuronBlock;
  }
  for (int slot = 0; slot < 2; ++slot) {
    RETURN_IF_ERROR(Reserve(kFusedTokens, "masks of a waiting block", &w->slot_keep[slot]));
    float* rows = nullptr;
    RETURN_IF_ERROR(Reserve(kFusedTokens * kNeuronBlock, "coefficients of a waiting block", &rows));
    for (uint32_t i = 0; i < kFusedTokens; ++i) {
      w->slot_rows[slot][i] = rows + i * kNeuronBlock;
    }
  }
  return absl::OkStatus();
}

BackendCounters HostBackend::Counters() const {
  const ThreadPool::Counters pool = pool_.counters();
  BackendCounters counters = CpuBackend::Counters();
  counters.fork_joins = pool.fork_joins;
  counters.region_seconds = pool.region_seconds;
  counters.join_wait_seconds = pool.join_wait_seconds;
  counters.serial_ops = serial_ops_.load(std::memory_order_relaxed);
  return counters;
}

std::string HostBackend::Describe() const {
  return absl::StrCat("device host, ", kernels_.name, ", ", pool_.threads(),
                      pool_.threads() == 1 ? " thread" : " threads");
}

void HostBackend::RunTiles(uint32_t tiles, uint64_t work, ThreadPool::TileFunction function,
                           ThreadPool::FinishFunction finish) {
  if (work >= kParallelWork) {
    pool_.Run(tiles, function, finish);
    return;
  }
  serial_ops_.store(serial_ops_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  pool_.RunAlone(tiles, function, finish);
}

host::QuantRow HostBackend::QuantizedRow(uint32_t group, uint32_t token) const {
  const QuantForm& form = forms_[group / 16 - 1];
  return {form.codes + token * code_stride_, form.scales + token * group_stride_,
          form.sums + token * group_stride_,
          form.bytes == nullptr ? nullptr : form.bytes + 4 * token * code_stride_};
}

void HostBackend::QuantizeRows(const float* const* x, uint32_t tokens, uint32_t cols) {
  for (uint32_t i = 0; i < kQuantForms; ++i) {
    QuantForm& form = forms_[i];
    if (!form.wanted) {
      continue;
    }
    form.wanted = false;
    RunTiles(tokens, uint64_t{tokens} * cols * 4, [&](uint32_t t, uint32_t) {
      host::QuantizeCall call;
      call.x = x[t];
      call.cols = cols;
      call.group = (i + 1) * 16;
      call.codes = form.codes + t * code_stride_;
      call.scales = form.scales + t * group_stride_;
      call.sums = form.sums + t * group_stride_;
      call.bytes = call.group % 64 == 0 ? form.bytes + 4 * t * code_stride_ : nullptr;
      kernels_.quantize(call);
    });
  }
}

}  // namespace sluice
