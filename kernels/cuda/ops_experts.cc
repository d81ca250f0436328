// MoeExperts, RoutedExperts, ExpertLeads, RoutedLeads.

#include <algorithm>
#include <iterator>

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device/experts.h"

namespace sluice::cuda {
namespace {

constexpr uint64_t kTableAlignment = 16;

ActivationLaunch ActivationOf(const ActivationSpec& a) { return {a.kind, a.alpha, a.limit}; }

RowsToPrepare RowsOf(const InRows& x, uint32_t tokens, uint32_t hidden) {
  RowsToPrepare rows;
  rows.x = x.base;
  rows.stride = x.stride;
  rows.tokens = tokens;
  rows.cols = hidden;
  return rows;
}

// Room in the tables for `lists` lists of `values` 4-byte values in all and `count` structs.
uint64_t TableBytes(uint64_t count, uint64_t bytes, uint64_t lists, uint64_t values) {
  return count * bytes + 4 * values + (lists + 1) * kTableAlignment;
}

// The index lists of an expert's parts; a gate that is the up part has the same.
uint64_t ListValues(const ExpertCall& call) {
  const auto values = [](const CallWeights& part) { return part.positions == nullptr ? 0 : part.rows; };
  return uint64_t{values(call.up)} + values(call.gate) + values(call.down);
}
void PutLists(Device& device, const ExpertCall& call, DeviceExpert* e) {
  const auto put = [&](const CallWeights& part) {
    return part.positions == nullptr ? nullptr
                                     : device.tables->Put(absl::MakeConstSpan(part.positions, part.rows));
  };
  e->up.positions = put(call.up);
  e->gate.positions = call.gate.positions == call.up.positions ? e->up.positions : put(call.gate);
  e->down.positions = put(call.down);
}

DeviceExpert ExpertOf(const ExpertCall& call) {
  static_assert(static_cast<int>(Lead::kUp) == static_cast<int>(SparsityOrder::kUp));
  static_assert(static_cast<int>(Lead::kGate) == static_cast<int>(SparsityOrder::kGate));
  static_assert(static_cast<int>(Lead::kProduct) == static_cast<int>(SparsityOrder::kProduct));
  static_assert(kNeurons == kNeuronBlock);
  DeviceExpert e;
  e.up = MatrixOf(call.up);
  e.gate = MatrixOf(call.gate);
  e.down = MatrixOf(call.down);
  e.neuron_begin = call.neuron_begin;
  e.neuron_end = call.neuron_end;
  e.lead = static_cast<Lead>(call.sparsity);
  e.threshold = call.threshold;
  e.up_bias = call.up_bias;
  e.gate_bias = call.gate_bias;
  e.down_bias = call.down_bias;
  e.lead_values = call.lead_values.base;
  e.lead_stride = call.lead_values.stride;
  return e;
}

absl::Status CheckShared(const Device& device, uint64_t bytes, uint32_t hidden, const char* what) {
  return bytes <= device.shared_bytes
             ? absl::OkStatus()
             : absl::UnimplementedError(absl::StrCat(what, ": rows of ", hidden, " columns take ", bytes,
                                                     " bytes of shared memory of ", device.shared_bytes));
}

// Sets a launch's needs for these experts: the shape of its grid, shared memory, x rounded as their parts
// need it.
absl::Status Widen(Device& device, absl::Span<const ExpertCall> experts, const char* what,
                   ExpertsLaunch* launch, RowsToPrepare* rows) {
  for (const ExpertCall& expert : experts) {
    const DeviceExpert e = ExpertOf(expert);
    rows->Note(e.up);
    rows->Note(e.gate);
    launch->max_neurons = std::max(launch->max_neurons, e.neuron_end - e.neuron_begin);
    launch->up_encodings.set(static_cast<size_t>(e.up.encoding));
    if (launch->by_outputs) {
      WidenOutputs(e.down, launch);
      continue;
    }
    launch->max_tiles = std::max(launch->max_tiles, DownTiles(e.down));
    launch->down_warps = std::max(launch->down_warps, DownWarps(e.down, e.neuron_end - e.neuron_begin));
    const uint32_t groups = e.down.group == 0 ? 0 : GroupsOf(e.down.cols, e.down.group);
    launch->block_bytes = std::max(launch->block_bytes, BlockBytes(groups));
  }
  const bool rounds = RoundedByBlocks(*rows);
  for (const ExpertCall& expert : experts) {
    const DeviceExpert e = ExpertOf(expert);
    WidenShared(e.up, e.gate, rounds, &launch->shared);
  }
  RETURN_IF_ERROR(CheckShared(device, launch->shared.bytes(), rows->cols, what));
  return launch->by_outputs ? CheckShared(device, OutputsShared(*launch), launch->max_neurons, what)
                            : absl::OkStatus();
}

// Workspace bytes of a pair with `blocks` blocks of neurons. Sets where its rounded coefficients stand.
uint64_t PairBytes(uint32_t blocks, ExpertsLaunch* launch) {
  launch->rounded_at = RoundedCoefficients(blocks);
  return launch->by_outputs ? launch->rounded_at + launch->rounded_bytes : blocks * launch->block_bytes;
}

absl::Status EnqueueSums(Device& device, const ExpertsLaunch& launch) {
  return StatusOf(
      launch.by_outputs ? EnqueueOutputs(launch, device.launcher) : EnqueueDown(launch, device.launcher),
      "sums of experts");
}

void SetRows(size_t experts, const PreparedRows& prepared, ExpertsLaunch* launch) {
  launch->expert_count = static_cast<uint32_t>(experts);
  launch->x = prepared.x;
  launch->x_stride = prepared.stride;
}

// Experts of a call in the tables, by their order, with their rows of x as prepared.
void PutExperts(Device& device, absl::Span<const ExpertCall> experts, const PreparedRows& prepared,
                ExpertsLaunch* launch) {
  DeviceExpert* const table = device.tables->Take(experts.size(), &launch->experts);
  for (size_t i = 0; i < experts.size(); ++i) {
    DeviceExpert e = ExpertOf(experts[i]);
    PutLists(device, experts[i], &e);
    e.up_rounded = prepared.Rounded(e.up);
    e.gate_rounded = prepared.Rounded(e.gate);
    table[i] = e;
  }
  SetRows(experts.size(), prepared, launch);
}

// All pairs, as many at once as the workspace has room for the blocks of.
absl::Status EnqueuePairs(Device& device, ExpertsLaunch launch, uint32_t pairs, Workspace* workspace) {
  constexpr uint64_t kMaxOfAGrid = 65535;
  launch.block_count = BlocksOf(launch.max_neurons);
  launch.pair_bytes = PairBytes(launch.block_count, &launch);
  const uint64_t at_once =
      std::clamp<uint64_t>(workspace->left() / launch.pair_bytes, 1, std::min<uint64_t>(pairs, kMaxOfAGrid));
  ASSIGN_OR_RETURN(launch.blocks, workspace->Take(at_once * launch.pair_bytes, "coefficients"));
  for (uint32_t first = 0; first < pairs; first += static_cast<uint32_t>(at_once)) {
    launch.first_pair = first;
    launch.pair_count = std::min(pairs - first, static_cast<uint32_t>(at_once));
    RETURN_IF_ERROR(StatusOf(EnqueueCoefficients(launch, device.launcher), "coefficients of experts"));
    RETURN_IF_ERROR(EnqueueSums(device, launch));
  }
  return absl::OkStatus();
}

// True if there are enough pairs for tiles, all experts support them, and the workspace has room for a block
// of neurons of every pair, or for all of them with down by outputs.
bool TakesTiles(ExpertsLaunch launch, absl::Span<const ExpertCall> experts, const PreparedRows& prepared,
                uint32_t pairs, uint64_t workspace) {
  constexpr uint32_t kFewPairs = 4;  // of an expert: weights are read again for each, from the cache
  constexpr uint32_t kMaxPairs = 65535;
  const uint64_t pair_bytes = PairBytes(launch.by_outputs ? BlocksOf(launch.max_neurons) : 1, &launch);
  if (pairs <= kFewPairs * experts.size() || pairs > kMaxPairs || pairs * pair_bytes > workspace) {
    return false;
  }
  return std::all_of(experts.begin(), experts.end(), [&](const ExpertCall& call) {
    DeviceExpert e = ExpertOf(call);
    e.up.positions = call.up.positions;
    e.down.positions = call.down.positions;
    e.up_rounded = prepared.Rounded(e.up);
    e.gate_rounded = prepared.Rounded(e.gate);
    return TakesTiles(e);
  });
}

// All pairs, listed by expert in tiles: as many blocks of neurons at once as the workspace has room for.
absl::Status EnqueueTiles(Device& device, ExpertsLaunch launch, uint32_t pairs, Workspace* workspace) {
  const uint32_t blocks = BlocksOf(launch.max_neurons);
  const uint64_t rest = launch.by_outputs ? blocks : workspace->left() / (pairs * launch.block_bytes);
  const auto at_once = static_cast<uint32_t>(std::clamp<uint64_t>(rest, 1, blocks));
  launch.pair_bytes = PairBytes(at_once, &launch);
  ASSIGN_OR_RETURN(launch.blocks, workspace->Take(pairs * launch.pair_bytes, "coefficients"));
  launch.first_pair = 0;
  launch.pair_count = pairs;
  for (launch.first_block = 0; launch.first_block < blocks; launch.first_block += at_once) {
    launch.block_count = std::min(at_once, blocks - launch.first_block);
    launch.pair_bytes = PairBytes(launch.block_count, &launch);
    RETURN_IF_ERROR(StatusOf(EnqueueExpertTiles(launch, device.launcher), "coefficients of experts"));
    RETURN_IF_ERROR(EnqueueSums(device, launch));
  }
  return absl::OkStatus();
}

// Bytes of the workspace beside the blocks when the device sorts routed pairs.
uint64_t SortedBytes(uint32_t pairs, uint32_t experts) {
  constexpr uint64_t kRounding = 3 * 256;
  return uint64_t{pairs} * sizeof(ExpertPair) + uint64_t{TilesOf(pairs, experts)} * sizeof(ExpertTile) +
         sizeof(uint32_t) + kRounding;
}

}  // namespace

absl::Status Run(Device& device, const MoeExpertsCall& call) {
  RowsToPrepare rows = RowsOf(call.x, call.tokens, call.hidden);
  ExpertsLaunch launch;
  launch.by_outputs = call.down_by_outputs;
  RETURN_IF_ERROR(Widen(device, call.experts, "MoeExperts", &launch, &rows));
  uint64_t pairs = 0;
  uint64_t list_values = 0;
  for (const ExpertCall& expert : call.experts) {
    pairs += expert.rows.size();
    list_values += ListValues(expert);
  }
  if (pairs == 0) {
    return absl::OkStatus();
  }
  Workspace workspace(device);
  ASSIGN_OR_RETURN(const PreparedRows prepared, Prepare(device, rows, &workspace));
  const auto experts = static_cast<uint32_t>(call.experts.size());
  const uint32_t most_tiles = TilesOf(static_cast<uint32_t>(pairs), experts);
  RETURN_IF_ERROR(device.tables->Begin(
      TableBytes(experts, sizeof(DeviceExpert), 3 * experts + 2,
                 (sizeof(ExpertPair) * pairs + sizeof(ExpertTile) * most_tiles) / 4 + list_values)));
  PutExperts(device, call.experts, prepared, &launch);
  ExpertPair* pair = device.tables->Take(pairs, &launch.pairs);
  ExpertTile* tile = device.tables->Take(most_tiles, &launch.tiles);
  uint32_t first = 0;
  for (uint32_t i = 0; i < experts; ++i) {
    const ExpertCall& expert = call.experts[i];
    const auto count = static_cast<uint32_t>(expert.rows.size());
    for (uint32_t r = 0; r < count; ++r) {
      *pair++ = {i, expert.rows[r], expert.slots[r], r};
    }
    for (uint32_t r = 0; r < count; r += kTilePairs) {
      *tile++ = {i, first + r, std::min(kTilePairs, count - r)};
      ++launch.max_expert_tiles;
    }
    first += count;
  }
  RETURN_IF_ERROR(device.tables->Send());
  launch.activation = ActivationOf(call.activation);
  launch.y = call.y.base;
  launch.y_stride = call.y.stride;
  launch.active = call.active;
  const bool tiles = TakesTiles(launch, call.experts, prepared, first, workspace.left());
  return tiles ? EnqueueTiles(device, launch, first, &workspace)
               : EnqueuePairs(device, launch, first, &workspace);
}

namespace {

// Widen() for routed experts, once for a numbered list.
absl::Status WidenRouted(Device& device, const RoutedExpertsCall& call, ExpertsLaunch* launch,
                         RowsToPrepare* rows) {
  launch->by_outputs = call.down_by_outputs;
  const auto found = device.numbered.find(call.experts_number);
  if (call.experts_number != 0 && found != device.numbered.end()) {
    rows->plain = found->second.rows.plain;
    std::copy(std::begin(found->second.rows.rounds), std::end(found->second.rows.rounds), rows->rounds);
    if (RoundedByBlocks(*rows) == found->second.rounded_by_blocks) {
      *launch = found->second.launch;
      return absl::OkStatus();
    }
  }
  RETURN_IF_ERROR(Widen(device, call.experts, "RoutedExperts", launch, rows));
  if (call.experts_number != 0) {
    if (device.numbered.size() > 2 * uint64_t{device.limits.layers}) device.numbered.clear();
    device.numbered[call.experts_number] = {RoundedByBlocks(*rows), *rows, *launch};
  }
  return absl::OkStatus();
}

// PutExperts() for routed experts: the table of a numbered list stays where it is while its calls are kept.
absl::Status PutRouted(Device& device, const RoutedExpertsCall& call, const PreparedRows& prepared,
                       ExpertsLaunch* launch) {
  Tables::Key key;
  key.number = call.experts_number;
  std::copy(std::begin(prepared.rounded), std::end(prepared.rounded), key.places.begin());
  if (const uint8_t* const kept = device.tables->Reuse(key, Tables::Change::kByWeights)) {
    launch->experts = reinterpret_cast<const DeviceExpert*>(kept);
    SetRows(call.experts.size(), prepared, launch);
    return absl::OkStatus();
  }
  uint64_t list_values = 0;
  for (const ExpertCall& expert : call.experts) {
    list_values += ListValues(expert);
  }
  RETURN_IF_ERROR(device.tables->Begin(
      TableBytes(call.experts.size(), sizeof(DeviceExpert), 3 * call.experts.size(), list_values),
      Tables::Change::kByWeights));
  PutExperts(device, call.experts, prepared, launch);
  return device.tables->Send(key);
}

}  // namespace

absl::Status Run(Device& device, const RoutedExpertsCall& call) {
  const uint32_t pairs = call.tokens * call.ranks;
  RowsToPrepare rows = RowsOf(call.x, call.by_slot ? pairs : call.tokens, call.hidden);
  ExpertsLaunch launch;
  RETURN_IF_ERROR(WidenRouted(device, call, &launch, &rows));
  Workspace workspace(device);
  ASSIGN_OR_RETURN(const PreparedRows prepared, Prepare(device, rows, &workspace));
  RETURN_IF_ERROR(PutRouted(device, call, prepared, &launch));
  launch.routed = {call.ids, call.weights, call.tokens, call.ranks, call.ranks, call.by_slot};
  launch.activation = ActivationOf(call.activation);
  launch.y = call.y.base;
  launch.y_stride = call.y.stride;
  launch.active = call.active;
  const uint64_t sorted = SortedBytes(pairs, launch.expert_count);
  if (sorted > workspace.left() ||
      !TakesTiles(launch, call.experts, prepared, pairs, workspace.left() - sorted)) {
    return EnqueuePairs(device, launch, pairs, &workspace);
  }
  launch.max_expert_tiles = TilesOf(pairs, launch.expert_count);
  ASSIGN_OR_RETURN(uint8_t* const list, workspace.Take(sizeof(ExpertPair) * pairs, "pairs"));
  ASSIGN_OR_RETURN(uint8_t* const tiles,
                   workspace.Take(sizeof(ExpertTile) * launch.max_expert_tiles, "tiles"));
  ASSIGN_OR_RETURN(uint8_t* const count, workspace.Take(sizeof(uint32_t), "tiles' count"));
  launch.pairs = reinterpret_cast<ExpertPair*>(list);
  launch.tiles = reinterpret_cast<ExpertTile*>(tiles);
  launch.tile_count = reinterpret_cast<uint32_t*>(count);
  RETURN_IF_ERROR(StatusOf(
      EnqueueSortPairs(launch, reinterpret_cast<ExpertPair*>(list), reinterpret_cast<ExpertTile*>(tiles),
                       reinterpret_cast<uint32_t*>(count), device.launcher),
      absl::StrCat("RoutedExperts of ", launch.expert_count, " experts")));
  launch.routed = {};
  return EnqueueTiles(device, launch, pairs, &workspace);
}

namespace {

void WidenLeads(absl::Span<const LeadCallPart> experts, bool rounds, LeadsLaunch* launch) {
  for (const LeadCallPart& part : experts) {
    const DeviceMatrix m = MatrixOf(part.lead);
    WidenShared(m, m, rounds, &launch->shared);
  }
}

}  // namespace

absl::Status Run(Device& device, const ExpertLeadsCall& call) {
  RowsToPrepare rows = RowsOf(call.x, call.tokens, call.hidden);
  LeadsLaunch launch;
  uint64_t row_count = 0;
  for (const LeadCallPart& part : call.experts) {
    rows.Note(MatrixOf(part.lead));
    row_count += part.rows.size();
  }
  WidenLeads(call.experts, RoundedByBlocks(rows), &launch);
  RETURN_IF_ERROR(CheckShared(device, launch.shared.bytes(), call.hidden, "ExpertLeads"));
  Workspace workspace(device);
  ASSIGN_OR_RETURN(const PreparedRows prepared, Prepare(device, rows, &workspace));
  RETURN_IF_ERROR(device.tables->Begin(
      TableBytes(call.experts.size(), sizeof(DeviceLead), call.experts.size(), row_count)));
  DeviceLead* const table = device.tables->Take(call.experts.size(), &launch.leads);
  for (size_t i = 0; i < call.experts.size(); ++i) {
    const LeadCallPart& part = call.experts[i];
    DeviceLead lead;
    lead.lead = MatrixOf(part.lead);
    lead.rows = device.tables->Put(part.rows);
    lead.row_count = static_cast<uint32_t>(part.rows.size());
    lead.bias = part.bias;
    lead.threshold = part.threshold;
    lead.values = part.values.base;
    lead.values_stride = part.values.stride;
    lead.active = part.active;
    lead.rounded = prepared.Rounded(lead.lead);
    table[i] = lead;
    launch.max_rows = std::max(launch.max_rows, lead.row_count);
    launch.max_neurons = std::max(launch.max_neurons, lead.lead.rows);
    launch.masks = launch.masks || lead.active != nullptr;
  }
  RETURN_IF_ERROR(device.tables->Send());
  launch.lead_count = static_cast<uint32_t>(call.experts.size());
  launch.up = call.up;
  launch.x = prepared.x;
  launch.x_stride = prepared.stride;
  launch.activation = ActivationOf(call.activation);
  return StatusOf(EnqueueLeads(launch, device.launcher), "leads of experts");
}

absl::Status Run(Device& device, const RoutedLeadsCall& call) {
  RowsToPrepare rows = RowsOf(call.x, call.tokens, call.hidden);
  LeadsLaunch launch;
  for (const LeadCallPart& part : call.experts) {
    rows.Note(MatrixOf(part.lead));
  }
  WidenLeads(call.experts, RoundedByBlocks(rows), &launch);
  RETURN_IF_ERROR(CheckShared(device, launch.shared.bytes(), call.hidden, "RoutedLeads"));
  Workspace workspace(device);
  ASSIGN_OR_RETURN(const PreparedRows prepared, Prepare(device, rows, &workspace));
  RETURN_IF_ERROR(device.tables->Begin(TableBytes(call.experts.size(), sizeof(DeviceLead), 0, 0),
                                       Tables::Change::kByWeights));
  DeviceLead* const table = device.tables->Take(call.experts.size(), &launch.leads);
  for (size_t i = 0; i < call.experts.size(); ++i) {
    const LeadCallPart& part = call.experts[i];
    DeviceLead lead;
    lead.lead = MatrixOf(part.lead);
    lead.bias = part.bias;
    lead.threshold = part.threshold;
    lead.rounded = prepared.Rounded(lead.lead);
    table[i] = lead;
  }
  RETURN_IF_ERROR(device.tables->Send());
  launch.lead_count = static_cast<uint32_t>(call.experts.size());
  launch.routed = {call.ids, call.weights, call.tokens, call.ranks, call.top_k, false};
  launch.values = call.values.base;
  launch.values_stride = call.values.stride;
  launch.active = call.active;
  launch.masks = true;
  launch.max_neurons = call.experts.front().lead.rows;  // all are as wide
  launch.up = call.up;
  launch.x = prepared.x;
  launch.x_stride = prepared.stride;
  launch.activation = ActivationOf(call.activation);
  return StatusOf(EnqueueLeads(launch, device.launcher), "leads of experts");
}

}  // namespace sluice::cuda
