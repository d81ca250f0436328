#include "inferd/api/request_checks.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

absl::Status Invalid(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::Status CheckIds(const std::string& field, absl::Span<const int32_t> ids, uint32_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<uint32_t>(ids[i]) >= vocab) {
      return Invalid(absl::StrCat(field, "[", i, "]"),
                     absl::StrCat("token id ", ids[i], " is not in the vocabulary of ", vocab));
    }
  }
  return absl::OkStatus();
}

// REQUIRES: `ok` comes from comparisons that hold, not from negated ones: those are false for NaN, and NaN
// must be refused.
absl::Status CheckNumber(bool ok, const char* field, float value, const char* range) {
  return ok ? absl::OkStatus() : Invalid(field, absl::StrCat(value, " is not ", range));
}

absl::Status CheckSampling(const SamplingParams& p) {
  const float kMax = 3.0e38f;
  RETURN_IF_ERROR(CheckNumber(p.temperature >= 0 && p.temperature <= kMax, "sampling.temperature",
                              p.temperature, "a finite number >= 0"));
  RETURN_IF_ERROR(CheckNumber(p.top_p > 0 && p.top_p <= 1, "sampling.top_p", p.top_p, "in (0, 1]"));
  RETURN_IF_ERROR(CheckNumber(p.min_p >= 0 && p.min_p < 1, "sampling.min_p", p.min_p, "in [0, 1)"));
  RETURN_IF_ERROR(CheckNumber(p.repetition_penalty > 0 && p.repetition_penalty <= 1e6f,
                              "sampling.repetition_penalty", p.repetition_penalty, "in (0, 1e6]"));
  RETURN_IF_ERROR(CheckNumber(std::abs(p.frequency_penalty) <= 1e6f, "sampling.frequency_penalty",
                              p.frequency_penalty, "in [-1e6, 1e6]"));
  return CheckNumber(std::abs(p.presence_penalty) <= 1e6f, "sampling.presence_penalty", p.presence_penalty,
                     "in [-1e6, 1e6]");
}

absl::Status CheckBias(const SamplingParams& p, uint32_t vocab) {
  if (p.logit_bias.size() > kMaxLogitBias) {
    return Invalid("sampling.logit_bias",
                   absl::StrCat(p.logit_bias.size(), " tokens, at most ", kMaxLogitBias));
  }
  for (const auto& [id, bias] : p.logit_bias) {
    RETURN_IF_ERROR(CheckIds("sampling.logit_bias", absl::MakeConstSpan(&id, 1), vocab));
    RETURN_IF_ERROR(
        CheckNumber(std::abs(bias) <= 1e6f, "sampling.logit_bias", bias, "a bias in [-1e6, 1e6]"));
  }
  return absl::OkStatus();
}

absl::Status CheckStopping(const StoppingParams& p, const RequestBounds& bounds) {
  if (p.max_tokens == 0) {
    return Invalid("stopping.max_tokens", "must be at least 1");
  }
  if (p.min_tokens > p.max_tokens) {
    return Invalid("stopping.min_tokens",
                   absl::StrCat(p.min_tokens, " is above max_tokens, which is ", p.max_tokens));
  }
  if (p.stop.size() > kMaxStopStrings) {
    return Invalid("stopping.stop", absl::StrCat(p.stop.size(), " strings, at most ", kMaxStopStrings));
  }
  if (!p.stop.empty() && !bounds.has_text) {
    return Invalid("stopping.stop", "the model has no tokenizer, so there is no text to stop at");
  }
  for (size_t i = 0; i < p.stop.size(); ++i) {
    if (p.stop[i].empty() || p.stop[i].size() > kMaxStopBytes) {
      return Invalid(absl::StrCat("stopping.stop[", i, "]"),
                     absl::StrCat(p.stop[i].size(), " bytes, must be 1..", kMaxStopBytes));
    }
  }
  if (p.stop_token_ids.size() > kMaxStopIds) {
    return Invalid("stopping.stop_token_ids",
                   absl::StrCat(p.stop_token_ids.size(), " ids, at most ", kMaxStopIds));
  }
  return CheckIds("stopping.stop_token_ids", p.stop_token_ids, bounds.vocab);
}

// A constraint itself decides where an answer may end, and needs a tokenizer.
absl::Status CheckConstraint(const StoppingParams& stopping, const RequestBounds& bounds) {
  if (!bounds.has_text) {
    return Invalid("guided", "the model has no tokenizer, so output cannot be constrained");
  }
  if (stopping.min_tokens > 0) {
    return Invalid("stopping.min_tokens",
                   "cannot be set together with a constraint, which decides where the answer may end");
  }
  return stopping.ignore_eos
             ? Invalid("stopping.ignore_eos",
                       "cannot be set together with a constraint, which decides where the answer ends")
             : absl::OkStatus();
}

absl::Status TooLong(const std::string& field, const std::string& description) {
  absl::Status status = Invalid(field, description);
  status.SetPayload(kReasonPayload, absl::Cord("CONTEXT_TOO_LONG"));
  return status;
}

absl::Status CheckName(const std::string& request_id) {
  return request_id.empty() ? Invalid("request_id", "is empty") : absl::OkStatus();
}

}  // namespace

absl::Status CheckGenerate(const GenerateSpec& spec, const RequestBounds& bounds) {
  RETURN_IF_ERROR(CheckName(spec.request_id));
  if (spec.prompt.empty()) {
    return Invalid("prompt", "has no token");
  }
  RETURN_IF_ERROR(CheckStopping(spec.stopping, bounds));
  RETURN_IF_ERROR(spec.constraint.has_value() ? CheckConstraint(spec.stopping, bounds) : absl::OkStatus());
  // The whole answer must fit from the start: otherwise it would be cut off at the end of the context without
  // notice.
  if (spec.prompt.size() + spec.stopping.max_tokens > bounds.context) {
    return TooLong("stopping.max_tokens",
                   absl::StrCat(spec.prompt.size(), " prompt tokens and ", spec.stopping.max_tokens,
                                " of the answer do not fit the context of ", bounds.context));
  }
  RETURN_IF_ERROR(CheckIds("prompt", spec.prompt, bounds.vocab));
  RETURN_IF_ERROR(CheckSampling(spec.sampling));
  if (spec.cache_salt.size() > kMaxSaltBytes) {
    return Invalid("cache_salt", absl::StrCat(spec.cache_salt.size(), " bytes, at most ", kMaxSaltBytes));
  }
  if (spec.max_queue_wait <= absl::ZeroDuration()) {
    return Invalid("max_queue_wait",
                   absl::StrCat("is ", absl::FormatDuration(spec.max_queue_wait), ", must be above 0"));
  }
  RETURN_IF_ERROR(CheckBias(spec.sampling, bounds.vocab));
  if (spec.logprobs > bounds.max_logprobs || spec.logprobs >= bounds.vocab) {
    return Invalid("logprobs", absl::StrCat(spec.logprobs, " candidates, at most ", bounds.max_logprobs));
  }
  return absl::OkStatus();
}

absl::Status CheckScore(const ScoreSpec& spec, const RequestBounds& bounds) {
  RETURN_IF_ERROR(CheckName(spec.request_id));
  if (spec.input.empty()) {
    return Invalid("input", "has no token");
  }
  if (spec.input.size() > bounds.context) {
    return TooLong("input",
                   absl::StrCat(spec.input.size(), " tokens do not fit the context of ", bounds.context));
  }
  if (!spec.targets.empty() && spec.targets.size() != spec.input.size()) {
    return Invalid("targets",
                   absl::StrCat(spec.targets.size(), " targets for ", spec.input.size(), " tokens"));
  }
  RETURN_IF_ERROR(CheckIds("input", spec.input, bounds.vocab));
  return CheckIds("targets", spec.targets, bounds.vocab);
}

}  // namespace sluice::inferd
