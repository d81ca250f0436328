#include "kernels/host/experts/fused_experts.h"

#include <algorithm>

#include "common/status.h"

namespace sluice::cpu {

FusedExperts::FusedExperts(const BackendLimits& limits, const KernelTable& kernels,
                           const MemoryTuning& tuning, Workspace& space, Tiles& tiles, RowLists& lists,
                           ExpertBlocks& blocks)
    : space_(space), tiles_(tiles), tuning_(tuning), blocks_(blocks), order_(limits, kernels, space) {
  workers_.reserve(tiles.threads());
  for (uint32_t worker = 0; worker < tiles.threads(); ++worker) {
    workers_.emplace_back(BlockFetch(kernels, tuning, blocks, lists, tiles, worker));
  }
}

absl::Status FusedExperts::Reserve(const BackendLimits& limits, Scratch* scratch) {
  for (Worker& w : workers_) {
    RETURN_IF_ERROR(scratch->Reserve(kFusedTokens * space_.x_stride, "block sums", &w.sums));
    RETURN_IF_ERROR(
        scratch->Reserve((uint64_t{limits.experts} + 8) * kFusedTokens, "kept coefficients", &w.kept));
    for (int slot = 0; slot < 2; ++slot) {
      RETURN_IF_ERROR(scratch->Reserve(kFusedTokens, "masks of a waiting block", &w.slot_keep[slot]));
      float* rows = nullptr;
      RETURN_IF_ERROR(
          scratch->Reserve(kFusedTokens * kNeuronBlock, "coefficients of a waiting block", &rows));
      for (uint32_t i = 0; i < kFusedTokens; ++i) {
        w.slot_rows[slot][i] = rows + i * kNeuronBlock;
      }
    }
  }
  return absl::OkStatus();
}

// Prepares the tile's block in the slot that does not wait.
WaitingBlock FusedExperts::Start(uint32_t tile, uint32_t worker) {
  Worker& w = workers_[worker];
  WaitingBlock out;
  out.waits = true;
  out.slot = w.waiting.slot ^ 1;
  out.expert = FindJobOfTile(fused_.jobs, tile);
  const ExpertJob& job = fused_.jobs[out.expert];
  out.number = tile - job.first_tile;
  out.block = blocks_.BlockOf(*fused_.call, fused_.jobs, out.expert, out.number, /*packed=*/false, worker);
  out.block.fetch = BlockFetch::IsFetched(*job.call) ? w.fetch.rows() : nullptr;
  out.block.kept = w.kept + uint64_t{out.expert} * kFusedTokens;
  out.block.keep = w.slot_keep[out.slot];
  out.block.c = w.slot_rows[out.slot];
  return out;
}

void FusedExperts::RunTile(uint32_t tile, uint32_t worker) {
  Worker& w = workers_[worker];
  WaitingBlock next = Start(tile, worker);
  const ExpertCall& expert = *next.block.job->call;
  w.fetch.Follow(fused_, tile, &w.waiting);
  next.block.whole = w.fetch.IsWhole(tile);
  next.block.in_halves = w.fetch.ReadsInHalves(expert, next.block.whole);
  if (next.block.whole && w.waiting.waits) {
    w.waiting.waits = false;
    FinishBlock(w.waiting);
  }
  w.fetch.ReadFirst(fused_, tile, w.waiting);
  next.block.waiting = w.waiting.waits ? &w.waiting.block : nullptr;
  blocks_.FirstParts(next.block);
  if (IsMasked(expert)) {
    w.fetch.NoteKept(next.block);
  }
  if (next.block.whole) {
    return FinishBlock(next);
  }
  next.block.waiting = nullptr;
  w.fetch.ListKept(fused_, &next, tile + 3);
  const WaitingBlock last = w.waiting;
  if (last.waits) {
    FinishBlock(last);
  }
  w.waiting = next;
}

// Runs the second step of a block.
void FusedExperts::FinishBlock(const WaitingBlock& waiting) {
  const ExpertBlock& b = waiting.block;
  Worker& w = workers_[b.worker];
  float** outputs = space_.workers[b.worker].outputs;
  if (!b.whole) {
    w.fetch.ReadKept(waiting);
  }
  blocks_.Coefficients(b);
  const bool in_turn = order_.TakeTurn(waiting.expert, waiting.number);
  bool add = false;
  for (uint32_t i = 0; i < b.tokens; ++i) {
    outputs[i] = w.sums + i * space_.x_stride;
    if (in_turn) {
      outputs[i] = b.call->y.Row(b.job->call->slots[i]);
      add = order_.StartToken(waiting.expert, waiting.number, outputs[i]);
    }
  }
  blocks_.Sums(b, add, outputs);
  if (in_turn) {
    order_.EndTurn(waiting.expert);
  } else {
    order_.Finish(waiting.expert, waiting.number, w.sums, space_.x_stride);
  }
}

// Finishes the block that the worker has put off, when there are no more tiles.
void FusedExperts::FinishWaiting(uint32_t worker) {
  Worker& w = workers_[worker];
  w.fetch.Restart();
  if (w.waiting.waits) {
    w.waiting.waits = false;
    FinishBlock(w.waiting);
  }
}

// Adds the workers' counts to the call's counters.
void FusedExperts::SumKeptCounts() const {
  for (size_t e = 0; fused_.call->active != nullptr && e < fused_.jobs.size(); ++e) {
    const ExpertCall& expert = *fused_.jobs[e].call;
    for (size_t i = 0; i < expert.slots.size(); ++i) {
      for (const Worker& worker : workers_) {
        fused_.call->active[expert.slots[i]] += worker.kept[e * kFusedTokens + i];
      }
    }
  }
}

void FusedExperts::Run(const MoeExpertsCall& call, absl::Span<ExpertJob> jobs) {
  uint32_t tiles = 0;
  uint64_t floats = 0;
  uint64_t work = 0;
  for (ExpertJob& job : jobs) {
    job.first_tile = tiles;
    job.memory = floats;
    tiles += job.blocks;
    floats += uint64_t{job.blocks} * job.call->rows.size() * call.hidden;
    work += WorkOf(call, *job.call);
  }
  fused_ = {&call, jobs, BlockFetch::DistanceOf(jobs, tuning_)};
  order_.Begin(call, jobs);
  for (Worker& worker : workers_) {
    std::fill_n(worker.kept, jobs.size() * kFusedTokens, 0u);
  }
  tiles_.Run(
      tiles, work, [&](uint32_t tile, uint32_t worker) { RunTile(tile, worker); },
      [&](uint32_t worker) { FinishWaiting(worker); });
  SumKeptCounts();
}

}  // namespace sluice::cpu
