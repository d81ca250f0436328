#include "inferd/openai/api_errors.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/error_detail.h"
#include "inferd/openai/fields/json_body.h"
#include "inferd/serving/engine_request.h"

namespace sluice::inferd {
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
