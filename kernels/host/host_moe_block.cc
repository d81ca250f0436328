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

// A piece of a block's lead rows: while the next one is computed, the rows that this one keeps are fetched.
constexpr uint32_t kPieceRows = 32;
// Of what the first piece keeps. Where it is more, rows are fetched as they are read, each part in its turn
// (measured: ahead of their turn they disturb more than they gain).
constexpr uint64_t kMostFetchedBytes = 16384;
// Of down rows that are found only when they are read: how many are fetched whole.
constexpr uint32_t kFetchRows = 8;

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
      DotFetching(b, list, b.state->call->rows.subspan(l, 1), dots + l);
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
    return DotFetching(b, list, b.state->call->rows, y);
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

// DotList(), with a few lines of what is to be fetched at each row.
void HostBackend::DotFetching(const MoeBlock& b, const RowList& list, absl::Span<const uint32_t> tokens,
                              float* const* y) {
  WorkerScratch& scratch = workers_[b.worker];
  if (b.packed || !IsQuantized(list.encoding.encoding) ||
      scratch.second_rows.lines() + scratch.down_rows.lines() == 0) {
    return DotList(list, tokens, b.worker, y);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    scratch.quant[i] = QuantizedRow(list.encoding.group, tokens[i]);
  }
  host::QuantDotCall dot = QuantDotOf(list, static_cast<uint32_t>(tokens.size()), b.worker, y);
  dot.fetch[0] = &scratch.second_rows;
  dot.fetch[1] = &scratch.down_rows;
  dot.fetch_lines = scratch.fetch_lines;
  kernels_.quant_dot[host::QuantKindOf(list.encoding.encoding)](dot);
}

// Whether a mask can be made, and what it keeps be fetched, while the lead part is still read.
bool HostBackend::LeadsByPieces(const MoeBlock& b) const {
  const ExpertCall& e = *b.state->call;
  // q8 rows are bound by memory alone: whatever comes out of turn delays what is waited for (measured).
  const auto small = [](const CpuWeights& w) {
    return IsQuantized(w.encoding.encoding) && w.encoding.encoding != Encoding::kQ8;
  };
  return small(e.up) && small(e.gate) && small(e.down) && !b.packed && b.tokens == 1 &&
         e.lead_values.base == nullptr &&
         (e.sparsity == SparsityOrder::kUp || e.sparsity == SparsityOrder::kGate) &&
         AnyKept(b) == FirstBits(b.neurons);
}

// The lead's factors and the mask of one token, piece by piece: what a piece keeps is fetched during the next
// one.
void HostBackend::LeadByPieces(const MoeBlock& b, const CpuWeights& lead, const CpuWeights& second,
                               float* c) {
  WorkerScratch& scratch = workers_[b.worker];
  const ExpertCall& expert = *b.state->call;
  const bool up_leads = expert.sparsity == SparsityOrder::kUp;
  const float* bias = up_leads ? expert.up_bias : expert.gate_bias;
  const uint8_t* w[kNeuronBlock];
  for (uint32_t j = 0; j < b.neurons; ++j) {
    w[j] = lead.Row(b.first + j);
  }
  const uint64_t second_bytes = RowBytes(second.encoding, second.cols);
  const uint64_t down_bytes = RowBytes(expert.down.encoding, expert.down.cols);
  scratch.keep[0] = 0;
  // As fast as the lead's rows.
  scratch.fetch_lines = static_cast<uint32_t>(RowBytes(lead.encoding, lead.cols) / 64);
  for (uint32_t first = 0; first < b.neurons; first += kPieceRows) {
    const uint32_t n = std::min(kPieceRows, b.neurons - first);
    float* y = c + first;
    DotFetching(b, {lead.encoding, lead.cols, w + first, n, b.neurons - first}, expert.rows, &y);
    host::FactorCall factor;
    factor.activation = b.call->activation;
    factor.bias = bias == nullptr ? nullptr : bias + b.first + first;
    factor.n = n;
    factor.x = factor.y = y;
    up_leads ? kernels_.up_factor(factor) : kernels_.gate_factor(factor);
    const uint64_t kept = kernels_.keep_mask(y, n, expert.threshold) << first;
    scratch.keep[0] |= kept;
    if (first == 0) {
      const uint64_t bytes = static_cast<uint64_t>(std::popcount(kept)) * (second_bytes + down_bytes);
      scratch.down_fetched = bytes <= kMostFetchedBytes;
    }
    for (uint64_t left = scratch.down_fetched ? kept : 0; left != 0; left &= left - 1) {
      const uint32_t j = b.first + static_cast<uint32_t>(std::countr_zero(left));
      scratch.second_rows.Add(second.Row(j), second.Row(j) + second_bytes);
      scratch.down_rows.Add(expert.down.Row(j), expert.down.Row(j) + down_bytes);
    }
  }
  if (!scratch.down_fetched) {
    return FetchDown(b, 1);
  }
  // The rest while the kept rows of the second part are read.
  const uint32_t rows = std::max(1u, static_cast<uint32_t>(std::popcount(scratch.keep[0])));
  const uint32_t lines = scratch.second_rows.lines() + scratch.down_rows.lines();
  scratch.fetch_lines = (lines + rows - 1) / rows;
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
  const CpuWeights& lead = up_leads ? expert.up : expert.gate;
  const CpuWeights& second = up_leads ? expert.gate : expert.up;
  scratch.second_rows.Clear();
  scratch.down_rows.Clear();
  std::fill_n(scratch.keep, b.tokens, PresentNeurons(expert, b.first, b.neurons));
  const bool lead_decides = up_leads || expert.sparsity == SparsityOrder::kGate;
  scratch.down_fetched = false;
  if (LeadsByPieces(b)) {
    LeadByPieces(b, lead, second, c[0]);
  } else {
    if (expert.sparsity == SparsityOrder::kNone) {
      FetchDown(b, 2);
    }
    if (expert.lead_values.base != nullptr) {
      for (uint32_t i = 0; i < b.tokens; ++i) {
        std::memcpy(c[i], expert.lead_values.Row(i) + b.first, b.neurons * sizeof(float));
      }
    } else {
      DotKept(b, lead, second, c);
      MakeFactors(b, up_leads, c);
    }
    for (uint32_t i = 0; i < b.tokens && lead_decides; ++i) {
      scratch.keep[i] &= kernels_.keep_mask(c[i], b.neurons, expert.threshold);
    }
    if (lead_decides) {
      FetchDown(b, 1);
    }
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

// What of a down row is needed before its codes are read in turn: scales and zeros; by panels the first
// codes, too, and q3's plane of third bits, which is read along with the other.
void HostBackend::AddDownStart(const CpuWeights& down, const uint8_t* row, host::RowFetch* out) const {
  const bool panels = ByPanels(down);
  const uint64_t last = panels && down.encoding.encoding == Encoding::kQ3
                            ? PlaneBytes(2, down.cols)
                            : ScaleOffset(down.encoding, down.cols);
  out->Add(row + last, row + RowBytes(down.encoding, down.cols));
  if (panels) {
    out->Add(row, row + std::min<uint64_t>(host::kPanelAhead, last));
  }
}

// Has the scales and zeros of the down rows fetched while rows are read, `row_passes` times as many as are
// kept: the coefficients of a block are rounded with all of them before the first code is read. By panels the
// first codes of all rows, too.
void HostBackend::FetchDown(const MoeBlock& b, uint32_t row_passes) {
  WorkerScratch& scratch = workers_[b.worker];
  const CpuWeights& down = b.state->call->down;
  if (b.tokens > kFusedTokens || !IsQuantized(down.encoding.encoding)) {
    return;
  }
  for (uint64_t left = AnyKept(b); left != 0; left &= left - 1) {
    AddDownStart(down, down.Row(b.first + static_cast<uint32_t>(std::countr_zero(left))), &scratch.down_rows);
  }
  const uint32_t rows = std::max(1u, row_passes * static_cast<uint32_t>(std::popcount(AnyKept(b))));
  scratch.fetch_lines = (scratch.down_rows.lines() + rows - 1) / rows;
}

// The first lead rows of the next block, at most `most`; returns how many there are.
uint32_t HostBackend::NextLeads(const MoeBlock& b, uint32_t most, const uint8_t** rows) const {
  const ExpertCall& expert = *b.state->call;
  const CpuWeights& lead = expert.sparsity == SparsityOrder::kUp ? expert.up : expert.gate;
  const uint32_t next = b.first + b.neurons;
  const uint32_t count = std::min(most, expert.neuron_end - next);
  for (uint32_t j = 0; j < count; ++j) {
    rows[j] = RowOrZero(lead, next + j);
  }
  return count;
}

// sums[i] = the block sum of token i (all columns), from coefficients [token][64] and the worker's masks.
void HostBackend::BlockSums(const MoeBlock& b, float* const* sums) {
  WorkerScratch& scratch = workers_[b.worker];
  const CpuWeights& down = b.state->call->down;
  const bool quantized = IsQuantized(down.encoding.encoding);
  const Reading reading = HowToRead(b, quantized ? b.tokens : 1);
  if (reading == Reading::kAll) {
    const uint8_t* w[kNeuronBlock + host::kMostRowsAhead];
    for (uint32_t j = 0; j < b.neurons; ++j) {
      w[j] = RowOrZero(down, b.first + j);
    }
    RowList list{down.encoding, down.cols, w, b.neurons, 0};
    if (quantized) {
      list.listed = b.neurons + NextLeads(b, host::kMostRowsAhead, w + b.neurons);
    }
    return DownList(list, scratch.pointers, b.tokens, false, b.worker, sums);
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
  FetchLeft(b);
  KeptRows kept;
  ListKept(down, nullptr, b.first, mask, &kept);
  const uint8_t* rows[2 * kNeuronBlock];
  std::copy_n(kept.rows, kept.count, rows);
  RowList list{down.encoding, down.cols, rows, kept.count, kept.count};
  // Then the first rows of the next block's lead: as many, but a few at least, if the kept ones are there.
  if (scratch.down_fetched && ByPanels(down)) {
    list.listed += NextLeads(b, std::max(kept.count, host::kMostRowsAhead), rows + kept.count);
    list.next_bytes = LeadBytes(b);
    return DownList(list, c + begin, end - begin, false, b.worker, sums + begin);
  }
  if (b.state->call->sparsity == SparsityOrder::kProduct && IsQuantized(down.encoding.encoding)) {
    FetchNow(kept, down, b.worker);
  }
  const uint32_t ahead = scratch.down_fetched ? kept.count : 0;
  const uint8_t* leads[kNeuronBlock];
  const uint32_t count = NextLeads(b, std::max(ahead, host::kMostRowsAhead), leads);
  for (uint32_t j = 0; j < count; ++j) {
    if (j < ahead || ahead == 0) {
      rows[list.listed++] = leads[j];
    } else {
      scratch.down_rows.Add(leads[j], leads[j] + LeadBytes(b));
    }
  }
  list.ahead = ahead;
  DownList(list, c + begin, end - begin, false, b.worker, sums + begin);
  scratch.down_rows.Advance(scratch.down_rows.lines());
}

// What is still to be fetched of the block.
void HostBackend::FetchLeft(const MoeBlock& b) {
  WorkerScratch& scratch = workers_[b.worker];
  scratch.down_rows.Advance(scratch.down_rows.lines());
  scratch.down_rows.Clear();
}

// Of down rows that are only now known to be kept: what is needed first, and the first rows' codes.
void HostBackend::FetchNow(const KeptRows& kept, const CpuWeights& down, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  for (uint32_t i = 0; i < kept.count; ++i) {
    if (i < kFetchRows && !ByPanels(down)) {
      scratch.down_rows.Add(kept.rows[i], kept.rows[i] + RowBytes(down.encoding, down.cols));
    } else {
      AddDownStart(down, kept.rows[i], &scratch.down_rows);
    }
  }
  scratch.down_rows.Advance(scratch.down_rows.lines());
  scratch.down_rows.Clear();
}

uint32_t HostBackend::LeadBytes(const MoeBlock& b) const {
  const ExpertCall& expert = *b.state->call;
  const CpuWeights& lead = expert.sparsity == SparsityOrder::kUp ? expert.up : expert.gate;
  return static_cast<uint32_t>(RowBytes(lead.encoding, lead.cols));
}

}  // namespace sluice
