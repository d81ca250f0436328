// A view of a backend that frees in its destructor every buffer allocated through it, for work that ends
// before the backend does.
//
// Thread safety: as the backend's; it is made, used and destroyed on the backend's thread.

#include "inferd/calibrate/calibrator.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "common/profile/profile.h"
#include "inferd/calibrate/activation_stage.h"
#include "inferd/calibrate/cache_stage.h"
#include "inferd/calibrate/calibration_stage.h"
#include "inferd/calibrate/cutoff_stage.h"
#include "inferd/calibrate/predictor_stage.h"
#include "inferd/calibrate/sensitivity_stage.h"
#include "kernels/forwarding_backend.h"
#include "pack/pack.h"

namespace sluice::inferd {

class ScopedBackend final : public ForwardingBackend {
 public:
  // `backend` outlives this object.
  explicit ScopedBackend(Backend* backend) : ForwardingBackend(backend) {}
  ~ScopedBackend() override {
    for (const BufferId buffer : allocated_)
      ForwardingBackend::Free(buffer).IgnoreError();  // all are allocated
  }
  // Leaves the buffers to the backend.
  void Forget() { allocated_.clear(); }

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override {
    ASSIGN_OR_RETURN(const BufferId buffer, ForwardingBackend::Allocate(bytes, kind));
    allocated_.push_back(buffer);
    return buffer;
  }
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override {
    ASSIGN_OR_RETURN(const SharedBuffer shared, ForwardingBackend::AllocateShared(bytes));
    allocated_.push_back(shared.buffer);
    return shared;
  }
  absl::Status Free(BufferId buffer) override {
    std::erase(allocated_, buffer);
    return ForwardingBackend::Free(buffer);
  }

 private:
  std::vector<BufferId> allocated_;
};

// Journal of an interrupted calibration's finished work: one file per stage in a work folder beside the
// profile, each replaced atomically, all removed once the profile is written. A run with other arguments or
// another pack starts anew.
//
// Thread safety: thread-compatible; the work folder is locked against other calibrations, in this process and
// in others.

class CalibrationJournal {
 public:
  // Creates `folder` if missing. UNAVAILABLE if another calibration holds it. States of another fingerprint
  // are dropped.
  static absl::StatusOr<std::unique_ptr<CalibrationJournal>> Open(const std::string& folder,
                                                                  const Digest128& fingerprint);

  const std::string& folder() const { return folder_; }

  // Restores a new stage from the journal; returns the number of finished units, 0 if none is recorded.
  // DATA_LOSS if the state is damaged.
  absl::StatusOr<uint64_t> Restore(uint32_t number, CalibrationStage* stage) const;
  absl::Status Save(uint32_t number, uint64_t units, const CalibrationStage& stage) const;

  // Removes the work folder.
  absl::Status Remove();

 private:
  CalibrationJournal(std::string folder, const Digest128& fingerprint, File lock)
      : folder_(std::move(folder)), fingerprint_(fingerprint), lock_(std::move(lock)) {}
  std::string NameOf(uint32_t number) const;

  const std::string folder_;
  const Digest128 fingerprint_;
  const File lock_;  // closing it unlocks
};

// WindowHost on a running engine: allocates, uses and frees everything on the engine thread.
//
// Thread safety: thread-compatible; belongs to the calibration's thread.

class EngineWindows final : public WindowHost {
 public:
  // Runs windows of up to `positions`, after UseSparsity(). Both arguments outlive this object.
  EngineWindows(const OnEngine& on_engine, const Pack& pack, uint32_t positions)
      : on_engine_(on_engine), pack_(pack), positions_(positions) {}
  ~EngineWindows() override;

  absl::StatusOr<double> Run(const CalibrationWindow& window, const WindowRunner::Hooks& hooks) override;
  absl::Status UseSparsity(const SparsityConfig& config, const std::string& profile_folder) override;
  const WindowRunner& runner() const override { return *runner_; }

 private:
  const OnEngine& on_engine_;
  const Pack& pack_;
  const uint32_t positions_;
  std::unique_ptr<ScopedBackend> backend_;
  std::unique_ptr<WindowRunner> runner_;  // null before UseSparsity()
};

namespace {

constexpr std::string_view kMagic = "SLCALSTG";
constexpr uint64_t kMaxStateBytes = 16ull << 30;

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return ErrnoToStatus(errno, absl::StrCat("create folder ", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CalibrationJournal>> CalibrationJournal::Open(const std::string& folder,
                                                                             const Digest128& fingerprint) {
  RETURN_IF_ERROR(MakeFolder(std::filesystem::path(folder).parent_path().string()));
  RETURN_IF_ERROR(MakeFolder(folder));
  ASSIGN_OR_RETURN(File lock, File::OpenForWrite(folder + "/lock"));
  if (flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(absl::StrCat(folder, ": another calibration of this pack is running"));
  }
  return std::unique_ptr<CalibrationJournal>(new CalibrationJournal(folder, fingerprint, std::move(lock)));
}

std::string CalibrationJournal::NameOf(uint32_t number) const { return absl::StrCat("stage", number); }

absl::StatusOr<uint64_t> CalibrationJournal::Restore(uint32_t number, CalibrationStage* stage) const {
  const std::string path = absl::StrCat(folder_, "/", NameOf(number));
  if (!FileExists(path)) return 0;
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxStateBytes));
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(bytes, kMagic, path));
  ByteReader reader(body, path);
  Digest128 fingerprint;
  uint64_t units = 0;
  RETURN_IF_ERROR(reader.Take(&fingerprint.high));
  RETURN_IF_ERROR(reader.Take(&fingerprint.low));
  // State of another text or other options is ignored and overwritten.
  if (fingerprint != fingerprint_) return 0;
  RETURN_IF_ERROR(reader.Take(&units));
  if (units > stage->units()) return reader.Damaged(absl::StrCat(units, " units of ", stage->units()));
  RETURN_IF_ERROR(stage->Load(&reader));
  RETURN_IF_ERROR(reader.Finish());
  return units;
}

absl::Status CalibrationJournal::Save(uint32_t number, uint64_t units, const CalibrationStage& stage) const {
  // The stage's own files must be on the disk before a state that refers to them.
  RETURN_IF_ERROR(stage.Sync());
  std::string bytes(kMagic);
  AppendValue(fingerprint_.high, &bytes);
  AppendValue(fingerprint_.low, &bytes);
  AppendValue(units, &bytes);
  stage.Save(&bytes);
  Seal(&bytes);
  return WriteProfileFile(folder_, NameOf(number), bytes);
}

absl::Status CalibrationJournal::Remove() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
  if (error) return ErrnoToStatus(error.value(), absl::StrCat("remove ", folder_));
  return absl::OkStatus();
}

EngineWindows::~EngineWindows() {
  const absl::Status status = on_engine_([this](const ModelParts&, uint64_t) {
    runner_.reset();
    backend_.reset();
    return absl::OkStatus();
  });
  if (!status.ok() && backend_ != nullptr) {
    // The engine's thread has ended, or weightd is lost: buffers cannot be freed from this thread, so they
    // are freed with the engine's backend.
    backend_->Forget();
  }
}

absl::StatusOr<double> EngineWindows::Run(const CalibrationWindow& window, const WindowRunner::Hooks& hooks) {
  double loss = 0;
  RETURN_IF_ERROR(on_engine_([&](const ModelParts&, uint64_t step) -> absl::Status {
    ASSIGN_OR_RETURN(loss, runner_->Run(window, hooks, step));
    return absl::OkStatus();
  }));
  return loss;
}

absl::Status EngineWindows::UseSparsity(const SparsityConfig& config, const std::string& profile_folder) {
  ASSIGN_OR_RETURN(std::unique_ptr<SparsityPolicy> sparsity,
                   SparsityPolicy::Create(config, pack_.config(), profile_folder, pack_.model_id()));
  return on_engine_([&](const ModelParts& parts, uint64_t) -> absl::Status {
    // The old runner is destroyed first, since both together may not fit the backend's memory.
    runner_.reset();
    backend_ = std::make_unique<ScopedBackend>(parts.backend);
    ModelParts scoped = parts;
    scoped.backend = backend_.get();
    ASSIGN_OR_RETURN(runner_, WindowRunner::Create(scoped, positions_, std::move(sparsity)));
    return absl::OkStatus();
  });
}

namespace {

constexpr char kWorkFolder[] = ".calibrate";
// Version of the computation. Raise it when a stage computes a different result from the same text and
// options, since state saved by an older build must not be continued.
constexpr uint64_t kComputation = 6;
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
       {uint64_t{spec.window}, spec.sensitivity_tokens, spec.sparsity_tokens, uint64_t{spec.predictors},
        uint64_t{spec.epochs}, spec.seed, uint64_t{spec.tokens.size()}}) {
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
    absl::Time next_save = SteadyNow() + options_.save_interval;
    for (Report(*stage, unit); unit < stage->units(); Report(*stage, unit)) {
      if (sink_->Cancelled()) {
        if (unit > saved) RETURN_IF_ERROR(journal_.Save(number_, unit, *stage));
        return absl::CancelledError("calibration was interrupted; the same call goes on where it stopped");
      }
      const absl::Time begin = SteadyNow();
      RETURN_IF_ERROR(stage->RunUnit(unit++));
      time_left_.Add(unit_work, SteadyNow() - begin);
      if (unit == stage->units() || SteadyNow() >= next_save) {
        const absl::Time start = SteadyNow();
        RETURN_IF_ERROR(journal_.Save(number_, unit, *stage));
        saved = unit;
        // Saving uses at most a twentieth of the time, whatever the size of the state.
        next_save = SteadyNow() + std::max(options_.save_interval, 20 * (SteadyNow() - start));
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
  // The stages replay a layer from its input and read experts' inputs of the hidden size.
  const bool other = std::any_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& layer) {
    return layer.late_experts || layer.moe.zero_experts > 0;
  });
  if (other || config.latent_width > 0 || HasStreams(config)) {
    return absl::UnimplementedError(
        "calibration of models whose experts work in a narrower space, return their input or are added "
        "later, or whose residual has several streams");
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
  if (spec.sensitivity_tokens > 0) {
    const uint64_t count = WindowsFor(windows, spec.sensitivity_tokens);
    CalibrationStage* const sensitivities =
        set->Add(std::make_unique<RoutingStage>(config, keys, windows, count, host),
                 passes(count, work.SingleExperts()));
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
  const absl::Time start = SteadyNow();
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
  summary.seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  return summary;
}

namespace {

// The caller's sink with the engine's stop request added: a calibration must not delay the end of an engine.
class StoppableSink final : public CalibrationSink {
 public:
  StoppableSink(std::shared_ptr<CalibrationSink> sink, const std::atomic<bool>* stop)
      : sink_(std::move(sink)), stop_(stop) {}
  void OnProgress(const CalibrationProgress& progress) override { sink_->OnProgress(progress); }
  bool Cancelled() override { return stop_->load() || sink_->Cancelled(); }
  void OnFinished(const CalibrationSummary& summary) override { sink_->OnFinished(summary); }
  void OnError(const absl::Status& status) override { sink_->OnError(status); }

 private:
  const std::shared_ptr<CalibrationSink> sink_;
  const std::atomic<bool>* const stop_;
};

}  // namespace

CalibrationTask::CalibrationTask(CalibrationSpec spec, const CalibratorOptions& options, const Pack& pack,
                                 OnEngine on_engine, std::shared_ptr<CalibrationSink> sink)
    : thread_([this, spec = std::move(spec), options, &pack, on_engine = std::move(on_engine),
               sink = std::move(sink)] {
        StoppableSink stoppable(sink, &stop_);
        const absl::StatusOr<CalibrationSummary> summary =
            Calibrate(spec, options, pack, on_engine, &stoppable);
        done_ = true;  // before the sink is notified: its caller may start the next one at once
        if (summary.ok()) {
          stoppable.OnFinished(*summary);
        } else {
          stoppable.OnError(summary.status());
        }
      }) {}

CalibrationTask::~CalibrationTask() {
  stop_ = true;
  thread_.join();
}

}  // namespace sluice::inferd
