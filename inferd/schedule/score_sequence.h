// A score request: its tokens are given, and every row's logits are reported.
//
// Thread safety: thread-compatible; see sequence.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "inferd/schedule/sequence.h"

namespace sluice::inferd {

class ScoreSequence final : public Sequence {
 public:
  // `spec`: validated. `vocab` bounds the rows a step may hold when full rows are wanted.
  ScoreSequence(SequenceId id, ScoreSpec spec, std::shared_ptr<ScoreSink> sink, absl::Time now,
                uint32_t vocab);

  uint32_t row_limit() const override { return row_limit_; }
  uint32_t LogitRowsOf(const ScheduledRows& rows) const override;
  bool WantsLogits() const override { return want_logits_ || !targets_.empty(); }
  uint32_t decode_from() const override { return 0; }
  bool Congested() override { return sink_->Congested(); }
  void Take(const LogitSlice& slice, absl::Time now, Sampler* sampler) override;
  void Finish() override;
  void Fail(const absl::Status& status) override;

 protected:
  void OnStarted(double) override {}

 private:
  const std::vector<int32_t> targets_;
  const bool want_logits_;
  const uint32_t row_limit_;
  const std::shared_ptr<ScoreSink> sink_;
  uint32_t reported_ = 0;               // number of rows reported to the sink
  std::vector<int32_t> argmax_;         // of one slice
  std::vector<float> target_logprobs_;  // of one slice
};

}  // namespace sluice::inferd
