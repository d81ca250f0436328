// Experts (ARITHMETIC.md section 3): lead values and masks, coefficients, and the sums over down rows. All
// experts of a call in one launch each; tables of them lie in device memory.
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/model/model_config.h"
#include "kernels/cuda/device/matrix.h"

namespace sluice::cuda {

inline constexpr uint32_t kNeurons = 64;  // of a block of neurons

// As DeviceActivation of scalar.cuh, which hosts cannot include.
struct ActivationLaunch {
  Activation kind = Activation::kSilu;
  float alpha = 0;
  float limit = 0;
};

// What decides whether a neuron counts (ops.h: SparsityOrder).
enum class Lead : uint8_t { kNone = 0, kUp = 1, kGate = 2, kProduct = 3 };

// What a coefficient is where the neuron is left out: no kernel computes this NaN.
inline constexpr uint32_t kLeftOut = 0x7fd1ce5eu;

// One expert. Its rows' coefficients stand at `coefficients` [row_count][coefficient_stride].
struct DeviceExpert {
  DeviceMatrix up;
  DeviceMatrix gate;
  DeviceMatrix down;
  const uint32_t* rows = nullptr;   // of x
  const uint32_t* slots = nullptr;  // of y
  uint32_t row_count = 0;
  uint32_t neuron_begin = 0;
  uint32_t neuron_end = 0;
  Lead lead = Lead::kNone;
  float threshold = 0;
  const float* up_bias = nullptr;
  const float* gate_bias = nullptr;
  const float* down_bias = nullptr;
  const float* lead_values = nullptr;  // [row_count][lead_stride], or none
  uint64_t lead_stride = 0;
  float* coefficients = nullptr;
  uint64_t coefficient_stride = 0;
  // Rounded rows of all x (matrix.h) of the groups of up and of gate; none for a plain part.
  const uint8_t* up_rounded = nullptr;
  const uint8_t* gate_rounded = nullptr;
};

// What the router chose, which only the device knows: pair p = token * ranks + rank is of expert ids[p].
struct RoutedPairs {
  const int32_t* ids = nullptr;    // none: experts have lists of their rows
  const float* weights = nullptr;  // a pair of weight 0 is left out; none: none is
  uint32_t tokens = 0;
  uint32_t ranks = 0;
  uint32_t top_ranks = 0;  // ranks that are computed, the first ones
  bool by_slot = false;    // row p of x is pair p's, else its token's
};

struct ExpertsLaunch {
  const DeviceExpert* experts = nullptr;  // device; by id, without rows, where pairs are routed
  uint32_t expert_count = 0;
  RoutedPairs routed;
  float* coefficients = nullptr;  // routed: [pairs][coefficient_stride]
  uint64_t coefficient_stride = 0;
  uint32_t max_rows = 0;      // of an expert
  uint32_t max_neurons = 0;   // neuron_end - neuron_begin
  uint64_t shared_bytes = 0;  // for coefficients: CoefficientSharedBytes() of the expert that needs most
  uint32_t max_tiles = 0;     // for the sums: DownTiles() of the expert that has most
  const float* x = nullptr;   // for plain parts; aligned to 16, stride a multiple of 4 floats
  uint64_t x_stride = 0;
  uint32_t hidden = 0;
  ActivationLaunch activation;
  float* y = nullptr;
  uint64_t y_stride = 0;
  uint32_t* active = nullptr;  // [slots], or none
};

// Shared memory that a block needs for the rows of this part.
uint64_t CoefficientSharedBytes(const DeviceMatrix& part);
// Blocks of columns of a down part.
uint32_t DownTiles(const DeviceMatrix& down);

// The coefficients of neurons [neuron_begin, neuron_end) of every expert's rows; kLeftOut where a neuron does
// not count.
cudaError_t EnqueueCoefficients(const ExpertsLaunch& launch, cudaStream_t stream);
// y of every slot, from the coefficients.
cudaError_t EnqueueDown(const ExpertsLaunch& launch, cudaStream_t stream);

struct DeviceLead {
  DeviceMatrix lead;
  const uint32_t* rows = nullptr;
  uint32_t row_count = 0;
  const float* bias = nullptr;
  float threshold = 0;
  float* values = nullptr;
  uint64_t values_stride = 0;
  uint64_t* active = nullptr;
  const uint8_t* rounded = nullptr;
};

struct LeadsLaunch {
  const DeviceLead* leads = nullptr;  // device; by id, without rows, where pairs are routed
  uint32_t lead_count = 0;
  RoutedPairs routed;
  float* values = nullptr;  // routed: [pairs][values_stride]
  uint64_t values_stride = 0;
  uint64_t* active = nullptr;  // routed: [pairs][blocks of neurons]
  uint32_t max_rows = 0;
  uint32_t max_neurons = 0;
  uint64_t shared_bytes = 0;
  bool masks = false;  // some lead wants its mask
  bool up = false;
  const float* x = nullptr;
  uint64_t x_stride = 0;
  ActivationLaunch activation;
};
// One launch, two with masks.
cudaError_t EnqueueLeads(const LeadsLaunch& launch, cudaStream_t stream);

}  // namespace sluice::cuda
