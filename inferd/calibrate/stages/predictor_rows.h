// Recorded features as training rows of predictors, and the score of a network on held-out rows.
//
// Thread safety: immutable after construction; safe to read from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/profile/predictor_weights.h"
#include "common/train/net_trainer.h"

namespace sluice::inferd {

// Rows [first, first + rows()) of another source: training and held-out parts.
class RowRange final : public RowSource {
 public:
  RowRange(const RowSource& rows, uint64_t first, uint64_t count)
      : source_(rows), first_(first), count_(count) {}
  uint64_t rows() const override { return count_; }
  void Fill(uint64_t row, float* x, float* target) const override { source_.Fill(first_ + row, x, target); }

 private:
  const RowSource& source_;
  const uint64_t first_;
  const uint64_t count_;
};

// The chosen experts of one layer, [positions, top_k].
struct ChosenExperts {
  uint32_t experts = 0;  // experts of the layer
  uint32_t top_k = 0;
  std::vector<uint16_t> ids;
};

// Inputs and targets of a learned predictor (inputs: predictor_weights.h).
class LearnedRows final : public RowSource {
 public:
  // `inputs`: float16 [positions, hidden]. `before` may have no ids if there is no previous layer.
  LearnedRows(uint32_t hidden, std::vector<uint16_t> inputs, ChosenExperts own, ChosenExperts before,
              ChosenExperts next);
  uint64_t rows() const override { return inputs_.size() / hidden_; }
  void Fill(uint64_t row, float* x, float* target) const override;
  uint32_t width() const { return hidden_ + own_.experts + before_.experts; }

 private:
  const uint32_t hidden_;
  const std::vector<uint16_t> inputs_;
  const ChosenExperts own_, before_, next_;
};

// Inputs a(p) * scale and the distribution softmax(logits(p + 1)) for the positions p of `followed`.
class FirstLayerRows final : public RowSource {
 public:
  // `outputs`: [positions, hidden]; `logits`: [positions, experts].
  FirstLayerRows(uint32_t hidden, uint32_t experts, std::vector<float> outputs, std::vector<float> logits,
                 const std::vector<uint64_t>& followed);
  uint64_t rows() const override { return followed_.size(); }
  void Fill(uint64_t row, float* x, float* target) const override;
  // Factor that scales the inputs to a root mean square of 1.
  float scale() const { return scale_; }

 private:
  const uint32_t hidden_;
  const uint32_t experts_;
  const std::vector<float> outputs_;
  const std::vector<float> logits_;
  const std::vector<uint64_t> followed_;
  float scale_ = 1;
};

struct HeldOutResult {
  double precision = 0;   // mean of |predicted top-K and true top-K| / K
  double divergence = 0;  // mean KL(target || softmax(out)), if targets are distributions
};
HeldOutResult Evaluate(const TrainedNet& net, const RowSource& rows, uint32_t top_k);

// Converts a network to its stored form. The input factor `scale` is folded into the weights.
PredictorNet Stored(const TrainedNet& net, float scale, double precision);

}  // namespace sluice::inferd
