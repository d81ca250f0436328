#include "inferd/schedule/sequence.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace sluice::inferd {

void Sequence::NotePrefix(uint32_t positions) {
  if (admitted_ == absl::InfinitePast()) {
    cached_tokens_ = std::min(positions, prompt_tokens_);
  }
}

void Sequence::Admit(absl::Time now) {
  if (admitted_ != absl::InfinitePast()) {
    return;  // admitted again after a preemption
  }
  admitted_ = now;
  OnStarted(QueueSeconds());
}

// `created` is real time. A virtual clock stands still while a request waits, so the difference is
// meaningless and may be negative.
double Sequence::QueueSeconds() const {
  return std::max(0.0, absl::ToDoubleSeconds(admitted_ - header_.created));
}

void Sequence::AddCost(const StepCost& cost, double share) {
  cost_.stall_seconds += cost.stall_seconds;  // every sequence of the step waits in full, not for a share
  cost_.expert_requests += cost.expert_requests * share;
  cost_.expert_hits += cost.expert_hits * share;
  cost_.bytes_ssd += cost.bytes_ssd * share;
  cost_.bytes_link += cost.bytes_link * share;
}

bool Sequence::CheckFinite(const LogitSlice& slice) {
  for (uint32_t row = slice.first; row < slice.first + slice.rows; ++row) {
    if (!std::isfinite(slice.logits->log_sum_exp[row])) {
      error_ = absl::InternalError(
          absl::StrCat("the logits of position ", slice.position + row - slice.first, " are not finite"));
      state_ = State::kFailed;
      return false;
    }
  }
  return true;
}

Timings Sequence::MakeTimings() const {
  Timings timings;
  if (admitted_ != absl::InfinitePast()) {
    timings.queue_seconds = QueueSeconds();
  }
  if (first_token_ != absl::InfinitePast()) {
    timings.prompt_seconds = absl::ToDoubleSeconds(first_token_ - admitted_);
    timings.decode_seconds = absl::ToDoubleSeconds(last_token_ - first_token_);
  }
  timings.stall_seconds = cost_.stall_seconds;
  timings.expert_requests = static_cast<uint64_t>(std::llround(cost_.expert_requests));
  timings.expert_hits = static_cast<uint64_t>(std::llround(cost_.expert_hits));
  timings.bytes_ssd = static_cast<uint64_t>(std::llround(cost_.bytes_ssd));
  timings.bytes_link = static_cast<uint64_t>(std::llround(cost_.bytes_link));
  return timings;
}

}  // namespace sluice::inferd
