// MoeExperts. An expert with few tokens (decode) is computed in tiles of one block of 64 neurons: gate rows,
// up rows, then down rows, all of them streamed once; the block sums are added to y in block order by whoever
// finishes next to them (Drain). So all experts of a layer are one region. An expert with many tokens
// (prefill) goes in two phases of register tiles: coefficients of all neurons, then columns of y. Both give
// the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/pack/row_layout.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/row_kind.h"

namespace sluice {
namespace {

using host::RoundUp;

// Columns of y in one tile of the second phase: 512 bytes of a bf16 row.
constexpr uint32_t kDownColumns = 256;
// Tokens in one tile of the second phase with quantized rows (all columns at once).
constexpr uint32_t kDownTokens = 8;

uint32_t BlocksOf(const ExpertCall& call) {
  return (call.neuron_end - call.neuron_begin + kNeuronBlock - 1) / kNeuronBlock;
}

uint32_t NeuronsOfBlock(const ExpertCall& call, uint32_t block) {
  return std::min(kNeuronBlock, call.neuron_end - call.neuron_begin - block * kNeuronBlock);
}

uint64_t WorkOf(const MoeCall& call, const ExpertCall& expert) {
  return uint64_t{3} * (expert.neuron_end - expert.neuron_begin) * call.hidden * expert.rows.size();
}

// Fetches a quantized down row's scales and zeros: the coefficients of a block are rounded with all of them
// before the first code is read.
void PrefetchScales(const CpuWeights& weights, const uint8_t* row) {
  if (!IsQuantized(weights.encoding.encoding)) {
    return;
  }
  const uint64_t end = RowBytes(weights.encoding, weights.cols);
  for (uint64_t at = ScaleOffset(weights.encoding, weights.cols); at < end; at += 64) {
    __builtin_prefetch(row + at, 0, 2);
  }
  __builtin_prefetch(row + end - 1, 0, 2);
}

// Which of the experts a tile belongs to.
template <class States>
uint32_t ExpertOfTile(const States& states, uint32_t tile) {
  uint32_t e = static_cast<uint32_t>(states.size()) - 1;
  while (states[e].first_tile > tile) {
    --e;
  }
  return e;
}

}  // namespace

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

// y[i][r] = dot of neuron first + r with the expert's token i. `packed`: token panels begin at state.memory.
void HostBackend::DotRows(const MoeCall& call, const ExpertState& state, const CpuWeights& weights,
                          uint32_t first, uint32_t rows, bool packed, uint32_t worker, float* const* y) {
  WorkerScratch& scratch = workers_[worker];
  const ExpertCall& expert = *state.call;
  const uint32_t tokens = static_cast<uint32_t>(expert.rows.size());
  const uint8_t* w[kNeuronBlock];
  for (uint32_t r = 0; r < rows; ++r) {
    w[r] = RowOrZero(weights, first + r);
  }
  const EncodingDescriptor& e = weights.encoding;
  if (IsQuantized(e.encoding)) {
    for (uint32_t i = 0; i < tokens; ++i) {
      scratch.quant[i] = QuantizedRow(e.group, expert.rows[i]);
    }
    host::DotQ8Call dot;
    dot.w = w;
    dot.x = scratch.quant;
    dot.y = y;
    dot.rows = rows;
    dot.tokens = tokens;
    dot.cols = call.hidden;
    dot.group = e.group;
    dot.prefetch = prefetch_;
    kernels_.dot_q8(dot);
  } else if (packed) {
    host::GemmCall gemm;
    gemm.w = w;
    gemm.packed = packed_ + state.memory * RoundUp(call.hidden, host::kLaneCount);
    gemm.y = y;
    gemm.rows = rows;
    gemm.tokens = tokens;
    gemm.cols = call.hidden;
    gemm.scratch = scratch.gemm;
    kernels_.gemm[host::RowKindOf(e.encoding)](gemm);
  } else {
    for (uint32_t i = 0; i < tokens; ++i) {
      scratch.inputs[i] = call.x.Row(expert.rows[i]);
    }
    host::DotCall dot;
    dot.w = w;
    dot.x = scratch.inputs;
    dot.y = y;
    dot.rows = rows;
    dot.tokens = tokens;
    dot.cols = call.hidden;
    dot.prefetch = prefetch_;
    kernels_.dot[host::RowKindOf(e.encoding)](dot);
  }
}

// Coefficients of one block into the worker's tile 0 ([token][64]).
void HostBackend::GateUpBlock(const MoeCall& call, const ExpertState& state, uint32_t block, bool packed,
                              uint32_t worker) {
  const ExpertCall& expert = *state.call;
  float** gate = workers_[worker].pointers;
  float** up = gate + limits().max_tokens;
  const uint32_t first = expert.neuron_begin + block * kNeuronBlock;
  const uint32_t neurons = NeuronsOfBlock(expert, block);
  DotRows(call, state, expert.gate, first, neurons, packed, worker, gate);
  DotRows(call, state, expert.up, first, neurons, packed, worker, up);
  host::FactorCall factor;
  factor.activation = call.activation;
  factor.n = neurons;
  for (size_t i = 0; i < expert.rows.size(); ++i) {
    factor.bias = expert.gate_bias == nullptr ? nullptr : expert.gate_bias + first;
    factor.x = factor.y = gate[i];
    kernels_.gate_factor(factor);
    factor.bias = expert.up_bias == nullptr ? nullptr : expert.up_bias + first;
    factor.x = factor.y = up[i];
    kernels_.up_factor(factor);
    MaskCoefficients(call, expert, i, first, neurons, gate[i], up[i]);
  }
}

// gate[j] becomes the coefficient of neuron first + j of the expert's token i, 0 if the neuron is masked or
// absent.
void HostBackend::MaskCoefficients(const MoeCall& call, const ExpertCall& expert, size_t i, uint32_t first,
                                   uint32_t neurons, float* gate, const float* up) {
  float lead[kNeuronBlock] = {};
  if (expert.sparsity == SparsityOrder::kGate) {
    std::memcpy(lead, gate, neurons * sizeof(float));
  }
  kernels_.multiply(gate, up, neurons, gate);
  const float* by = expert.sparsity == SparsityOrder::kUp     ? up
                    : expert.sparsity == SparsityOrder::kGate ? lead
                                                              : gate;
  uint32_t kept = 0;
  for (uint32_t j = 0; j < neurons; ++j) {
    const bool masked = expert.sparsity != SparsityOrder::kNone && std::fabs(by[j]) < expert.threshold;
    const bool keep = !masked && expert.Has(first + j);
    gate[j] = keep ? gate[j] : 0.0f;
    kept += keep ? 1 : 0;
  }
  if (call.active != nullptr) {
    std::atomic_ref<uint32_t>(call.active[expert.slots[i]]).fetch_add(kept, std::memory_order_relaxed);
  }
}

void HostBackend::FusedTile(const MoeCall& call, uint32_t tile, uint32_t worker) {
  const uint32_t e = ExpertOfTile(experts_, tile);
  const ExpertState& state = experts_[e];
  const ExpertCall& expert = *state.call;
  const uint32_t block = tile - state.first_tile;
  const uint32_t tokens = static_cast<uint32_t>(expert.rows.size());
  WorkerScratch& scratch = workers_[worker];
  const uint8_t* w[kNeuronBlock];
  const uint32_t neurons = NeuronsOfBlock(expert, block);
  for (uint32_t j = 0; j < neurons; ++j) {
    w[j] = RowOrZero(expert.down, expert.neuron_begin + block * kNeuronBlock + j);
    PrefetchScales(expert.down, w[j]);
  }
  GateUpBlock(call, state, block, false, worker);
  for (uint32_t i = 0; i < tokens; ++i) {
    scratch.outputs[i] = scratch.sums + i * x_stride_;
  }
  if (IsQuantized(expert.down.encoding.encoding)) {
    host::DownQ8Call down;
    down.w = w;
    down.c = scratch.pointers;
    down.y = scratch.outputs;
    down.neurons = neurons;
    down.tokens = tokens;
    down.cols = call.hidden;
    down.group = expert.down.encoding.group;
    down.scratch = scratch.down_q8;
    kernels_.down_q8(down);
  } else {
    host::DownCall down;
    down.w = w;
    down.c = scratch.pointers;
    down.y = scratch.outputs;
    down.neurons = neurons;
    down.tokens = tokens;
    down.cols = call.hidden;
    down.prefetch = prefetch_;
    down.scratch = scratch.down;
    kernels_.down[host::RowKindOf(expert.down.encoding.encoding)](down);
  }
  FinishBlock(call, e, block, scratch.sums);
}

// y of an expert's token i: adds a block's sum, the first one starts it.
void HostBackend::AddBlock(const MoeCall& call, const ExpertState& state, uint32_t block, uint32_t i,
                           const float* sum) {
  float* y = call.y.Row(state.call->slots[i]);
  if (block == 0 && state.call->neuron_begin == 0) {
    if (state.call->down_bias != nullptr) {
      kernels_.add(sum, state.call->down_bias, nullptr, call.hidden, y);
    } else {
      std::memcpy(y, sum, call.hidden * sizeof(float));  // 0 + a closed sum is the sum
    }
  } else {
    kernels_.accumulate(sum, call.hidden, y);
  }
}

// Takes a block's sums [token][x_stride_]: adds them to y if all blocks before it are in, else keeps them.
void HostBackend::FinishBlock(const MoeCall& call, uint32_t expert, uint32_t block, const float* sums) {
  ExpertState& state = experts_[expert];
  const uint32_t tokens = static_cast<uint32_t>(state.call->rows.size());
  bool in_turn = false;
  if (!draining_[expert].exchange(true)) {
    in_turn = state.next_block == block;
    for (uint32_t i = 0; in_turn && i < tokens; ++i) {
      AddBlock(call, state, block, i, sums + i * x_stride_);
    }
    state.next_block += in_turn ? 1 : 0;
    draining_[expert].store(false);
  }
  if (!in_turn) {
    for (uint32_t i = 0; i < tokens; ++i) {
      std::memcpy(partials_ + state.memory + (uint64_t{block} * tokens + i) * call.hidden,
                  sums + i * x_stride_, call.hidden * sizeof(float));
    }
    block_done_[state.first_flag + block].store(true);
  }
  Drain(call, expert);
}

// Adds to y, in order, the kept blocks whose turn it is. One worker at a time; one that comes while another
// is at it leaves: the other looks again after it has let go, so no block is left behind.
void HostBackend::Drain(const MoeCall& call, uint32_t expert) {
  ExpertState& state = experts_[expert];
  const uint32_t tokens = static_cast<uint32_t>(state.call->rows.size());
  const std::atomic<bool>* done = &block_done_[state.first_flag];
  for (;;) {
    if (draining_[expert].exchange(true)) {
      return;
    }
    uint32_t next = state.next_block;
    for (; next < state.blocks && done[next].load(); ++next) {
      for (uint32_t i = 0; i < tokens; ++i) {
        AddBlock(call, state, next, i,
                 partials_ + state.memory + (uint64_t{next} * tokens + i) * call.hidden);
      }
    }
    state.next_block = next;
    draining_[expert].store(false);
    if (next == state.blocks || !done[next].load()) {
      return;
    }
  }
}

// experts_ holds the fused experts of the call.
void HostBackend::RunFused(const MoeCall& call) {
  uint32_t tiles = 0;
  uint64_t floats = 0;
  uint64_t work = 0;
  for (size_t e = 0; e < experts_.size(); ++e) {
    ExpertState& state = experts_[e];
    state.first_tile = tiles;
    state.first_flag = tiles;
    state.memory = floats;
    tiles += state.blocks;
    floats += uint64_t{state.blocks} * state.call->rows.size() * call.hidden;
    work += WorkOf(call, *state.call);
    draining_[e].store(false, std::memory_order_relaxed);
  }
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    block_done_[tile].store(false, std::memory_order_relaxed);
  }
  RunTiles(tiles, work, [&](uint32_t tile, uint32_t worker) { FusedTile(call, tile, worker); });
}

// One tile of the second phase: some columns for all tokens, or with quantized rows all columns for some
// tokens.
void HostBackend::DownTile(const MoeCall& call, const ExpertState& state, uint32_t part, uint32_t worker) {
  const ExpertCall& expert = *state.call;
  WorkerScratch& scratch = workers_[worker];
  const uint32_t tokens = static_cast<uint32_t>(expert.rows.size());
  const bool quantized = IsQuantized(expert.down.encoding.encoding);
  const uint32_t first = quantized ? part * kDownTokens : 0;
  const uint32_t count = quantized ? std::min(kDownTokens, tokens - first) : tokens;
  const uint32_t column = quantized ? 0 : part * kDownColumns;
  for (uint32_t i = 0; i < count; ++i) {
    scratch.outputs[i] = call.y.Row(expert.slots[first + i]) + column;
    if (expert.neuron_begin == 0 && expert.down_bias != nullptr) {
      std::memcpy(scratch.outputs[i], expert.down_bias + column,
                  (quantized ? call.hidden : std::min(kDownColumns, call.hidden - column)) * sizeof(float));
    }
  }
  for (uint32_t block = 0; block < state.blocks; ++block) {
    const uint8_t* w[kNeuronBlock];
    const uint32_t neurons = NeuronsOfBlock(expert, block);
    for (uint32_t j = 0; j < neurons; ++j) {
      w[j] = RowOrZero(expert.down, expert.neuron_begin + block * kNeuronBlock + j);
    }
    for (uint32_t i = 0; i < count; ++i) {
      scratch.inputs[i] =
          coefficients_ + (state.memory + first + i) * coefficient_stride_ + uint64_t{block} * kNeuronBlock;
    }
    const bool add = block > 0 || expert.neuron_begin > 0 || expert.down_bias != nullptr;
    if (quantized) {
      host::DownQ8Call down;
      down.w = w;
      down.c = scratch.inputs;
      down.y = scratch.outputs;
      down.neurons = neurons;
      down.tokens = count;
      down.cols = call.hidden;
      down.group = expert.down.encoding.group;
      down.add = add;
      down.scratch = scratch.down_q8;
      kernels_.down_q8(down);
      continue;
    }
    host::DownCall down;
    down.w = w;
    down.c = scratch.inputs;
    down.y = scratch.outputs;
    down.neurons = neurons;
    down.tokens = count;
    down.column = column;
    down.cols = std::min(kDownColumns, call.hidden - column);
    down.add = add;
    down.scratch = scratch.down;
    kernels_.down[host::RowKindOf(expert.down.encoding.encoding)](down);
  }
}

// experts_ holds the experts of the call that have many tokens.
void HostBackend::RunTwoPhase(const MoeCall& call) {
  const uint32_t panel = kernels_.gemm_tokens;
  const uint64_t row_floats = RoundUp(call.hidden, host::kLaneCount);
  uint64_t rows = 0;
  uint64_t work = 0;
  for (ExpertState& state : experts_) {
    state.memory = rows;
    rows += RoundUp(static_cast<uint32_t>(state.call->rows.size()), panel);
    work += WorkOf(call, *state.call);
  }
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

  uint32_t tiles = 0;
  for (ExpertState& state : experts_) {
    state.first_tile = tiles;
    tiles += state.blocks;
  }
  RunTiles(tiles, work, [&](uint32_t tile, uint32_t worker) {
    const ExpertState& state = experts_[ExpertOfTile(experts_, tile)];
    const uint32_t block = tile - state.first_tile;
    GateUpBlock(call, state, block, true, worker);
    for (size_t i = 0; i < state.call->rows.size(); ++i) {
      std::memcpy(coefficients_ + (state.memory + i) * coefficient_stride_ + uint64_t{block} * kNeuronBlock,
                  workers_[worker].pointers[i], NeuronsOfBlock(*state.call, block) * sizeof(float));
    }
  });

  tiles = 0;
  for (ExpertState& state : experts_) {
    state.first_tile = tiles;
    const uint32_t tokens = static_cast<uint32_t>(state.call->rows.size());
    tiles += IsQuantized(state.call->down.encoding.encoding)
                 ? (tokens + kDownTokens - 1) / kDownTokens
                 : (call.hidden + kDownColumns - 1) / kDownColumns;
  }
  RunTiles(tiles, work, [&](uint32_t tile, uint32_t worker) {
    const ExpertState& state = experts_[ExpertOfTile(experts_, tile)];
    DownTile(call, state, tile - state.first_tile, worker);
  });
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
        experts_.push_back(state);
      }
    }
    if (!experts_.empty()) {
      few ? RunFused(call) : RunTwoPhase(call);
    }
  }
}

}  // namespace sluice
