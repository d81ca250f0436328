#include "inferd/serving/served_call.h"

#include <utility>

#include "common/base/status.h"

namespace sluice::inferd {

void EngineRequest::CancelInEngine() {
  if (const absl::StatusOr<EngineApi*> engine = state_->Engine(); engine.ok()) {
    (*engine)->Cancel(id_).IgnoreError();  // NOT_FOUND: it has just ended by itself
  }
}

void EngineRequest::Accepted() {
  Phase expected = Phase::kNew;
  if (!phase_.compare_exchange_strong(expected, Phase::kLive) && expected == Phase::kCancelled) {
    CancelInEngine();
  }
}

void EngineRequest::Cancel() {
  Phase expected = Phase::kNew;
  if (phase_.compare_exchange_strong(expected, Phase::kCancelled)) {
    return;  // Accepted() cancels it
  }
  if (expected == Phase::kLive && phase_.compare_exchange_strong(expected, Phase::kEnded)) {
    CancelInEngine();
  }
}

ServedCall::ServedCall(const ServingContext& context, Label label, const std::vector<std::string>& ids)
    : serving_(context), label_(std::move(label)) {
  for (const std::string& id : ids) {
    requests_.push_back(std::make_unique<EngineRequest>(context.state, id));
  }
}

absl::Status ServedCall::Submit(size_t request, GenerateSpec spec, std::shared_ptr<RequestSink> sink) {
  ASSIGN_OR_RETURN(EngineApi* const engine, serving_.state->Engine());
  RETURN_IF_ERROR(engine->Generate(std::move(spec), std::move(sink)));
  requests_[request]->Accepted();
  return absl::OkStatus();
}

absl::Status ServedCall::Submit(size_t request, ScoreSpec spec, std::shared_ptr<ScoreSink> sink) {
  ASSIGN_OR_RETURN(EngineApi* const engine, serving_.state->Engine());
  RETURN_IF_ERROR(engine->Score(std::move(spec), std::move(sink)));
  requests_[request]->Accepted();
  return absl::OkStatus();
}

void ServedCall::CancelRequests() {
  for (const auto& request : requests_) {
    request->Cancel();
  }
}

void ServedCall::Leave() {
  SetUnsent(0);
  serving_.calls->Leave();
}

void ServedCall::SetUnsent(uint64_t bytes) {
  const uint64_t before = unsent_.exchange(bytes, std::memory_order_relaxed);
  serving_.calls->unsent_.fetch_add(bytes - before,
                                    std::memory_order_relaxed);  // wraps around where fewer are left
}

void ServedCall::LogEnd(const FinishInfo* info, const absl::Status& status) const {
  if (serving_.metrics != nullptr) {
    serving_.metrics->Ended(info, status);
  }
  if (info == nullptr) {
    serving_.log->info("{} id={} client={} code={} message=\"{}\"", label_.kind, label_.request_id,
                       label_.client, absl::StatusCodeToString(status.code()), std::string(status.message()));
    return;
  }
  const Timings& t = info->timings;
  const double decoded = info->usage.completion_tokens > 1 ? info->usage.completion_tokens - 1 : 0;
  serving_.log->info(
      "{} id={} client={} code={} prompt={} cached={} completion={} queue_seconds={:.3f} ttft_seconds={:.3f} "
      "tpot_seconds={:.4f} stall_seconds={:.3f} expert_requests={} expert_hits={} bytes_ssd={} bytes_link={}",
      label_.kind, label_.request_id, label_.client, absl::StatusCodeToString(status.code()),
      info->usage.prompt_tokens, info->usage.cached_prompt_tokens, info->usage.completion_tokens,
      t.queue_seconds, t.queue_seconds + t.prompt_seconds, decoded > 0 ? t.decode_seconds / decoded : 0.0,
      t.stall_seconds, t.expert_requests, t.expert_hits, t.bytes_ssd, t.bytes_link);
}

}  // namespace sluice::inferd
