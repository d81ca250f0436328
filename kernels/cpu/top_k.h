// Keeps the best k of a stream of values (ARITHMETIC.md 4 and 8).
//
// Thread safety: thread-compatible; writes the memory it was given.
#pragma once

#include <cstdint>

namespace sluice::cpu {

// The best k of the values offered so far, best first; among equal values the lower index is first.
class TopK {
 public:
  // The caller owns ids[k] and values[k].
  TopK(uint32_t k, int32_t* ids, float* values) : k_(k), ids_(ids), values_(values) {}

  // Offers candidates in ascending order of index.
  void Offer(int32_t id, float value) {
    if (count_ == k_ && !(value > values_[count_ - 1])) {
      return;
    }
    uint32_t place = count_ < k_ ? count_++ : k_ - 1;
    for (; place > 0 && value > values_[place - 1]; --place) {
      ids_[place] = ids_[place - 1];
      values_[place] = values_[place - 1];
    }
    ids_[place] = id;
    values_[place] = value;
  }

  // True if a value could still enter.
  bool Wants(float value) const { return count_ < k_ || value > values_[count_ - 1]; }

 private:
  const uint32_t k_;
  int32_t* const ids_;
  float* const values_;
  uint32_t count_ = 0;
};

}  // namespace sluice::cpu
