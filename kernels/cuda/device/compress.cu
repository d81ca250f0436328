#include "kernels/cuda/device/compress.h"
#include "kernels/cuda/device/heads.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;

// A block a row, a thread a pair of a head. Bytes: the rotated values read and written. Bound: latency for a
// decode step, memory for a prompt.
__global__ void __launch_bounds__(kThreads) RopeHeadsKernel(RopeHeadsLaunch launch) {
  const RowPlace place = launch.places[blockIdx.x];
  const DeviceRope& rope = launch.rope;
  const float* const cos_sin = rope.table + uint64_t{place.position} * rope.dims;
  float* const row = launch.x + place.row * launch.x_stride + rope.offset;
  const unsigned pairs = rope.dims / 2;
  for (unsigned i = threadIdx.x; i < launch.heads * pairs; i += kThreads) {
    RopePair(cos_sin, rope.dims, rope.interleaved, launch.back, i % pairs, row + i / pairs * launch.head_dim);
  }
}

// The values of a position, and its gates: a row of the call, or of the state before it.
struct Source {
  const float* values;
  const float* gates;
};
__device__ inline Source SourceOf(const CompressLaunch& launch, const CompressSequence& sequence,
                                  unsigned position) {
  if (position >= sequence.first_position) {
    const uint64_t t = sequence.first_row + (position - sequence.first_position);
    return {launch.values + t * launch.values_stride, launch.gates + t * launch.gates_stride};
  }
  const float* const kept = sequence.from + uint64_t{position % launch.Kept()} * launch.KeptFloats();
  return {kept, kept + launch.Width()};
}

// Column `c` of the mean of the positions of entry `e`.
__device__ inline float MeanOf(const CompressLaunch& launch, const CompressSequence& sequence, unsigned e,
                               unsigned c) {
  const unsigned rate = launch.entries.rate;
  float out = 0;
#pragma unroll 4
  for (unsigned i = 0; i < rate; ++i) {
    out = out + SourceOf(launch, sequence, e * rate + i).values[c];
  }
  return out / static_cast<float>(rate);
}

// Column `c` of entry `e`, weighted by the softmax of its gates: with overlap over the first halves of the
// window before, if there is one, then the last halves of the own one.
__device__ inline float WeightedOf(const CompressLaunch& launch, const CompressSequence& sequence, unsigned e,
                                   unsigned c) {
  const unsigned rate = launch.entries.rate;
  const unsigned before = launch.overlap && e > 0 ? rate : 0;
  const unsigned count = before + rate;
  const unsigned own_column = launch.Width() - launch.entries.head_dim + c;
  const auto column = [=](unsigned i) { return i < before ? c : own_column; };
  const auto gate = [&](const Source& from, unsigned i) {
    const unsigned row = i < before ? i : i - before;
    return from.gates[column(i)] + launch.bias[row * launch.bias_stride + column(i)];
  };
  float largest = 0;
#pragma unroll 4
  for (unsigned i = 0; i < count; ++i) {
    const float g = gate(SourceOf(launch, sequence, e * rate - before + i), i);
    largest = i == 0 || g > largest ? g : largest;
  }
  float sum = 0;
  float out = 0;
#pragma unroll 4
  for (unsigned i = 0; i < count; ++i) {
    const Source from = SourceOf(launch, sequence, e * rate - before + i);
    const float weight = Exp(gate(from, i) - largest);
    sum = sum + weight;
    out = out + weight * from.values[column(i)];
  }
  return out / sum;
}

// Keeps row `i` of the state: the nearest position to the end that is i modulo their number, or zeros.
__device__ inline void KeepSource(const CompressLaunch& launch, const CompressSequence& sequence,
                                  unsigned i) {
  const unsigned end = sequence.first_position + sequence.rows;
  const unsigned back = (end - 1 + launch.Kept() - i) % launch.Kept();
  float* const to = sequence.to + uint64_t{i} * launch.KeptFloats();
  const unsigned width = launch.Width();
  const bool is_there = back < end;
  const Source from = is_there ? SourceOf(launch, sequence, end - 1 - back) : Source{nullptr, nullptr};
  for (unsigned c = threadIdx.x; c < launch.KeptFloats(); c += kThreads) {
    to[c] = !is_there ? 0.0f : c < width ? from.values[c] : from.gates[c - width];
  }
}

// A block an entry that a sequence completes, a thread some of its columns: 128 neighbouring bytes a warp and
// position; warp 0 norms, rotates and writes it. Behind the entries a block a row of the state. Bytes: values
// and gates of the entry's positions, gates twice (the second time from the cache). Bound: memory.
__global__ void __launch_bounds__(kThreads) CompressKernel(CompressLaunch launch) {
  extern __shared__ float entry[];  // [head_dim]
  const CompressSequence sequence = launch.sequences[blockIdx.y];
  if (blockIdx.x >= launch.most_entries) {
    KeepSource(launch, sequence, blockIdx.x - launch.most_entries);
    return;
  }
  const unsigned dim = launch.entries.head_dim;
  const unsigned rate = launch.entries.rate;
  const unsigned e = sequence.first_position / rate + blockIdx.x;
  if (e >= (sequence.first_position + sequence.rows) / rate) {
    return;
  }
  for (unsigned c = threadIdx.x; c < dim; c += kThreads) {
    entry[c] = launch.gates == nullptr ? MeanOf(launch, sequence, e, c) : WeightedOf(launch, sequence, e, c);
  }
  __syncthreads();
  if (threadIdx.x >= kLanes) {
    return;
  }
  if (launch.norm_weight != nullptr) {
    const float r = NormFactor(entry, dim, launch.norm_epsilon);
    for (unsigned c = threadIdx.x; c < dim; c += kLanes) {
      entry[c] = entry[c] * r * launch.norm_weight[c];
    }
    __syncwarp();
  }
  const DeviceRope& rope = launch.rope;
  RopeHead(rope.table + uint64_t{e} * rate * rope.dims, rope.dims, rope.interleaved, entry + rope.offset);
  __syncwarp();
  const DeviceEntries& entries = launch.entries;
  uint8_t* const page = entries.base + sequence.pages[entries.PageOf(e)] * entries.page_stride;
  const unsigned row = entries.RowOf(e);
  StoreRow(entries.kind, dim, entry, page + entries.RowOffset(row),
           reinterpret_cast<float*>(page + entries.ScaleOffset(row)));
}

}  // namespace

cudaError_t EnqueueRopeHeads(const RopeHeadsLaunch& launch, Launcher& launcher) {
  return launcher.Launch(RopeHeadsKernel, launch.rows, kThreads, 0, launch);
}

cudaError_t EnqueueCompress(const CompressLaunch& launch, Launcher& launcher) {
  const dim3 grid(launch.most_entries + launch.Kept(), launch.count);
  return launcher.Launch(CompressKernel, grid, kThreads, uint64_t{4} * launch.entries.head_dim, launch);
}

}  // namespace sluice::cuda
