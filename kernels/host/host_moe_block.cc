// One block of 64 neurons of an expert: coefficients and sums. A block's mask is 64 bits per token. The lead
// part is read for all neurons that are there; its factors make the masks, the masks become lists of rows,
// and the other parts are read by these lists: by one list for all tokens (the union of their masks), or by a
// list for each token, whichever brings fewer rows through the core, or all of them when few are left out.
// What is read changes no bit of the result: a coefficient that is masked is 0 either way.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/host/host_backend.h"
#include "kernels/host/simd/row_kind.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

uint64_t FirstBits(uint32_t n) { return n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// Rows of up to so many bytes, a page, are read several at once before and after rows that a mask keeps here
// and there: a twenty-fifth less time for bf16 rows of 4 KiB, but rows of 8 KiB or experts without masks took
// a twentieth more (Granite Rapids).
constexpr uint64_t kShortRow = 4096;

// The share of a block that is kept from which on all of it is read after a wait.
constexpr float kWaitingAbove = 0.9f;

bool UpLeads(const ExpertCall& expert) { return expert.sparsity == SparsityOrder::kUp; }

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
  out.whole = state.call->sparsity == SparsityOrder::kNone;
  out.worker = worker;
  out.keep = workers_[worker].keep;
  out.c = workers_[worker].pointers;
  return out;
}

bool HostBackend::LeadDecides(const ExpertCall& expert) {
  return expert.sparsity == SparsityOrder::kUp || expert.sparsity == SparsityOrder::kGate;
}

// The neurons of a block whose rows are all there.
uint64_t HostBackend::PresentNeurons(const MoeBlock& b) {
  const ExpertCall& expert = *b.state->call;
  uint64_t mask = FirstBits(b.neurons);
  for (const CpuWeights* part : {&expert.up, &expert.gate, &expert.down}) {
    for (uint32_t j = 0; part->positions != nullptr && j < b.neurons; ++j) {
      mask &= ~(uint64_t{part->positions[b.first + j] < 0} << j);
    }
  }
  return mask;
}

// The neurons that any token keeps.
uint64_t HostBackend::AnyKept(const MoeBlock& b) {
  uint64_t any = 0;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    any |= b.keep[i];
  }
  return any;
}

// The first rows that are read after the first parts of a later block: those that b keeps of the part that
// its masks spare. Returns how many.
uint32_t HostBackend::FirstKept(const MoeBlock& b, const uint8_t** rows) {
  const ExpertCall& expert = *b.state->call;
  const CpuWeights& part = !LeadDecides(expert) ? expert.down : UpLeads(expert) ? expert.gate : expert.up;
  uint32_t count = 0;
  for (uint64_t left = AnyKept(b); left != 0 && count < host::kMostRowsAhead; left &= left - 1) {
    rows[count++] = part.Row(b.first + static_cast<uint32_t>(std::countr_zero(left)));
  }
  return count;
}

// The first lead rows that are there of the block after the next, whose first parts are read after b; returns
// how many.
uint32_t HostBackend::NextLeads(const MoeBlock& b, const uint8_t** rows) const {
  const ExpertState* state = b.state;
  uint32_t next = b.first + 2 * kNeuronBlock;
  if (next >= state->call->neuron_end) {
    const uint32_t left = state->call->neuron_end - b.first;
    if (++state == experts_.data() + experts_.size()) {
      return 0;
    }
    next = state->call->neuron_begin + (left > kNeuronBlock ? 0 : kNeuronBlock);
  }
  const ExpertCall& expert = *state->call;
  const CpuWeights& lead = UpLeads(expert) ? expert.up : expert.gate;
  uint32_t count = 0;
  for (uint32_t j = next; j < expert.neuron_end && count < host::kMostRowsAhead; ++j) {
    rows[count] = lead.Row(j);
    count += rows[count] != nullptr ? 1 : 0;
  }
  return count;
}

// Neurons kept, of each token.
uint32_t HostBackend::KeptInAll(const MoeBlock& b) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    kept += static_cast<uint32_t>(std::popcount(b.keep[i]));
  }
  return kept;
}

// `passes`: how often a row comes through the core when one list serves all tokens.
HostBackend::Reading HostBackend::HowToRead(const MoeBlock& b, uint32_t passes) {
  const uint64_t any = AnyKept(b);
  const uint32_t kept = KeptInAll(b);
  // A neuron that is absent has no row to be read along.
  const bool whole = any == FirstBits(b.neurons) || !b.state->call->HasLists();
  const float most = static_cast<float>(b.tokens * b.neurons);
  // Kept rows that are read in turn with other leads are slow as a whole block.
  const float above = b.packed ? b.state->dense_above : std::max(b.state->dense_above, kWaitingAbove);
  if (whole && (b.whole || static_cast<float>(kept) >= std::min(1.0f, above) * most)) {
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

// Lines that a row counts for when `fetched` rows of a block are read by lists of `rows` in all.
uint32_t HostBackend::FetchLines(const MoeBlock& b, const CpuWeights& weights, uint32_t fetched,
                                 uint32_t rows) {
  if (!b.fetched || rows == 0) {
    return 0;
  }
  const uint32_t lines = (ShapeFor(weights.encoding, weights.cols, b.worker).bytes + 63) / 64;
  return std::max(1u, lines * fetched / rows);
}

// y[i][j] = dot of neuron first + j with token i for the neurons that it keeps; 0 or anything for the others.
// `next`: the part that is read next by the same masks, or nullptr.
void HostBackend::DotKept(const MoeBlock& b, const CpuWeights& weights, const CpuWeights* next,
                          float* const* y) {
  WorkerScratch& scratch = workers_[b.worker];
  const EncodingDescriptor& e = weights.encoding;
  // Rounded rows meet one token after the other; panels pay only for tokens that want the same rows.
  const bool one_by_one = b.packed || IsQuantized(e.encoding);
  const uint32_t passes = one_by_one ? b.tokens : (b.tokens + kernels_.dot_tokens - 1) / kernels_.dot_tokens;
  const Reading reading = HowToRead(b, passes);
  float* const* dots = scratch.pointers + 2 * uint64_t{limits().max_tokens};
  if (reading == Reading::kAll) {
    const uint8_t* w[kNeuronBlock + host::kMostRowsAhead];
    uint32_t listed = 0;
    for (uint32_t j = 0; j < b.neurons; ++j) {
      w[listed++] = RowOrZero(weights, b.first + (b.in_halves ? host::InHalves(j, b.neurons) : j));
    }
    for (uint32_t j = 0; next != nullptr && j < std::min(b.neurons, host::kMostRowsAhead); ++j) {
      w[listed++] = RowOrZero(*next, b.first + j);
    }
    if (next == nullptr && b.waiting != nullptr && !b.fetched) {
      listed += FirstKept(*b.waiting, w + listed);
    }
    RowList list{e, weights.cols, w, b.neurons, listed > b.neurons || IsQuantized(e.encoding) ? listed : 0};
    list.fetch_lines = FetchLines(b, weights, b.neurons, b.neurons);
    list.at_once = LeadDecides(*b.state->call) && !b.whole && RowBytes(e, weights.cols) <= kShortRow;
    DotForAll(b, list, b.in_halves ? dots : y);
    for (uint32_t i = 0; i < b.tokens && b.in_halves; ++i) {
      for (uint32_t j = 0; j < b.neurons; ++j) {
        y[i][host::InHalves(j, b.neurons)] = dots[i][j];
      }
    }
    return;
  }
  const uint32_t lists = reading == Reading::kUnion ? 1 : b.tokens;
  const uint32_t in_any = static_cast<uint32_t>(std::popcount(AnyKept(b)));
  for (uint32_t l = 0; l < lists; ++l) {
    const bool all = reading == Reading::kUnion;
    KeptRows kept;
    ListKept(weights, next, b.first, all ? AnyKept(b) : b.keep[l], &kept);
    RowList list{e, weights.cols, kept.rows, kept.count, kept.listed};
    list.at_once = true;
    list.fetch_lines = FetchLines(b, weights, in_any, all ? in_any : KeptInAll(b));
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

// The part that the lead's mask spares, or the second one: its factors times those of the lead.
void HostBackend::SecondPart(const MoeBlock& b) {
  const ExpertCall& expert = *b.state->call;
  float* const* other = workers_[b.worker].pointers + limits().max_tokens;
  const bool up = !UpLeads(expert);
  // Before the masks are known, the same block's third part comes next only where it does not wait for them.
  const bool down_next = !b.fetched && (LeadDecides(expert) || b.whole);
  DotKept(b, up ? expert.up : expert.gate, down_next ? &expert.down : nullptr, other);
  MakeFactors(b, up, other);
  for (uint32_t i = 0; i < b.tokens; ++i) {
    kernels_.multiply(b.c[i], other[i], b.neurons, b.c[i]);
  }
}

// Everything that is read before the masks of a block are known: the lead part, without masks by it the
// second part, too. Sets b.keep and, to what is known of the coefficients, b.c ([token][64]).
void HostBackend::FirstParts(const MoeBlock& b) {
  const ExpertCall& expert = *b.state->call;
  const bool up_leads = UpLeads(expert);
  std::fill_n(b.keep, b.tokens, PresentNeurons(b));
  if (expert.lead_values.base != nullptr) {
    for (uint32_t i = 0; i < b.tokens; ++i) {
      std::memcpy(b.c[i], expert.lead_values.Row(i) + b.first, b.neurons * sizeof(float));
    }
  } else {
    const CpuWeights* second = up_leads ? &expert.gate : &expert.up;
    DotKept(b, up_leads ? expert.up : expert.gate, b.whole || !LeadDecides(expert) ? second : nullptr, b.c);
    MakeFactors(b, up_leads, b.c);
  }
  if (!LeadDecides(expert)) {
    SecondPart(b);
  }
  for (uint32_t i = 0; i < b.tokens && expert.sparsity != SparsityOrder::kNone; ++i) {
    b.keep[i] &= kernels_.keep_mask(b.c[i], b.neurons, expert.threshold);
  }
}

// The coefficients (0 where the mask is) of a block after FirstParts(). Returns how many are kept.
uint32_t HostBackend::BlockCoefficients(const MoeBlock& b) {
  const ExpertCall& expert = *b.state->call;
  if (LeadDecides(expert)) {
    SecondPart(b);
  }
  uint32_t kept = 0;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    kernels_.select_kept(b.c[i], b.keep[i], b.c[i]);
    const uint32_t count = static_cast<uint32_t>(std::popcount(b.keep[i]));
    kept += count;
    if (b.kept != nullptr) {
      b.kept[i] += count;
    } else if (b.call->active != nullptr) {
      std::atomic_ref<uint32_t>(b.call->active[expert.slots[i]]).fetch_add(count, std::memory_order_relaxed);
    }
  }
  return kept;
}

// sums[i] (+)= the block sum of token i (all columns), from the block's coefficients and masks.
void HostBackend::BlockSums(const MoeBlock& b, bool add, float* const* sums) {
  const CpuWeights& down = b.state->call->down;
  const Reading reading = HowToRead(b, IsQuantized(down.encoding.encoding) ? b.tokens : 1);
  if (reading == Reading::kAll) {
    const uint8_t* w[kNeuronBlock];
    for (uint32_t j = 0; j < b.neurons; ++j) {
      w[j] = RowOrZero(down, b.first + j);
    }
    RowList list{down.encoding, down.cols, w, b.neurons, 0};
    list.in_halves = b.in_halves;
    list.fetch_lines = FetchLines(b, down, b.neurons, b.neurons);
    return DownList(list, b.c, b.tokens, add, b.worker, sums);
  }
  if (reading == Reading::kTokens) {
    for (uint32_t i = 0; i < b.tokens; ++i) {
      SumKept(b, b.keep[i], i, i + 1, add, sums);
    }
    return;
  }
  SumKept(b, AnyKept(b), 0, b.tokens, add, sums);
}

// The same for tokens [begin, end), by one list.
void HostBackend::SumKept(const MoeBlock& b, uint64_t mask, uint32_t begin, uint32_t end, bool add,
                          float* const* sums) {
  WorkerScratch& scratch = workers_[b.worker];
  const CpuWeights& down = b.state->call->down;
  if (mask == 0) {
    for (uint32_t i = begin; i < end && !add; ++i) {
      std::memset(sums[i], 0, down.cols * sizeof(float));
    }
    return;
  }
  float* const* c = scratch.pointers + 2 * uint64_t{limits().max_tokens};
  for (uint32_t i = begin; i < end; ++i) {
    kernels_.compress_kept(b.c[i], mask, c[i]);
  }
  KeptRows kept;
  ListKept(down, nullptr, b.first, mask, &kept);
  RowList list{down.encoding, down.cols, kept.rows, kept.count, kept.count};
  list.at_once = true;
  list.fetch_lines = FetchLines(b, down, static_cast<uint32_t>(std::popcount(AnyKept(b))),
                                end - begin == b.tokens ? kept.count : KeptInAll(b));
  if (!b.fetched) {
    list.listed += NextLeads(b, kept.rows + kept.count);
  }
  DownList(list, c + begin, end - begin, add, b.worker, sums + begin);
}

}  // namespace sluice
