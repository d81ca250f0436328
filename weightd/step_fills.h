// How many bytes the engines' steps fill: the mean of each session's recent steps, summed over sessions.
//
// Thread safety: thread-compatible; the store's lock guards it.
#ifndef SLUICE_WEIGHTD_STEP_FILLS_H_
#define SLUICE_WEIGHTD_STEP_FILLS_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace sluice {

class StepFills {
 public:
  // `bytes` are filled for the session's step `step`. Only steps that fill something count.
  void Add(uint64_t session, uint64_t step, uint64_t bytes) {
    Record& record = records_[session];
    if (step != record.step) {
      const double ended = static_cast<double>(record.bytes);
      const double next = record.mean == 0 ? ended : record.mean + (ended - record.mean) * kWeight;
      sum_ += next - record.mean;
      record = Record{step, 0, next};
    }
    record.bytes += bytes;
  }
  void Remove(uint64_t session) {
    const auto found = records_.find(session);
    if (found != records_.end()) {
      sum_ -= found->second.mean;
      records_.erase(found);
    }
    sum_ = records_.empty() ? 0 : sum_;  // no rounding is carried on
  }
  // Of one step of every session.
  double bytes() const { return sum_; }

 private:
  static constexpr double kWeight = 0.25;  // of the latest step in the mean
  struct Record {
    uint64_t step = 0;
    uint64_t bytes = 0;  // of `step` so far
    double mean = 0;     // of the steps before
  };
  absl::flat_hash_map<uint64_t, Record> records_;
  double sum_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_STEP_FILLS_H_
