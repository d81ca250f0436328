#include "inferd/grpc/model_service.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "inferd/grpc/inference_service.h"
#include "inferd/grpc/service_call.h"
#include "inferd/grpc/service_request.h"
#include "inferd/grpc/service_response.h"

namespace sluice::inferd {

namespace v1 = inference::v1;

grpc::ServerUnaryReactor* ModelServiceImpl::ListModels(grpc::CallbackServerContext* call,
                                                       const v1::ListModelsRequest* request,
                                                       v1::ListModelsResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  if (status.ok()) {
    Fill(response->add_models());
  }
  return Reply(call, status);
}

grpc::ServerUnaryReactor* ModelServiceImpl::GetModel(grpc::CallbackServerContext* call,
                                                     const v1::GetModelRequest* request,
                                                     v1::GetModelResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  status.Update(CheckModel(context_, request->model()));
  if (status.ok()) {
    Fill(response->mutable_model());
  }
  return Reply(call, status);
}

void ModelServiceImpl::Fill(v1::Model* model) const {
  FillModel(context_.model, context_.tokenizer != nullptr, model);
  const bool serves = context_.state->Look().phase == ServerState::Phase::kServing;
  model->set_state(serves ? v1::MODEL_STATE_LOADED : v1::MODEL_STATE_LOADING);
}

namespace {

static_assert(std::endian::native == std::endian::little, "logits travel as little-endian float32");

// Maximum bytes of rows in one message: far below a client's default limit of 4 MiB.
constexpr size_t kMessageBytes = 1 << 20;
// Congestion limit: above this many unread bytes the engine leaves the request out of its steps, since full
// logits are produced far faster than a client reads them.
constexpr size_t kCongestedBytes = 4 << 20;

class ScoreStreamCall final : public ServiceStream<v1::ScoreResponse>, public ScoreSink {
 public:
  ScoreStreamCall(const ServiceContext& context, grpc::CallbackServerContext* call, const ScoreSpec& spec)
      : ServiceStream(context, call, {"score", spec.request_id, spec.client}, {spec.request_id}) {}

  void OnRows(uint32_t first, absl::Span<const int32_t> argmax, absl::Span<const float> target_logprobs,
              absl::Span<const float> logits) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool Congested() override { return unsent() > kCongestedBytes; }
  void OnFinished(const Usage& usage, const Timings& timings) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnError(const absl::Status& status) override {
    RequestEnded(0);
    End(status);
  }

 private:
  struct Pending {
    v1::ScoreResponse message;
    size_t bytes = 0;
  };
  std::optional<size_t> Take(bool ending, v1::ScoreResponse* out) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { pending_.clear(); }
  void Ending(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LogEnd(status.ok() && info_ ? &*info_ : nullptr, status);
  }

  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::optional<FinishInfo> info_ ABSL_GUARDED_BY(mutex_);
};

void ScoreStreamCall::OnRows(uint32_t first, absl::Span<const int32_t> argmax,
                             absl::Span<const float> target_logprobs, absl::Span<const float> logits) {
  const size_t rows = argmax.size();
  const size_t row_floats = rows == 0 ? 0 : logits.size() / rows;
  const size_t row_bytes = row_floats * sizeof(float) + (target_logprobs.empty() ? 4 : 8);
  // Splits rows into messages below the default limit of clients; a single row may exceed it, and then is one
  // message.
  const size_t message_rows = std::max<size_t>(1, kMessageBytes / row_bytes);
  const absl::MutexLock lock(&mutex_);
  for (size_t row = 0; row < rows && Open(); row += message_rows) {
    const size_t count = std::min(message_rows, rows - row);
    Pending& pending = pending_.emplace_back();
    v1::ScoreRows* out = pending.message.mutable_rows();
    out->set_first_row(first + static_cast<uint32_t>(row));
    const auto ids = argmax.subspan(row, count);
    out->mutable_argmax()->Assign(ids.begin(), ids.end());
    const auto targets = target_logprobs.empty() ? target_logprobs : target_logprobs.subspan(row, count);
    out->mutable_target_logprobs()->Assign(targets.begin(), targets.end());
    const auto values = logits.subspan(row * row_floats, count * row_floats);
    out->mutable_logits()->assign(reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float));
    pending.bytes = count * row_bytes;
    Appended(pending.bytes, /*may_cut=*/false);  // Congested() throttles the engine instead
  }
  Wake();
}

void ScoreStreamCall::OnFinished(const Usage& usage, const Timings& timings) {
  RequestEnded(0);
  {
    const absl::MutexLock lock(&mutex_);
    if (Open()) {
      info_.emplace();
      info_->usage = usage;
      info_->timings = timings;
      v1::ScoreFinished* finished = pending_.emplace_back().message.mutable_finished();
      FillUsage(usage, finished->mutable_usage());
      FillTimings(timings, 0, finished->mutable_timings());
    }
  }
  End(absl::OkStatus());
}

std::optional<size_t> ScoreStreamCall::Take(bool, v1::ScoreResponse* out) {
  if (pending_.empty()) {
    return std::nullopt;
  }
  out->Swap(&pending_.front().message);
  const size_t bytes = pending_.front().bytes;
  pending_.pop_front();
  return bytes;
}

}  // namespace

grpc::ServerWriteReactor<v1::ScoreResponse>* EvaluationServiceImpl::Score(grpc::CallbackServerContext* call,
                                                                          const v1::ScoreRequest* request) {
  absl::Status unknown = CheckNoUnknownFields(*request);
  auto spec = unknown.ok() ? PlanScore(context_, FactsOf(*call), *request) : unknown;
  if (!spec.ok()) {
    return Refuse<v1::ScoreResponse>(spec.status());
  }
  call->AddInitialMetadata("x-request-id", spec->request_id);
  auto score = std::make_shared<ScoreStreamCall>(context_, call, *spec);
  context_.pump->Add(score);
  if (const absl::Status status = score->Submit(0, *std::move(spec), score); !status.ok()) {
    score->End(status);
  }
  return score.get();
}

}  // namespace sluice::inferd
