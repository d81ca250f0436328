// MoeExperts. Experts with few tokens (decode) are one region of blocks (host_moe_fused.cc). An expert with
// many tokens (prefill) goes in two phases of register tiles: coefficients of all neurons, then columns of y.
// Both give the same bits.
#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/simd/row_kind.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

using host::RoundUp;

// Columns of y in one tile of the second phase: 512 bytes of a bf16 row; twice that by lists, which cost more
// to make.
constexpr uint32_t kDownColumns = 256;
constexpr uint32_t kListColumns = 512;
// Tokens in one tile of the second phase with quantized rows (all columns at once).
constexpr uint32_t kDownTokens = host::kManyDownTokens;
constexpr uint32_t kListTokens = 4;
// Only 0 is less.
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

uint32_t BlocksOf(const ExpertCall& call) {
  return (call.neuron_end - call.neuron_begin + kNeuronBlock - 1) / kNeuronBlock;
}

uint32_t PartsOf(const ExpertCall& expert, bool by_lists) {
  const bool quantized = IsQuantized(expert.down.encoding.encoding);
  const uint32_t whole = quantized ? static_cast<uint32_t>(expert.rows.size()) : expert.down.cols;
  const uint32_t step =
      quantized ? (by_lists ? kListTokens : kDownTokens) : (by_lists ? kListColumns : kDownColumns);
  return (whole + step - 1) / step;
}

// The first values of a row of y: what its blocks are added to. (A bias of -0 is +0 after the first block.)
void StartRow(const float* bias, uint32_t column, uint32_t columns, float* y) {
  for (uint32_t h = 0; h < columns; ++h) {
    y[h] = bias == nullptr ? 0.0f : bias[column + h] + 0.0f;
  }
}

}  // namespace

HostBackend::DownPart HostBackend::PartOf(const ExpertCall& expert, bool by_lists, uint32_t part) {
  DownPart p;
  p.tokens = static_cast<uint32_t>(expert.rows.size());
  p.columns = expert.down.cols;
  if (IsQuantized(expert.down.encoding.encoding)) {
    const uint32_t step = by_lists ? kListTokens : kDownTokens;
    p.first = part * step;
    p.tokens = std::min(step, p.tokens - p.first);
  } else {
    const uint32_t step = by_lists ? kListColumns : kDownColumns;
    p.column = part * step;
    p.columns = std::min(step, p.columns - p.column);
  }
  return p;
}

uint64_t HostBackend::WorkOf(const MoeCall& call, const ExpertCall& expert) {
  return uint64_t{3} * (expert.neuron_end - expert.neuron_begin) * call.hidden * expert.rows.size();
}

// Which of experts_ a tile belongs to.
uint32_t HostBackend::ExpertOfTile(uint32_t tile) const {
  uint32_t e = static_cast<uint32_t>(experts_.size()) - 1;
  while (experts_[e].first_tile > tile) {
    --e;
  }
  return e;
}

// x rounded for every group size that gate or up parts have.
void HostBackend::PrepareExpertRows(const MoeCall& call) {
  for (const ExpertCall& expert : call.experts) {
    for (const CpuWeights* w : {&expert.gate, &expert.up}) {
      if (IsQuantized(w->encoding.encoding)) {
        Form(w->encoding.group).wanted = true;
      }
    }
  }
  for (uint32_t t = 0; t < call.tokens; ++t) {
    x_rows_[t] = call.x.Row(t);
  }
  QuantizeRows(x_rows_, call.tokens, call.hidden);
}

// One tile of the second phase: some columns for all tokens, or with quantized rows all columns for some
// tokens.
void HostBackend::DownTile(const MoeCall& call, const ExpertState& state, uint32_t part, uint32_t worker) {
  const ExpertCall& expert = *state.call;
  WorkerScratch& scratch = workers_[worker];
  const DownPart p = PartOf(expert, state.down_by_lists, part);
  for (uint32_t i = 0; i < p.tokens; ++i) {
    scratch.outputs[i] = call.y.Row(expert.slots[p.first + i]) + p.column;
    if (expert.neuron_begin == 0) {
      StartRow(expert.down_bias, p.column, p.columns, scratch.outputs[i]);
    }
  }
  for (uint32_t block = 0; block < state.blocks; ++block) {
    for (uint32_t i = 0; i < p.tokens; ++i) {
      scratch.inputs[i] =
          coefficients_ + (state.memory + p.first + i) * coefficient_stride_ + uint64_t{block} * kNeuronBlock;
    }
    const MoeBlock b = BlockOf(call, state, block, false, worker);
    if (!state.down_by_lists) {
      const uint8_t* w[kNeuronBlock];
      for (uint32_t j = 0; j < b.neurons; ++j) {
        w[j] = RowOrZero(expert.down, b.first + j);
      }
      DownColumns({expert.down.encoding, call.hidden, w, b.neurons, 0}, p, scratch.inputs, worker,
                  scratch.outputs);
      continue;
    }
    for (uint32_t i = 0; i < p.tokens; ++i) {
      // A coefficient that is 0 cannot be told from one that was masked.
      const uint64_t mask = kernels_.keep_mask(scratch.inputs[i], b.neurons, kSmallest);
      if (mask == 0) {
        continue;
      }
      KeptRows kept;
      ListKept(expert.down, nullptr, b.first, mask, &kept);
      float c[kNeuronBlock];
      kernels_.compress_kept(scratch.inputs[i], mask, c);
      const float* coefficients = c;
      DownPart one = p;
      one.tokens = 1;
      DownColumns({expert.down.encoding, call.hidden, kept.rows, kept.count, kept.listed}, one, &coefficients,
                  worker, scratch.outputs + i);
    }
  }
}

// Adds a block to y for the part's tokens and columns.
void HostBackend::DownColumns(const RowList& list, const DownPart& p, const float* const* c, uint32_t worker,
                              float* const* y) {
  if (IsQuantized(list.encoding.encoding)) {
    return DownList(list, c, p.tokens, true, worker, y);
  }
  host::DownCall down;
  down.w = list.rows;
  down.c = c;
  down.y = y;
  down.neurons = list.count;
  down.tokens = p.tokens;
  down.column = p.column;
  down.cols = p.columns;
  down.add = true;
  down.scratch = workers_[worker].down;
  kernels_.down[host::RowKindOf(list.encoding.encoding)](down);
}

// The experts' tokens as panels, `rows` in all.
void HostBackend::PackExpertRows(const MoeCall& call, uint64_t rows) {
  const uint64_t row_floats = RoundUp(call.hidden, host::kLaneCount);
  RunTiles(static_cast<uint32_t>(experts_.size()), rows * call.hidden * 2, [&](uint32_t e, uint32_t worker) {
    const ExpertState& state = experts_[e];
    const float** x = workers_[worker].inputs;
    for (size_t i = 0; i < state.call->rows.size(); ++i) {
      x[i] = call.x.Row(state.call->rows[i]);
    }
    host::PackCall pack;
    pack.x = x;
    pack.tokens = static_cast<uint32_t>(state.call->rows.size());
    pack.cols = call.hidden;
    pack.packed = packed_ + state.memory * row_floats;
    kernels_.pack(pack);
  });
}

// One tile of the first phase: the coefficients of a block for all tokens.
void HostBackend::CoefficientTile(const MoeCall& call, uint32_t tile, uint32_t worker) {
  const ExpertState& state = experts_[ExpertOfTile(tile)];
  const uint32_t block = tile - state.first_tile;
  const MoeBlock b = BlockOf(call, state, block, true, worker);
  FirstParts(b);
  block_kept_[tile] = BlockCoefficients(b);
  for (uint32_t i = 0; i < b.tokens; ++i) {
    std::memcpy(coefficients_ + (state.memory + i) * coefficient_stride_ + uint64_t{block} * kNeuronBlock,
                workers_[worker].pointers[i], kNeuronBlock * sizeof(float));
  }
}

// How each expert's second phase is cut; returns the number of tiles.
uint32_t HostBackend::PlanDownTiles() {
  uint32_t tiles = 0;
  for (ExpertState& state : experts_) {
    const ExpertCall& expert = *state.call;
    uint64_t kept = 0;
    for (uint32_t block = 0; block < state.blocks; ++block) {
      kept += block_kept_[state.first_tile + block];
    }
    const uint64_t most = uint64_t{expert.neuron_end - expert.neuron_begin} * expert.rows.size();
    state.down_by_lists =
        static_cast<float>(kept) < std::min(1.0f, state.dense_above) * static_cast<float>(most);
    state.first_tile = tiles;
    tiles += PartsOf(expert, state.down_by_lists);
  }
  return tiles;
}

// experts_ holds the experts of the call that have many tokens.
void HostBackend::RunTwoPhase(const MoeCall& call) {
  uint64_t rows = 0;
  uint64_t work = 0;
  uint32_t tiles = 0;
  for (ExpertState& state : experts_) {
    state.memory = rows;
    state.first_tile = tiles;
    rows += RoundUp(static_cast<uint32_t>(state.call->rows.size()), kernels_.gemm_tokens);
    tiles += state.blocks;
    work += WorkOf(call, *state.call);
  }
  PackExpertRows(call, rows);
  RunTiles(tiles, work, [&](uint32_t tile, uint32_t worker) { CoefficientTile(call, tile, worker); });
  tiles = PlanDownTiles();
  RunTiles(tiles, work, [&](uint32_t tile, uint32_t worker) {
    const ExpertState& state = experts_[ExpertOfTile(tile)];
    DownTile(call, state, tile - state.first_tile, worker);
  });
}

absl::Status HostBackend::SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) {
  if (entries.size() > kMaxSparseSwitches) {
    return absl::InvalidArgumentError(
        absl::StrCat(entries.size(), " sparse switches; the most are ", kMaxSparseSwitches));
  }
  sparse_switches_.assign(entries.begin(), entries.end());
  return absl::OkStatus();
}

float HostBackend::DenseAbove(const ExpertCall& expert) const {
  if (expert.sparsity == SparsityOrder::kNone) {
    return 1;
  }
  for (const SparseSwitchEntry& entry : sparse_switches_) {
    if (entry.order == expert.sparsity && entry.up == expert.up.encoding &&
        entry.gate == expert.gate.encoding && entry.down == expert.down.encoding) {
      return entry.at.DenseAbove(expert.rows.size());
    }
  }
  return SparseSwitch().DenseAbove(expert.rows.size());
}

void HostBackend::Run(const MoeCall& call) {
  PrepareExpertRows(call);
  for (const ExpertCall& expert : call.experts) {
    for (const uint32_t slot : expert.slots) {
      if (call.active != nullptr && expert.neuron_begin == 0) {
        call.active[slot] = 0;
      }
    }
  }
  uint64_t floats = 0;
  const auto fused = [&](const ExpertCall& expert) {
    const uint64_t more = uint64_t{BlocksOf(expert)} * expert.rows.size() * call.hidden;
    return expert.rows.size() <= kFusedTokens && floats + more <= partial_floats_;
  };
  for (const bool few : {true, false}) {
    experts_.clear();
    floats = 0;
    for (const ExpertCall& expert : call.experts) {
      const bool is_fused = fused(expert);
      floats += is_fused ? uint64_t{BlocksOf(expert)} * expert.rows.size() * call.hidden : 0;
      if (is_fused == few) {
        ExpertState state;
        state.call = &expert;
        state.blocks = BlocksOf(expert);
        state.dense_above = DenseAbove(expert);
        experts_.push_back(state);
      }
    }
    if (!experts_.empty()) {
      few ? RunFused(call) : RunTwoPhase(call);
    }
  }
}

}  // namespace sluice
