// Experts with few tokens (decode), in tiles of one block of 64 neurons: all experts of a layer are one
// region.
//
// A block is computed in two steps, and with quantized rows each worker has one block between them. First the
// parts that are read whole, which make the masks; then, after the first step of the worker's next block, the
// rows that the masks keep. What a waiting block keeps is fetched into the second-level cache meanwhile, a
// few lines with every row that is computed: a core has few lines under way that it asks for itself (16 on
// Intel's, half of what memory gives it), so they must be asked for all the time; whole parts come as
// streams, which the hardware follows.
//
// The block sums are added to y in block order (host_moe_order.cc).
#include <algorithm>
#include <bit>

#include "common/pack/row_layout.h"
#include "kernels/host/host_backend.h"

namespace sluice {
namespace {

// Whether a block waits: float rows are bound by memory alone, and what comes out of turn delays what is
// waited for (measured).
bool Waits(const ExpertCall& expert) {
  return IsQuantized(expert.up.encoding.encoding) && IsQuantized(expert.gate.encoding.encoding) &&
         IsQuantized(expert.down.encoding.encoding);
}

}  // namespace

// Lists what the waiting block b keeps, to be fetched while `rows` rows are computed.
void HostBackend::FetchKept(const MoeBlock& b, uint32_t rows) {
  const ExpertCall& expert = *b.state->call;
  host::RowFetch& ahead = workers_[b.worker].ahead;
  ahead.Clear();
  const auto add = [&](const CpuWeights& part) {
    const uint64_t bytes = RowBytes(part.encoding, part.cols);
    for (uint64_t left = AnyKept(b); left != 0; left &= left - 1) {
      const uint8_t* row = part.Row(b.first + static_cast<uint32_t>(std::countr_zero(left)));
      ahead.Add(row, row + bytes);
    }
  };
  if (LeadDecides(expert)) {
    add(expert.sparsity == SparsityOrder::kUp ? expert.gate : expert.up);
  }
  add(expert.down);
  workers_[b.worker].fetch_lines = (ahead.lines() + rows - 1) / rows;
}

// Rows that a waiting block still reads.
uint32_t HostBackend::RowsLeft(const MoeBlock& b) {
  return static_cast<uint32_t>(std::popcount(AnyKept(b))) * (LeadDecides(*b.state->call) ? 2 : 1);
}

void HostBackend::FusedTile(const MoeCall& call, uint32_t tile, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  WaitingBlock next;
  next.expert = ExpertOfTile(tile);
  const ExpertState& state = experts_[next.expert];
  next.number = tile - state.first_tile;
  next.block = BlockOf(call, state, next.number, false, worker);
  next.block.fetched = Waits(*state.call);
  const uint32_t slot = scratch.waiting.slot ^ 1;
  next.slot = slot;
  next.block.keep = scratch.slot_keep[slot];
  next.block.c = scratch.slot_rows[slot];
  next.waits = true;
  FirstParts(next.block);
  if (!next.block.fetched) {
    return FinishTile(next);
  }
  WaitingBlock last = scratch.waiting;
  scratch.ahead.Advance(scratch.ahead.lines());
  const ExpertCall& expert = *state.call;
  const uint32_t first_rows =
      next.block.neurons * (LeadDecides(expert) ? (expert.lead_values.base == nullptr ? 1u : 0u) : 2u);
  FetchKept(next.block, std::max(1u, first_rows + (last.waits ? RowsLeft(last.block) : 0)));
  if (last.waits) {
    FinishTile(last);
  }
  scratch.waiting = next;
}

// The second step of a block.
void HostBackend::FinishTile(const WaitingBlock& waiting) {
  const MoeBlock& b = waiting.block;
  WorkerScratch& scratch = workers_[b.worker];
  BlockCoefficients(b);
  const bool in_turn = TakeTurn(waiting.expert, waiting.number);
  bool add = false;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    scratch.outputs[i] = scratch.sums + i * x_stride_;
    if (in_turn) {
      scratch.outputs[i] = b.call->y.Row(b.state->call->slots[i]);
      add = StartToken(b, waiting.number, scratch.outputs[i]);
    }
  }
  BlockSums(b, add, scratch.outputs);
  if (in_turn) {
    EndTurn(*b.call, waiting.expert);
  } else {
    FinishBlock(*b.call, waiting.expert, waiting.number, scratch.sums);
  }
}

// The block that the worker has put off.
void HostBackend::FinishWaiting(uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  scratch.ahead.Advance(scratch.ahead.lines());
  scratch.ahead.Clear();
  if (scratch.waiting.waits) {
    scratch.waiting.waits = false;
    FinishTile(scratch.waiting);
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
  RunTiles(
      tiles, work, [&](uint32_t tile, uint32_t worker) { FusedTile(call, tile, worker); },
      [&](uint32_t worker) { FinishWaiting(worker); });
}

}  // namespace sluice
