#include "kernels/cpu/fused_experts.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/kernel_table.h"
#include "pack/row_layout.h"

namespace sluice::cpu {

BlockOrder::BlockOrder(const BackendLimits& limits, const KernelTable& kernels, const Workspace& space)
    : kernels_(kernels),
      space_(space),
      turns_(std::make_unique<Turn[]>(limits.experts + 8)),
      kept_(std::make_unique<std::atomic<bool>[]>(MaxBlocks(limits))) {}

void BlockOrder::Begin(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs) {
  call_ = &call;
  jobs_ = jobs;
  for (size_t e = 0; e < jobs.size(); ++e) {
    turns_[e].next_block = 0;
    turns_[e].taken.store(false, std::memory_order_relaxed);
    for (uint32_t block = 0; block < jobs[e].blocks; ++block) {
      kept_[jobs[e].first_tile + block].store(false, std::memory_order_relaxed);
    }
  }
}

float* BlockOrder::Kept(const ExpertJob& job, uint32_t block, uint32_t row) const {
  return space_.partials + job.memory + (block * job.call->rows.size() + row) * call_->hidden;
}

// Adds a block's sum to y of one of an expert's rows; the first block starts it.
void BlockOrder::Add(const ExpertJob& job, uint32_t block, uint32_t row, const float* sum) {
  float* y = call_->y.Row(job.call->slots[row]);
  if (block > 0 || job.call->neuron_begin > 0) {
    kernels_.accumulate(sum, call_->hidden, y);
  } else if (job.call->down_bias != nullptr) {
    kernels_.add(sum, job.call->down_bias, 1.0f, nullptr, call_->hidden, y);
  } else {
    std::memcpy(y, sum, call_->hidden * sizeof(float));  // 0 + a closed sum is the sum
  }
}

bool BlockOrder::TakeTurn(uint32_t expert, uint32_t block) {
  Turn& turn = turns_[expert];
  if (turn.taken.exchange(true)) {
    return false;
  }
  if (turn.next_block == block) {
    return true;
  }
  turn.taken.store(false);
  return false;
}

bool BlockOrder::StartToken(uint32_t expert, uint32_t block, float* y) const {
  const ExpertCall& call = *jobs_[expert].call;
  if (block > 0 || call.neuron_begin > 0) {
    return true;
  }
  for (uint32_t h = 0; call.down_bias != nullptr && h < call_->hidden; ++h) {
    y[h] = call.down_bias[h] + 0.0f;  // a bias of -0 is +0 after the first block
  }
  return call.down_bias != nullptr;
}

void BlockOrder::EndTurn(uint32_t expert) {
  turns_[expert].next_block += 1;
  AddKeptAndRelease(expert);
}

void BlockOrder::Finish(uint32_t expert, uint32_t block, const float* sums, uint64_t sums_stride) {
  const ExpertJob& job = jobs_[expert];
  const uint32_t rows = static_cast<uint32_t>(job.call->rows.size());
  if (TakeTurn(expert, block)) {
    for (uint32_t row = 0; row < rows; ++row) {
      Add(job, block, row, sums + row * sums_stride);
    }
    return EndTurn(expert);
  }
  for (uint32_t row = 0; row < rows; ++row) {
    std::memcpy(Kept(job, block, row), sums + row * sums_stride, call_->hidden * sizeof(float));
  }
  kept_[job.first_tile + block].store(true);
  // One worker at a time adds kept blocks. A worker that holds the turn checks again after releasing it, so
  // no block is missed.
  if (!turns_[expert].taken.exchange(true)) {
    AddKeptAndRelease(expert);
  }
}

// Adds the next kept blocks to y in order, then releases the turn. Called by the worker that holds the turn.
void BlockOrder::AddKeptAndRelease(uint32_t expert) {
  const ExpertJob& job = jobs_[expert];
  Turn& turn = turns_[expert];
  const uint32_t rows = static_cast<uint32_t>(job.call->rows.size());
  const std::atomic<bool>* kept = &kept_[job.first_tile];
  do {
    uint32_t next = turn.next_block;
    for (; next < job.blocks && kept[next].load(); ++next) {
      for (uint32_t row = 0; row < rows; ++row) {
        Add(job, next, row, Kept(job, next, row));
      }
    }
    turn.next_block = next;
    turn.taken.store(false);
    if (next == job.blocks || !kept[next].load()) {
      return;
    }
  } while (!turn.taken.exchange(true));
}

namespace {

// Lines that are fetched at once when a worker begins; it reads them while the others are in flight.
constexpr uint32_t kFirstLines = 128;

// Maximum kept rows of a block whose beginnings are fetched at once, ahead of the rest: 2 to 4 % less time
// with 80 and 90 % left out, but with 32 rows 1 to 2 % more (Granite Rapids).
constexpr int kFewKept = 24;

// Bytes fetched beyond the kept rows of a masked block: with 2 to 16 tokens 2 to 5 % less time than with a
// block of rows and eight more; 24 to 48 KiB took as long (Granite Rapids).
constexpr uint32_t kLeadAhead = 16 << 10;

// Maximum fetch distance in bytes where all rows are read: a block of them and a little more. Where the cache
// has room for more short rows, 96 and 128 of them were slower than 72.
uint32_t MaxAhead(const ExpertCall& expert) {
  const uint64_t longest = std::max({RowBytes(expert.up.encoding, expert.up.cols),
                                     RowBytes(expert.gate.encoding, expert.gate.cols),
                                     RowBytes(expert.down.encoding, expert.down.cols)});
  return static_cast<uint32_t>(std::min<uint64_t>(longest * (kNeuronBlock + 8), UINT32_MAX));
}

// Adds the rows of a block, `bytes` each, in reading order; `gathered`: by a mask. Neighbours are one range
// where no whole line lies between them.
void AddRows(const CallWeights& part, uint64_t bytes, uint32_t first, uint64_t mask, bool gathered,
             RowFetch* ahead) {
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

// Adds all rows of a block, `bytes` each, in the order of InHalves().
void AddHalves(const CallWeights& part, uint64_t bytes, uint32_t first, uint32_t neurons, RowFetch* ahead) {
  const bool dense = part.stride < bytes + 64;
  const uint32_t rows = dense ? neurons / 2 : 1;
  for (uint32_t i = 0; i + 1 < neurons; i += 2 * rows) {
    ahead->AddStreams(part.Row(first + InHalves(i, neurons)), part.Row(first + InHalves(i + 1, neurons)),
                      (rows - 1) * part.stride + bytes);
  }
  if (neurons % 2 != 0) {
    const uint8_t* row = part.Row(first + neurons / 2);
    ahead->AddStream(row, row + bytes);
  }
}

// Fetches the first two lines of each kept row at once, while the masks are applied.
void FetchBeginnings(const CallWeights& part, uint32_t first, uint64_t mask) {
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    const uint8_t* row = part.Row(first + static_cast<uint32_t>(std::countr_zero(left)));
    FetchLine::At(row);
    FetchLine::At(row + 64);
  }
}

}  // namespace

uint32_t BlockFetch::DistanceOf(absl::Span<const ExpertJob> jobs, const MemoryTuning& tuning) {
  uint32_t distance = 0;
  for (const ExpertJob& job : jobs) {
    distance = std::max(distance, std::min(tuning.fetch_distance, MaxAhead(*job.call)));
  }
  return distance;
}

bool BlockFetch::IsFetched(const ExpertCall& expert) {
  return IsQuantized(expert.up.encoding.encoding) && IsQuantized(expert.gate.encoding.encoding) &&
         IsQuantized(expert.down.encoding.encoding);
}

// With masks, kept rows alternate with them, so there is nothing to halve.
bool BlockFetch::ReadsInHalves(const ExpertCall& expert, bool whole) const {
  const auto gains = [&](const CallWeights& part) {
    return kernels_.in_halves[QuantKindOf(part.encoding.encoding)];
  };
  return IsFetched(expert) && whole && !expert.HasLists() && gains(expert.gate) && gains(expert.up) &&
         gains(expert.down);
}

// With masks that leave little out, one step is a quarter faster than waiting for the masks (Granite Rapids,
// q3), so the share kept by the worker's last blocks with as many tokens decides. Single blocks vary too
// much: by a sixteenth of their neurons.
bool BlockFetch::ExpectsWhole(const ExpertJob& job) const {
  const ExpertCall& expert = *job.call;
  return !IsMasked(expert) || (kept_share_[expert.rows.size() - 1] >= job.dense_above &&
                               expert.lead_values.base == nullptr && !expert.HasLists());
}

void BlockFetch::NoteKept(const ExpertBlock& b) {
  float* share = &kept_share_[b.tokens - 1];
  const auto all = static_cast<float>(b.neurons * b.tokens);
  *share += (static_cast<float>(KeptInAll(b)) / all - *share) / 8;
}

// Lists the rows that a tile reads before its masks are known.
void BlockFetch::ListTile(const FusedCall& fused, uint32_t tile) {
  const uint32_t e = FindJobOfTile(fused.jobs, tile);
  const ExpertCall& expert = *fused.jobs[e].call;
  if (!IsFetched(expert)) {
    return;
  }
  const ExpertBlock b = blocks_.BlockOf(*fused.call, fused.jobs, e, tile - fused.jobs[e].first_tile,
                                        /*packed=*/false, worker_);
  const uint64_t present = PresentNeurons(b);
  const bool whole = IsWhole(tile);
  const bool halves = ReadsInHalves(expert, whole);
  const auto add = [&](const CallWeights& part) {
    const uint64_t row_bytes = lists_.ShapeFor(part.encoding, part.cols, worker_).bytes;
    halves ? AddHalves(part, row_bytes, b.first, b.neurons, &ahead_)
           : AddRows(part, row_bytes, b.first, present, /*gathered=*/false, &ahead_);
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

// Lists the tiles up to `tile` that are not listed yet, as far as the worker's run goes.
void BlockFetch::ListThrough(const FusedCall& fused, uint32_t tile) {
  for (; listed_tile_ < std::min(tile + 1, tiles_.RunEnd(worker_)); ++listed_tile_) {
    tile_begin_[listed_tile_ % 4] = ahead_.added(RowSort::kStream);
    tile_whole_[listed_tile_ % 4] = ExpectsWhole(fused.jobs[FindJobOfTile(fused.jobs, listed_tile_)]);
    ListTile(fused, listed_tile_);
  }
}

// Lists the rows that the block keeps.
void BlockFetch::AddKept(WaitingBlock* waiting) {
  const ExpertBlock& b = waiting->block;
  const ExpertCall& expert = *b.job->call;
  waiting->kept_begin = ahead_.added(RowSort::kGathered);
  const uint64_t mask = ChooseReading(b, 1) == Reading::kAll ? PresentNeurons(b) : AnyKept(b);
  const bool few = std::popcount(mask) <= kFewKept;
  const auto add = [&](const CallWeights& part) {
    if (few) {
      FetchBeginnings(part, b.first, mask);
    }
    AddRows(part, lists_.ShapeFor(part.encoding, part.cols, worker_).bytes, b.first, mask, /*gathered=*/true,
            &ahead_);
  };
  if (LeadDecides(expert)) {
    add(expert.sparsity == SparsityOrder::kUp ? expert.gate : expert.up);
  }
  add(expert.down);
  waiting->kept_lines = ahead_.added(RowSort::kGathered) - waiting->kept_begin;
  const bool own_lists = b.tokens > 1 && ChooseReading(b, b.tokens) == Reading::kTokens;
  waiting->in_any_order = own_lists ? waiting->kept_lines / (LeadDecides(expert) ? 2 : 1) : 0;
  ahead_.SetDistance(std::min(tuning_.fetch_distance, kLeadAhead + ahead_.gathered_bytes()));
}

void BlockFetch::ListKept(const FusedCall& fused, WaitingBlock* waiting, uint32_t through) {
  if (waiting->block.fetch == nullptr) {
    return;
  }
  AddKept(waiting);
  ListThrough(fused, through);
}

void BlockFetch::Follow(const FusedCall& fused, uint32_t tile, WaitingBlock* waiting) {
  if (tile != next_tile_) {
    ahead_.Clear(std::min(tuning_.fetch_distance, kLeadAhead));
    listed_tile_ = tile;
    ListThrough(fused, tile);
    if (IsWhole(tile)) {
      ahead_.SetDistance(fused.distance);
    }
    if (waiting->waits && waiting->block.fetch != nullptr) {
      AddKept(waiting);
    }
    ahead_.Advance(kFirstLines);
  } else {
    ahead_.SetRead(RowSort::kStream, tile_begin_[tile % 4]);
    ahead_.SetRead(RowSort::kGathered,
                   waiting->waits ? waiting->kept_begin : ahead_.added(RowSort::kGathered));
  }
  next_tile_ = tile + 1;
  ListThrough(fused, tile + 1);
}

void BlockFetch::ReadFirst(const FusedCall& fused, uint32_t tile, const WaitingBlock& waiting) {
  const uint32_t end = listed_tile_ > tile + 1 ? tile_begin_[(tile + 1) % 4] : ahead_.added(RowSort::kStream);
  ahead_.Reads(RowSort::kStream, end - tile_begin_[tile % 4], waiting.waits ? waiting.in_any_order : 0);
  if (IsWhole(tile)) {
    ahead_.SetDistance(fused.distance);
  }
}

void BlockFetch::ReadKept(const WaitingBlock& waiting) {
  ahead_.Reads(RowSort::kGathered, waiting.kept_lines, waiting.in_any_order);
}

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
