// Converts the engine's types to gRPC messages.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "inferd/api/engine_api.h"
#include "inferd/grpc/service_request.h"
#include "inferd/serving/serving_context.h"
#include "sluice/inference/v1/admin.pb.h"
#include "sluice/inference/v1/generation.pb.h"
#include "sluice/inference/v1/inference.pb.h"
#include "sluice/inference/v1/model.pb.h"

namespace sluice::inferd {

void FillUsage(const Usage& usage, inference::v1::Usage* out);
void FillTimings(const Timings& timings, uint32_t completion_tokens, inference::v1::Timings* out);
void FillFinished(const FinishInfo& info, inference::v1::Finished* out);
void FillModel(const ServedModel& model, bool has_tokenizer, inference::v1::Model* out);
void FillStats(const EngineStats& stats, inference::v1::GetStatsResponse* out);
void FillSparsity(const std::vector<LayerSparsity>& layers, inference::v1::GetStatsResponse* out);
void FillLayers(const std::vector<LayerStats>& layers, inference::v1::GetStatsResponse* out);

// Appends tokens and text, as selected by `report`, to a Delta, a GenerateResponse or a ChatResponse. Returns
// the approximate number of bytes added to the message.
template <typename Message>
size_t AppendTokens(absl::Span<const TokenOut> tokens, std::string_view text, const ReportOptions& report,
                    Message* out);

inline void FillLogprob(int32_t token, float logprob, inference::v1::TokenLogprob* out) {
  out->set_token_id(static_cast<uint32_t>(token));
  out->set_logprob(logprob);
}

// Returns the text field of a message.
template <typename Message>
std::string* AnswerText(Message* message) {
  return message->mutable_text();
}
inline std::string* AnswerText(inference::v1::ChatResponse* response) {
  return response->mutable_message()->mutable_content();
}

template <typename Message>
size_t AppendTokens(absl::Span<const TokenOut> tokens, std::string_view text, const ReportOptions& report,
                    Message* out) {
  constexpr size_t kIdBytes = 3;  // varint of a usual vocabulary
  constexpr size_t kLogprobBytes = 12;
  size_t bytes = 0;
  if (report.text) {
    AnswerText(out)->append(text.data(), text.size());
    bytes += text.size();
  }
  for (const TokenOut& token : tokens) {
    if (report.token_ids) {
      out->add_token_ids(static_cast<uint32_t>(token.token_id));
      bytes += kIdBytes;
    }
    if (report.logprobs) {
      inference::v1::TokenLogprobs* logprobs = out->add_logprobs();
      FillLogprob(token.token_id, token.logprob, logprobs->mutable_chosen());
      for (const TokenLogprob& candidate : token.candidates) {
        FillLogprob(candidate.token_id, candidate.logprob, logprobs->add_candidates());
      }
      bytes += kLogprobBytes * (1 + token.candidates.size());
    }
  }
  return bytes;
}

}  // namespace sluice::inferd
