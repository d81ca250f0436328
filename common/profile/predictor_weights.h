// PredictorProfile: trained expert predictors as stored in PACK/profile/predictors.bin: FloE's per-layer
// networks (`learned`) and AdapMoE's first-layer gate (`first_layer`).
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/profile/profile.h"

namespace sluice {

inline constexpr char kPredictorsName[] = "predictors.bin";

// Scores of `outputs` experts from an input row x: with units > 0, out = W2 relu(W1 x + b1) + b2; with units
// 0 (linear), W1 and b1 are empty and out = W2 x + b2. Row-major.
struct PredictorNet {
  uint32_t inputs = 0;
  uint32_t units = 0;
  uint32_t outputs = 0;
  double precision = 0;   // on held-out tokens: |predicted top-K and true| / K
  std::vector<float> w1;  // [units, inputs]
  std::vector<float> b1;  // [units]
  std::vector<float> w2;  // [outputs, units or inputs]
  std::vector<float> b2;  // [outputs]

  // Computes out[0 .. outputs); `scratch` has room for `units` values. REQUIRES: x has `inputs` values.
  void Run(const float* x, float* scratch, float* out) const;
  bool operator==(const PredictorNet&) const = default;
};

// Predicts the experts of `layer` + 1 from the data available at `layer`'s router. The input is x_l, the
// router's input, [hidden], then the multi-hot experts of layer `layer`, then those of the routed layer
// before it (zeros if there is none), [experts] each.
struct LearnedPredictor {
  uint32_t layer = 0;
  PredictorNet net;
  bool operator==(const LearnedPredictor&) const = default;
};

// Predicts the experts of the first routed layer for the next token, from the last layer's output (after the
// residual add) at this token: softmax(W a + b).
struct FirstLayerGate {
  bool final_norm = false;  // a is the output after the model's final norm
  double divergence = 0;    // on held-out text: mean KL(true || predicted), nats
  PredictorNet net;         // linear: hidden -> experts
  bool operator==(const FirstLayerGate&) const = default;
};

struct PredictorProfile {
  std::string model_id;
  uint64_t tokens = 0;
  std::vector<LearnedPredictor> learned;  // by ascending layer
  std::optional<FirstLayerGate> first_layer;
  bool operator==(const PredictorProfile&) const = default;

  // Returns the network that predicts layer `layer` + 1, or null.
  const PredictorNet* Learned(uint32_t layer) const;
};

// Parses untrusted bytes, errors as in profile.h: shapes must be those of `config`. An empty `model_id`
// accepts any. Pure function.
absl::StatusOr<PredictorProfile> ParsePredictors(std::string_view bytes, const std::string& subject,
                                                 const ModelConfig& config, const std::string& model_id);
std::string SerializePredictors(const PredictorProfile& profile);

absl::StatusOr<PredictorProfile> ReadPredictors(const std::string& folder, const ModelConfig& config,
                                                const std::string& model_id);

// Returns the number of inputs of the learned predictor at `layer`. REQUIRES: layer < config.layers.size().
uint32_t LearnedInputs(const ModelConfig& config, uint32_t layer);
// Returns the routed layer before `layer`, or -1.
int RoutedLayerBefore(const ModelConfig& config, uint32_t layer);

}  // namespace sluice
