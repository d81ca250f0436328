// The parts that a calibration is made of: stages run one after the other, each in units that are counted
// and after any of which it can be saved; and the way they reach the model.
//
// Thread safety: a stage belongs to the calibration's thread; taps that it hands to a WindowHost are called
// on the engine thread while the calibration's waits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/profile_file.h"
#include "inferd/calibrate/windows/window_runner.h"

namespace sluice {

// Runs windows for a stage; every call is one pause between steps of the engine.
class WindowHost {
 public:
  virtual ~WindowHost() = default;
  virtual absl::StatusOr<double> Run(const CalibrationWindow& window, const WindowRunner::Hooks& hooks) = 0;
  // From now on windows run with this sparsity, thresholds looked up in `profile_folder`. Errors: those of
  // SparsityPolicy::Create.
  virtual absl::Status UseSparsity(const SparsityConfig& config, const std::string& profile_folder) = 0;
  // What taps may use while they are called.
  virtual const WindowRunner& runner() const = 0;
};

// Experts of all layers.
inline uint64_t TotalExperts(const ModelConfig& config) {
  uint64_t total = 0;
  for (const LayerConfig& layer : config.layers) total += layer.moe.experts;
  return total;
}

class CalibrationStage {
 public:
  virtual ~CalibrationStage() = default;
  virtual std::string name() const = 0;
  virtual uint64_t units() const = 0;
  // Units come in order; after an error the stage is not used again.
  virtual absl::Status RunUnit(uint64_t unit) = 0;
  // Makes what units wrote outside of the state durable; called before a state is saved.
  virtual absl::Status Sync() const { return absl::OkStatus(); }
  // Everything that the finished units left; Load() into a new stage of the same arguments goes on from
  // there, to the same bits.
  virtual void Save(std::string* out) const = 0;
  virtual absl::Status Load(ByteReader* reader) = 0;
  // After the last unit: the profile's files, by name.
  virtual absl::StatusOr<std::map<std::string, std::string>> Finish() = 0;
};

// The windows of a text, as `sluice perplexity` cuts them: window k holds tokens [k W, k W + W), its input
// is BOS and those tokens without the last. Without BOS the first token is input only; a window of one token
// is then left out.
std::vector<CalibrationWindow> MakeWindows(const std::vector<int32_t>& tokens, uint32_t window,
                                           const std::vector<int32_t>& bos_ids);

// How many of the first windows hold about `tokens` input positions: at least one, at most all.
uint64_t WindowsFor(const std::vector<CalibrationWindow>& windows, uint64_t tokens);

// Input positions of the first `count` windows.
uint64_t PositionsOf(const std::vector<CalibrationWindow>& windows, uint64_t count);

}  // namespace sluice
