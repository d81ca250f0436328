#include "kernels/cuda/device/dots.cuh"
#include "kernels/cuda/device/expert_rows.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kTile = kNeurons;  // neurons of a block
constexpr uint64_t kDefaultShared = 48 * 1024;

__device__ inline DeviceActivation Of(const ActivationLaunch& a) { return {a.kind, a.alpha, a.limit}; }

// One part of an expert for one row of x: its codes staged, if it is quantized.
struct PartRow {
  StagedRows staged;
  int* sums = nullptr;
  const float* x = nullptr;
};

// Stages row `row` of the rounded rows of a part; the block waits for it. Ends where the next may begin.
__device__ inline int4* StagePart(const DeviceMatrix& m, const uint8_t* rounded, unsigned row, const float* x,
                                  int4* shared, PartRow* part) {
  part->x = x;
  if (IsPlain(m.encoding)) {
    return shared;
  }
  const unsigned units = UnitsOf(m.cols);
  const unsigned units_a_block = UnitsABlock(m.encoding);
  part->staged.codes = shared;
  part->staged.rounded = rounded + row * RoundedStride(m.cols, m.group);
  part->staged.token_quads = StagedQuad(units, units_a_block) + 1;
  StageCodes(part->staged.rounded, 0, 1, units, units_a_block, part->staged.token_quads, shared);
  shared += part->staged.token_quads;
  part->sums = reinterpret_cast<int*>(shared) + threadIdx.x / kLanes * units;
  return shared + (kWarps * units + 3) / 4;
}

// The dot of a neuron's row. Quantized: every lane of the warp has the same row. Plain: every four lanes.
__device__ inline float DotOf(const DeviceMatrix& m, const uint8_t* row, const PartRow& part) {
  float dot[1] = {0};
  if (IsPlain(m.encoding)) {
    PlainDots<1>(m, row, part.x, 0, dot);
  } else if (row != nullptr) {
    QuantizedDots<1>(m, row, part.staged, part.sums, dot);
  }
  return dot[0];
}

// One of two, field by field, so that both stay in registers.
__device__ inline PartRow Choose(bool first, const PartRow& a, const PartRow& b) {
  PartRow part;
  part.staged.codes = first ? a.staged.codes : b.staged.codes;
  part.staged.rounded = first ? a.staged.rounded : b.staged.rounded;
  part.sums = first ? a.sums : b.sums;
  part.x = a.x;
  return part;
}

__device__ inline float Biased(float dot, const float* bias, unsigned neuron) {
  return bias == nullptr ? dot : dot + bias[neuron];
}

// The dots of `m` for the block's neurons [first, first + kTile) where `wanted` is set, into dots[].
__device__ inline void DotsOfTile(const DeviceMatrix& m, const PartRow& part, unsigned first, unsigned end,
                                  const unsigned* wanted, float* dots) {
  if (IsPlain(m.encoding)) {
    for (unsigned i = threadIdx.x / 4; i < kTile; i += kThreads / 4) {
      const bool on = first + i < end && wanted[i] != 0;
      const float dot = DotOf(m, on ? RowOf(m, first + i) : nullptr, part);
      if (threadIdx.x % 4 == 0) {
        dots[i] = dot;
      }
    }
    return;
  }
  for (unsigned i = threadIdx.x / kLanes; i < kTile; i += kWarps) {
    if (first + i < end && wanted[i] != 0) {
      const float dot = DotOf(m, RowOf(m, first + i), part);
      if (threadIdx.x % kLanes == 0) {
        dots[i] = dot;
      }
    }
  }
}

// A block: 64 neurons of one expert for one of its rows; absent neurons and a grid beyond an expert's neurons
// or rows end at once. The rounded x is staged once for up and gate. The part that leads is multiplied first
// (a warp a quantized row, eight plain rows a warp, 16-byte loads: dots.cuh); of the other part only the rows
// of neurons that count are read. Bytes: the rows read, once for each row of x; x once a block, from the
// cache. Bound: memory.
__global__ void __launch_bounds__(kThreads) CoefficientsKernel(ExpertsLaunch launch) {
  extern __shared__ int4 shared[];
  __shared__ unsigned wanted[kTile];
  __shared__ float up[kTile];
  __shared__ float gate[kTile];
  const ExpertRow block = RowOfBlock(launch);
  if (block.expert == nullptr) {
    return;
  }
  const DeviceExpert& e = *block.expert;
  const unsigned first = e.neuron_begin + blockIdx.x * kTile;
  if (first >= e.neuron_end) {
    return;
  }
  const unsigned row = block.row;
  const float* const x = launch.x + row * launch.x_stride;
  const bool made = block.lead_values != nullptr;
  const bool up_made = made && e.lead == Lead::kUp;
  const bool gate_made = made && !up_made;
  PartRow up_part;
  PartRow gate_part;
  int4* const behind = StagePart(e.up, e.up_rounded, row, x, shared, &up_part);
  StagePart(e.gate, e.gate_rounded, row, x, behind, &gate_part);
  for (unsigned i = threadIdx.x; i < kTile; i += kThreads) {
    const unsigned n = first + i;
    wanted[i] = n < e.neuron_end && RowOf(e.up, n) != nullptr && RowOf(e.gate, n) != nullptr &&
                        RowOf(e.down, n) != nullptr
                    ? 1
                    : 0;
    up[i] = up_made && n < e.neuron_end ? block.lead_values[n] : 0.0f;
    gate[i] = gate_made && n < e.neuron_end ? block.lead_values[n] : 0.0f;
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  const DeviceActivation activation = Of(launch.activation);
  const bool gate_first = e.lead == Lead::kGate;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool is_up = (pass == 0) != gate_first;
    const bool is_made = is_up ? up_made : gate_made;
    if (!is_made) {
      const DeviceMatrix m = is_up ? e.up : e.gate;
      DotsOfTile(m, Choose(is_up, up_part, gate_part), first, e.neuron_end, wanted, is_up ? up : gate);
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kTile; i += kThreads) {
      if (wanted[i] != 0) {
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
    }
    __syncthreads();
  }
  for (unsigned i = threadIdx.x; i < kTile && first + i < e.neuron_end; i += kThreads) {
    const float c = gate[i] * up[i];
    const bool counts = wanted[i] != 0 && !(e.lead == Lead::kProduct && fabsf(c) < e.threshold);
    block.coefficients[first + i] = counts ? c : __uint_as_float(kLeftOut);
  }
}

// What a block of LeadsKernel has; no lead: nothing.
struct LeadRow {
  const DeviceLead* lead = nullptr;
  unsigned row = 0;  // of x
  float* values = nullptr;
};
__device__ inline LeadRow LeadOfBlock(const LeadsLaunch& launch) {
  if (launch.routed.ids != nullptr) {
    const BlockPair block = PairOfBlock(launch.routed, launch.lead_count);
    return block.expert == kNoExpert ? LeadRow{}
                                     : LeadRow{&launch.leads[block.expert], blockIdx.z,
                                               launch.values + block.pair * launch.values_stride};
  }
  const DeviceLead& lead = launch.leads[blockIdx.y];
  return blockIdx.z >= lead.row_count
             ? LeadRow{}
             : LeadRow{&lead, lead.rows[blockIdx.z], lead.values + blockIdx.z * lead.values_stride};
}

// The lead part alone: a block has 64 neurons of one expert for one of its rows. As above.
__global__ void __launch_bounds__(kThreads) LeadsKernel(LeadsLaunch launch) {
  extern __shared__ int4 shared[];
  __shared__ unsigned wanted[kTile];
  __shared__ float dots[kTile];
  const LeadRow block = LeadOfBlock(launch);
  const unsigned first = blockIdx.x * kTile;
  if (block.lead == nullptr || first >= block.lead->lead.rows) {
    return;
  }
  const DeviceLead& lead = *block.lead;
  PartRow part;
  StagePart(lead.lead, lead.rounded, block.row, launch.x + block.row * launch.x_stride, shared, &part);
  for (unsigned i = threadIdx.x; i < kTile; i += kThreads) {
    wanted[i] = first + i < lead.lead.rows ? 1 : 0;
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  DotsOfTile(lead.lead, part, first, lead.lead.rows, wanted, dots);
  __syncthreads();
  const DeviceActivation activation = Of(launch.activation);
  for (unsigned i = threadIdx.x; i < kTile; i += kThreads) {
    if (wanted[i] != 0) {
      const float dot = Biased(dots[i], lead.bias, first + i);
      block.values[first + i] = launch.up ? UpFactor(activation, dot) : GateFactor(activation, dot);
    }
  }
}

// A warp 64 neurons of an expert: which of them count for any of its rows, or for the pair's. Bytes: the
// values once. Bound: latency.
__global__ void __launch_bounds__(kLanes) LeadMasksKernel(LeadsLaunch launch) {
  const unsigned first = blockIdx.x * kTile;
  const DeviceLead* lead = &launch.leads[blockIdx.y];
  const float* values = nullptr;
  uint64_t stride = 0;
  unsigned rows = 1;
  uint64_t* active = nullptr;
  if (launch.routed.ids != nullptr) {
    const BlockPair block = PairOfBlock(launch.routed, launch.lead_count);
    if (block.expert == kNoExpert) {
      return;
    }
    lead = &launch.leads[block.expert];
    values = launch.values + block.pair * launch.values_stride;
    active = launch.active + uint64_t{block.pair} * gridDim.x;
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

template <typename Kernel>
cudaError_t Allow(Kernel kernel, uint64_t shared) {
  return shared <= kDefaultShared ? cudaSuccess
                                  : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                         static_cast<int>(shared));
}

unsigned Tiles(uint32_t neurons) { return (neurons + kTile - 1) / kTile; }

}  // namespace

uint64_t CoefficientSharedBytes(const DeviceMatrix& part) {
  if (part.encoding <= Encoding::kF32) {
    return 0;
  }
  const uint64_t units = UnitsOf(part.cols);
  const uint64_t quads = 2 * units + units / UnitsABlock(part.encoding) + 1;
  return 16 * (quads + (kWarps * units + 3) / 4);
}

cudaError_t EnqueueCoefficients(const ExpertsLaunch& launch, cudaStream_t stream) {
  const cudaError_t error = Allow(CoefficientsKernel, launch.shared_bytes);
  if (error != cudaSuccess) {
    return error;
  }
  const dim3 grid =
      ExpertGrid(Tiles(launch.max_neurons), launch.routed, launch.expert_count, launch.max_rows);
  CoefficientsKernel<<<grid, kThreads, launch.shared_bytes, stream>>>(launch);
  return cudaGetLastError();
}

cudaError_t EnqueueLeads(const LeadsLaunch& launch, cudaStream_t stream) {
  cudaError_t error = Allow(LeadsKernel, launch.shared_bytes);
  if (error != cudaSuccess) {
    return error;
  }
  const unsigned tiles = Tiles(launch.max_neurons);
  LeadsKernel<<<ExpertGrid(tiles, launch.routed, launch.lead_count, launch.max_rows), kThreads,
                launch.shared_bytes, stream>>>(launch);
  error = cudaGetLastError();
  if (error != cudaSuccess || !launch.masks) {
    return error;
  }
  LeadMasksKernel<<<ExpertGrid(tiles, launch.routed, launch.lead_count, 1), kLanes, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
