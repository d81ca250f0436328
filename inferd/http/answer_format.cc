#include "inferd/http/answer_format.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/http/json_body.h"
#include "inferd/serving/serving_context.h"

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
          {"completion_tokens_details",
           {{"reasoning_tokens", reasoning_tokens},
            {"accepted_prediction_tokens", usage.accepted_tokens},
            {"rejected_prediction_tokens", usage.drafted_tokens - usage.accepted_tokens}}}};
}

Json TimingsJson(const Timings& timings, const Usage& usage) {
  const uint32_t prompt = usage.prompt_tokens - std::min(usage.prompt_tokens, usage.cached_prompt_tokens);
  const double prompt_ms = timings.prompt_seconds * 1e3;
  const double predicted_ms = timings.decode_seconds * 1e3;
  Json json = {{"cache_n", usage.cached_prompt_tokens},
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
  if (usage.drafted_tokens > 0) {
    json["draft_n"] = usage.drafted_tokens;
    json["draft_n_accepted"] = usage.accepted_tokens;
  }
  return json;
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

namespace {

// Status after a disconnect (nginx's 499); the client does not read it, a log may.
constexpr int kClientClosed = 499;

int HttpStatusOf(const absl::Status& status, const std::string& reason) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:  // not 501: clients retry every status above 499
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return reason == "TEMPLATE_LIMIT" ? 400 : 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    case absl::StatusCode::kCancelled:
      return kClientClosed;
    default:
      return 500;
  }
}

const char* TypeOf(int http) {
  switch (http) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return http >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* AnthropicTypeOf(int http) {
  switch (http) {
    case 503:
      return "overloaded_error";
    case 500:
    case 504:
      return "api_error";
    default:
      return TypeOf(http);
  }
}

// Returns the error code; codes that clients act on have OpenAI's spelling.
std::string CodeOf(const std::string& reason) {
  if (reason == "CONTEXT_TOO_LONG") {
    return "context_length_exceeded";
  }
  if (reason == "UNKNOWN_MODEL") {
    return "model_not_found";
  }
  return reason == "INVALID_FIELD" ? "invalid_value" : absl::AsciiStrToLower(reason);
}

Json Object(int http, const std::string& message, const std::string& field, const std::string& code,
            ErrorStyle style) {
  if (style == ErrorStyle::kAnthropic) {
    return {{"type", "error"}, {"error", {{"type", AnthropicTypeOf(http)}, {"message", message}}}};
  }
  return {{"error",
           {{"message", message},
            {"type", TypeOf(http)},
            {"param", field.empty() ? Json() : Json(field)},
            {"code", code.empty() ? Json() : Json(code)}}}};
}

struct Explained {
  absl::Status status;
  std::string reason;
  int http = 500;
};

Explained ExplainStatus(const absl::Status& status) {
  Explained out{Explain(status), "", 500};
  out.reason = ReasonOf(out.status);
  out.http = HttpStatusOf(out.status, out.reason);
  return out;
}

}  // namespace

ErrorStyle ErrorStyleOf(const std::string& path) {
  return absl::StartsWith(path, "/v1/messages") ? ErrorStyle::kAnthropic : ErrorStyle::kOpenAi;
}

HttpResponse ErrorAnswer(const absl::Status& status, ErrorStyle style) {
  const Explained explained = ExplainStatus(status);
  HttpResponse answer;
  answer.status = explained.http;
  answer.body = Dump(Object(explained.http, std::string(status.message()), FieldOf(status),
                            CodeOf(explained.reason), style));
  if (explained.http == 429 || explained.http == 503) {
    const absl::Duration wait = RetryDelayOf(explained.status).value_or(absl::Seconds(1));
    answer.headers.emplace_back(
        "Retry-After",
        absl::StrCat(std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(wait, absl::Seconds(1))))));
    answer.headers.emplace_back("retry-after-ms", absl::StrCat(absl::ToInt64Milliseconds(wait)));
  } else if (explained.http >= 500) {
    answer.headers.emplace_back("x-should-retry", "false");  // a retry would fail the same way
  }
  return answer;
}

HttpResponse ErrorAnswer(const HttpProblem& problem, ErrorStyle style) {
  HttpResponse answer;
  answer.status = problem.status;
  answer.body = Dump(Object(problem.status, problem.message, "", problem.code, style));
  return answer;
}

std::string ErrorObject(const absl::Status& status, ErrorStyle style) {
  const Explained explained = ExplainStatus(status);
  return Dump(Object(explained.http, std::string(status.message()), FieldOf(status), CodeOf(explained.reason),
                     style));
}

}  // namespace sluice::inferd
