// API of /v1/completions: plain prompts, without a template.
//
// Thread safety: pure functions and plain values; for the writer see AnswerWriter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/http/answer_call.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/json_body.h"
#include "inferd/http/request_fields.h"
#include "inferd/serving/generation_plan.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

struct CompletionPrompt {
  std::vector<int32_t> ids;
  std::string text;              // for echo
  std::vector<TokenOut> scores;  // for echo with logprobs, by token; the first one has no score
};

struct CompletionPlan {
  AnswerStyle style;
  std::vector<CompletionPrompt> prompts;
  bool echo = false;
  std::optional<uint32_t> logprobs;
  std::string constraint_field;     // the client's name of the constraint in `specs`
  bool generates = true;            // false (max_tokens 0 with echo): the prompt is only scored
  std::vector<GenerateSpec> specs;  // by choice, prompt by prompt; also where nothing is generated
};

// Reads and checks everything. INVALID_ARGUMENT naming the field; errors of PlanRequest and FitToPrompt.
absl::StatusOr<CompletionPlan> PlanCompletion(const Json& body, const ServingContext& context,
                                              const CallFacts& call);

class CompletionsWriter final : public AnswerWriter {
 public:
  // `plan`: with the scores for echo with logprobs.
  CompletionsWriter(AnswerFacts facts, const CompletionPlan& plan);

  void Add(size_t choice, AnswerPiece piece, const Usage& running, std::string* out) override;
  void Finish(size_t choice, const FinishInfo& info, std::string* out) override;
  void End(const AnswerTotals& totals, std::string* out) override;
  std::string ErrorEvent(const absl::Status& status) const override;

 private:
  struct Choice {
    std::string text;
    std::vector<TokenOut> tokens;
    size_t unscored = 0;  // index of the first token without a probability: 1 with a prompt's scores
    size_t offset = 0;    // of the next token, in characters
    std::string finish;
    Json stop_reason;
  };
  Json Chunk() const;
  Json Entry(size_t index, Choice* choice);
  Json Logprobs(Choice* choice);

  const AnswerFacts facts_;
  const AnswerStyle style_;
  const std::optional<uint32_t> logprobs_;
  std::vector<Choice> choices_;
};

}  // namespace sluice::inferd
