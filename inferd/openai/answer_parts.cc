#include "inferd/openai/answer_parts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace sluice::inferd {
namespace {

Json TokenJson(const Tokenizer* tokenizer, int32_t id, float logprob) {
  const std::string bytes = BytesOfToken(tokenizer, id);
  Json list = Json::array();
  for (const char c : bytes) {
    list.push_back(static_cast<unsigned char>(c));
  }
  return {
      {"token", TextOfToken(tokenizer, id)}, {"logprob", LogprobNumber(logprob)}, {"bytes", std::move(list)}};
}

double Rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

Json UsageJson(const Usage& usage, uint32_t reasoning_tokens) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_prompt_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_tokens}}}};
}

Json TimingsJson(const Timings& timings, const Usage& usage) {
  const uint32_t prompt = usage.prompt_tokens - std::min(usage.prompt_tokens, usage.cached_prompt_tokens);
  const double prompt_ms = timings.prompt_seconds * 1e3;
  const double predicted_ms = timings.decode_seconds * 1e3;
  return {{"cache_n", usage.cached_prompt_tokens},
          {"prompt_n", prompt},
          {"prompt_ms", prompt_ms},
          {"prompt_per_token_ms", Rate(prompt_ms, prompt)},
          {"prompt_per_second", Rate(prompt, timings.prompt_seconds)},
          {"predicted_n", usage.completion_tokens},
          {"predicted_ms", predicted_ms},
          {"predicted_per_token_ms", Rate(predicted_ms, usage.completion_tokens)},
          {"predicted_per_second", Rate(usage.completion_tokens, timings.decode_seconds)},
          {"queue_ms", timings.queue_seconds * 1e3},
          {"stall_ms", timings.stall_seconds * 1e3}};
}

const char* FinishWord(FinishReason reason) { return reason == FinishReason::kLength ? "length" : "stop"; }

std::string BytesOfToken(const Tokenizer* tokenizer, int32_t id) {
  if (tokenizer == nullptr) {
    return "";
  }
  return tokenizer->is_special(id) ? std::string(tokenizer->IdToToken(id).value_or(""))
                                   : tokenizer->TokenBytes(id);
}

std::string TextOfToken(const Tokenizer* tokenizer, int32_t id) {
  // The library's own dump replaces ill-formed parts; a well-formed string is unchanged.
  const std::string bytes = BytesOfToken(tokenizer, id);
  const std::string quoted = Dump(Json(bytes));
  return Json::parse(quoted, nullptr, /*allow_exceptions=*/false).get<std::string>();
}

double LogprobNumber(float logprob) {
  return std::isfinite(logprob) ? std::max<double>(logprob, kLogprobFloor) : kLogprobFloor;
}

Json ChatLogprobs(const Tokenizer* tokenizer, absl::Span<const TokenOut> tokens, uint32_t top) {
  Json content = Json::array();
  for (const TokenOut& token : tokens) {
    Json entry = TokenJson(tokenizer, token.token_id, token.logprob);
    Json candidates = Json::array();
    for (size_t i = 0; i < std::min<size_t>(top, token.candidates.size()); ++i) {
      candidates.push_back(TokenJson(tokenizer, token.candidates[i].token_id, token.candidates[i].logprob));
    }
    entry["top_logprobs"] = std::move(candidates);
    content.push_back(std::move(entry));
  }
  return content;
}

void AppendEvent(const Json& json, std::string* out) { absl::StrAppend(out, "data: ", Dump(json), "\n\n"); }

void AppendNamedEvent(const char* name, const Json& json, std::string* out) {
  absl::StrAppend(out, "event: ", name, "\ndata: ", Dump(json), "\n\n");
}

}  // namespace sluice::inferd
