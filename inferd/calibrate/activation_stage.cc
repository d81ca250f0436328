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

}  // namespace sluice::inferd
