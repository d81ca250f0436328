// One block of 64 neurons of an expert: coefficients and sums. A block's mask is 64 bits per token. The lead
// part is read for all neurons that are there; its factors make the masks, the masks become lists of rows,
// and the other parts are read by these lists: by one list for all tokens (the union of their masks), or by a
// list for each token, whichever brings fewer rows through the core, or all of them when few are left out.
// What is read changes no bit of the result: a coefficient that is masked is 0 either way.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/pack/row_layout.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/row_kind.h"

namespace sluice {
namespace {

uint64_t FirstBits(uint32_t n) { return n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// The neurons of a block whose rows are all there.
uint64_t PresentNeurons(const ExpertCall& expert, uint32_t first, uint32_t neurons) {
  uint64_t mask = FirstBits(neurons);
  for (const CpuWeights* part : {&expert.up, &expert.gate, &expert.down}) {
    for (uint32_t j = 0; part->positions != nullptr && j < neurons; ++j) {
      mask &= ~(uint64_t{part->positions[first + j] < 0} << j);
    }
  }
  return mask;
}

// Fetches a quantized down row's scales and zeros: the coefficients of a block are rounded with all of them
// before the first code is read.
void PrefetchScales(const CpuWeights& weights, const uint8_t* row) {
  const uint64_t end = RowBytes(weights.encoding, weights.cols);
  for (uint64_t at = ScaleOffset(weights.encoding, weights.cols); at < end; at += 64) {
    __builtin_prefetch(row + at, 0, 2);
  }
  __builtin_prefetch(row + end - 1, 0, 2);
}

}  // namespace

HostBackend::MoeBlock HostBackend::BlockOf(const MoeCall& call, const ExpertState& state, uint32_t block,
                                           bool packed, uint32_t worker) const {
  MoeBlock out;
  out.call = &call;
  out.state = &state;
  out.first = state.call->neuron_begin + block * kNeuronBlock;
  out.neurons = std::min(kNeuronBlock, state.call->neuron_end - out.first);
  out.tokens = static_cast<uint32_t>(state.call->rows.size());
  out.packed = packed;
  out.worker = worker;
  return out;
}

// The neurons that any token keeps.
uint64_t HostBackend::AnyKept(const MoeBlock& b) const {
  uint64_t any = 0;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    any |= workers_[b.worker].keep[i];
  }
  return any;
}

// `passes`: how often a row comes through the core when one list serves all tokens.
HostBackend::Reading HostBackend::HowToRead(const MoeBlock& b, uint32_t passes) const {
  const uint64_t any = AnyKept(b);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    kept += static_cast<uint32_t>(std::popcount(workers_[b.worker].keep[i]));
  }
  // A neuron that is absent has no row to be read along.
  const bool whole = any == FirstBits(b.neurons) || !b.state->call->HasLists();
  const float most = static_cast<float>(b.tokens * b.neurons);
  if (whole && static_cast<float>(kept) >= std::min(1.0f, b.state->dense_above) * most) {
    return Reading::kAll;
  }
  const uint32_t in_union = static_cast<uint32_t>(std::popcount(any));
  return in_union * passes <= kept ? Reading::kUnion : Reading::kTokens;
}

// The rows of a mask, and behind them the first ones of the part that is read next by the same mask.
void HostBackend::ListKept(const CpuWeights& weights, const CpuWeights* next, uint32_t first, uint64_t mask,
                           KeptRows* out) const {
  out->count = kernels_.kept_indices(mask, out->index);
  for (uint32_t i = 0; i < out->count; ++i) {
    out->rows[i] = weights.Row(first + out->index[i]);
  }
  out->listed = out->count;
  for (uint32_t i = 0; next != nullptr && i < std::min(out->count, host::kMostRowsAhead); ++i) {
    out->rows[out->listed++] = next->Row(first + out->index[i]);
  }
}

// y[i][j] = dot of neuron first + j with token i for the neurons that it keeps; 0 or anything for the others.
void HostBackend::DotKept(const MoeBlock& b, const CpuWeights& weights, const CpuWeights& next,
                          float* const* y) {
  WorkerScratch& scratch = workers_[b.worker];
  const EncodingDescriptor& e = weights.encoding;
  // Rounded rows meet one token after the other; panels pay only for tokens that want the same rows.
  const bool one_by_one = b.packed || IsQuantized(e.encoding);
  const uint32_t passes = one_by_one ? b.tokens : (b.tokens + kernels_.dot_tokens - 1) / kernels_.dot_tokens;
  const Reading reading = HowToRead(b, passes);
  if (reading == Reading::kAll) {
    const uint8_t* w[kNeuronBlock + host::kMostRowsAhead];
    uint32_t listed = 0;
    for (uint32_t j = 0; j < b.neurons; ++j) {
      w[listed++] = RowOrZero(weights, b.first + j);
    }
    for (uint32_t j = 0; j < std::min(b.neurons, host::kMostRowsAhead); ++j) {
      w[listed++] = RowOrZero(next, b.first + j);
    }
    return DotForAll(b, {e, weights.cols, w, b.neurons, IsQuantized(e.encoding) ? listed : 0}, y);
  }
  float* const* dots = scratch.pointers + 2 * uint64_t{limits().max_tokens};
  const uint32_t lists = reading == Reading::kUnion ? 1 : b.tokens;
  for (uint32_t l = 0; l < lists; ++l) {
    const bool all = reading == Reading::kUnion;
    KeptRows kept;
    ListKept(weights, &next, b.first, all ? AnyKept(b) : scratch.keep[l], &kept);
    const RowList list{e, weights.cols, kept.rows, kept.count, kept.listed};
    if (all) {
      DotForAll(b, list, dots);
    } else {
      DotList(list, b.state->call->rows.subspan(l, 1), b.worker, dots + l);
    }
    for (uint32_t i = l; i < (all ? b.tokens : l + 1); ++i) {
      std::memset(y[i], 0, kNeuronBlock * sizeof(float));
      for (uint32_t r = 0; r < kept.count; ++r) {
        y[i][kept.index[r]] = dots[i][r];
      }
    }
  }
}

// y[i][r] = dot of row r of the list with token i, for all tokens of the block.
void HostBackend::DotForAll(const MoeBlock& b, const RowList& list, float* const* y) {
  if (!b.packed || IsQuantized(list.encoding.encoding)) {
    return DotList(list, b.state->call->rows, b.worker, y);
  }
  host::GemmCall gemm;
  gemm.w = list.rows;
  gemm.packed = packed_ + b.state->memory * host::RoundUp(list.cols, host::kLaneCount);
  gemm.y = y;
  gemm.rows = list.count;
  gemm.tokens = b.tokens;
  gemm.cols = list.cols;
  gemm.scratch = workers_[b.worker].gemm;
  kernels_.gemm[host::RowKindOf(list.encoding.encoding)](gemm);
}

// Dot products of a part to factors of the coefficients.
void HostBackend::MakeFactors(const MoeBlock& b, bool up, float* const* y) const {
  const float* bias = up ? b.state->call->up_bias : b.state->call->gate_bias;
  host::FactorCall factor;
  factor.activation = b.call->activation;
  factor.bias = bias == nullptr ? nullptr : bias + b.first;
  factor.n = b.neurons;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    factor.x = factor.y = y[i];
    up ? kernels_.up_factor(factor) : kernels_.gate_factor(factor);
  }
}

// The masks and coefficients (0 where the mask is) of a block into the worker's `keep` and tile 0
// ([token][64]). Returns how many are kept.
uint32_t HostBackend::BlockCoefficients(const MoeBlock& b) {
  WorkerScratch& scratch = workers_[b.worker];
  const ExpertCall& expert = *b.state->call;
  float* const* c = scratch.pointers;
  float* const* other = scratch.pointers + limits().max_tokens;
  const bool up_leads = expert.sparsity == SparsityOrder::kUp;
  std::fill_n(scratch.keep, b.tokens, PresentNeurons(expert, b.first, b.neurons));
  const bool lead_decides = up_leads || expert.sparsity == SparsityOrder::kGate;
  if (!lead_decides) {
    PrefetchDown(b);
  }
  const CpuWeights& lead = up_leads ? expert.up : expert.gate;
  const CpuWeights& second = up_leads ? expert.gate : expert.up;
  DotKept(b, lead, second, c);
  MakeFactors(b, up_leads, c);
  if (lead_decides) {
    for (uint32_t i = 0; i < b.tokens; ++i) {
      scratch.keep[i] &= kernels_.keep_mask(c[i], b.neurons, expert.threshold);
    }
    PrefetchDown(b);
  }
  DotKept(b, second, expert.down, other);
  MakeFactors(b, !up_leads, other);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    kernels_.multiply(c[i], other[i], b.neurons, c[i]);
    if (expert.sparsity == SparsityOrder::kProduct) {
      scratch.keep[i] &= kernels_.keep_mask(c[i], b.neurons, expert.threshold);
    }
    kernels_.select_kept(c[i], scratch.keep[i], c[i]);
    const uint32_t count = static_cast<uint32_t>(std::popcount(scratch.keep[i]));
    kept += count;
    if (b.call->active != nullptr) {
      std::atomic_ref<uint32_t>(b.call->active[expert.slots[i]]).fetch_add(count, std::memory_order_relaxed);
    }
  }
  return kept;
}

void HostBackend::PrefetchDown(const MoeBlock& b) const {
  const CpuWeights& down = b.state->call->down;
  if (b.tokens > kFusedTokens || !IsQuantized(down.encoding.encoding)) {
    return;
  }
  for (uint64_t any = AnyKept(b); any != 0; any &= any - 1) {
    PrefetchScales(down, down.Row(b.first + static_cast<uint32_t>(std::countr_zero(any))));
  }
}

// sums[i] = the block sum of token i (all columns), from coefficients [token][64] and the worker's masks.
void HostBackend::BlockSums(const MoeBlock& b, float* const* sums) {
  WorkerScratch& scratch = workers_[b.worker];
  const CpuWeights& down = b.state->call->down;
  const bool quantized = IsQuantized(down.encoding.encoding);
  const Reading reading = HowToRead(b, quantized ? b.tokens : 1);
  if (reading == Reading::kAll) {
    const uint8_t* w[kNeuronBlock + host::kMostRowsAhead];
    uint32_t listed = 0;
    for (uint32_t j = 0; j < b.neurons; ++j) {
      w[listed++] = RowOrZero(down, b.first + j);
    }
    // Then the next block's first rows.
    const ExpertCall& expert = *b.state->call;
    const CpuWeights& lead = expert.sparsity == SparsityOrder::kUp ? expert.up : expert.gate;
    const uint32_t next = b.first + b.neurons;
    for (uint32_t j = 0; j < host::kMostRowsAhead && next + j < expert.neuron_end; ++j) {
      w[listed++] = RowOrZero(lead, next + j);
    }
    return DownList({down.encoding, down.cols, w, b.neurons, quantized ? listed : 0}, scratch.pointers,
                    b.tokens, false, b.worker, sums);
  }
  if (reading == Reading::kTokens) {
    for (uint32_t i = 0; i < b.tokens; ++i) {
      SumKept(b, scratch.keep[i], i, i + 1, sums);
    }
    return;
  }
  SumKept(b, AnyKept(b), 0, b.tokens, sums);
}

// The same for tokens [begin, end), by one list.
void HostBackend::SumKept(const MoeBlock& b, uint64_t mask, uint32_t begin, uint32_t end,
                          float* const* sums) {
  WorkerScratch& scratch = workers_[b.worker];
  const CpuWeights& down = b.state->call->down;
  if (mask == 0) {
    for (uint32_t i = begin; i < end; ++i) {
      std::memset(sums[i], 0, down.cols * sizeof(float));
    }
    return;
  }
  float* const* c = scratch.pointers + 2 * uint64_t{limits().max_tokens};
  for (uint32_t i = begin; i < end; ++i) {
    kernels_.compress_kept(scratch.pointers[i], mask, c[i]);
  }
  KeptRows kept;
  ListKept(down, nullptr, b.first, mask, &kept);
  DownList({down.encoding, down.cols, kept.rows, kept.count, kept.listed}, c + begin, end - begin, false,
           b.worker, sums + begin);
}

}  // namespace sluice
