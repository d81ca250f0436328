#include "kernels/cpu/expert_block.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/kernel_table.h"
#include "pack/row_layout.h"

namespace sluice::cpu {
namespace {

uint64_t FirstBits(uint32_t n) { return n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// Rows of up to this many bytes (a page) are read several at once before and after gathered rows of a mask: 4
// % less time for bf16 rows of 4 KiB, but rows of 8 KiB or experts without masks took 5 % more (Granite
// Rapids).
constexpr uint64_t kShortRow = 4096;

// Kept share of a block from which all of it is read after a wait.
constexpr float kWaitingAbove = 0.9f;

bool UpLeads(const ExpertCall& expert) { return expert.sparsity == SparsityOrder::kUp; }

// The first rows that are read after the first parts of a later block: those that b keeps of the part that
// its masks thin out. Returns their number.
uint32_t FirstKept(const ExpertBlock& b, const uint8_t** rows) {
  const ExpertCall& expert = *b.job->call;
  const CallWeights& part = !LeadDecides(expert) ? expert.down : UpLeads(expert) ? expert.gate : expert.up;
  uint32_t count = 0;
  for (uint64_t left = AnyKept(b); left != 0 && count < kMaxRowsAhead; left &= left - 1) {
    rows[count++] = part.Row(b.first + static_cast<uint32_t>(std::countr_zero(left)));
  }
  return count;
}

// The first present lead rows of the block after the next, whose first parts are read after b. Returns their
// number.
uint32_t NextLeads(const ExpertBlock& b, const uint8_t** rows) {
  const ExpertJob* job = b.job;
  uint32_t next = b.first + 2 * kNeuronBlock;
  if (next >= job->call->neuron_end) {
    const uint32_t left = job->call->neuron_end - b.first;
    if (++job == b.jobs.data() + b.jobs.size()) {
      return 0;
    }
    next = job->call->neuron_begin + (left > kNeuronBlock ? 0 : kNeuronBlock);
  }
  const ExpertCall& expert = *job->call;
  const CallWeights& lead = UpLeads(expert) ? expert.up : expert.gate;
  uint32_t count = 0;
  for (uint32_t j = next; j < expert.neuron_end && count < kMaxRowsAhead; ++j) {
    rows[count] = lead.Row(j);
    count += rows[count] != nullptr ? 1 : 0;
  }
  return count;
}

}  // namespace

bool LeadDecides(const ExpertCall& expert) {
  return expert.sparsity == SparsityOrder::kUp || expert.sparsity == SparsityOrder::kGate;
}

uint64_t PresentNeurons(const ExpertBlock& b) {
  const ExpertCall& expert = *b.job->call;
  uint64_t mask = FirstBits(b.neurons);
  for (const CallWeights* part : {&expert.up, &expert.gate, &expert.down}) {
    for (uint32_t j = 0; part->positions != nullptr && j < b.neurons; ++j) {
      mask &= ~(uint64_t{part->positions[b.first + j] < 0} << j);
    }
  }
  return mask;
}

uint64_t AnyKept(const ExpertBlock& b) {
  uint64_t any = 0;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    any |= b.keep[i];
  }
  return any;
}

uint32_t KeptInAll(const ExpertBlock& b) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    kept += static_cast<uint32_t>(std::popcount(b.keep[i]));
  }
  return kept;
}

Reading ChooseReading(const ExpertBlock& b, uint32_t passes) {
  const uint64_t any = AnyKept(b);
  const uint32_t kept = KeptInAll(b);
  // An absent neuron has no row to read.
  const bool whole = any == FirstBits(b.neurons) || !b.job->call->HasLists();
  const float most = static_cast<float>(b.tokens * b.neurons);
  // Kept rows that are read in turn with other leads are slow as a whole block.
  const float above = b.packed ? b.job->dense_above : std::max(b.job->dense_above, kWaitingAbove);
  if (whole && (b.whole || static_cast<float>(kept) >= std::min(1.0f, above) * most)) {
    return Reading::kAll;
  }
  const uint32_t in_union = static_cast<uint32_t>(std::popcount(any));
  return in_union * passes <= kept ? Reading::kUnion : Reading::kTokens;
}

absl::Status ExpertBlocks::Reserve(const BackendLimits& limits, uint32_t workers, Scratch* scratch) {
  keep_.resize(workers);
  for (uint64_t*& keep : keep_) {
    RETURN_IF_ERROR(scratch->Reserve(limits.max_tokens, "block masks", &keep));
  }
  return absl::OkStatus();
}

ExpertBlock ExpertBlocks::BlockOf(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs, uint32_t job,
                                  uint32_t number, bool packed, uint32_t worker) const {
  const ExpertCall& expert = *jobs[job].call;
  ExpertBlock out;
  out.call = &call;
  out.jobs = jobs;
  out.job = &jobs[job];
  out.first = expert.neuron_begin + number * kNeuronBlock;
  out.neurons = std::min(kNeuronBlock, expert.neuron_end - out.first);
  out.tokens = static_cast<uint32_t>(expert.rows.size());
  out.packed = packed;
  out.whole = expert.sparsity == SparsityOrder::kNone;
  out.worker = worker;
  out.keep = keep_[worker];
  out.c = space_.workers[worker].rows[0];
  return out;
}

void ExpertBlocks::ListKept(const CallWeights& weights, const CallWeights* next, uint32_t first,
                            uint64_t mask, KeptRows* out) const {
  out->count = kernels_.kept_indices(mask, out->index);
  for (uint32_t i = 0; i < out->count; ++i) {
    out->rows[i] = weights.Row(first + out->index[i]);
  }
  out->listed = out->count;
  for (uint32_t i = 0; next != nullptr && i < std::min(out->count, kMaxRowsAhead); ++i) {
    out->rows[out->listed++] = next->Row(first + out->index[i]);
  }
}

// Lines to count for a row when `fetched` rows of a block are read by lists of `rows` in all.
uint32_t ExpertBlocks::FetchLines(const ExpertBlock& b, const CallWeights& weights, uint32_t fetched,
                                  uint32_t rows) {
  if (b.fetch == nullptr || rows == 0) {
    return 0;
  }
  const uint32_t lines = (lists_.ShapeFor(weights.encoding, weights.cols, b.worker).bytes + 63) / 64;
  return std::max(1u, lines * fetched / rows);
}

// y[i][j] = dot of neuron first + j with token i for the neurons that it keeps; 0 or anything for the others.
// `next`: the part that is read next by the same masks, or nullptr.
void ExpertBlocks::DotKept(const ExpertBlock& b, const CallWeights& weights, const CallWeights* next,
                           float* const* y) {
  // Rounded rows are multiplied token by token; panels pay only for tokens with the same rows.
  const bool one_by_one = b.packed || IsQuantized(weights.encoding.encoding);
  const uint32_t passes = one_by_one ? b.tokens : (b.tokens + kernels_.dot_tokens - 1) / kernels_.dot_tokens;
  const Reading reading = ChooseReading(b, passes);
  if (reading == Reading::kAll) {
    return DotAll(b, weights, next, y);
  }
  DotByLists(b, weights, next, reading == Reading::kUnion, y);
}

// Dot products with all neurons of the block.
void ExpertBlocks::DotAll(const ExpertBlock& b, const CallWeights& weights, const CallWeights* next,
                          float* const* y) {
  const EncodingDescriptor& e = weights.encoding;
  float* const* dots = space_.workers[b.worker].rows[2];
  const uint8_t* w[kNeuronBlock + kMaxRowsAhead];
  uint32_t listed = 0;
  for (uint32_t j = 0; j < b.neurons; ++j) {
    w[listed++] = space_.RowOrZero(weights, b.first + (b.in_halves ? InHalves(j, b.neurons) : j));
  }
  for (uint32_t j = 0; next != nullptr && j < std::min(b.neurons, kMaxRowsAhead); ++j) {
    w[listed++] = space_.RowOrZero(*next, b.first + j);
  }
  if (next == nullptr && b.waiting != nullptr && b.fetch == nullptr) {
    listed += FirstKept(*b.waiting, w + listed);
  }
  RowList list{e, weights.cols, w, b.neurons, listed > b.neurons || IsQuantized(e.encoding) ? listed : 0};
  list.fetch = b.fetch;
  list.fetch_lines = FetchLines(b, weights, b.neurons, b.neurons);
  list.at_once = LeadDecides(*b.job->call) && !b.whole && RowBytes(e, weights.cols) <= kShortRow;
  DotForAll(b, list, b.in_halves ? dots : y);
  for (uint32_t i = 0; i < b.tokens && b.in_halves; ++i) {
    for (uint32_t j = 0; j < b.neurons; ++j) {
      y[i][InHalves(j, b.neurons)] = dots[i][j];
    }
  }
}

// Dot products by one list for all tokens, or by one for each.
void ExpertBlocks::DotByLists(const ExpertBlock& b, const CallWeights& weights, const CallWeights* next,
                              bool for_all, float* const* y) {
  float* const* dots = space_.workers[b.worker].rows[2];
  const uint32_t lists = for_all ? 1 : b.tokens;
  const uint32_t in_any = static_cast<uint32_t>(std::popcount(AnyKept(b)));
  for (uint32_t l = 0; l < lists; ++l) {
    KeptRows kept;
    ListKept(weights, next, b.first, for_all ? AnyKept(b) : b.keep[l], &kept);
    RowList list{weights.encoding, weights.cols, kept.rows, kept.count, kept.listed};
    list.at_once = true;
    list.fetch = b.fetch;
    list.fetch_lines = FetchLines(b, weights, in_any, for_all ? in_any : KeptInAll(b));
    if (for_all) {
      DotForAll(b, list, dots);
    } else {
      lists_.Dot(list, b.job->call->rows.subspan(l, 1), b.worker, dots + l);
    }
    for (uint32_t i = l; i < (for_all ? b.tokens : l + 1); ++i) {
      std::memset(y[i], 0, kNeuronBlock * sizeof(float));
      for (uint32_t r = 0; r < kept.count; ++r) {
        y[i][kept.index[r]] = dots[i][r];
      }
    }
  }
}

// y[i][r] = dot of row r of the list with token i, for all tokens of the block.
void ExpertBlocks::DotForAll(const ExpertBlock& b, const RowList& list, float* const* y) {
  if (!b.packed || IsQuantized(list.encoding.encoding)) {
    return lists_.Dot(list, b.job->call->rows, b.worker, y);
  }
  const float* packed = space_.packed + b.job->memory * RoundUp(list.cols, kLaneCount);
  lists_.DotPanels(list, packed, b.tokens, b.worker, y);
}

// Turns dot products of a part into factors of the coefficients.
void ExpertBlocks::MakeFactors(const ExpertBlock& b, bool up, float* const* y) const {
  const float* bias = up ? b.job->call->up_bias : b.job->call->gate_bias;
  FactorCall factor;
  factor.activation = b.call->activation;
  factor.bias = bias == nullptr ? nullptr : bias + b.first;
  factor.n = b.neurons;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    factor.x = factor.y = y[i];
    up ? kernels_.up_factor(factor) : kernels_.gate_factor(factor);
  }
}

// Computes the part that the lead's mask thins out, or the second one: its factors times those of the lead.
void ExpertBlocks::SecondPart(const ExpertBlock& b) {
  const ExpertCall& expert = *b.job->call;
  float* const* other = space_.workers[b.worker].rows[1];
  const bool up = !UpLeads(expert);
  // Before the masks are known, the same block's third part is next only if it does not wait for them.
  const bool down_next = b.fetch == nullptr && !b.call->down_by_outputs && (LeadDecides(expert) || b.whole);
  DotKept(b, up ? expert.up : expert.gate, down_next ? &expert.down : nullptr, other);
  MakeFactors(b, up, other);
  for (uint32_t i = 0; i < b.tokens; ++i) {
    kernels_.multiply(b.c[i], other[i], b.neurons, b.c[i]);
  }
}

void ExpertBlocks::FirstParts(const ExpertBlock& b) {
  const ExpertCall& expert = *b.job->call;
  const bool up_leads = UpLeads(expert);
  std::fill_n(b.keep, b.tokens, PresentNeurons(b));
  if (expert.lead_values.base != nullptr) {
    for (uint32_t i = 0; i < b.tokens; ++i) {
      std::memcpy(b.c[i], expert.lead_values.Row(i) + b.first, b.neurons * sizeof(float));
    }
  } else {
    const CallWeights* second = up_leads ? &expert.gate : &expert.up;
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

uint32_t ExpertBlocks::Coefficients(const ExpertBlock& b) {
  const ExpertCall& expert = *b.job->call;
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

void ExpertBlocks::Sums(const ExpertBlock& b, bool add, float* const* sums) {
  const CallWeights& down = b.job->call->down;
  const Reading reading = ChooseReading(b, IsQuantized(down.encoding.encoding) ? b.tokens : 1);
  if (reading == Reading::kAll) {
    const uint8_t* w[kNeuronBlock];
    for (uint32_t j = 0; j < b.neurons; ++j) {
      w[j] = space_.RowOrZero(down, b.first + j);
    }
    RowList list{down.encoding, down.cols, w, b.neurons, 0};
    list.in_halves = b.in_halves;
    list.fetch = b.fetch;
    list.fetch_lines = FetchLines(b, down, b.neurons, b.neurons);
    return lists_.Down(list, b.c, b.tokens, add, b.worker, sums);
  }
  if (reading == Reading::kTokens) {
    for (uint32_t i = 0; i < b.tokens; ++i) {
      SumKept(b, b.keep[i], i, i + 1, add, sums);
    }
    return;
  }
  SumKept(b, AnyKept(b), 0, b.tokens, add, sums);
}

// Sums for tokens [begin, end), by one list.
void ExpertBlocks::SumKept(const ExpertBlock& b, uint64_t mask, uint32_t begin, uint32_t end, bool add,
                           float* const* sums) {
  const CallWeights& down = b.job->call->down;
  if (mask == 0) {
    for (uint32_t i = begin; i < end && !add; ++i) {
      std::memset(sums[i], 0, down.cols * sizeof(float));
    }
    return;
  }
  float* const* c = space_.workers[b.worker].rows[2];
  for (uint32_t i = begin; i < end; ++i) {
    kernels_.compress_kept(b.c[i], mask, c[i]);
  }
  KeptRows kept;
  ListKept(down, nullptr, b.first, mask, &kept);
  RowList list{down.encoding, down.cols, kept.rows, kept.count, kept.count};
  list.at_once = true;
  list.fetch = b.fetch;
  list.fetch_lines = FetchLines(b, down, static_cast<uint32_t>(std::popcount(AnyKept(b))),
                                end - begin == b.tokens ? kept.count : KeptInAll(b));
  if (b.fetch == nullptr) {
    list.listed += NextLeads(b, kept.rows + kept.count);
  }
  lists_.Down(list, c + begin, end - begin, add, b.worker, sums + begin);
}

}  // namespace sluice::cpu
