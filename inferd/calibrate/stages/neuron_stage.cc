#include "inferd/calibrate/stages/neuron_stage.h"

#include <algorithm>
#include <utility>

#include "common/status.h"
#include "inferd/calibrate/stages/expert_products.h"

namespace sluice::inferd {
namespace {

constexpr uint64_t kNeuronHistogramBytes = 256ull << 20;

}  // namespace

NeuronStage::NeuronStage(const ModelConfig& config, const ProfileKeys& keys,
                         const std::vector<CalibrationWindow>& windows, uint64_t count, WindowHost* host)
    : config_(config),
      keys_(keys),
      windows_(windows),
      count_(count),
      host_(host),
      experts_(TotalExperts(config)),
      histograms_(kInputs * kLeads * experts_,
                  ActivationHistograms::MantissaBitsFor(kInputs * kLeads * experts_, kNeuronHistogramBytes)) {
  uint64_t first = 0;
  for (const LayerConfig& layer : config.layers) {
    first_expert_.push_back(first);
    first += layer.moe.experts;
  }
}

absl::Status NeuronStage::RunUnit(uint64_t unit) {
  known_ = false;
  RETURN_IF_ERROR(host_->Run(windows_[unit], {.observer = this, .loss = false}).status());
  tokens_ += windows_[unit].input.size();
  return absl::OkStatus();
}

// Allocates the buffers. The runner owns them, so they are allocated in the first hook, when the runner
// exists.
absl::Status NeuronStage::Allocate() {
  uint64_t positions = 0;
  for (const CalibrationWindow& window : windows_) {
    positions = std::max<uint64_t>(positions, window.input.size());
  }
  for (Inputs* inputs : {&last_, &next_}) {
    for (Rows& rows : *inputs) {
      ASSIGN_OR_RETURN(const BufferId buffer,
                       host_->runner().parts().backend->Allocate(positions * config_.hidden * sizeof(float),
                                                                 BufferKind::kActivations));
      rows = {{buffer, 0}, config_.hidden};
    }
  }
  copied_.resize(positions * config_.hidden);
  allocated_ = true;
  return absl::OkStatus();
}

int NeuronStage::NextRouted(uint32_t layer) const {
  for (uint32_t next = layer + 1; next < config_.layers.size(); ++next) {
    if (config_.layers[next].moe.experts > 0) return static_cast<int>(next);
  }
  return -1;
}

absl::Status NeuronStage::AfterRouter(const RouterState& state) {
  if (!allocated_) RETURN_IF_ERROR(Allocate());
  routing_ = state.routing;
  const int next = NextRouted(state.layer);
  if (next < 0) return absl::OkStatus();
  const ModelParts& parts = host_->runner().parts();
  Queue& queue = parts.backend->queue();
  const uint32_t hidden = config_.hidden;
  const uint32_t tokens = routing_.tokens;
  RETURN_IF_ERROR(host_->runner().Read(state.normed, tokens, hidden, copied_.data()));
  RETURN_IF_ERROR(queue.Upload(copied_.data(), uint64_t{tokens} * hidden * sizeof(float), next_[0].base));
  return queue.Norm({state.residual, tokens, hidden,
                     parts.weights->layer(static_cast<uint32_t>(next)).ExpertsNorm(), next_[1]});
}

absl::Status NeuronStage::AfterLayer(const LayerEnd& end) {
  if (config_.layers[end.layer].moe.experts > 0) {
    // The rows saved at this layer are the next layer's prediction inputs; the buffers swap roles.
    std::swap(last_, next_);
    known_ = true;
  }
  return absl::OkStatus();
}

absl::Status NeuronStage::BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) {
  if (config_.layers[layer].moe.experts == 0 || !known_) return absl::OkStatus();
  for (const ExpertWork& work : args.experts) {
    const bool routed = work.slots[0] % routing_.ranks < routing_.top_k;  // else the common expert
    if (routed) RETURN_IF_ERROR(CountExpert(layer, args, work));
  }
  return absl::OkStatus();
}

absl::Status NeuronStage::CountExpert(uint32_t layer, const MoeExpertsArgs& args, const ExpertWork& work) {
  const uint64_t expert = first_expert_[layer] + static_cast<uint32_t>(routing_.ids[work.slots[0]]);
  rows_.clear();
  for (const uint32_t slot : work.slots) rows_.push_back(slot / routing_.ranks);
  for (uint32_t input = 0; input < kInputs; ++input) {
    RETURN_IF_ERROR(
        VisitFactors(host_->runner(), args.activation, work, last_[input], rows_, [&](float up, float gate) {
          histograms_.Add(TableOf(input, 0, expert), up);
          histograms_.Add(TableOf(input, 1, expert), gate);
        }));
  }
  return absl::OkStatus();
}

void NeuronStage::Save(std::string* out) const {
  AppendValue(tokens_, out);
  histograms_.Save(out);
}

absl::Status NeuronStage::Load(ByteReader* reader) {
  RETURN_IF_ERROR(reader->Take(&tokens_));
  return histograms_.Load(reader);
}

// Builds the tables. An expert that no row chose gets its layer's pooled table, as in thresholds.bin; zeros
// if the layer has none either.
ThresholdTables NeuronStage::Tables(uint32_t input) const {
  ThresholdTables tables(keys_.model_id, tokens_, RoutedExperts(config_), FineShares());
  for (uint32_t lead = 0; lead < kLeads; ++lead) {
    const Lead kind = lead == 0 ? Lead::kUp : Lead::kGate;
    for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
      const uint32_t experts = config_.layers[layer].moe.experts;
      const uint64_t first = TableOf(input, lead, first_expert_[layer]);
      for (uint32_t expert = 0; expert < experts; ++expert) {
        const absl::Span<float> table = tables.table(kind, layer, expert);
        if (!histograms_.Quantiles(first + expert, 1, tables.shares(), table)) {
          histograms_.Quantiles(first, experts, tables.shares(), table);
        }
      }
    }
    histograms_.Quantiles(TableOf(input, lead, 0), experts_, tables.shares(), tables.pooled(kind));
  }
  return tables;
}

absl::StatusOr<std::map<std::string, std::string>> NeuronStage::Finish() {
  return std::map<std::string, std::string>{{kNeuronHiddenName, SerializeThresholds(Tables(0))},
                                            {kNeuronNormedName, SerializeThresholds(Tables(1))}};
}

}  // namespace sluice::inferd
