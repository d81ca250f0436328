// Calibration request, progress and sink types between the engine and its clients (`sluice calibrate`).
// gRPC-free.
//
// Thread safety: plain values. The calibration's own thread calls a CalibrationSink, one call at a time; a
// sink must not block. Cancelled() may be called from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::inferd {

struct CalibrationSpec {
  std::vector<int32_t> tokens;  // the sequence to measure, without BOS; at least two
  // Positions of a window, BOS included.
  uint32_t window = 512;
  // Number of tokens (whole windows, from the start) to measure sensitivities on; 0: not measured.
  uint64_t sensitivity_tokens = 16384;
  // Relative rises of perplexity; calibration finds the largest sparsity within each. Empty: none.
  std::vector<double> quality_bounds = {0.01};
  // Number of tokens (whole windows) for that search.
  uint64_t sparsity_tokens = 16384;
  // True to train expert predictors.
  bool predictors = true;
  // Number of passes over the training tokens.
  uint32_t epochs = 6;
  uint64_t seed = 1;
};

struct CalibrationProgress {
  std::string stage;          // display name: "activations"
  uint32_t stage_number = 0;  // from 1
  uint32_t stages = 0;
  uint64_t done = 0;  // units of the stage
  uint64_t total = 0;
  std::optional<double> seconds_left;  // estimate for all stages; absent before the first unit
};

struct CalibrationSummary {
  std::string folder;              // profile folder
  uint64_t tokens = 0;             // number of input positions measured
  std::vector<std::string> files;  // names of the files written
  double seconds = 0;
  bool resumed = false;  // true if an interrupted run was resumed
};

class CalibrationSink {
 public:
  virtual ~CalibrationSink() = default;
  virtual void OnProgress(const CalibrationProgress& progress) = 0;
  // True once nobody wants the result; finished stages are kept for the next call.
  virtual bool Cancelled() = 0;
  // Exactly one of the two ends the calibration.
  virtual void OnFinished(const CalibrationSummary& summary) = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

// TuningApi: changes memory budgets while requests run.
//
// Thread safety: a TuningApi is thread-safe.

// Requested changes; an absent field stays unchanged.
struct EngineTuning {
  std::optional<uint64_t> dram_budget;  // weightd's, bytes
  std::optional<uint64_t> kv_budget;    // bytes
  std::optional<uint32_t> context;      // maximum tokens of new requests; the start sets the upper bound
};

// Values in effect.
struct EngineTuned {
  uint64_t dram_budget = 0;    // bytes; 0: not requested
  uint64_t segment_bytes = 0;  // segment bytes that weightd holds, or has not yet released
  uint64_t kv_bytes = 0;       // pages and recurrent states
  uint32_t kv_pages = 0;
  uint32_t context = 0;
  uint32_t restarted = 0;  // sequences whose KV cache is computed again
};

class TuningApi {
 public:
  using Done = std::function<void(const absl::StatusOr<EngineTuned>& result)>;
  virtual ~TuningApi() = default;

  // Applies the changes between two steps; calls `done` once, from any thread, possibly within this call. No
  // request ends because of it: running sequences are computed again if the KV cache changes. Errors leave
  // everything unchanged: INVALID_ARGUMENT for a context beyond the one laid out; FAILED_PRECONDITION and
  // RESOURCE_EXHAUSTED with the numbers for a budget that is too small or does not fit into memory;
  // UNAVAILABLE.
  virtual void Tune(const EngineTuning& tuning, Done done) = 0;
};

}  // namespace sluice::inferd
