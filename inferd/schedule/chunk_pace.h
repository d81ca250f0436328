// How many rows of prompts a step takes. A step over a prompt reads all experts that are not in memory once,
// however many rows it has: with few rows it waits for the disk, and every chunk of the prompt pays for the
// same reading again. So rows grow while reading takes longer than computing, up to where both take the same
// time; more would make others wait longer for their next token, and gain nothing.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice {

class ChunkPace {
 public:
  // Rows are multiples of this, but for `least` and `most`.
  static constexpr uint32_t kQuantum = 64;

  // `least` is taken while nothing is read, `most` never exceeded; 1 <= least <= most.
  ChunkPace(uint32_t least, uint32_t most) : least_(least), most_(most), rows_(least) {}

  // What the next step takes.
  uint32_t rows() const { return rows_; }

  // A step with `prompt_rows` of prompts took `seconds`, of which it waited `waited` for experts, and read
  // `bytes`. Steps with fewer than half of the rows that they might have had say little and are ignored.
  void Note(uint32_t prompt_rows, double seconds, double waited, uint64_t bytes) {
    if (2 * prompt_rows < rows_ || seconds <= waited || seconds <= 0) {
      return;
    }
    // The disk's rate is seen where a step does nothing but wait for it, and is a lower bound elsewhere.
    rate_ = std::max(rate_ * kFade, static_cast<double>(bytes) / seconds);
    const double reading = rate_ > 0 ? std::max(waited, static_cast<double>(bytes) / rate_) : 0;
    const double computing = seconds - waited;
    const double balanced = prompt_rows * std::min(reading / computing, static_cast<double>(most_));
    // At most doubled at a time: one step's times may be odd.
    const double next = std::min(balanced, 2.0 * rows_);
    const auto rounded = static_cast<uint32_t>(next / kQuantum + 0.5) * kQuantum;
    rows_ = std::clamp(rounded, least_, most_);
  }

 private:
  // A rate that is not reached again is forgotten by so much a step.
  static constexpr double kFade = 0.98;

  const uint32_t least_;
  const uint32_t most_;
  uint32_t rows_;
  double rate_ = 0;  // bytes a second
};

}  // namespace sluice
