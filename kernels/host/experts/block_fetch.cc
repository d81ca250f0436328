#include "kernels/host/experts/block_fetch.h"

#include <algorithm>
#include <bit>

#include "kernels/host/simd/row_kind.h"
#include "pack/row_layout.h"

namespace sluice::cpu {
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

}  // namespace sluice::cpu
