// The up and gate products of a routed expert, computed by the experts' own kernels, for the stages that
// collect activations.
//
// Thread safety: see calibration_stage.h; called from observers.

#include "inferd/calibrate/activation_stage.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/profile/threshold_tables.h"
#include "inferd/calibrate/window_runner.h"
#include "kernels/ops.h"
#include "kernels/reference/scalar.h"

namespace sluice::inferd {

// Receives the up and gate factors of one neuron of a tile, for one row.
using FactorVisitor = std::function<void(float up, float gate)>;

// Calls `visit` for each of the rows `rows` of x [any, hidden], in order, and in each row for every neuron of
// `work`'s tile. Uses the runner's scratch.
absl::Status VisitFactors(const WindowRunner& runner, const ActivationSpec& activation,
                          const ExpertWork& work, const Rows& x, absl::Span<const uint32_t> rows,
                          const FactorVisitor& visit);

namespace {

// Returns a part's rows [begin, end): the neurons of a tile.
WeightView NeuronRange(WeightView view, uint32_t begin, uint32_t end) {
  view.base = view.base + begin * view.stride;
  view.rows = end - begin;
  return view;
}

}  // namespace

absl::Status VisitFactors(const WindowRunner& runner, const ActivationSpec& activation,
                          const ExpertWork& work, const Rows& x, absl::Span<const uint32_t> rows,
                          const FactorVisitor& visit) {
  const uint32_t end = work.neuron_end == 0 ? work.up.rows : work.neuron_end;
  const uint32_t neurons = end - work.neuron_begin;
  const Rows up = runner.scratch(0);
  const Rows gate = runner.scratch(1);
  const uint64_t bias_offset = work.neuron_begin * sizeof(float);
  const bool gated = bool{work.gate.base};
  const BufferRef gate_bias = gated ? work.gate_bias : work.up_bias;
  const MatMulPart parts[] = {{NeuronRange(work.up, work.neuron_begin, end), up,
                               work.up_bias ? work.up_bias + bias_offset : BufferRef{}},
                              {NeuronRange(gated ? work.gate : work.up, work.neuron_begin, end), gate,
                               gate_bias ? gate_bias + bias_offset : BufferRef{}}};
  Queue& queue = runner.parts().backend->queue();
  MatMulArgs matmul;
  matmul.x = x;
  matmul.tokens = static_cast<uint32_t>(rows.size());
  matmul.cols = work.up.cols;
  matmul.row_ids = rows;
  matmul.parts = parts;
  RETURN_IF_ERROR(queue.MatMul(matmul));
  RETURN_IF_ERROR(queue.Wait(queue.Record()));
  for (uint32_t row = 0; row < rows.size(); ++row) {
    const float* u = runner.HostRow(up, row, neurons);
    const float* g = runner.HostRow(gate, row, neurons);
    if (u == nullptr || g == nullptr) return absl::InternalError("calibration scratch cannot be read");
    for (uint32_t j = 0; j < neurons; ++j) {
      visit(reference::UpFactor(activation, u[j]), reference::GateFactor(activation, g[j]));
    }
  }
  return absl::OkStatus();
}

namespace {

// Bytes of all histograms together. It allows 10 bits of mantissa for models of up to 1024 experts, 7 for 48
// layers of 128.
constexpr uint64_t kActivationHistogramBytes = 768ull << 20;

}  // namespace

ActivationStage::ActivationStage(const ModelConfig& config, const ProfileKeys& keys,
                                 const std::vector<CalibrationWindow>& windows, WindowHost* host,
                                 FeatureRecorder* features)
    : config_(config),
      keys_(keys),
      windows_(windows),
      host_(host),
      features_(features),
      experts_(TotalExperts(config)),
      used_(experts_),
      histograms_(kLeadCount * experts_,
                  ActivationHistograms::MantissaBitsFor(kLeadCount * experts_, kActivationHistogramBytes)) {
  uint64_t first = 0;
  for (const LayerConfig& layer : config.layers) {
    first_expert_.push_back(first);
    first += layer.moe.experts;
  }
}

absl::Status ActivationStage::RunUnit(uint64_t unit) {
  if (features_ != nullptr) features_->BeginWindow(tokens_);
  RETURN_IF_ERROR(host_->Run(windows_[unit], {.observer = this, .loss = false}).status());
  tokens_ += windows_[unit].input.size();
  return CheckFinite();
}

absl::Status ActivationStage::AfterRouter(const RouterState& state) {
  routing_ = state.routing;
  const uint64_t first = first_expert_[state.layer];
  for (uint32_t token = 0; token < routing_.tokens; ++token) {
    for (uint32_t rank = 0; rank < routing_.top_k; ++rank) {
      ++used_[first + static_cast<uint32_t>(routing_.ids[uint64_t{token} * routing_.ranks + rank])];
    }
  }
  return features_ == nullptr ? absl::OkStatus() : features_->TakeRouter(state, host_->runner());
}

absl::Status ActivationStage::AfterLayer(const LayerEnd& end) {
  return features_ == nullptr ? absl::OkStatus() : features_->TakeLayerEnd(end, host_->runner());
}

absl::Status ActivationStage::BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) {
  if (config_.layers[layer].moe.experts == 0) return absl::OkStatus();
  for (const ExpertWork& work : args.experts) {
    const bool routed = work.slots[0] % routing_.ranks < routing_.top_k;  // else the common expert
    if (routed) RETURN_IF_ERROR(CountExpert(layer, args, work));
  }
  return absl::OkStatus();
}

absl::Status ActivationStage::CountExpert(uint32_t layer, const MoeExpertsArgs& args,
                                          const ExpertWork& work) {
  // All slots of an expert's work name the same expert, so the first one tells which it is.
  const uint64_t expert = first_expert_[layer] + static_cast<uint32_t>(routing_.ids[work.slots[0]]);
  return VisitFactors(host_->runner(), args.activation, work, args.x, work.rows, [&](float up, float gate) {
    histograms_.Add(expert, up);
    histograms_.Add(experts_ + expert, gate);
    histograms_.Add(2 * experts_ + expert, up * gate);
  });
}

absl::Status ActivationStage::CheckFinite() const {
  for (uint64_t table = 0; table < kLeadCount * experts_; ++table) {
    if (histograms_.HasHugeValue(table)) {
      return absl::OutOfRangeError(absl::StrCat("expert ", table % experts_, " of all layers together has a ",
                                                LeadName(static_cast<Lead>(table / experts_)),
                                                " value that is not finite or beyond 2^34"));
    }
  }
  return absl::OkStatus();
}

absl::Status ActivationStage::Sync() const {
  return features_ == nullptr ? absl::OkStatus() : features_->Sync();
}

void ActivationStage::Save(std::string* out) const {
  AppendValue(tokens_, out);
  AppendValues(used_, out);
  histograms_.Save(out);
}

absl::Status ActivationStage::Load(ByteReader* reader) {
  RETURN_IF_ERROR(reader->Take(&tokens_));
  RETURN_IF_ERROR(reader->TakeMany(experts_, &used_));
  return histograms_.Load(reader);
}

absl::StatusOr<std::map<std::string, std::string>> ActivationStage::Finish() {
  UsageProfile usage{keys_.source_digest, tokens_, {}};
  ThresholdTables tables(keys_.model_id, tokens_, RoutedExperts(config_), FineShares());
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    const uint64_t first = first_expert_[layer];
    const uint32_t experts = config_.layers[layer].moe.experts;
    const auto begin = used_.begin() + static_cast<ptrdiff_t>(first);
    usage.experts.emplace_back(begin, begin + experts);
    for (int lead = 0; lead < kLeadCount; ++lead) {
      for (uint32_t expert = 0; expert < experts; ++expert) {
        const absl::Span<float> table = tables.table(static_cast<Lead>(lead), layer, expert);
        // An expert never chosen in the text gets its layer's pooled table.
        if (!histograms_.Quantiles(lead * experts_ + first + expert, 1, tables.shares(), table)) {
          histograms_.Quantiles(lead * experts_ + first, experts, tables.shares(), table);
        }
      }
    }
  }
  for (int lead = 0; lead < kLeadCount && experts_ > 0; ++lead) {
    histograms_.Quantiles(lead * experts_, experts_, tables.shares(), tables.pooled(static_cast<Lead>(lead)));
  }
  return std::map<std::string, std::string>{{kUsageName, SerializeUsage(usage)},
                                            {kThresholdsName, SerializeThresholds(tables)}};
}

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
