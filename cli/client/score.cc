#include "cli/client/score.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

absl::Status CheckRows(const api::ScoreRows& rows, const ScoreTask& task, uint64_t vocab, uint64_t next_row) {
  const uint64_t count = static_cast<uint64_t>(rows.argmax_size());
  const uint64_t logprobs = task.targets.empty() ? 0 : count;
  const uint64_t logit_bytes = task.want_logits ? count * vocab * sizeof(float) : 0;
  if (rows.first_row() != next_row || next_row + count > task.input.size() ||
      static_cast<uint64_t>(rows.target_logprobs_size()) != logprobs || rows.logits().size() != logit_bytes) {
    return absl::InternalError(
        absl::StrCat("inferd sent rows that do not add up: row ", rows.first_row(), " after ", next_row,
                     " of ", task.input.size(), ", ", count, " rows with ", rows.target_logprobs_size(),
                     " log probabilities and ", rows.logits().size(), " bytes of logits"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Score(Client* client, const ScoreTask& task, uint64_t vocab,
                   absl::FunctionRef<absl::Status(const ScoredRows&)> handle) {
  api::ScoreRequest request;
  request.mutable_token_ids()->Add(task.input.begin(), task.input.end());
  request.mutable_targets()->Add(task.targets.begin(), task.targets.end());
  request.set_want_logits(task.want_logits);
  uint64_t next_row = 0;
  std::vector<float> logits;  // the message's bytes have no alignment
  const auto on_event = [&](const api::ScoreResponse& event) -> absl::Status {
    if (!event.has_rows()) {
      return absl::OkStatus();
    }
    const api::ScoreRows& rows = event.rows();
    RETURN_IF_ERROR(CheckRows(rows, task, vocab, next_row));
    logits.resize(rows.logits().size() / sizeof(float));
    std::memcpy(logits.data(), rows.logits().data(), rows.logits().size());
    next_row += static_cast<uint64_t>(rows.argmax_size());
    return handle({rows.first_row(), absl::MakeConstSpan(rows.argmax().data(), rows.argmax().size()),
                   absl::MakeConstSpan(rows.target_logprobs().data(), rows.target_logprobs().size()),
                   logits});
  };
  RETURN_IF_ERROR(client->Score(request, on_event));
  if (next_row != task.input.size()) {
    return absl::InternalError(absl::StrCat("inferd sent ", next_row, " rows of ", task.input.size()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::cli
