#include <algorithm>

#include "kernels/cuda/device/dots.cuh"
#include "kernels/cuda/device/experts.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kLanes;

__device__ inline DeviceActivation Of(const ActivationLaunch& a) { return {a.kind, a.alpha, a.limit}; }

// One part of an expert for one row of x: the row rounded in shared memory, if the part is quantized.
struct PartRow {
  StagedRows staged;
  int* sums = nullptr;  // the warp's
  const float* x = nullptr;
};

// Where the rounded rows of up and gate stand: behind `room` bytes of the warps' sums, which the values that
// are rounded here share with them.
struct SharedRows {
  uint8_t* up;
  uint8_t* gate;
};
__device__ inline SharedRows PlacesOf(const DeviceMatrix& up, const DeviceMatrix& gate, unsigned room,
                                      int4* shared) {
  uint8_t* const first = reinterpret_cast<uint8_t*>(shared) + room;
  const bool two = !IsPlain(up.encoding) && !IsPlain(gate.encoding) && gate.group != up.group;
  return {first, two ? first + StagedBytes(up.cols, up.group) : first};
}

// Row `row` of x rounded for a part into shared memory; the copies are waited for by the caller.
__device__ inline void StagePart(const DeviceMatrix& m, const uint8_t* rounded, const float* x, unsigned row,
                                 uint8_t* to, int4* values) {
  if (IsPlain(m.encoding)) {
    return;
  }
  if (rounded != nullptr) {
    StageRounded(rounded + row * RoundedStride(m.cols, m.group), 0, 1, 0, m.cols, m.group, to);
    return;
  }
  NormAndRound(x, {}, {to, m.cols, m.group}, reinterpret_cast<float*>(values));
}

// The list of the neurons whose flag is set, by warp 0; the block waits.
__device__ inline void Compact(const uint8_t* wanted, NeuronList* list) {
  if (threadIdx.x < kLanes) {
    CompactByWarp(wanted[threadIdx.x] != 0, wanted[threadIdx.x + kLanes] != 0, list);
  }
  __syncthreads();
}

__device__ inline float Biased(float dot, const float* bias, unsigned neuron) {
  return bias == nullptr ? dot : dot + bias[neuron];
}

// The dots of the listed neurons' rows, `first` being the block's first neuron, into dots[]: four quantized
// rows a warp, eight plain ones.
__device__ inline void DotsOfList(const DeviceMatrix& m, const PartRow& part, unsigned first,
                                  const NeuronList& list, float* dots) {
  const unsigned count = list.count;
  const unsigned warp = threadIdx.x / kLanes;
  if (IsPlain(m.encoding)) {
    if (warp * (kLanes / 4) < count) {
      const unsigned i = threadIdx.x / 4;
      const float* const x[1] = {part.x};
      float dot[1];
      PlainDots<1>(m, i < count ? RowOf(m, first + list.neurons[i]) : nullptr, x, dot);
      if (i < count && threadIdx.x % 4 == 0) {
        dots[list.neurons[i]] = dot[0];
      }
    }
    return;
  }
  for (unsigned four = kDots * warp; four < count; four += kDots * kWarps) {
    const uint8_t* rows[kDots];
    RowsOfFour(m, first, list.Four(four), rows);
    const float dot = QuantizedDots<kDots, 1>(m, rows, part.staged, part.sums);
    const unsigned i = four + threadIdx.x % kLanes / kDotLanes;
    if (threadIdx.x % kDotLanes == 0 && i < count) {
      dots[list.neurons[i]] = dot;
    }
  }
}

// A block: 64 neurons of one expert for one of its rows; absent neurons and a grid beyond an expert's neurons
// end at once. The rounded x is in shared memory once for up and gate. The part that leads is multiplied
// first (a warp four quantized rows, eight plain rows a warp, 16-byte loads: dots.cuh); of the other part
// only the rows of neurons that count are read, their list being made once. The remaining neurons are written
// as a NeuronBlock, with the coefficients rounded for the down rows. Bytes: the rows read, once for each row
// of x; x once a block, from the cache. Bound: memory.
__global__ void __launch_bounds__(kThreads, 2) CoefficientsKernel(ExpertsLaunch launch) {
  extern __shared__ int4 shared[];
  __shared__ uint8_t wanted[kNeurons];
  __shared__ uint8_t kept[kNeurons];
  __shared__ float up[kNeurons];
  __shared__ float gate[kNeurons];
  __shared__ unsigned counted[kNeurons / kLanes];
  __shared__ NeuronList list;
  const PairOfBlock block = PairOf(launch);
  if (block.expert == nullptr) {
    return;
  }
  const DeviceExpert& e = *block.expert;
  const unsigned first = e.neuron_begin + (launch.first_block + blockIdx.x) * kNeurons;
  if (first >= e.neuron_end) {
    return;
  }
  const float* const x = launch.x + block.pair.row * launch.x_stride;
  const bool made = e.lead_values != nullptr;
  const bool up_made = made && e.lead == Lead::kUp;
  const bool gate_made = made && !up_made;
  const SharedRows rows = PlacesOf(e.up, e.gate, launch.shared.work_bytes, shared);
  StagePart(e.up, e.up_rounded, x, block.pair.row, rows.up, shared);
  if (rows.gate != rows.up || IsPlain(e.up.encoding)) {
    StagePart(e.gate, e.gate_rounded, x, block.pair.row, rows.gate, shared);
  }
  if (threadIdx.x < kNeurons) {
    const unsigned n = first + threadIdx.x;
    const bool inside = n < e.neuron_end;
    wanted[threadIdx.x] = inside && HasRow(e.up, n) && HasRow(e.gate, n) && HasRow(e.down, n);
    const float* const lead = e.lead_values + block.pair.lead_row * e.lead_stride;
    up[threadIdx.x] = up_made && inside ? lead[n] : 0.0f;
    gate[threadIdx.x] = gate_made && inside ? lead[n] : 0.0f;
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  Compact(wanted, &list);
  const DeviceActivation activation = Of(launch.activation);
  const bool gate_first = e.lead == Lead::kGate;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool is_up = (pass == 0) != gate_first;
    const bool is_made = is_up ? up_made : gate_made;
    if (!is_made) {
      const DeviceMatrix* const chosen = is_up ? &e.up : &e.gate;
      const DeviceMatrix m = *chosen;
      PartRow part;
      part.staged.base = is_up ? rows.up : rows.gate;
      part.sums = reinterpret_cast<int*>(shared) + threadIdx.x / kLanes * launch.shared.warp_sums;
      part.x = x;
      DotsOfList(m, part, first, list, is_up ? up : gate);
    }
    __syncthreads();
    if (threadIdx.x < list.count) {
      const unsigned i = list.neurons[threadIdx.x];
      float factor = 0;
      if (is_up) {
        factor = is_made ? up[i] : UpFactor(activation, Biased(up[i], e.up_bias, first + i));
        up[i] = factor;
      } else {
        factor = is_made ? gate[i] : GateFactor(activation, Biased(gate[i], e.gate_bias, first + i));
        gate[i] = factor;
      }
      const bool leads = pass == 0 && (e.lead == Lead::kUp || e.lead == Lead::kGate);
      if (leads && fabsf(factor) < e.threshold) {
        wanted[i] = 0;
      }
    }
    __syncthreads();
    if (pass == 0) {
      Compact(wanted, &list);
    }
  }
  bool counts = false;
  if (threadIdx.x < kNeurons) {
    const float c = gate[threadIdx.x] * up[threadIdx.x];
    counts = wanted[threadIdx.x] != 0 && !(e.lead == Lead::kProduct && fabsf(c) < e.threshold);
    // A coefficient of 0 adds nothing (section 0, closing).
    kept[threadIdx.x] = counts && c != 0;
    up[threadIdx.x] = c;
  }
  if (threadIdx.x < kNeurons) {
    const unsigned count = __popc(__ballot_sync(kAllLanes, counts));
    if (threadIdx.x % kLanes == 0) {
      counted[threadIdx.x / kLanes] = count;
    }
  }
  __syncthreads();
  if (launch.by_outputs) {
    if (threadIdx.x < kNeurons) {
      reinterpret_cast<float*>(block.blocks)[blockIdx.x * kNeurons + threadIdx.x] =
          kept[threadIdx.x] != 0 ? up[threadIdx.x] : 0.0f;
    }
    if (threadIdx.x == 0) {
      CountsOf(launch, block.blocks)[blockIdx.x] = counted[0] + counted[1];
    }
    return;
  }
  Compact(kept, &list);
  WriteBlock<WholeBlock>(e.down, first, counted[0] + counted[1], list, gate,
                         block.blocks + blockIdx.x * launch.block_bytes, [&](unsigned n) { return up[n]; });
}

// The work of a block of LeadsKernel; empty without a lead.
struct LeadRow {
  const DeviceLead* lead = nullptr;
  unsigned row = 0;  // of x
  float* values = nullptr;
};
__device__ inline LeadRow LeadOfBlock(const LeadsLaunch& launch) {
  if (launch.routed.ids != nullptr) {
    const unsigned pair = blockIdx.z * launch.routed.ranks + blockIdx.y;
    const unsigned expert = ExpertOf(launch.routed, launch.lead_count, pair);
    return expert == kNoExpert
               ? LeadRow{}
               : LeadRow{&launch.leads[expert], blockIdx.z, launch.values + pair * launch.values_stride};
  }
  const DeviceLead& lead = launch.leads[blockIdx.y];
  return blockIdx.z >= lead.row_count
             ? LeadRow{}
             : LeadRow{&lead, lead.rows[blockIdx.z], lead.values + blockIdx.z * lead.values_stride};
}

// The lead part alone: a block has 64 neurons of one expert for one of its rows. As above.
__global__ void __launch_bounds__(kThreads, 2) LeadsKernel(LeadsLaunch launch) {
  extern __shared__ int4 shared[];
  __shared__ float dots[kNeurons];
  __shared__ NeuronList list;
  const LeadRow block = LeadOfBlock(launch);
  const unsigned first = blockIdx.x * kNeurons;
  if (block.lead == nullptr || first >= block.lead->lead.rows) {
    return;
  }
  const DeviceLead& lead = *block.lead;
  const DeviceMatrix& m = lead.lead;
  const float* const x = launch.x + block.row * launch.x_stride;
  const SharedRows rows = PlacesOf(m, m, launch.shared.work_bytes, shared);
  StagePart(m, lead.rounded, x, block.row, rows.up, shared);
  const unsigned count = min(kNeurons, m.rows - first);
  if (threadIdx.x < kNeurons) {
    list.neurons[threadIdx.x] = static_cast<uint8_t>(min(threadIdx.x, count - 1));
  }
  if (threadIdx.x == 0) {
    list.count = count;
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  PartRow part;
  part.staged.base = rows.up;
  part.sums = reinterpret_cast<int*>(shared) + threadIdx.x / kLanes * launch.shared.warp_sums;
  part.x = x;
  DotsOfList(m, part, first, list, dots);
  __syncthreads();
  const DeviceActivation activation = Of(launch.activation);
  if (threadIdx.x < list.count) {
    const unsigned n = first + threadIdx.x;
    const float dot = Biased(dots[threadIdx.x], lead.bias, n);
    block.values[n] = launch.up ? UpFactor(activation, dot) : GateFactor(activation, dot);
  }
}

// A warp 64 neurons of an expert: which of them count for any of its rows, or for the pair's. Bytes: the
// values once. Bound: latency.
__global__ void __launch_bounds__(kLanes) LeadMasksKernel(LeadsLaunch launch) {
  const unsigned first = blockIdx.x * kNeurons;
  const DeviceLead* lead = &launch.leads[blockIdx.y];
  const float* values = nullptr;
  uint64_t stride = 0;
  unsigned rows = 1;
  uint64_t* active = nullptr;
  if (launch.routed.ids != nullptr) {
    const unsigned pair = blockIdx.z * launch.routed.ranks + blockIdx.y;
    const unsigned expert = ExpertOf(launch.routed, launch.lead_count, pair);
    if (expert == kNoExpert) {
      return;
    }
    lead = &launch.leads[expert];
    values = launch.values + pair * launch.values_stride;
    active = launch.active + uint64_t{pair} * gridDim.x;
  } else {
    values = lead->values;
    stride = lead->values_stride;
    rows = lead->row_count;
    active = lead->active;
  }
  if (active == nullptr || first >= lead->lead.rows) {
    return;
  }
  unsigned halves[2];
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned n = first + half * kLanes + threadIdx.x;
    bool counts = false;
    for (unsigned i = 0; i < rows && n < lead->lead.rows; ++i) {
      counts = counts || !(fabsf(values[i * stride + n]) < lead->threshold);
    }
    halves[half] = __ballot_sync(kAllLanes, counts);
  }
  if (threadIdx.x == 0) {
    active[blockIdx.x] = static_cast<uint64_t>(halves[1]) << 32 | halves[0];
  }
}

}  // namespace

void WidenShared(const DeviceMatrix& up, const DeviceMatrix& gate, bool rounds, CoefficientsShared* shared) {
  const auto is_coded = [](const DeviceMatrix& m) { return m.encoding > Encoding::kF32; };
  uint32_t rows = 0;
  for (const DeviceMatrix* m : {&up, &gate}) {
    if (is_coded(*m)) {
      const bool another = rows == 0 || gate.group != up.group;
      rows += another ? StagedBytes(m->cols, m->group) : 0;
      shared->warp_sums = std::max(shared->warp_sums, DotSums(m->encoding, m->group));
      shared->work_bytes = std::max(
          {shared->work_bytes, 4 * kWarps * shared->warp_sums, rounds ? 4 * RoundedCodes(m->cols) : 0});
    }
  }
  shared->row_bytes = std::max(shared->row_bytes, rows);
}

cudaError_t EnqueueCoefficients(const ExpertsLaunch& launch, Launcher& launcher) {
  const dim3 grid(launch.block_count, launch.pair_count);
  return launcher.Launch(CoefficientsKernel, grid, kThreads, launch.shared.bytes(), launch);
}

cudaError_t EnqueueLeads(const LeadsLaunch& launch, Launcher& launcher) {
  // A listed lead and its rows, or a rank and a token.
  const bool routed = launch.routed.ids != nullptr;
  const unsigned blocks = BlocksOf(launch.max_neurons);
  const unsigned leads = routed ? launch.routed.top_ranks : launch.lead_count;
  const dim3 grid(blocks, leads, routed ? launch.routed.tokens : launch.max_rows);
  const cudaError_t error = launcher.Launch(LeadsKernel, grid, kThreads, launch.shared.bytes(), launch);
  if (error != cudaSuccess || !launch.masks) {
    return error;
  }
  const dim3 masks(blocks, leads, routed ? launch.routed.tokens : 1);
  return launcher.Launch(LeadMasksKernel, masks, kLanes, 0, launch);
}

}  // namespace sluice::cuda
