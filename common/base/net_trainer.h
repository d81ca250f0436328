// Training of small networks on the CPU: Adam on one layer or two, and the matrix products below it.
//
// Thread safety: pure functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// The only matrix product that training needs.
//
// Thread safety: a pure function, safe to call from any thread.

// c[i, j] += sum over k ascending of a(i, k) * b[k, j] for i < rows, j < cols, k < depth, with
// a(i, k) = a[i * a_row + k * a_col]; b and c are row-major and packed.
void AddProduct(uint32_t rows, uint32_t cols, uint32_t depth, const float* a, uint64_t a_row, uint64_t a_col,
                const float* b, float* c);

// Trains small networks with Adam: one layer or two (ReLU between) of float32, on batches in the caller's
// memory. Meant for expert predictors: a few hundred thousand weights, tens of thousands of rows.
//
// The result depends on data, shape, options and seed alone: one thread trains one network, and sums have a
// fixed order. Train several networks on several threads.
//
// Thread safety: TrainNet and Loss may be called from any thread; a TrainingRows is used by one thread at a
// time.

// out = W2 relu(W1 x + b1) + b2, or W2 x + b2 with units == 0. Stored for the kernels: transposed.
struct TrainedNet {
  uint32_t inputs = 0;
  uint32_t units = 0;
  uint32_t outputs = 0;
  std::vector<float> w1;  // [inputs, units]
  std::vector<float> b1;  // [units]
  std::vector<float> w2;  // [units or inputs, outputs]
  std::vector<float> b2;  // [outputs]
};

// Rows to train on.
class TrainingRows {
 public:
  virtual ~TrainingRows() = default;
  virtual uint64_t rows() const = 0;
  // Row `row`: x[0 .. inputs), target[0 .. outputs).
  virtual void Fill(uint64_t row, float* x, float* target) const = 0;
};

enum class TrainingLoss : uint8_t {
  kBinary,   // sum over outputs of the binary cross-entropy of sigmoid(out) against targets in 0..1
  kSoftmax,  // cross-entropy of softmax(out) against a distribution: KL divergence up to a constant
};

struct TrainOptions {
  uint32_t units = 0;
  TrainingLoss loss = TrainingLoss::kBinary;
  uint32_t epochs = 6;
  uint32_t batch = 128;
  // Adam's step size; falls linearly to a tenth over the training.
  float rate = 2e-3f;
  uint64_t seed = 1;
};

// CANCELLED once `*cancel` is true (may be null). INVALID_ARGUMENT without rows, inputs or outputs.
absl::StatusOr<TrainedNet> TrainNet(const TrainingRows& source, uint32_t inputs, uint32_t outputs,
                                    const TrainOptions& options, const std::atomic<bool>* cancel);

// Outputs of `rows` rows x [rows, inputs]; `hidden` has room for [rows, units].
void RunNet(const TrainedNet& net, uint32_t rows, const float* x, float* hidden, float* out);

// Mean loss of one batch over its rows, and its gradient by every weight; public for the numeric check.
struct NetGradient {
  std::vector<float> w1, b1, w2, b2;  // shapes as in TrainedNet
};
double LossAndGradient(const TrainedNet& net, TrainingLoss loss, uint32_t rows, const float* x,
                       const float* target, NetGradient* gradient);

}  // namespace sluice
