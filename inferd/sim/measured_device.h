// A backend that times the operations of the wrapped backend and writes their times as a cost table for
// --clock virtual (--measure-costs), so that a run in virtual time can predict one in real time on this
// machine.
//
// Only steps of one row are measured. Expert calls with uniform works give the time of a row by encoding,
// separately for whole experts, leads, and active neurons after a lead. All other operations of a layer count
// as attention, head and candidates as the head. Each figure is the median over calls or steps. The file is
// written at the start, every kStepsBetweenWrites steps and at the end.
//
// Thread safety: as Backend's; Counters() and Describe() may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "inferd/sim/virtual_clock.h"
#include "kernels/forwarding_backend.h"

namespace sluice::inferd {

// The last kMaxSamples values added; older ones are dropped, as the first steps after a start meet cold
// memory.
class CostSamples {
 public:
  static constexpr size_t kMaxSamples = 32;
  CostSamples() { values_.reserve(kMaxSamples); }
  void Add(double value);
  bool empty() const { return values_.empty(); }
  // Returns the median; the upper middle value for an even count. REQUIRES: not empty.
  double Median();

 private:
  std::vector<double> values_;
  std::vector<double> sorted_;
  size_t next_ = 0;
};

// The measured costs, and their text in the format of ParseVirtualCosts.
class CostTable {
 public:
  // `expert_bytes`: size of an expert in bf16.
  explicit CostTable(uint64_t expert_bytes) : expert_bytes_(expert_bytes) {}

  void AddExperts(const MoeExpertsArgs& args, double seconds, Backend* backend);
  void AddLeads(const ExpertLeadsArgs& args, double seconds);
  // `rest_seconds`: time of the step's operations that belong neither to experts nor to the head.
  void AddStep(double rest_seconds, uint32_t layers, double head_seconds);
  std::string Text();

 private:
  struct Rows {
    CostSamples all;
    CostSamples kept;
  };
  const uint64_t expert_bytes_;
  std::array<Rows, kEncodingValues> rows_;
  CostSamples attention_;
  CostSamples head_;
  EncodingDescriptor dense_;  // encoding of experts computed whole
  uint32_t dense_cols_ = 0;   // 0: none computed whole
};

class MeasuredQueue final : public ForwardingQueue {
 public:
  static constexpr uint32_t kStepsBetweenWrites = 8;
  // `backend` outlives the queue.
  MeasuredQueue(Backend* backend, std::string path, uint64_t expert_bytes)
      : ForwardingQueue(&backend->queue()), backend_(backend), path_(std::move(path)), table_(expert_bytes) {}
  // Writes the values measured since the last write.
  ~MeasuredQueue() override;

  // Rewrites the file. Errors: the file's.
  absl::Status WriteTable();

  // Runs and times an operation. Embed begins a step; returns errors of the file too.
  absl::Status Enqueue(const Operation& operation) override;

 private:
  // Runs an operation on the wrapped backend and adds its seconds to `sum`.
  absl::Status Time(const Operation& operation, double* sum);
  // Runs an operation and adds its seconds to the part it belongs to.
  template <class Args>
  absl::Status Run(const Args& args) {
    return Time(&args, &rest_seconds_);
  }
  absl::Status Run(const EmbedArgs& args);
  absl::Status Run(const MatMulArgs& args);
  absl::Status Run(const AttentionArgs& args) { return TimeLayer(&args); }
  absl::Status Run(const CompressedAttentionArgs& args) { return TimeLayer(&args); }
  absl::Status Run(const GatedDeltaArgs& args) { return TimeLayer(&args); }
  absl::Status Run(const MambaArgs& args) { return TimeLayer(&args); }
  absl::Status Run(const ShortConvArgs& args) { return TimeLayer(&args); }
  // Its layer is counted by the convolution before it.
  absl::Status Run(const SelectiveScanArgs& args) { return Time(&args, &rest_seconds_); }
  // Times an operation that every layer with attention runs once.
  absl::Status TimeLayer(const Operation& operation) {
    ++layers_;
    return Time(operation, &rest_seconds_);
  }
  absl::Status Run(const ExpertLeadsArgs& args);
  absl::Status Run(const MoeExpertsArgs& args);
  absl::Status Run(const TopLogitsArgs& args);
  void CountStep();
  absl::Status FinishStep();

  Backend* const backend_;
  const MonotonicClock clock_;
  const std::string path_;
  CostTable table_;
  // State of the running step.
  size_t rows_ = 0;
  uint32_t layers_ = 0;
  double rest_seconds_ = 0;
  double last_matmul_seconds_ = 0;
  double head_seconds_ = 0;
  uint32_t steps_ = 0;  // one-row steps since the last write
};

class MeasuredDevice final : public ForwardingBackend {
 public:
  // The table is written to `path`, which is replaced. `expert_bytes`: size of a bf16 expert. Errors: the
  // file's.
  static absl::StatusOr<std::unique_ptr<MeasuredDevice>> Create(std::unique_ptr<Backend> inner,
                                                                std::string path, uint64_t expert_bytes);

  Queue& queue() override { return queue_; }
  std::string Describe() const override { return ForwardingBackend::Describe() + ", its costs measured"; }

 private:
  MeasuredDevice(std::unique_ptr<Backend> inner, std::string path, uint64_t expert_bytes)
      : ForwardingBackend(std::move(inner)), queue_(&inner_backend(), std::move(path), expert_bytes) {}

  MeasuredQueue queue_;
};

}  // namespace sluice::inferd
