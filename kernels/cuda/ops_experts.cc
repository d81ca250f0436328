// MoeExperts, RoutedExperts, ExpertLeads, RoutedLeads.
#include <algorithm>

#include "common/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device/experts.h"
#include "kernels/cuda/status.h"

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
  e.row_count = static_cast<uint32_t>(call.rows.size());
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

// What a launch wants for this expert: its grid's shape, shared memory, x rounded as its parts need it.
void Widen(const DeviceExpert& e, ExpertsLaunch* launch, RowsToPrepare* rows) {
  rows->Note(e.up);
  rows->Note(e.gate);
  launch->max_rows = std::max(launch->max_rows, e.row_count);
  launch->max_neurons = std::max(launch->max_neurons, e.neuron_end - e.neuron_begin);
  launch->max_tiles = std::max(launch->max_tiles, DownTiles(e.down));
  launch->shared_bytes =
      std::max(launch->shared_bytes, CoefficientSharedBytes(e.up) + CoefficientSharedBytes(e.gate));
}

absl::Status CheckShared(const Device& device, uint64_t bytes, uint32_t hidden, const char* what) {
  return bytes <= device.shared_bytes
             ? absl::OkStatus()
             : absl::UnimplementedError(absl::StrCat(what, ": rows of ", hidden, " columns take ", bytes,
                                                     " bytes of shared memory of ", device.shared_bytes));
}

// Coefficients of whole blocks of neurons.
uint64_t CoefficientStride(const ExpertsLaunch& launch) {
  return (uint64_t{launch.max_neurons} + kNeurons - 1) / kNeurons * kNeurons;
}

absl::Status EnqueueExperts(Device& device, const ExpertsLaunch& launch) {
  RETURN_IF_ERROR(StatusOf(EnqueueCoefficients(launch, device.stream), "coefficients of experts"));
  return StatusOf(EnqueueDown(launch, device.stream), "sums of experts");
}

}  // namespace

absl::Status Run(Device& device, const MoeExpertsCall& call) {
  RowsToPrepare rows = RowsOf(call.x, call.tokens, call.hidden);
  ExpertsLaunch launch;
  uint64_t row_count = 0;
  uint64_t list_values = 0;
  for (const ExpertCall& expert : call.experts) {
    Widen(ExpertOf(expert), &launch, &rows);
    row_count += expert.rows.size();
    list_values += ListValues(expert);
  }
  RETURN_IF_ERROR(CheckShared(device, launch.shared_bytes, call.hidden, "MoeExperts"));
  Workspace workspace(device);
  ASSIGN_OR_RETURN(const PreparedRows prepared, Prepare(device, rows, &workspace));
  const uint64_t stride = CoefficientStride(launch);
  ASSIGN_OR_RETURN(uint8_t* const place, workspace.Take(4 * row_count * stride, "coefficients"));
  float* coefficients = reinterpret_cast<float*>(place);
  RETURN_IF_ERROR(device.tables->Begin(TableBytes(call.experts.size(), sizeof(DeviceExpert),
                                                  5 * call.experts.size(), 2 * row_count + list_values)));
  DeviceExpert* const table = device.tables->Take(call.experts.size(), &launch.experts);
  for (size_t i = 0; i < call.experts.size(); ++i) {
    DeviceExpert e = ExpertOf(call.experts[i]);
    PutLists(device, call.experts[i], &e);
    e.rows = device.tables->Put(call.experts[i].rows);
    e.slots = device.tables->Put(call.experts[i].slots);
    e.up_rounded = prepared.Rounded(e.up);
    e.gate_rounded = prepared.Rounded(e.gate);
    // Coefficients of neuron n stand at n, of a tile too.
    e.coefficients = coefficients - e.neuron_begin;
    e.coefficient_stride = stride;
    coefficients += e.row_count * stride;
    table[i] = e;
  }
  RETURN_IF_ERROR(device.tables->Send());
  launch.expert_count = static_cast<uint32_t>(call.experts.size());
  launch.x = prepared.x;
  launch.x_stride = prepared.stride;
  launch.hidden = call.hidden;
  launch.activation = ActivationOf(call.activation);
  launch.y = call.y.base;
  launch.y_stride = call.y.stride;
  launch.active = call.active;
  return EnqueueExperts(device, launch);
}

absl::Status Run(Device& device, const RoutedExpertsCall& call) {
  const uint32_t pairs = call.tokens * call.ranks;
  RowsToPrepare rows = RowsOf(call.x, call.by_slot ? pairs : call.tokens, call.hidden);
  ExpertsLaunch launch;
  uint64_t list_values = 0;
  for (const ExpertCall& expert : call.experts) {
    Widen(ExpertOf(expert), &launch, &rows);
    list_values += ListValues(expert);
  }
  RETURN_IF_ERROR(CheckShared(device, launch.shared_bytes, call.hidden, "RoutedExperts"));
  Workspace workspace(device);
  ASSIGN_OR_RETURN(const PreparedRows prepared, Prepare(device, rows, &workspace));
  launch.coefficient_stride = CoefficientStride(launch);
  ASSIGN_OR_RETURN(uint8_t* const place,
                   workspace.Take(4 * pairs * launch.coefficient_stride, "coefficients"));
  launch.coefficients = reinterpret_cast<float*>(place);
  RETURN_IF_ERROR(device.tables->Begin(
      TableBytes(call.experts.size(), sizeof(DeviceExpert), 3 * call.experts.size(), list_values)));
  DeviceExpert* const table = device.tables->Take(call.experts.size(), &launch.experts);
  for (size_t i = 0; i < call.experts.size(); ++i) {
    DeviceExpert e = ExpertOf(call.experts[i]);
    PutLists(device, call.experts[i], &e);
    e.up_rounded = prepared.Rounded(e.up);
    e.gate_rounded = prepared.Rounded(e.gate);
    table[i] = e;
  }
  RETURN_IF_ERROR(device.tables->Send());
  launch.expert_count = static_cast<uint32_t>(call.experts.size());
  launch.routed = {call.ids, call.weights, call.tokens, call.ranks, call.ranks, call.by_slot};
  launch.x = prepared.x;
  launch.x_stride = prepared.stride;
  launch.hidden = call.hidden;
  launch.activation = ActivationOf(call.activation);
  launch.y = call.y.base;
  launch.y_stride = call.y.stride;
  launch.active = call.active;
  return EnqueueExperts(device, launch);
}

absl::Status Run(Device& device, const ExpertLeadsCall& call) {
  RowsToPrepare rows = RowsOf(call.x, call.tokens, call.hidden);
  LeadsLaunch launch;
  uint64_t row_count = 0;
  for (const LeadCallPart& part : call.experts) {
    const DeviceMatrix m = MatrixOf(part.lead);
    rows.Note(m);
    launch.shared_bytes = std::max(launch.shared_bytes, CoefficientSharedBytes(m));
    row_count += part.rows.size();
  }
  RETURN_IF_ERROR(CheckShared(device, launch.shared_bytes, call.hidden, "ExpertLeads"));
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
  return StatusOf(EnqueueLeads(launch, device.stream), "leads of experts");
}

absl::Status Run(Device& device, const RoutedLeadsCall& call) {
  RowsToPrepare rows = RowsOf(call.x, call.tokens, call.hidden);
  LeadsLaunch launch;
  for (const LeadCallPart& part : call.experts) {
    const DeviceMatrix m = MatrixOf(part.lead);
    rows.Note(m);
    launch.shared_bytes = std::max(launch.shared_bytes, CoefficientSharedBytes(m));
  }
  RETURN_IF_ERROR(CheckShared(device, launch.shared_bytes, call.hidden, "RoutedLeads"));
  Workspace workspace(device);
  ASSIGN_OR_RETURN(const PreparedRows prepared, Prepare(device, rows, &workspace));
  RETURN_IF_ERROR(device.tables->Begin(TableBytes(call.experts.size(), sizeof(DeviceLead), 0, 0)));
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
  return StatusOf(EnqueueLeads(launch, device.stream), "leads of experts");
}

}  // namespace sluice::cuda
