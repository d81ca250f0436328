#include "inferd/calibrate/stages/activation_stage.h"

#include "common/profile/threshold_tables.h"
#include "common/status.h"
#include "inferd/calibrate/stages/expert_products.h"

namespace sluice::inferd {
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
