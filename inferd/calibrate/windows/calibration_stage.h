// Interfaces of a calibration: stages run one after the other, each in counted units, and can be saved after
// any unit; and their access to the model.
//
// Thread safety: a stage belongs to the calibration's thread; hooks that it passes to a WindowHost are called
// on the engine thread while the calibration's thread waits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/profile_file.h"
#include "inferd/calibrate/windows/window_runner.h"

namespace sluice::inferd {

// Runs windows for a stage; every call pauses the engine once between two steps.
class WindowHost {
 public:
  virtual ~WindowHost() = default;
  virtual absl::StatusOr<double> Run(const CalibrationWindow& window, const WindowRunner::Hooks& hooks) = 0;
  // Sets the sparsity of the following windows, with thresholds from `profile_folder`. Errors: those of
  // SparsityPolicy::Create.
  virtual absl::Status UseSparsity(const SparsityConfig& config, const std::string& profile_folder) = 0;
  // The runner that hooks may use while they are called.
  virtual const WindowRunner& runner() const = 0;
};

// Number of experts over all layers.
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
  // Runs the next unit, in order; after an error the stage is not used again.
  virtual absl::Status RunUnit(uint64_t unit) = 0;
  // Makes data written by units outside of the state durable; called before a state is saved.
  virtual absl::Status Sync() const { return absl::OkStatus(); }
  // Saves the results of the finished units; Load() into a new stage with the same arguments continues from
  // there, to the same bits.
  virtual void Save(std::string* out) const = 0;
  virtual absl::Status Load(ByteReader* reader) = 0;
  // Returns the profile's files by name, after the last unit.
  virtual absl::StatusOr<std::map<std::string, std::string>> Finish() = 0;
};

// Cuts a text into windows like `sluice perplexity`: window k holds tokens [k W, k W + W), its input is BOS
// and those tokens without the last. Without BOS the first token is input only; a window of one token is then
// left out.
std::vector<CalibrationWindow> MakeWindows(const std::vector<int32_t>& tokens, uint32_t window,
                                           const std::vector<int32_t>& bos_ids);

// Number of first windows that hold about `tokens` input positions: at least one, at most all.
uint64_t WindowsFor(const std::vector<CalibrationWindow>& windows, uint64_t tokens);

// Number of input positions in the first `count` windows.
uint64_t PositionsOf(const std::vector<CalibrationWindow>& windows, uint64_t count);

}  // namespace sluice::inferd
