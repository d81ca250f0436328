// Experts (ARITHMETIC.md section 3): lead values and masks, coefficients, and the sums over down rows. All
// experts of a call in one launch each; tables of them lie in device memory.
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <bitset>
#include <cstdint>

#include "common/model/model_config.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/matrix.h"

namespace sluice::cuda {

inline constexpr uint32_t kNeurons = 64;  // of a block of neurons

// As DeviceActivation of scalar.cuh, which hosts cannot include.
struct ActivationLaunch {
  Activation kind = Activation::kSilu;
  float alpha = 0;
  float limit = 0;
  bool operator==(const ActivationLaunch& other) const = default;
};

// The part whose values decide if a neuron counts (ops.h: SparsityOrder).
enum class Lead : uint8_t { kNone = 0, kUp = 1, kGate = 2, kProduct = 3 };

// One expert. Rows of x that are its are pairs of the launch.
struct DeviceExpert {
  DeviceMatrix up;
  DeviceMatrix gate;
  DeviceMatrix down;
  uint32_t neuron_begin = 0;
  uint32_t neuron_end = 0;
  Lead lead = Lead::kNone;
  float threshold = 0;
  const float* up_bias = nullptr;
  const float* gate_bias = nullptr;
  const float* down_bias = nullptr;
  const float* lead_values = nullptr;  // [its rows][lead_stride], or none
  uint64_t lead_stride = 0;
  // Rounded rows of all x (matrix.h) of the groups of up and of gate; none for a plain part, and where blocks
  // round x themselves.
  const uint8_t* up_rounded = nullptr;
  const uint8_t* gate_rounded = nullptr;
  bool operator==(const DeviceExpert& other) const = default;
};

// One expert for one row.
inline constexpr uint32_t kNoExpert = 0xffffffffu;
struct ExpertPair {
  uint32_t expert = 0;    // or kNoExpert: nothing is computed
  uint32_t row = 0;       // of x
  uint32_t slot = 0;      // of y
  uint32_t lead_row = 0;  // of the expert's lead_values
  bool operator==(const ExpertPair& other) const = default;
};

// Up to kTilePairs neighbouring pairs of one expert.
inline constexpr uint32_t kTilePairs = 32;
struct ExpertTile {
  uint32_t expert = 0;
  uint32_t first = 0;  // pair
  uint32_t count = 0;
  bool operator==(const ExpertTile& other) const = default;
};
// The most tiles that pairs of these experts make.
inline constexpr uint32_t TilesOf(uint32_t pairs, uint32_t experts) {
  return pairs / kTilePairs + (experts < pairs ? experts : pairs);
}

// The router's choice, which is known on the device only: pair p = token * ranks + rank is of expert ids[p].
struct RoutedPairs {
  const int32_t* ids = nullptr;    // none: pairs are listed
  const float* weights = nullptr;  // a pair of weight 0 is left out; none: none is
  uint32_t tokens = 0;
  uint32_t ranks = 0;
  uint32_t top_ranks = 0;  // ranks that are computed, the first ones
  bool by_slot = false;    // row p of x is pair p's, else its token's
  bool operator==(const RoutedPairs& other) const = default;
};

// The result of a block of kNeurons neurons for a pair, in device memory: the number of kept neurons, the
// numbers of those from the block's first one in ascending order (the last one again up to whole fours), and
// their coefficients. Then for each group of columns of a quantized down part, G of them, its values of
// section 3: the scale and the zeros' sum, and the rounded coefficients, those of four neurons a word.
struct NeuronBlock {
  uint32_t kept = 0;
  uint32_t counted = 0;  // kept ones, and those whose coefficient is 0
  uint8_t neurons[kNeurons];
  float coefficients[kNeurons];
};
static_assert(sizeof(NeuronBlock) % 4 == 0);
inline constexpr uint64_t BlockScales() { return sizeof(NeuronBlock); }  // float[G]
inline constexpr uint64_t BlockZeros(uint32_t groups) {
  return BlockScales() + uint64_t{4} * groups;
}  // float[G]
// int32[kNeurons / 4][G]
inline constexpr uint64_t BlockCodes(uint32_t groups) { return BlockZeros(groups) + uint64_t{4} * groups; }
inline constexpr uint64_t BlockBytes(uint32_t groups) {
  return (BlockCodes(groups) + uint64_t{kNeurons} * groups + 15) / 16 * 16;
}
inline constexpr uint32_t BlocksOf(uint32_t neurons) { return (neurons + kNeurons - 1) / kNeurons; }

// The result of a pair whose down part is by outputs, in device memory: the coefficients of all its blocks of
// neurons, a row of float[kNeurons * blocks]; the blocks' counted neurons, uint32[blocks]; and at a multiple
// of 16 the row rounded for down (matrix.h).
inline constexpr uint64_t CoefficientRow(uint32_t blocks) { return uint64_t{4} * kNeurons * blocks; }
inline constexpr uint64_t RoundedCoefficients(uint32_t blocks) {
  return (CoefficientRow(blocks) + uint64_t{4} * blocks + 15) / 16 * 16;
}

// Shared memory of a block that makes coefficients, of the expert that needs most of each: the warps' sums,
// and behind them rows of x.
struct CoefficientsShared {
  uint32_t warp_sums = 0;  // int32 for a warp's dots
  uint32_t work_bytes = 0;
  uint32_t row_bytes = 0;
  uint32_t bytes() const { return work_bytes + row_bytes; }
  bool operator==(const CoefficientsShared& other) const = default;
};

struct ExpertsLaunch {
  const DeviceExpert* experts = nullptr;  // device; by id where pairs are routed
  uint32_t expert_count = 0;
  const ExpertPair* pairs = nullptr;  // device, or routed
  RoutedPairs routed;
  uint32_t first_pair = 0;
  uint32_t pair_count = 0;
  // First block of neurons in this launch. From the second block of an expert on, y is added to.
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  uint8_t* blocks = nullptr;  // [pair_count][pair_bytes]: [block_count][block_bytes], or a CoefficientRow
  uint64_t pair_bytes = 0;
  // Down by outputs: all blocks of neurons are in one launch.
  bool by_outputs = false;
  uint64_t rounded_at = 0;     // in a pair's bytes
  uint64_t rounded_bytes = 0;  // of the longest rounded row; 0: every down part is plain
  uint32_t staged_bytes = 0;   // the same in shared memory
  uint32_t output_sums = 0;    // int32 of a warp's dots
  uint32_t max_outputs = 0;
  // Pairs by expert in tiles, where tensor cores multiply; how many there are, where only the device knows.
  const ExpertTile* tiles = nullptr;
  const uint32_t* tile_count = nullptr;
  uint32_t max_expert_tiles = 0;
  std::bitset<kEncodingNumbers> up_encodings;  // of experts' up parts
  uint64_t block_bytes = 0;                    // BlockBytes() of the down part that has most groups
  uint32_t max_neurons = 0;                    // neuron_end - neuron_begin
  CoefficientsShared shared;
  uint32_t max_tiles = 0;    // for the sums: DownTiles() of the expert that has most
  uint32_t down_warps = 0;   // and DownWarps()
  const float* x = nullptr;  // for plain parts: aligned to 16, stride a multiple of 4 floats
  uint64_t x_stride = 0;
  ActivationLaunch activation;
  float* y = nullptr;
  uint64_t y_stride = 0;
  uint32_t* active = nullptr;  // [slots], or none
  bool operator==(const ExpertsLaunch& other) const = default;
};

// Makes room for these parts of an expert; `rounds`: for blocks that round x themselves, too.
void WidenShared(const DeviceMatrix& up, const DeviceMatrix& gate, bool rounds, CoefficientsShared* shared);
// Blocks of columns of a down part.
uint32_t DownTiles(const DeviceMatrix& down);
// Warps of such a block for so many neurons.
uint32_t DownWarps(const DeviceMatrix& down, uint32_t neurons);

// The blocks of neurons [neuron_begin, neuron_end) of every pair's expert.
cudaError_t EnqueueCoefficients(const ExpertsLaunch& launch, Launcher& launcher);
// The same for many pairs, from their tiles: where TakesTiles() says so of every expert.
bool TakesTiles(const DeviceExpert& expert);
cudaError_t EnqueueExpertTiles(const ExpertsLaunch& launch, Launcher& launcher);
// Routed pairs as listed ones, by expert, and their tiles: [tokens * ranks] and [TilesOf()].
// cudaErrorInvalidValue above 3072 experts.
cudaError_t EnqueueSortPairs(const ExpertsLaunch& launch, ExpertPair* pairs, ExpertTile* tiles,
                             uint32_t* tile_count, Launcher& launcher);
// y of every pair's slot, from the blocks.
cudaError_t EnqueueDown(const ExpertsLaunch& launch, Launcher& launcher);
// The same of down parts by outputs. WidenOutputs: makes room for one; OutputsShared: shared memory of a
// block.
void WidenOutputs(const DeviceMatrix& down, ExpertsLaunch* launch);
uint64_t OutputsShared(const ExpertsLaunch& launch);
cudaError_t EnqueueOutputs(const ExpertsLaunch& launch, Launcher& launcher);

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
  bool operator==(const DeviceLead& other) const = default;
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
  CoefficientsShared shared;
  bool masks = false;  // some lead wants its mask
  bool up = false;
  const float* x = nullptr;
  uint64_t x_stride = 0;
  ActivationLaunch activation;
  bool operator==(const LeadsLaunch& other) const = default;
};
// One launch, two with masks.
cudaError_t EnqueueLeads(const LeadsLaunch& launch, Launcher& launcher);

}  // namespace sluice::cuda
