#include "inferd/calibrate/calibrator.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "common/profile/profile.h"
#include "common/status.h"
#include "inferd/calibrate/calibration_journal.h"
#include "inferd/calibrate/engine_windows.h"
#include "inferd/calibrate/stages/activation_stage.h"
#include "inferd/calibrate/stages/cache_stage.h"
#include "inferd/calibrate/stages/cutoff_stage.h"
#include "inferd/calibrate/stages/gating_stage.h"
#include "inferd/calibrate/stages/neuron_stage.h"
#include "inferd/calibrate/stages/predictor_stage.h"
#include "inferd/calibrate/stages/sensitivity_stage.h"
#include "inferd/calibrate/windows/calibration_work.h"

namespace sluice::inferd {
namespace {

constexpr char kWorkFolder[] = ".calibrate";
// Version of the computation. Raise it when a stage computes a different result from the same text and
// options, since state saved by an older build must not be continued.
constexpr uint64_t kComputation = 5;
// Minimum number of positions to train predictors on. A tenth, here two, are held out to choose between
// networks.
constexpr uint64_t kMinTrainingPositions = 20;
// Number of positions on which the use of experts is measured: enough for about a thousand uses of each of a
// layer's experts.
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

// Runs stages one after the other with progress and journal: a stage continues from the last saved unit.
class StageDriver {
 public:
  // `work`: cost of each stage, in any common unit; the remaining time is estimated from it and the time used
  // so far.
  StageDriver(const CalibratorOptions& options, const CalibrationJournal& journal, std::vector<double> work,
              CalibrationSink* sink)
      : options_(options),
        journal_(journal),
        work_(std::move(work)),
        sink_(sink),
        time_left_(std::accumulate(work_.begin(), work_.end(), 0.0)) {}

  bool resumed() const { return resumed_; }

  absl::Status Run(CalibrationStage* stage) {
    ++number_;
    ASSIGN_OR_RETURN(uint64_t unit, journal_.Restore(number_, stage));
    resumed_ = resumed_ || unit > 0;
    const double unit_work = work_[number_ - 1] / static_cast<double>(std::max<uint64_t>(stage->units(), 1));
    time_left_.Skip(unit_work * static_cast<double>(unit));
    uint64_t saved = unit;
    absl::Time next_save = absl::Now() + options_.save_interval;
    for (Report(*stage, unit); unit < stage->units(); Report(*stage, unit)) {
      if (sink_->Cancelled()) {
        if (unit > saved) RETURN_IF_ERROR(journal_.Save(number_, unit, *stage));
        return absl::CancelledError("calibration was interrupted; the same call goes on where it stopped");
      }
      const absl::Time begin = absl::Now();
      RETURN_IF_ERROR(stage->RunUnit(unit++));
      time_left_.Add(unit_work, absl::Now() - begin);
      if (unit == stage->units() || absl::Now() >= next_save) {
        const absl::Time start = absl::Now();
        RETURN_IF_ERROR(journal_.Save(number_, unit, *stage));
        saved = unit;
        // Saving uses at most a twentieth of the time, whatever the size of the state.
        next_save = absl::Now() + std::max(options_.save_interval, 20 * (absl::Now() - start));
      }
    }
    return absl::OkStatus();
  }

 private:
  void Report(const CalibrationStage& stage, uint64_t done) {
    const std::optional<absl::Duration> left = time_left_.Estimate();
    CalibrationProgress progress{stage.name(), number_,       static_cast<uint32_t>(work_.size()),
                                 done,         stage.units(), std::nullopt};
    if (left.has_value()) progress.seconds_left = absl::ToDoubleSeconds(*left);
    sink_->OnProgress(progress);
  }

  const CalibratorOptions& options_;
  const CalibrationJournal& journal_;
  const std::vector<double> work_;  // by stage
  CalibrationSink* const sink_;
  TimeLeft time_left_;
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

// Everything that a calibration computes with; stages in the order in which they run.
struct StageSet {
  std::vector<CalibrationWindow> windows;
  std::unique_ptr<FeatureRecorder> features;
  RoutingSums sums;
  std::vector<std::unique_ptr<CalibrationStage>> stages;
  std::vector<double> work;  // by stage

  CalibrationStage* Add(std::unique_ptr<CalibrationStage> stage, double stage_work) {
    stages.push_back(std::move(stage));
    work.push_back(stage_work);
    return stages.back().get();
  }
};

absl::Status OpenFeatures(const CalibratorOptions& options, const ModelConfig& config,
                          const std::string& folder, StageSet* set) {
  const uint64_t positions = PositionsOf(set->windows, set->windows.size());
  const uint64_t kept = FeatureRecorder::PositionsFor(config, positions, options.feature_bytes);
  if (kept < kMinTrainingPositions) {
    return absl::InvalidArgumentError(absl::StrCat("predictors cannot be trained on ", kept,
                                                   " positions: the least is ", kMinTrainingPositions,
                                                   " (--no-predictors leaves them out)"));
  }
  ASSIGN_OR_RETURN(set->features, FeatureRecorder::Open(folder + "/features", config, kept));
  return absl::OkStatus();
}

// Creates the stages. The predictors' stage comes last because it does not run the model: the first stage
// recorded its training data.
void MakeStages(const CalibrationSpec& spec, const CalibratorOptions& options, const Pack& pack,
                const ProfileKeys& keys, const std::string& folder, WindowHost* host, CalibrationSink* sink,
                StageSet* set) {
  const ModelConfig& config = pack.config();
  const std::vector<CalibrationWindow>& windows = set->windows;
  const PositionWork work(config);
  // Work of running the first `count` windows. Stages that run the last, held-out windows cost the same, as
  // windows have equal length.
  const auto passes = [&windows](uint64_t count, double position_work) {
    return static_cast<double>(PositionsOf(windows, count)) * position_work;
  };
  CalibrationStage* const activations =
      set->Add(std::make_unique<ActivationStage>(config, keys, windows, host, set->features.get()),
               passes(windows.size(), work.Whole(false)));
  const uint64_t sparsity_count = WindowsFor(windows, spec.sparsity_tokens);
  if (spec.sparsity_tokens > 0) {
    set->Add(std::make_unique<NeuronStage>(config, keys, windows, sparsity_count, host),
             passes(sparsity_count, work.Whole(false)));
  }
  if (spec.sensitivity_tokens > 0) {
    const uint64_t count = WindowsFor(windows, spec.sensitivity_tokens);
    set->Add(std::make_unique<RoutingStage>(config, windows, count, host, &set->sums),
             passes(count, work.SingleExperts()));
    CalibrationStage* const sensitivities =
        set->Add(std::make_unique<FisherStage>(config, keys, windows, count, spec.fisher_draws, spec.seed,
                                               host, &set->sums),
                 passes(count, work.Fisher(spec.fisher_draws)));
    auto gating = std::make_unique<GatingStage>(config, keys, windows, count, sensitivities, host);
    const double runs = static_cast<double>(gating->units()) / static_cast<double>(count);
    set->Add(std::move(gating), passes(count, runs * work.Whole(true)));
  }
  if (spec.sparsity_tokens > 0 && !spec.quality_bounds.empty()) {
    auto cutoff = std::make_unique<CutoffStage>(keys, windows, sparsity_count, spec.quality_bounds, folder,
                                                activations, host);
    const double runs = static_cast<double>(cutoff->units()) / static_cast<double>(sparsity_count);
    set->Add(std::move(cutoff), passes(sparsity_count, runs * work.Whole(true)));
  }
  const uint64_t cache_count = WindowsFor(windows, kCacheTokens);
  set->Add(std::make_unique<CacheStage>(config, keys, windows, cache_count, host),
           passes(cache_count, work.Whole(false)));
  if (set->features != nullptr) {
    set->Add(std::make_unique<PredictorStage>(config, keys, windows, set->features.get(),
                                              PredictorTraining{spec.epochs, spec.seed, options.threads,
                                                                [sink] { return sink->Cancelled(); }}),
             static_cast<double>(set->features->positions()) * spec.epochs * work.Predictors());
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
  StageDriver driver(options, *journal, set.work, sink);
  for (const std::unique_ptr<CalibrationStage>& stage : set.stages) {
    RETURN_IF_ERROR(driver.Run(stage.get()));
  }
  ASSIGN_OR_RETURN(summary.files, WriteFiles(summary.folder, set));
  RETURN_IF_ERROR(journal->Remove());
  summary.resumed = driver.resumed();
  summary.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return summary;
}

}  // namespace sluice::inferd
