// Teacher-forced scoring through inferd's EvaluationService: one sequence, its rows as spans, checked.
//
// Thread safety: Score may be called from several threads at once: inferd computes the sequences together.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cli/client/client.h"

namespace sluice::cli {

struct ScoreTask {
  std::vector<int32_t> input;
  std::vector<int32_t> targets;  // empty, or as long as input
  bool want_logits = false;
};

// Rows [first, first + argmax.size()); views live during the call only.
struct ScoredRows {
  uint64_t first = 0;
  absl::Span<const uint32_t> argmax;
  absl::Span<const float> target_logprobs;  // empty without targets
  absl::Span<const float> logits;           // [rows, vocab], empty unless wanted
};

// Runs the task; every row comes once, in order. Internal if the server sends rows that do not add up.
absl::Status Score(Client* client, const ScoreTask& task, uint64_t vocab,
                   absl::FunctionRef<absl::Status(const ScoredRows&)> handle);

}  // namespace sluice::cli
