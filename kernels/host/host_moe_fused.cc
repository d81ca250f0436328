// Experts with few tokens (decode), in tiles of one block of 64 neurons: all experts of a layer are one
// region.
//
// With masks a block is computed in two steps, and each worker has one block between them: first the parts
// that are read whole, which make the masks; then, after the first step of the worker's next block, the rows
// that the masks keep. So there is always something that is known and not read yet. Quantized rows are
// fetched ahead of the worker that computes them, in the order in which it will (RowFetch says how); float
// rows are prefetched by lists, each of which ends in the first rows of what is read next. While masks leave
// so little out that all rows are read, blocks are computed in one step, as without masks.
//
// The block sums are added to y in block order (host_moe_order.cc).
#include <algorithm>
#include <bit>

#include "kernels/host/host_backend.h"
#include "kernels/host/simd/row_kind.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// Lines that are fetched at once where a worker begins: what it reads while the others are on their way.
constexpr uint32_t kFirstLines = 128;

// Of up to so many kept rows in a block the beginnings are fetched at once, ahead of the rest: two to four
// hundredths less time at 80 and 90 % left out, but with 32 rows one or two more (Granite Rapids).
constexpr int kFewKept = 24;

// With masks so many bytes are fetched beyond what is kept of a block: with two to sixteen tokens two to five
// hundredths less time than with a block of rows and eight more; 24 to 48 KiB took as long (Granite Rapids).
constexpr uint32_t kLeadAhead = 16 << 10;

// Whether rows are fetched ahead. Float rows are bound by memory alone, and the hardware follows their order
// best.
bool IsFetched(const ExpertCall& expert) {
  return IsQuantized(expert.up.encoding.encoding) && IsQuantized(expert.gate.encoding.encoding) &&
         IsQuantized(expert.down.encoding.encoding);
}

// Whether blocks have masks, for which they wait between their steps.
bool IsMasked(const ExpertCall& expert) { return expert.sparsity != SparsityOrder::kNone; }

// How far ahead rows are worth fetching where all are read, in bytes: a block of them and a little more.
// Where the cache has room for more short rows, 96 and 128 of them were slower than 72.
uint32_t MostAhead(const ExpertCall& expert) {
  const uint64_t longest = std::max({RowBytes(expert.up.encoding, expert.up.cols),
                                     RowBytes(expert.gate.encoding, expert.gate.cols),
                                     RowBytes(expert.down.encoding, expert.down.cols)});
  return static_cast<uint32_t>(std::min<uint64_t>(longest * (kNeuronBlock + 8), UINT32_MAX));
}

// Rows of a block, of so many bytes each, as they are read; `gathered`: by a mask. Neighbours go as one where
// no whole line lies between them.
void AddRows(const CpuWeights& part, uint64_t bytes, uint32_t first, uint64_t mask, bool gathered,
             host::RowFetch* ahead) {
  const bool dense = part.positions == nullptr && part.stride < bytes + 64;
  for (uint64_t left = mask; left != 0;) {
    const auto begin = static_cast<uint32_t>(std::countr_zero(left));
    const auto rows = dense ? static_cast<uint32_t>(std::countr_one(left >> begin)) : 1;
    const uint8_t* row = part.Row(first + begin);
    const uint8_t* end = row + (rows - 1) * part.stride + bytes;
    gathered ? ahead->AddGathered(row, end) : ahead->AddStream(row, end);
    left = begin + rows < 64 ? left >> (begin + rows) << (begin + rows) : 0;
  }
}

// All rows of a block, of so many bytes each, in the order of InHalves().
void AddHalves(const CpuWeights& part, uint64_t bytes, uint32_t first, uint32_t neurons,
               host::RowFetch* ahead) {
  const bool dense = part.stride < bytes + 64;
  const uint32_t rows = dense ? neurons / 2 : 1;
  for (uint32_t i = 0; i + 1 < neurons; i += 2 * rows) {
    ahead->AddStreams(part.Row(first + host::InHalves(i, neurons)),
                      part.Row(first + host::InHalves(i + 1, neurons)), (rows - 1) * part.stride + bytes);
  }
  if (neurons % 2 != 0) {
    const uint8_t* row = part.Row(first + neurons / 2);
    ahead->AddStream(row, row + bytes);
  }
}

// The first two lines of each, all at once, while masks are made use of.
void FetchBeginnings(const CpuWeights& part, uint32_t first, uint64_t mask) {
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    const uint8_t* row = part.Row(first + static_cast<uint32_t>(std::countr_zero(left)));
    host::FetchLine::At(row);
    host::FetchLine::At(row + 64);
  }
}

}  // namespace

// Whether the rows of its blocks are fetched and read in turn from both halves. With masks kept rows come in
// turn with them.
bool HostBackend::ReadsInHalves(const ExpertCall& expert, bool whole) const {
  const auto gains = [&](const CpuWeights& part) {
    return kernels_.in_halves[host::QuantKindOf(part.encoding.encoding)];
  };
  return IsFetched(expert) && whole && !expert.HasLists() && gains(expert.gate) && gains(expert.up) &&
         gains(expert.down);
}

// Whether a block is computed as without masks, in one step. With masks that leave little out that is a
// quarter faster than waiting for them (Granite Rapids, q3), so what the worker's last blocks with as many
// tokens kept decides. Single blocks vary too much for it: by a sixteenth of their neurons.
bool HostBackend::IsWhole(const ExpertState& state, uint32_t worker) const {
  const ExpertCall& expert = *state.call;
  return !IsMasked(expert) || (workers_[worker].kept_share[expert.rows.size() - 1] >= state.dense_above &&
                               expert.lead_values.base == nullptr && !expert.HasLists());
}

// What a tile reads before its masks are known comes next.
void HostBackend::FetchTile(const MoeCall& call, uint32_t tile, uint32_t worker) {
  const ExpertState& state = experts_[ExpertOfTile(tile)];
  const ExpertCall& expert = *state.call;
  if (!IsFetched(expert)) {
    return;
  }
  const MoeBlock b = BlockOf(call, state, tile - state.first_tile, false, worker);
  host::RowFetch* ahead = &workers_[worker].ahead;
  const uint64_t present = PresentNeurons(b);
  const bool whole = workers_[worker].tile_whole[tile % 4];
  const bool halves = ReadsInHalves(expert, whole);
  const auto add = [&](const CpuWeights& part) {
    const uint64_t row_bytes = ShapeFor(part.encoding, part.cols, worker).bytes;
    halves ? AddHalves(part, row_bytes, b.first, b.neurons, ahead)
           : AddRows(part, row_bytes, b.first, present, false, ahead);
  };
  const bool up_leads = expert.sparsity == SparsityOrder::kUp;
  if (expert.lead_values.base == nullptr) {
    add(up_leads ? expert.up : expert.gate);
  }
  if (whole || !LeadDecides(expert)) {
    add(up_leads ? expert.gate : expert.up);
  }
  if (whole) {
    add(expert.down);
  }
}

// The tiles that are not listed yet up to `tile`, as far as the worker's run goes.
void HostBackend::FetchThrough(const MoeCall& call, uint32_t tile, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  for (; scratch.listed_tile < std::min(tile + 1, pool_.RunEnd(worker)); ++scratch.listed_tile) {
    scratch.tile_begin[scratch.listed_tile % 4] = scratch.ahead.added(host::RowSort::kStream);
    scratch.tile_whole[scratch.listed_tile % 4] =
        IsWhole(experts_[ExpertOfTile(scratch.listed_tile)], worker);
    FetchTile(call, scratch.listed_tile, worker);
  }
}

// What the block keeps comes next.
void HostBackend::FetchKept(WaitingBlock* waiting) {
  const MoeBlock& b = waiting->block;
  const ExpertCall& expert = *b.state->call;
  host::RowFetch* ahead = &workers_[b.worker].ahead;
  waiting->kept_begin = ahead->added(host::RowSort::kGathered);
  const uint64_t mask = HowToRead(b, 1) == Reading::kAll ? PresentNeurons(b) : AnyKept(b);
  const bool few = std::popcount(mask) <= kFewKept;
  const auto add = [&](const CpuWeights& part) {
    if (few) {
      FetchBeginnings(part, b.first, mask);
    }
    AddRows(part, ShapeFor(part.encoding, part.cols, b.worker).bytes, b.first, mask, true, ahead);
  };
  if (LeadDecides(expert)) {
    add(expert.sparsity == SparsityOrder::kUp ? expert.gate : expert.up);
  }
  add(expert.down);
  waiting->kept_lines = ahead->added(host::RowSort::kGathered) - waiting->kept_begin;
  const bool own_lists = b.tokens > 1 && HowToRead(b, b.tokens) == Reading::kTokens;
  waiting->in_any_order = own_lists ? waiting->kept_lines / (LeadDecides(expert) ? 2 : 1) : 0;
  ahead->SetDistance(std::min(tuning_.fetch_distance, kLeadAhead + ahead->gathered_bytes()));
}

// Before a tile is computed: it and the next one are listed. One that does not follow the last begins anew.
void HostBackend::FollowTile(const MoeCall& call, uint32_t tile, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  if (tile != scratch.next_tile) {
    scratch.ahead.Clear(std::min(tuning_.fetch_distance, kLeadAhead));
    scratch.listed_tile = tile;
    FetchThrough(call, tile, worker);
    if (scratch.tile_whole[tile % 4]) {
      scratch.ahead.SetDistance(call_distance_);
    }
    if (scratch.waiting.waits && scratch.waiting.block.fetched) {
      FetchKept(&scratch.waiting);
    }
    scratch.ahead.Advance(kFirstLines);
  } else {
    scratch.ahead.HasRead(host::RowSort::kStream, scratch.tile_begin[tile % 4]);
    scratch.ahead.HasRead(host::RowSort::kGathered, scratch.waiting.waits
                                                        ? scratch.waiting.kept_begin
                                                        : scratch.ahead.added(host::RowSort::kGathered));
  }
  scratch.next_tile = tile + 1;
  FetchThrough(call, tile + 1, worker);
}

// What the tile reads at first is read now.
void HostBackend::ReadTile(uint32_t tile, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  const uint32_t end = scratch.listed_tile > tile + 1 ? scratch.tile_begin[(tile + 1) % 4]
                                                      : scratch.ahead.added(host::RowSort::kStream);
  scratch.ahead.Reads(host::RowSort::kStream, end - scratch.tile_begin[tile % 4],
                      scratch.waiting.waits ? scratch.waiting.in_any_order : 0);
  if (scratch.tile_whole[tile % 4]) {
    scratch.ahead.SetDistance(call_distance_);
  }
}

void HostBackend::FusedTile(const MoeCall& call, uint32_t tile, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  WaitingBlock next;
  next.expert = ExpertOfTile(tile);
  const ExpertState& state = experts_[next.expert];
  next.number = tile - state.first_tile;
  next.block = BlockOf(call, state, next.number, false, worker);
  next.block.fetched = IsFetched(*state.call);
  next.block.kept = scratch.kept + uint64_t{next.expert} * kFusedTokens;
  const uint32_t slot = scratch.waiting.slot ^ 1;
  next.slot = slot;
  next.block.keep = scratch.slot_keep[slot];
  next.block.c = scratch.slot_rows[slot];
  next.waits = true;
  FollowTile(call, tile, worker);
  next.block.whole = scratch.tile_whole[tile % 4];
  next.block.in_halves = ReadsInHalves(*state.call, next.block.whole);
  if (next.block.whole && scratch.waiting.waits) {
    FinishWaiting(worker);
    scratch.next_tile = tile + 1;
  }
  ReadTile(tile, worker);
  next.block.waiting = scratch.waiting.waits ? &scratch.waiting.block : nullptr;
  FirstParts(next.block);
  if (IsMasked(*state.call)) {
    float* share = &scratch.kept_share[next.block.tokens - 1];
    const auto all = static_cast<float>(next.block.neurons * next.block.tokens);
    *share += (static_cast<float>(KeptInAll(next.block)) / all - *share) / 8;
  }
  if (next.block.whole) {
    return FinishTile(next);
  }
  next.block.waiting = nullptr;
  if (next.block.fetched) {
    FetchKept(&next);
    FetchThrough(call, tile + 3, worker);
  }
  const WaitingBlock last = scratch.waiting;
  if (last.waits) {
    FinishTile(last);
  }
  scratch.waiting = next;
}

// The second step of a block.
void HostBackend::FinishTile(const WaitingBlock& waiting) {
  const MoeBlock& b = waiting.block;
  WorkerScratch& scratch = workers_[b.worker];
  if (!b.whole) {
    scratch.ahead.Reads(host::RowSort::kGathered, waiting.kept_lines, waiting.in_any_order);
  }
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
  scratch.next_tile = kNoTile;
  if (scratch.waiting.waits) {
    scratch.waiting.waits = false;
    FinishTile(scratch.waiting);
  }
}

// What the workers counted to the call's counters.
void HostBackend::SumKeptCounts(const MoeCall& call) {
  for (size_t e = 0; call.active != nullptr && e < experts_.size(); ++e) {
    const ExpertCall& expert = *experts_[e].call;
    for (size_t i = 0; i < expert.slots.size(); ++i) {
      for (const WorkerScratch& worker : workers_) {
        call.active[expert.slots[i]] += worker.kept[e * kFusedTokens + i];
      }
    }
  }
}

// experts_ holds the fused experts of the call.
void HostBackend::RunFused(const MoeCall& call) {
  uint32_t tiles = 0;
  uint64_t floats = 0;
  uint64_t work = 0;
  call_distance_ = 0;
  for (size_t e = 0; e < experts_.size(); ++e) {
    ExpertState& state = experts_[e];
    state.first_tile = tiles;
    state.first_flag = tiles;
    state.memory = floats;
    tiles += state.blocks;
    floats += uint64_t{state.blocks} * state.call->rows.size() * call.hidden;
    work += WorkOf(call, *state.call);
    call_distance_ = std::max(call_distance_, std::min(tuning_.fetch_distance, MostAhead(*state.call)));
    orders_[e].next_block = 0;
    orders_[e].taken.store(false, std::memory_order_relaxed);
  }
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    block_done_[tile].store(false, std::memory_order_relaxed);
  }
  for (WorkerScratch& worker : workers_) {
    std::fill_n(worker.kept, experts_.size() * kFusedTokens, 0u);
  }
  RunTiles(
      tiles, work, [&](uint32_t tile, uint32_t worker) { FusedTile(call, tile, worker); },
      [&](uint32_t worker) { FinishWaiting(worker); });
  SumKeptCounts(call);
}

}  // namespace sluice
