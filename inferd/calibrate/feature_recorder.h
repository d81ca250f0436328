// A file with the training data of expert predictors: for the first positions of the text, every routed
// layer's router input and chosen experts, the last layer's output with and without the final norm, and the
// router probabilities of the first routed layer.
//
// File offsets depend only on the position, so recording a window again writes the same bytes. Router inputs
// are float16 (they are normed), everything else float32 and uint16. The file is scratch of one calibration,
// read by the same build that wrote it.
//
// Thread safety: thread-compatible; written on the engine thread while the calibration's waits, read on the
// calibration's threads afterwards (reading is const and may be done by several at once).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_io.h"
#include "inferd/calibrate/window_runner.h"

namespace sluice::inferd {

class FeatureRecorder {
 public:
  // Number of positions, at most `positions`, whose features fit `budget_bytes`.
  static uint64_t PositionsFor(const ModelConfig& config, uint64_t positions, uint64_t budget_bytes);

  // Opens or creates the file at `path` for `positions` positions of a model with at least one routed layer.
  static absl::StatusOr<std::unique_ptr<FeatureRecorder>> Open(const std::string& path,
                                                               const ModelConfig& config, uint64_t positions);

  uint64_t positions() const { return positions_; }
  uint32_t first_routed() const { return first_routed_; }

  // The next rows are positions `first`, first + 1, ... of the text; rows after the last position are
  // dropped.
  void BeginWindow(uint64_t first) { first_ = first; }
  absl::Status TakeRouter(const RouterState& state, const WindowRunner& runner);
  absl::Status TakeLayerEnd(const LayerEnd& end, const WindowRunner& runner);
  absl::Status Sync() const { return file_.Sync(); }

  // The following functions read the recording of positions [0, positions()). REQUIRES: the layer is routed.
  absl::StatusOr<std::vector<uint16_t>> ReadRouterInputs(uint32_t layer) const;  // f16 [positions, hidden]
  absl::StatusOr<std::vector<uint16_t>> ReadExperts(uint32_t layer) const;       // [positions, top_k]
  absl::StatusOr<std::vector<float>> ReadOutputs(bool normed) const;             // [positions, hidden]
  absl::StatusOr<std::vector<float>> ReadFirstLogits() const;                    // [positions, experts]

 private:
  FeatureRecorder(const ModelConfig& config, uint64_t positions, File file);
  // Number of the rows for which the file has room.
  uint32_t Kept(uint32_t rows) const;
  template <typename T>
  absl::Status Write(uint64_t section, uint32_t width, const std::vector<T>& values);
  template <typename T>
  absl::StatusOr<std::vector<T>> Read(uint64_t section, uint32_t width) const;
  absl::Status TakeFirstLogits(const RouterState& state, uint32_t rows, const WindowRunner& runner);

  const ModelConfig& config_;
  const uint64_t positions_;
  const File file_;
  uint32_t first_routed_ = 0;
  std::vector<uint64_t> inputs_at_;   // by layer: offset of its router inputs
  std::vector<uint64_t> experts_at_;  // by layer
  uint64_t outputs_at_[2] = {0, 0};   // offsets: raw, normed
  uint64_t logits_at_ = 0;
  uint64_t bytes_ = 0;
  uint64_t first_ = 0;
  std::vector<float> rows_;       // of one call
  std::vector<uint16_t> halves_;  // of one call
};

}  // namespace sluice::inferd
