// Measures the layers' use of experts, to divide a cache between them: stack distances of an LRU cache, the
// weight of the best expert, and the share of right experts named by a gate on an earlier residual
// (common/profile/profile.h). One pass over the first windows, row after row as in decoding; the cache
// state carries over from one window to the next.
//
// Thread safety: see calibration_stage.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/profile/profile.h"
#include "inferd/calibrate/calibration_stage.h"

namespace sluice::inferd {

class CacheStage final : public CalibrationStage, private LayerObserver {
 public:
  // Borrows all arguments. Runs the first `count` windows.
  CacheStage(const ModelConfig& config, const ProfileKeys& keys,
             const std::vector<CalibrationWindow>& windows, uint64_t count, WindowHost* host);

  std::string name() const override { return "cache"; }
  uint64_t units() const override { return count_; }
  absl::Status RunUnit(uint64_t unit) override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  struct Layer {
    std::vector<uint16_t> chosen;  // [tokens, top_k], best first
    std::vector<float> squares;    // [tokens]: (1 - alpha)^2
    std::array<uint64_t, kCacheDepths>
        right{};  // number of chosen experts predicted this many layers earlier
    std::array<uint64_t, kCacheDepths> wanted{};
  };

  absl::Status AfterRouter(const RouterState& state) override;
  void Compare(const RouterState& state);
  absl::Status Predict(const RouterState& state, uint32_t target, uint32_t depth);
  LayerCacheProfile ProfileOf(uint32_t layer) const;

  const ModelConfig& config_;
  const ProfileKeys keys_;
  const std::vector<CalibrationWindow>& windows_;
  const uint64_t count_;
  WindowHost* const host_;
  std::vector<uint32_t> routed_;    // layers with experts
  std::vector<uint32_t> place_of_;  // by layer: its index in routed_
  std::vector<Layer> layers_;
  // Experts predicted in the running window, by layer and depth - 1: [rows, top_k].
  std::vector<std::array<std::vector<uint16_t>, kCacheDepths>> named_;
  std::vector<float> logits_;
};

}  // namespace sluice::inferd
