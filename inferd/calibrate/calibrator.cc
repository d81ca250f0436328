#include "inferd/calibrate/calibrator.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "common/profile/profile.h"
#include "common/status.h"
#include "inferd/calibrate/activation_stage.h"
#include "inferd/calibrate/cache_stage.h"
#include "inferd/calibrate/calibration_journal.h"
#include "inferd/calibrate/cutoff_stage.h"
#include "inferd/calibrate/engine_windows.h"
#include "inferd/calibrate/gating_stage.h"
#include "inferd/calibrate/neuron_stage.h"
#include "inferd/calibrate/predictor_stage.h"
#include "inferd/calibrate/sensitivity_stage.h"

namespace sluice {
namespace {

constexpr char kWorkFolder[] = ".calibrate";
// Raised when a stage computes something else from the same text and options.
constexpr uint64_t kComputation = 4;
// Two of them are held out.
constexpr uint64_t kFewestTrainingPositions = 20;
// Positions that the use of experts is measured on: some thousand uses of each of a layer's.
constexpr uint64_t kCacheTokens = 16384;

Digest128 FingerprintOf(const CalibrationSpec& spec, const ProfileKeys& keys) {
  Hasher128 hasher;
  hasher.UpdateU64(kComputation);
  hasher.UpdateSized(keys.model_id);
  hasher.UpdateSized(keys.source_digest);
  for (const uint64_t value :
       {uint64_t{spec.window}, spec.sensitivity_tokens, uint64_t{spec.fisher_draws}, spec.sparsity_tokens,
        uint64_t{spec.predictors}, uint64_t{spec.epochs}, spec.seed, uint64_t{spec.tokens.size()}}) {
    hasher.UpdateU64(value);
  }
  const auto bytes = [](const auto& values) {
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                               values.size() * sizeof(values[0]));
  };
  hasher.Update(bytes(spec.quality_bounds));
  hasher.Update(bytes(spec.tokens));
  return hasher.Finish();
}

// Runs stages with progress and journal.
class StageDriver {
 public:
  StageDriver(const CalibratorOptions& options, const CalibrationJournal& journal, uint32_t stages,
              CalibrationSink* sink)
      : options_(options), journal_(journal), stages_(stages), sink_(sink) {}

  bool resumed() const { return resumed_; }

  absl::Status Run(CalibrationStage* stage) {
    ++number_;
    ASSIGN_OR_RETURN(uint64_t unit, journal_.Restore(number_, stage));
    resumed_ = resumed_ || unit > 0;
    uint64_t saved = unit;
    absl::Time next_save = absl::Now() + options_.save_interval;
    for (Report(*stage, unit); unit < stage->units(); Report(*stage, unit)) {
      if (sink_->Cancelled()) {
        if (unit > saved) RETURN_IF_ERROR(journal_.Save(number_, unit, *stage));
        return absl::CancelledError("calibration was interrupted; the same call goes on where it stopped");
      }
      RETURN_IF_ERROR(stage->RunUnit(unit++));
      if (unit == stage->units() || absl::Now() >= next_save) {
        const absl::Time start = absl::Now();
        RETURN_IF_ERROR(journal_.Save(number_, unit, *stage));
        saved = unit;
        next_save = absl::Now() + std::max(options_.save_interval, 20 * (absl::Now() - start));
      }
    }
    return absl::OkStatus();
  }

 private:
  void Report(const CalibrationStage& stage, uint64_t done) {
    sink_->OnProgress({stage.name(), number_, stages_, done, stage.units()});
  }

  const CalibratorOptions& options_;
  const CalibrationJournal& journal_;
  const uint32_t stages_;
  CalibrationSink* const sink_;
  uint32_t number_ = 0;
  bool resumed_ = false;
};

bool HasRoutedLayer(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [](const LayerConfig& layer) { return layer.moe.experts > 0; });
}

absl::Status CheckSpec(const CalibrationSpec& spec, const ModelConfig& config) {
  if (!HasRoutedLayer(config)) {
    return absl::InvalidArgumentError("the model has no routed experts: there is nothing to calibrate");
  }
  if (spec.tokens.size() < 2 || spec.window < 2) {
    return absl::InvalidArgumentError(absl::StrCat("a text of ", spec.tokens.size(), " tokens in windows of ",
                                                   spec.window, ": both must be 2 at least"));
  }
  for (const int32_t token : spec.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= config.vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " is not in the vocabulary of ", config.vocab));
    }
  }
  return absl::OkStatus();
}

// Everything a calibration computes with; stages in the order they run.
struct StageSet {
  std::vector<CalibrationWindow> windows;
  std::unique_ptr<FeatureRecorder> features;
  RoutingSums sums;
  std::vector<std::unique_ptr<CalibrationStage>> stages;
};

absl::Status OpenFeatures(const CalibratorOptions& options, const ModelConfig& config,
                          const std::string& folder, StageSet* set) {
  const uint64_t positions = PositionsOf(set->windows, set->windows.size());
  const uint64_t kept = FeatureRecorder::PositionsFor(config, positions, options.feature_bytes);
  if (kept < kFewestTrainingPositions) {
    return absl::InvalidArgumentError(absl::StrCat("predictors cannot be trained on ", kept,
                                                   " positions: the least is ", kFewestTrainingPositions,
                                                   " (--no-predictors leaves them out)"));
  }
  ASSIGN_OR_RETURN(set->features, FeatureRecorder::Open(folder + "/features", config, kept));
  return absl::OkStatus();
}

// Predictors come last: they leave the model alone.
void MakeStages(const CalibrationSpec& spec, const CalibratorOptions& options, const Pack& pack,
                const ProfileKeys& keys, const std::string& folder, WindowHost* host, CalibrationSink* sink,
                StageSet* set) {
  const ModelConfig& config = pack.config();
  set->stages.push_back(
      std::make_unique<ActivationStage>(config, keys, set->windows, host, set->features.get()));
  CalibrationStage* const activations = set->stages.back().get();
  if (spec.sparsity_tokens > 0) {
    set->stages.push_back(std::make_unique<NeuronStage>(
        config, keys, set->windows, WindowsFor(set->windows, spec.sparsity_tokens), host));
  }
  if (spec.sensitivity_tokens > 0) {
    const uint64_t count = WindowsFor(set->windows, spec.sensitivity_tokens);
    set->stages.push_back(std::make_unique<RoutingStage>(config, set->windows, count, host, &set->sums));
    set->stages.push_back(std::make_unique<FisherStage>(config, keys, set->windows, count, spec.fisher_draws,
                                                        spec.seed, host, &set->sums));
    CalibrationStage* const sensitivities = set->stages.back().get();
    set->stages.push_back(
        std::make_unique<GatingStage>(config, keys, set->windows, count, sensitivities, host));
  }
  if (spec.sparsity_tokens > 0 && !spec.quality_bounds.empty()) {
    set->stages.push_back(std::make_unique<CutoffStage>(keys, set->windows,
                                                        WindowsFor(set->windows, spec.sparsity_tokens),
                                                        spec.quality_bounds, folder, activations, host));
  }
  set->stages.push_back(
      std::make_unique<CacheStage>(config, keys, set->windows, WindowsFor(set->windows, kCacheTokens), host));
  if (set->features != nullptr) {
    set->stages.push_back(std::make_unique<PredictorStage>(
        config, keys, set->windows, set->features.get(),
        PredictorTraining{spec.epochs, spec.seed, options.threads, [sink] { return sink->Cancelled(); }}));
  }
}

absl::StatusOr<std::vector<std::string>> WriteFiles(const std::string& folder, const StageSet& set) {
  std::map<std::string, std::string> files;
  for (const std::unique_ptr<CalibrationStage>& stage : set.stages) {
    ASSIGN_OR_RETURN(auto made, stage->Finish());
    files.merge(made);
  }
  std::vector<std::string> names;
  for (const auto& [name, content] : files) {
    RETURN_IF_ERROR(WriteProfileFile(folder, name, content));
    names.push_back(name);
  }
  return names;
}

}  // namespace

absl::StatusOr<CalibrationSummary> Calibrate(const CalibrationSpec& spec, const CalibratorOptions& options,
                                             const Pack& pack, const OnEngine& on_engine,
                                             CalibrationSink* sink) {
  const absl::Time start = absl::Now();
  RETURN_IF_ERROR(CheckSpec(spec, pack.config()));
  const ProfileKeys keys{pack.manifest().provenance.source_digest, pack.model_id()};
  CalibrationSummary summary;
  summary.folder = pack.dir() + "/" + kProfileFolder;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<CalibrationJournal> journal,
      CalibrationJournal::Open(absl::StrCat(summary.folder, "/", kWorkFolder), FingerprintOf(spec, keys)));
  StageSet set;
  set.windows = MakeWindows(spec.tokens, spec.window, pack.config().bos_ids);
  summary.tokens = PositionsOf(set.windows, set.windows.size());
  EngineWindows host(on_engine, pack, spec.window);
  RETURN_IF_ERROR(host.UseSparsity({}, ""));
  if (spec.predictors) {
    RETURN_IF_ERROR(OpenFeatures(options, pack.config(), journal->folder(), &set));
  }
  MakeStages(spec, options, pack, keys, journal->folder(), &host, sink, &set);
  StageDriver driver(options, *journal, static_cast<uint32_t>(set.stages.size()), sink);
  for (const std::unique_ptr<CalibrationStage>& stage : set.stages) {
    RETURN_IF_ERROR(driver.Run(stage.get()));
  }
  ASSIGN_OR_RETURN(summary.files, WriteFiles(summary.folder, set));
  RETURN_IF_ERROR(journal->Remove());
  summary.resumed = driver.resumed();
  summary.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return summary;
}

}  // namespace sluice
