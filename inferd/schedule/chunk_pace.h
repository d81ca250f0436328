// The number of prompt rows in a step. A prefill step reads every expert that is not in memory once, whatever
// its number of rows: with few rows it waits for the disk, and every chunk of the prompt repeats the reading.
// So rows grow while reading takes longer than computing, up to the point where both take the same time; more
// rows would only delay the next tokens of other sequences.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::inferd {

class ChunkPace {
 public:
  // Rows are multiples of this, except `least` and `most`.
  static constexpr uint32_t kQuantum = 64;

  // `least` is used while nothing is read, `most` is the maximum; 1 <= least <= most.
  ChunkPace(uint32_t least, uint32_t most) : min_rows_(least), max_rows_(most), rows_(least) {}

  // Number of prompt rows of the next step.
  uint32_t rows() const { return rows_; }

  // Notes a step of `prompt_rows` that lasted `seconds`, of which it waited `waited` for experts, and read
  // `bytes`. Steps with fewer than half of the allowed rows are ignored as noise.
  void Note(uint32_t prompt_rows, double seconds, double waited, uint64_t bytes) {
    if (2 * prompt_rows < rows_ || seconds <= waited || seconds <= 0) {
      return;
    }
    // This is the disk's rate if the step only waited for it, and a lower bound otherwise.
    rate_ = std::max(rate_ * kFade, static_cast<double>(bytes) / seconds);
    const double reading = rate_ > 0 ? std::max(waited, static_cast<double>(bytes) / rate_) : 0;
    const double computing = seconds - waited;
    const double balanced = prompt_rows * std::min(reading / computing, static_cast<double>(max_rows_));
    // At most doubled at a time: one step's times may be outliers.
    const double next = std::min(balanced, 2.0 * rows_);
    const auto rounded = static_cast<uint32_t>(next / kQuantum + 0.5) * kQuantum;
    rows_ = std::clamp(rounded, min_rows_, max_rows_);
  }

 private:
  // Decay per step of a rate that is not reached again.
  static constexpr double kFade = 0.98;

  const uint32_t min_rows_;
  const uint32_t max_rows_;
  uint32_t rows_;
  double rate_ = 0;  // bytes per second
};

}  // namespace sluice::inferd
