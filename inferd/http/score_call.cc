#include "inferd/http/score_call.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::inferd {
namespace {

class PromptSink final : public ScoreSink {
 public:
  PromptSink(std::shared_ptr<ScoreCall> call, size_t prompt) : call_(std::move(call)), prompt_(prompt) {}
  void OnRows(uint32_t first, absl::Span<const int32_t>, absl::Span<const float>,
              absl::Span<const float> logits) override {
    call_->Rows(prompt_, first, logits);
  }
  bool Congested() override { return false; }
  void OnFinished(const Usage&, const Timings&) override { call_->Ended(prompt_, absl::OkStatus()); }
  void OnError(const absl::Status& status) override { call_->Ended(prompt_, status); }

 private:
  const std::shared_ptr<ScoreCall> call_;
  const size_t prompt_;
};

// Returns the token's log probability in a row of logits, and the best `count` of the row.
TokenOut ScoreOf(absl::Span<const float> row, int32_t token, uint32_t count) {
  const float best = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float logit : row) {
    sum += std::exp(static_cast<double>(logit - best));
  }
  const float log_sum = best + static_cast<float>(std::log(sum));
  TokenOut out;
  out.token_id = token;
  out.logprob = row[token] - log_sum;
  const auto better = [&row](int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); };
  std::vector<int32_t> top;  // a heap whose front is the worst
  for (int32_t id = 0; count > 0 && id < static_cast<int32_t>(row.size()); ++id) {
    if (top.size() == count && !better(id, top.front())) {
      continue;
    }
    if (top.size() == count) {
      std::pop_heap(top.begin(), top.end(), better);
      top.pop_back();
    }
    top.push_back(id);
    std::push_heap(top.begin(), top.end(), better);
  }
  std::sort_heap(top.begin(), top.end(), better);
  for (const int32_t id : top) {
    out.candidates.push_back({id, row[id] - log_sum});
  }
  return out;
}

std::vector<std::string> PromptIds(const ScoreWork& work) {
  std::vector<std::string> ids;
  for (size_t i = 0; i < work.prompts.size(); ++i) {
    ids.push_back(absl::StrCat(work.request_id, "-prompt-", i));
  }
  return ids;
}

}  // namespace

ScoreCall::ScoreCall(const ServingContext& context, ScoreWork work, std::shared_ptr<HttpExchange> exchange,
                     Then then)
    : ServedCall(context, {"http_score", work.request_id, work.client}, PromptIds(work)),
      work_(std::move(work)),
      exchange_(std::move(exchange)),
      then_(std::move(then)) {
  const MutexLock lock(&mutex_);
  for (const std::vector<int32_t>& prompt : work_.prompts) {
    // The first token has no predecessor and so no probability.
    scores_.emplace_back(prompt.size())[0].token_id = prompt[0];
  }
  left_ = work_.prompts.size();
}

void ScoreCall::Start(const ServingContext& context, ScoreWork work,
                      const std::shared_ptr<HttpExchange>& exchange, Then then) {
  const auto call = std::make_shared<ScoreCall>(context, std::move(work), exchange, std::move(then));
  call->Enter();
  exchange->SetObserver(call);
  call->Submit();
}

void ScoreCall::Submit() {
  const std::vector<std::string> ids = PromptIds(work_);
  for (size_t i = 0; i < work_.prompts.size(); ++i) {
    ScoreSpec spec;
    spec.request_id = ids[i];
    spec.client = work_.client;
    spec.input = work_.prompts[i];
    spec.want_logits = true;
    spec.deadline = work_.deadline;
    const absl::Status status =
        ServedCall::Submit(i, std::move(spec), std::make_shared<PromptSink>(shared_from_this(), i));
    if (!status.ok()) {
      const MutexLock lock(&mutex_);
      End(status);
      return;
    }
  }
}

void ScoreCall::Rows(size_t prompt, uint32_t first, absl::Span<const float> logits) {
  const std::vector<int32_t>& ids = work_.prompts[prompt];
  const size_t vocab = serving().model.vocab;
  for (size_t row = 0; (row + 1) * vocab <= logits.size(); ++row) {
    const size_t next = first + row + 1;  // a row predicts the token behind its own
    if (next < ids.size()) {
      TokenOut score = ScoreOf(logits.subspan(row * vocab, vocab), ids[next], work_.candidates);
      const MutexLock lock(&mutex_);
      scores_[prompt][next] = std::move(score);
    }
  }
}

void ScoreCall::Ended(size_t prompt, const absl::Status& status) {
  RequestEnded(prompt);
  const MutexLock lock(&mutex_);
  --left_;
  if (!status.ok() || left_ == 0) {
    End(status);
  }
}

void ScoreCall::End(const absl::Status& status) {
  if (!end_.has_value() && !over_) {
    end_ = status;
    exchange_->Wake();
  }
}

void ScoreCall::OnReady() {
  absl::Status status;
  std::vector<std::vector<TokenOut>> scores;
  {
    const MutexLock lock(&mutex_);
    if (over_ || !end_.has_value()) {
      return;
    }
    over_ = true;
    status = *end_;
    scores = std::move(scores_);
  }
  if (!status.ok()) {
    CancelRequests();
  }
  then_(status, std::move(scores));
  Leave();
}

void ScoreCall::OnEnded(bool disconnected) {
  {
    const MutexLock lock(&mutex_);
    if (!disconnected || std::exchange(over_, true)) {
      return;
    }
  }
  CancelRequests();
  Leave();
}

}  // namespace sluice::inferd
