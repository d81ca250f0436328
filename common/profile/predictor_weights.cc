#include "common/profile/predictor_weights.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/profile/profile_file.h"

namespace sluice {
namespace {

constexpr std::string_view kMagic = "SLPREDIC";
constexpr uint32_t kVersion = 1;
constexpr size_t kIdDigits = 32;
constexpr uint32_t kMaxUnits = 1u << 16;
constexpr uint64_t kMaxBytes = 16ull << 30;

// Computes out = matrix x + bias, with the matrix [rows, cols] row-major. A plain loop in a fixed order:
// predictors are small, and must choose the same experts on every machine.
void Affine(const std::vector<float>& matrix, const std::vector<float>& bias, uint32_t cols, const float* x,
            float* out) {
  for (size_t row = 0; row < bias.size(); ++row) {
    const float* weights = matrix.data() + row * cols;
    float sum = bias[row];
    for (uint32_t c = 0; c < cols; ++c) sum += weights[c] * x[c];
    out[row] = sum;
  }
}

void AppendNet(const PredictorNet& net, std::string* out) {
  AppendValue(net.inputs, out);
  AppendValue(net.units, out);
  AppendValue(net.outputs, out);
  AppendValue(uint32_t{0}, out);
  AppendValue(net.precision, out);
  for (const std::vector<float>* values : {&net.w1, &net.b1, &net.w2, &net.b2}) AppendValues(*values, out);
}

absl::StatusOr<PredictorNet> TakeNet(uint32_t inputs, uint32_t outputs, ByteReader* reader) {
  PredictorNet net;
  uint32_t zero = 0;
  RETURN_IF_ERROR(reader->Take(&net.inputs));
  RETURN_IF_ERROR(reader->Take(&net.units));
  RETURN_IF_ERROR(reader->Take(&net.outputs));
  RETURN_IF_ERROR(reader->Take(&zero));
  RETURN_IF_ERROR(reader->Take(&net.precision));
  // Sizes are checked against the model before they are used for allocation.
  if (net.inputs != inputs || net.outputs != outputs || net.units > kMaxUnits || zero != 0) {
    return reader->Damaged(absl::StrCat("a network of ", net.inputs, " -> ", net.units, " -> ", net.outputs,
                                        " where the model needs ", inputs, " -> ", outputs));
  }
  if (!(net.precision >= 0 && net.precision <= 1)) return reader->Damaged("a precision outside 0..1");
  const uint64_t last = net.units > 0 ? net.units : net.inputs;
  RETURN_IF_ERROR(reader->TakeFinite(uint64_t{net.units} * net.inputs, "weights", &net.w1));
  RETURN_IF_ERROR(reader->TakeFinite(net.units, "weights", &net.b1));
  RETURN_IF_ERROR(reader->TakeFinite(net.outputs * last, "weights", &net.w2));
  RETURN_IF_ERROR(reader->TakeFinite(net.outputs, "weights", &net.b2));
  return net;
}

absl::Status TakeLearned(const ModelConfig& config, ByteReader* reader, PredictorProfile* profile) {
  uint32_t count = 0;
  RETURN_IF_ERROR(reader->Take(&count));
  for (uint32_t i = 0; i < count; ++i) {
    LearnedPredictor learned;
    RETURN_IF_ERROR(reader->Take(&learned.layer));
    const bool ascends = profile->learned.empty() || learned.layer > profile->learned.back().layer;
    if (!ascends || learned.layer + uint64_t{1} >= config.layers.size() ||
        config.layers[learned.layer].moe.experts == 0 || config.layers[learned.layer + 1].moe.experts == 0) {
      return reader->Damaged(absl::StrCat("a predictor for layer ", learned.layer, ", which has none"));
    }
    ASSIGN_OR_RETURN(learned.net, TakeNet(LearnedInputs(config, learned.layer),
                                          config.layers[learned.layer + 1].moe.experts, reader));
    profile->learned.push_back(std::move(learned));
  }
  return absl::OkStatus();
}

absl::Status TakeFirstLayer(const ModelConfig& config, ByteReader* reader, PredictorProfile* profile) {
  uint32_t count = 0;
  RETURN_IF_ERROR(reader->Take(&count));
  if (count == 0) return absl::OkStatus();
  const auto routed = std::find_if(config.layers.begin(), config.layers.end(),
                                   [](const LayerConfig& layer) { return layer.moe.experts > 0; });
  uint32_t final_norm = 0;
  FirstLayerGate gate;
  RETURN_IF_ERROR(reader->Take(&final_norm));
  RETURN_IF_ERROR(reader->Take(&gate.divergence));
  if (count != 1 || final_norm > 1 || routed == config.layers.end() ||
      !(gate.divergence >= 0 && gate.divergence <= 1e6)) {
    return reader->Damaged("a first-layer gate that cannot be");
  }
  gate.final_norm = final_norm == 1;
  ASSIGN_OR_RETURN(gate.net, TakeNet(config.hidden, routed->moe.experts, reader));
  if (gate.net.units != 0) return reader->Damaged("a first-layer gate that is not linear");
  profile->first_layer = std::move(gate);
  return absl::OkStatus();
}

}  // namespace

void PredictorNet::Run(const float* x, float* scratch, float* out) const {
  if (units == 0) {
    Affine(w2, b2, inputs, x, out);
    return;
  }
  Affine(w1, b1, inputs, x, scratch);
  for (uint32_t i = 0; i < units; ++i) scratch[i] = std::max(scratch[i], 0.0f);
  Affine(w2, b2, units, scratch, out);
}

const PredictorNet* PredictorProfile::Learned(uint32_t layer) const {
  for (const LearnedPredictor& predictor : learned) {
    if (predictor.layer == layer) return &predictor.net;
  }
  return nullptr;
}

int RoutedLayerBefore(const ModelConfig& config, uint32_t layer) {
  int before = static_cast<int>(layer) - 1;
  while (before >= 0 && config.layers[static_cast<size_t>(before)].moe.experts == 0) --before;
  return before;
}

uint32_t LearnedInputs(const ModelConfig& config, uint32_t layer) {
  const int before = RoutedLayerBefore(config, layer);
  const uint32_t own = config.layers[layer].moe.experts;
  return config.hidden + own + (before < 0 ? own : config.layers[static_cast<size_t>(before)].moe.experts);
}

absl::StatusOr<PredictorProfile> ParsePredictors(std::string_view bytes, const std::string& subject,
                                                 const ModelConfig& config, const std::string& model_id) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(bytes, kMagic, subject));
  ByteReader reader(body, subject);
  uint32_t version = 0;
  RETURN_IF_ERROR(reader.Take(&version));
  if (version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat(subject, ": version ", version, " is not supported (this build reads ", kVersion, ")"));
  }
  PredictorProfile profile;
  RETURN_IF_ERROR(reader.TakeText(kIdDigits, &profile.model_id));
  RETURN_IF_ERROR(CheckProfileKey(subject, "model_id", profile.model_id, model_id));
  RETURN_IF_ERROR(reader.Take(&profile.tokens));
  RETURN_IF_ERROR(TakeLearned(config, &reader, &profile));
  RETURN_IF_ERROR(TakeFirstLayer(config, &reader, &profile));
  RETURN_IF_ERROR(reader.Finish());
  return profile;
}

std::string SerializePredictors(const PredictorProfile& profile) {
  std::string out(kMagic);
  AppendValue(kVersion, &out);
  out += profile.model_id;
  AppendValue(profile.tokens, &out);
  AppendValue(static_cast<uint32_t>(profile.learned.size()), &out);
  for (const LearnedPredictor& learned : profile.learned) {
    AppendValue(learned.layer, &out);
    AppendNet(learned.net, &out);
  }
  AppendValue(uint32_t{profile.first_layer.has_value()}, &out);
  if (profile.first_layer.has_value()) {
    AppendValue(uint32_t{profile.first_layer->final_norm}, &out);
    AppendValue(profile.first_layer->divergence, &out);
    AppendNet(profile.first_layer->net, &out);
  }
  Seal(&out);
  return out;
}

absl::StatusOr<PredictorProfile> ReadPredictors(const std::string& folder, const ModelConfig& config,
                                                const std::string& model_id) {
  const std::string path = absl::StrCat(folder, "/", kPredictorsName);
  ASSIGN_OR_RETURN(const std::string bytes, ReadProfileFile(path, kMaxBytes));
  return ParsePredictors(bytes, path, config, model_id);
}

}  // namespace sluice
