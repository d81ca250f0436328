#include "kernels/cuda/device/heads.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / kLanes;

// Writes a head's `dim` values, which lie in shared memory, into one side of the cache.
__device__ inline void StoreHead(const DeviceKv& kv, unsigned dim, uint8_t* page, unsigned kv_head,
                                 unsigned token, const float* values) {
  const uint64_t index = uint64_t{kv_head} * kPagePositions + token;
  float* const scales = reinterpret_cast<float*>(page + uint64_t{kv.kv_heads} * kPagePositions * dim);
  StoreRow(kv.kind, dim, values, page + index * dim * ValueBytes(kv.kind), scales + index);
}

// A head into shared memory, normed, clipped and rotated; `factor`: of the norm across heads.
__device__ inline void TurnHead(const KvWriteLaunch& launch, const float* from, const float* weight,
                                unsigned weight_first, float epsilon, float factor, const float* cos_sin,
                                float* head) {
  const unsigned dim = launch.kv.head_dim;
  const unsigned lane = threadIdx.x % kLanes;
  const bool by_head = launch.qk_norm == QkNorm::kPerHead || launch.qk_norm == QkNorm::kWeightedKey;
  const float r = by_head ? NormFactor(from, dim, epsilon) : factor;
  const bool normed = by_head || launch.qk_norm == QkNorm::kAcrossHeads;
  for (unsigned d = lane; d < dim; d += kLanes) {
    float x = from[d];
    if (normed) {
      x = weight == nullptr ? x * r : x * r * weight[weight_first + d];
    }
    if (launch.clip > 0) {
      x = x < -launch.clip ? -launch.clip : launch.clip < x ? launch.clip : x;
    }
    head[d] = x;
  }
  __syncwarp();
  RopeHead(cos_sin, launch.rope_dims, launch.rope_interleaved, head + launch.rope_offset);
  __syncwarp();
  const bool weighted = launch.qk_norm == QkNorm::kWeightedAfterRope;
  if (weighted || launch.qk_norm == QkNorm::kPerHeadAfterRope) {
    const float after = NormFactor(head, dim, epsilon);
    for (unsigned d = lane; d < dim; d += kLanes) {
      head[d] = weighted ? head[d] * after * weight[d] : head[d] * after;
    }
    __syncwarp();
  }
}

// Returns the factor of q at a position (section 6).
__device__ inline float TemperatureAt(const DeviceTemperature& t, unsigned position) {
  if (t.scale == 0) {
    return 1.0f;
  }
  const unsigned long long steps = (static_cast<unsigned long long>(position) + t.offset) / t.floor;
  return static_cast<float>(1 + static_cast<double>(t.scale) * LogOf(1 + static_cast<double>(steps)));
}

// A warp a head of q, k or v of a row, in shared memory, 128 neighbouring bytes a load; f16 is written by 4
// bytes a lane. With a norm across heads one block has the whole row, and its warps take the heads in turn:
// all of q has to be read before a head of it is written. Bytes: q read and written, k and v read and
// written in the cache's type. Bound: latency for a decode step, memory for a prompt. (Asked for one block a
// multiprocessor at least, ptxas keeps in registers what lives across divisions; else it spills on
// sm_80, 90.)
__global__ void __launch_bounds__(kThreads, 1) KvWriteKernel(KvWriteLaunch launch) {
  extern __shared__ float heads_of_warps[];  // [kWarps][head_dim]
  __shared__ float across[2];                // factors of q and k normed across heads
  const RowPlace place = launch.places[blockIdx.x];
  const DeviceKv& kv = launch.kv;
  const unsigned dim = kv.head_dim;
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  float* const q = launch.q + place.row * launch.q_stride;
  const float* const k = launch.k + place.row * launch.k_stride;
  const float* const v = launch.v + place.row * launch.v_stride;
  if (launch.qk_norm != QkNorm::kAcrossHeads) {
    if (threadIdx.x < 2) {
      across[threadIdx.x] = 1.0f;
    }
  } else if (warp < 2) {
    const float r = warp == 0 ? NormFactor(q, launch.heads * dim, launch.q_epsilon)
                              : NormFactor(k, kv.kv_heads * dim, launch.k_epsilon);
    if (lane == 0) {
      across[warp] = r;
    }
  }
  __syncthreads();
  const bool is_across = launch.qk_norm == QkNorm::kAcrossHeads;
  const float* const cos_sin = launch.rope_table + uint64_t{place.position} * launch.rope_dims;
  const unsigned page = place.pages[place.position / kPagePositions];
  const unsigned token = place.position % kPagePositions;
  const float temperature = TemperatureAt(launch.temperature, place.position);
  float* const head = heads_of_warps + warp * dim;
  const unsigned sides = launch.v == nullptr ? 1 : 2;  // keys alone, or values too
  const unsigned heads = launch.heads + sides * kv.kv_heads;
  for (unsigned h = blockIdx.y * kWarps + warp; h < heads; h += gridDim.y * kWarps) {
    __syncwarp();
    if (h < launch.heads) {
      TurnHead(launch, q + h * dim, launch.q_weight, is_across ? h * dim : 0, launch.q_epsilon, across[0],
               cos_sin, head);
      for (unsigned d = lane; d < dim; d += kLanes) {
        q[h * dim + d] = head[d] * temperature;
      }
    } else if (h < launch.heads + kv.kv_heads) {
      const unsigned kv_head = h - launch.heads;
      TurnHead(launch, k + kv_head * dim, launch.k_weight, is_across ? kv_head * dim : 0, launch.k_epsilon,
               across[1], cos_sin, head);
      StoreHead(kv, dim, kv.k + page * kv.page_stride, kv_head, token, head);
    } else {
      const unsigned kv_head = h - launch.heads - kv.kv_heads;
      const unsigned v_dim = kv.value_dim;
      const float* const values = v + kv_head * v_dim;
      const float r = launch.value_norm ? NormFactor(values, v_dim, launch.k_epsilon) : 1.0f;
      for (unsigned d = lane; d < v_dim; d += kLanes) {
        const float x = values[d] * r;
        const float clip = launch.clip;
        head[d] = clip > 0 ? (x < -clip ? -clip : clip < x ? clip : x) : x;
      }
      __syncwarp();
      StoreHead(kv, v_dim, kv.v + page * kv.v_page_stride, kv_head, token, head);
    }
  }
}

// The first warp of a row's blocks makes the cache's row, each other one rotates a head of q and, with a
// temperature, multiplies its absorbed part too. Widths and bounds as above.
__global__ void __launch_bounds__(kThreads) LatentKvWriteKernel(LatentKvWriteLaunch launch) {
  extern __shared__ float rows_of_warps[];  // [kWarps][kv_rank + rope_dims]
  const RowPlace place = launch.places[blockIdx.x];
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned item = blockIdx.y * kWarps + warp;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned rank = launch.kv_rank;
  const unsigned row = rank + launch.rope_dims;
  const float* const cos_sin = launch.rope_table + uint64_t{place.position} * launch.rope_dims;
  float* const turned = rows_of_warps + warp * row;
  if (item == 0) {
    const float* const latent = launch.latent + place.row * launch.latent_stride;
    const float r = launch.normed ? NormFactor(latent, rank, launch.epsilon) : 1.0f;
    for (unsigned d = lane; d < row; d += kLanes) {
      turned[d] = launch.normed && d < rank ? latent[d] * r * launch.weight[d] : latent[d];
    }
    __syncwarp();
    RopeHead(cos_sin, launch.rope_dims, launch.rope_interleaved, turned + rank);
    __syncwarp();
    StoreHead(launch.kv, row,
              launch.kv.k + place.pages[place.position / kPagePositions] * launch.kv.page_stride, 0,
              place.position % kPagePositions, turned);
    return;
  }
  if (item > launch.heads) {
    return;
  }
  const unsigned h = item - 1;
  const float* const q =
      launch.q + place.row * launch.q_stride + h * (launch.nope_dim + launch.rope_dims) + launch.nope_dim;
  float* const out = launch.q_out + place.row * launch.q_out_stride + h * row + rank;
  for (unsigned d = lane; d < launch.rope_dims; d += kLanes) {
    turned[d] = q[d];
  }
  __syncwarp();
  RopeHead(cos_sin, launch.rope_dims, launch.rope_interleaved, turned);
  __syncwarp();
  const float temperature = TemperatureAt(launch.temperature, place.position);
  for (unsigned d = lane; d < launch.rope_dims; d += kLanes) {
    out[d] = turned[d] * temperature;
  }
  if (launch.temperature.scale != 0) {
    float* const absorbed = out - rank;
    for (unsigned d = lane; d < rank; d += kLanes) {
      absorbed[d] = absorbed[d] * temperature;
    }
  }
}

}  // namespace

cudaError_t EnqueueKvWrite(const KvWriteLaunch& launch, Launcher& launcher) {
  const uint64_t shared = uint64_t{4} * kWarps * launch.kv.head_dim;
  const uint32_t heads = launch.heads + (launch.v == nullptr ? 1 : 2) * launch.kv.kv_heads;
  const bool whole = launch.qk_norm == QkNorm::kAcrossHeads;
  const dim3 grid(launch.rows, whole ? 1 : (heads + kWarps - 1) / kWarps);
  return launcher.Launch(KvWriteKernel, grid, kThreads, shared, launch);
}

cudaError_t EnqueueLatentKvWrite(const LatentKvWriteLaunch& launch, Launcher& launcher) {
  const uint64_t shared = uint64_t{4} * kWarps * (launch.kv_rank + launch.rope_dims);
  const dim3 grid(launch.rows, launch.heads / kWarps + 1);  // a warp a head, and one for the cache's row
  return launcher.Launch(LatentKvWriteKernel, grid, kThreads, shared, launch);
}

}  // namespace sluice::cuda
