#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cpu/kernel_table.h"
#include "pack/row_layout.h"

namespace sluice::cpu {

absl::Status DenseSwitch::Set(absl::Span<const SparseSwitchEntry> entries) {
  if (entries.size() > kMaxSparseSwitches) {
    return absl::InvalidArgumentError(
        absl::StrCat(entries.size(), " sparse switches; the most are ", kMaxSparseSwitches));
  }
  entries_.assign(entries.begin(), entries.end());
  return absl::OkStatus();
}

float DenseSwitch::Above(const ExpertCall& expert) const {
  if (expert.sparsity == SparsityOrder::kNone) {
    return 1;
  }
  for (const SparseSwitchEntry& entry : entries_) {
    if (entry.order == expert.sparsity && entry.up == expert.up.encoding &&
        entry.gate == expert.gate.encoding && entry.down == expert.down.encoding) {
      return entry.at.DenseAbove(expert.rows.size());
    }
  }
  return SparseSwitch().DenseAbove(expert.rows.size());
}

namespace {

// Columns of y in one tile of the second phase: 512 bytes of a bf16 row; twice that by lists, which cost more
// to make.
constexpr uint32_t kDownColumns = 256;
constexpr uint32_t kListColumns = 512;
// Tokens in one tile of the second phase with quantized rows (all columns at once).
constexpr uint32_t kDownTokens = kManyDownTokens;
constexpr uint32_t kListTokens = 4;
// Smallest threshold that only 0 is below.
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

uint32_t PartsOf(const ExpertCall& expert, bool by_lists) {
  const bool quantized = IsQuantized(expert.down.encoding.encoding);
  const uint32_t whole = quantized ? static_cast<uint32_t>(expert.rows.size()) : expert.down.cols;
  const uint32_t step =
      quantized ? (by_lists ? kListTokens : kDownTokens) : (by_lists ? kListColumns : kDownColumns);
  return (whole + step - 1) / step;
}

// True if an expert's tokens are packed for its float rows: it has more than the fused ones.
bool TakesPanels(const ExpertJob& job) { return job.call->rows.size() > kFusedTokens; }

// Multiply-adds of all experts.
uint64_t WorkOf(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs) {
  uint64_t work = 0;
  for (const ExpertJob& job : jobs) {
    work += cpu::WorkOf(call, *job.call);
  }
  return work;
}

// Writes the start values of a row of y, to which its blocks are added. (A bias of -0 is +0 after the first
// block.)
void StartRow(const float* bias, uint32_t column, uint32_t columns, float* y) {
  for (uint32_t h = 0; h < columns; ++h) {
    y[h] = bias == nullptr ? 0.0f : bias[column + h] + 0.0f;
  }
}

}  // namespace

absl::Status TwoPhaseExperts::Reserve(const BackendLimits& limits, Scratch* scratch) {
  coefficient_stride_ = RoundUp(limits.expert_width, kNeuronBlock);
  RETURN_IF_ERROR(
      scratch->Reserve(space_.packed_rows * coefficient_stride_, "expert coefficients", &coefficients_));
  return scratch->Reserve(MaxBlocks(limits), "block counts", &block_kept_);
}

// Returns part `part`: some columns for all tokens, or with quantized rows all columns for some tokens.
TwoPhaseExperts::DownPart TwoPhaseExperts::PartOf(const ExpertCall& expert, bool by_lists, uint32_t part) {
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

// Computes one tile of the second phase.
void TwoPhaseExperts::DownTile(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs, uint32_t tile,
                               uint32_t worker) {
  const uint32_t e = FindJobOfTile(jobs, tile);
  const ExpertJob& job = jobs[e];
  const ExpertCall& expert = *job.call;
  WorkerSpace& w = space_.workers[worker];
  const DownPart p = PartOf(expert, job.down_by_lists, tile - job.first_tile);
  for (uint32_t i = 0; i < p.tokens; ++i) {
    w.outputs[i] = call.y.Row(expert.slots[p.first + i]) + p.column;
    if (expert.neuron_begin == 0) {
      StartRow(expert.down_bias, p.column, p.columns, w.outputs[i]);
    }
  }
  for (uint32_t block = 0; block < job.blocks; ++block) {
    for (uint32_t i = 0; i < p.tokens; ++i) {
      w.inputs[i] = CoefficientsOf(job, p.first + i, block);
    }
    const ExpertBlock b = blocks_.BlockOf(call, jobs, e, block, /*packed=*/false, worker);
    if (job.down_by_lists) {
      DownByLists(b, p, worker);
      continue;
    }
    const uint8_t* rows[kNeuronBlock];
    for (uint32_t j = 0; j < b.neurons; ++j) {
      rows[j] = space_.RowOrZero(expert.down, b.first + j);
    }
    DownColumns({expert.down.encoding, call.hidden, rows, b.neurons, 0}, p, w.inputs, worker, w.outputs);
  }
}

// Adds a block for the part's tokens, each by its own list. A coefficient of 0 looks like a masked one.
void TwoPhaseExperts::DownByLists(const ExpertBlock& b, const DownPart& p, uint32_t worker) {
  const CallWeights& down = b.job->call->down;
  WorkerSpace& w = space_.workers[worker];
  DownPart one = p;
  one.tokens = 1;
  for (uint32_t i = 0; i < p.tokens; ++i) {
    const uint64_t mask = kernels_.keep_mask(w.inputs[i], b.neurons, kSmallest);
    if (mask == 0) {
      continue;
    }
    KeptRows kept;
    blocks_.ListKept(down, nullptr, b.first, mask, &kept);
    float c[kNeuronBlock];
    kernels_.compress_kept(w.inputs[i], mask, c);
    const float* coefficients = c;
    DownColumns({down.encoding, down.cols, kept.rows, kept.count, kept.listed}, one, &coefficients, worker,
                w.outputs + i);
  }
}

// Adds a block to y for the part's tokens and columns.
void TwoPhaseExperts::DownColumns(const RowList& list, const DownPart& p, const float* const* c,
                                  uint32_t worker, float* const* y) {
  if (IsQuantized(list.encoding.encoding)) {
    return lists_.Down(list, c, p.tokens, /*add=*/true, worker, y);
  }
  DownCall down;
  down.w = list.rows;
  down.c = c;
  down.y = y;
  down.neurons = list.count;
  down.tokens = p.tokens;
  down.column = p.column;
  down.cols = p.columns;
  down.add = true;
  down.scratch = space_.workers[worker].down;
  kernels_.down[RowKindOf(list.encoding.encoding)](down);
}

// Packs the experts' tokens as panels, `rows` in all, for products with float rows of experts that have many.
void TwoPhaseExperts::PackRows(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs, uint64_t rows) {
  const uint64_t row_floats = RoundUp(call.hidden, kLaneCount);
  tiles_.Run(static_cast<uint32_t>(jobs.size()), rows * call.hidden * 2, [&](uint32_t e, uint32_t worker) {
    const ExpertJob& job = jobs[e];
    if (!TakesPanels(job) ||
        (IsQuantized(job.call->gate.encoding.encoding) && IsQuantized(job.call->up.encoding.encoding))) {
      return;
    }
    const float** x = space_.workers[worker].inputs;
    for (size_t i = 0; i < job.call->rows.size(); ++i) {
      x[i] = call.x.Row(job.call->rows[i]);
    }
    PackCall pack;
    pack.x = x;
    pack.tokens = static_cast<uint32_t>(job.call->rows.size());
    pack.cols = call.hidden;
    pack.packed = space_.packed + job.memory * row_floats;
    kernels_.pack(pack);
  });
}

// Computes one tile of the first phase: the coefficients of a block for all tokens.
void TwoPhaseExperts::CoefficientTile(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs,
                                      uint32_t tile, uint32_t worker) {
  const uint32_t e = FindJobOfTile(jobs, tile);
  const uint32_t block = tile - jobs[e].first_tile;
  const ExpertBlock b = blocks_.BlockOf(call, jobs, e, block, TakesPanels(jobs[e]), worker);
  blocks_.FirstParts(b);
  block_kept_[tile] = blocks_.Coefficients(b);
  for (uint32_t i = 0; i < b.tokens; ++i) {
    std::memcpy(CoefficientsOf(jobs[e], i, block), b.c[i], kNeuronBlock * sizeof(float));
  }
}

// Cuts each expert's second phase into tiles; returns their number.
uint32_t TwoPhaseExperts::PlanDownTiles(absl::Span<ExpertJob> jobs) const {
  uint32_t tiles = 0;
  for (ExpertJob& job : jobs) {
    const ExpertCall& expert = *job.call;
    uint64_t kept = 0;
    for (uint32_t block = 0; block < job.blocks; ++block) {
      kept += block_kept_[job.first_tile + block];
    }
    const uint64_t most = uint64_t{expert.neuron_end - expert.neuron_begin} * expert.rows.size();
    job.down_by_lists = static_cast<float>(kept) < std::min(1.0f, job.dense_above) * static_cast<float>(most);
    job.first_tile = tiles;
    tiles += PartsOf(expert, job.down_by_lists);
  }
  return tiles;
}

void TwoPhaseExperts::MakeCoefficients(const MoeExpertsCall& call, absl::Span<ExpertJob> jobs) {
  uint64_t rows = 0;
  uint32_t tiles = 0;
  for (ExpertJob& job : jobs) {
    job.memory = rows;
    job.first_tile = tiles;
    rows += RoundUp(static_cast<uint32_t>(job.call->rows.size()), kernels_.gemm_tokens);
    tiles += job.blocks;
  }
  PackRows(call, jobs, rows);
  tiles_.Run(tiles, WorkOf(call, jobs),
             [&](uint32_t tile, uint32_t worker) { CoefficientTile(call, jobs, tile, worker); });
}

void TwoPhaseExperts::Run(const MoeExpertsCall& call, absl::Span<ExpertJob> jobs) {
  MakeCoefficients(call, jobs);
  const uint32_t tiles = PlanDownTiles(jobs);
  tiles_.Run(tiles, WorkOf(call, jobs),
             [&](uint32_t tile, uint32_t worker) { DownTile(call, jobs, tile, worker); });
}

absl::Status OutputExperts::Reserve(const BackendLimits& limits, Scratch* scratch) {
  panel_stride_ = RoundUp(limits.expert_width, kLaneCount);
  RETURN_IF_ERROR(scratch->Reserve(space_.packed_rows * panel_stride_, "packed coefficients", &panels_));
  return rounded_.Reserve(space_.packed_rows, limits.expert_width, /*woven=*/true, scratch);
}

// Rounds a job's coefficients for its down part, or packs them for many products with float rows.
void OutputExperts::PrepareCoefficients(const ExpertJob& job, uint32_t worker) {
  const CallWeights& down = job.call->down;
  const auto tokens = static_cast<uint32_t>(job.call->rows.size());
  if (IsQuantized(down.encoding.encoding)) {
    for (uint32_t i = 0; i < tokens; ++i) {
      rounded_.Round(kernels_, coefficients_.CoefficientsOf(job, i, 0), down.cols, down.encoding.group,
                     static_cast<uint32_t>(job.memory) + i);
    }
    return;
  }
  if (tokens < kPackedTokens) {
    return;
  }
  const float** x = space_.workers[worker].inputs;
  for (uint32_t i = 0; i < tokens; ++i) {
    x[i] = coefficients_.CoefficientsOf(job, i, 0);
  }
  kernels_.pack({x, tokens, down.cols, PanelsOf(job)});
}

// y[i][r] = dot of token i's coefficients with row r of the list.
void OutputExperts::Multiply(const ExpertJob& job, const RowList& list, uint32_t worker, float* const* y) {
  const auto tokens = static_cast<uint32_t>(job.call->rows.size());
  if (IsQuantized(list.encoding.encoding)) {
    return lists_.DotRounded(list, rounded_, static_cast<uint32_t>(job.memory), tokens, worker, y);
  }
  if (tokens >= kPackedTokens) {
    return lists_.DotPanels(list, PanelsOf(job), tokens, worker, y);
  }
  const float** x = space_.workers[worker].inputs;
  for (uint32_t i = 0; i < tokens; ++i) {
    x[i] = coefficients_.CoefficientsOf(job, i, 0);
  }
  lists_.DotInputs(list, tokens, worker, y);
}

// Computes one tile of outputs for all tokens of its expert.
void OutputExperts::RunTile(const MoeExpertsCall& call, const ExpertJob& job, uint32_t number,
                            uint32_t worker) {
  const ExpertCall& expert = *job.call;
  WorkerSpace& w = space_.workers[worker];
  const bool packed = expert.rows.size() >= kPackedTokens;
  RowTile tile = TileOf(expert.down, number, RowsOfTile(expert.down, packed));
  tile.halves = tuning_.two_streams && !packed && IsQuantized(expert.down.encoding.encoding);
  const bool to_scratch = expert.down_bias != nullptr || tile.halves;
  float** const y = to_scratch ? w.rows[0] : w.outputs;
  for (size_t i = 0; i < expert.slots.size() && !to_scratch; ++i) {
    y[i] = call.y.Row(expert.slots[i]) + tile.row;
  }
  const uint8_t* rows[kNeuronBlock + kMaxRowsAhead];
  Multiply(job, ListTile(expert.down, tile, rows), worker, y);
  for (size_t i = 0; i < expert.slots.size() && to_scratch; ++i) {
    float ordered[kNeuronBlock];
    float* const out = call.y.Row(expert.slots[i]) + tile.row;
    PutInOrder(tile, y[i], expert.down_bias == nullptr ? out : ordered);
    if (expert.down_bias != nullptr) {
      kernels_.add(ordered, expert.down_bias + tile.row, 1.0f, nullptr, tile.rows, out);
    }
  }
}

void OutputExperts::Run(const MoeExpertsCall& call, absl::Span<ExpertJob> jobs) {
  coefficients_.MakeCoefficients(call, jobs);
  uint32_t tiles = 0;
  uint64_t values = 0;
  for (ExpertJob& job : jobs) {
    const CallWeights& down = job.call->down;
    const uint32_t tile_rows = RowsOfTile(down, job.call->rows.size() >= kPackedTokens);
    job.first_tile = tiles;
    tiles += (down.rows + tile_rows - 1) / tile_rows;
    values += uint64_t{down.cols} * job.call->rows.size();
  }
  tiles_.Run(static_cast<uint32_t>(jobs.size()), values * 4,
             [&](uint32_t e, uint32_t worker) { PrepareCoefficients(jobs[e], worker); });
  tiles_.Run(tiles, WorkOf(call, jobs), [&](uint32_t tile, uint32_t worker) {
    const ExpertJob& job = jobs[FindJobOfTile(jobs, tile)];
    RunTile(call, job, tile - job.first_tile, worker);
  });
}

Experts::Experts(const BackendLimits& limits, const KernelTable& kernels, const MemoryTuning& tuning,
                 Workspace& space, Tiles& tiles, RoundedRows& rounded, RowLists& lists)
    : space_(space),
      tiles_(tiles),
      rounded_(rounded),
      blocks_(kernels, space, lists),
      fused_(limits, kernels, tuning, space, tiles, lists, blocks_),
      two_phase_(kernels, space, tiles, lists, blocks_),
      outputs_(kernels, tuning, space, tiles, lists, two_phase_) {
  jobs_.reserve(limits.experts + 8);
}

absl::Status Experts::Reserve(const BackendLimits& limits, Scratch* scratch) {
  RETURN_IF_ERROR(blocks_.Reserve(limits, tiles_.threads(), scratch));
  RETURN_IF_ERROR(fused_.Reserve(limits, scratch));
  RETURN_IF_ERROR(two_phase_.Reserve(limits, scratch));
  return outputs_.Reserve(limits, scratch);
}

// Rounds x for every group size of gate or up parts.
void Experts::PrepareRows(const MoeExpertsCall& call) {
  for (const ExpertCall& expert : call.experts) {
    rounded_.RequestForm(expert.gate.encoding);
    rounded_.RequestForm(expert.up.encoding);
  }
  for (uint32_t t = 0; t < call.tokens; ++t) {
    space_.x_rows[t] = call.x.Row(t);
  }
  rounded_.Make(space_.x_rows, call.tokens, call.hidden);
}

void Experts::Run(const MoeExpertsCall& call) {
  PrepareRows(call);
  for (const ExpertCall& expert : call.experts) {
    for (const uint32_t slot : expert.slots) {
      if (call.active != nullptr && expert.neuron_begin == 0) {
        call.active[slot] = 0;
      }
    }
  }
  const auto job_of = [this](const ExpertCall& expert) {
    ExpertJob job;
    job.call = &expert;
    job.blocks = BlocksOf(expert);
    job.dense_above = dense_switch_.Above(expert);
    return job;
  };
  if (call.down_by_outputs) {
    jobs_.clear();
    for (const ExpertCall& expert : call.experts) {
      jobs_.push_back(job_of(expert));
    }
    return outputs_.Run(call, absl::MakeSpan(jobs_));
  }
  uint64_t floats = 0;  // used by the fused experts' sums so far
  const auto sums_of = [&](const ExpertCall& expert) {
    return uint64_t{BlocksOf(expert)} * expert.rows.size() * call.hidden;
  };
  for (const bool few : {true, false}) {
    jobs_.clear();
    floats = 0;
    for (const ExpertCall& expert : call.experts) {
      const bool is_fused =
          expert.rows.size() <= kFusedTokens && floats + sums_of(expert) <= Workspace::kPartialFloats;
      floats += is_fused ? sums_of(expert) : 0;
      if (is_fused == few) {
        jobs_.push_back(job_of(expert));
      }
    }
    if (!jobs_.empty()) {
      few ? fused_.Run(call, absl::MakeSpan(jobs_)) : two_phase_.Run(call, absl::MakeSpan(jobs_));
    }
  }
}

}  // namespace sluice::cpu
