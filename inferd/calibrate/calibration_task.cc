#include "inferd/calibrate/calibration_task.h"

#include <utility>

namespace sluice::inferd {
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
        done_ = true;  // before the sink is told: its caller may start the next one at once
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
