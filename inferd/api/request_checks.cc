#include "inferd/api/request_checks.h"

#include <iterator>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

constexpr double kNoMost = std::numeric_limits<uint32_t>::max();
constexpr bool kExcluded = true;

constexpr FieldBound kBounds[] = {
    {Field::kTemperature, "temperature", 0, 2},
    {Field::kTopP, "top_p", 0, 1, "", kExcluded},
    {Field::kTopK, "top_k", 0, kNoMost},
    {Field::kMinP, "min_p", 0, 1, "", !kExcluded, kExcluded},
    {Field::kRepetitionPenalty, "repetition_penalty", 0, 100, "", kExcluded},
    {Field::kFrequencyPenalty, "frequency_penalty", -2, 2},
    {Field::kPresencePenalty, "presence_penalty", -2, 2},
    {Field::kLogitBias, "logit_bias", -100, 100},
    {Field::kLogitBiasTokens, "logit_bias", 0, 1024, "tokens"},
    {Field::kChoices, "n", 1, 128},
    {Field::kMaxTokens, "max_tokens", 1, kNoMost},
    {Field::kStopTexts, "stop", 0, 16, "texts"},
    {Field::kStopText, "stop", 1, 1024, "bytes"},
    {Field::kStopTokenIds, "stop_token_ids", 0, 64, "ids"},
    {Field::kLogprobs, "logprobs", 0, 20, "candidates"},
    {Field::kCacheSalt, "cache_salt", 0, 256, "bytes"},
    {Field::kRequestId, "request_id", 0, 128, "bytes"},
    {Field::kTimeout, "timeout", 0, 1e9, "seconds", kExcluded},
    {Field::kMaxQueueWait, "max_queue_wait", 0, 1e9, "seconds", kExcluded},
};

constexpr bool InOrder() {
  for (size_t i = 0; i < std::size(kBounds); ++i) {
    if (kBounds[i].field != static_cast<Field>(i)) {
      return false;
    }
  }
  return true;
}
static_assert(InOrder() && std::size(kBounds) == static_cast<size_t>(Field::kMaxQueueWait) + 1);

absl::Status Invalid(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::Status CheckIds(absl::Span<const int32_t> ids, uint32_t vocab, const std::string& field) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<uint32_t>(ids[i]) >= vocab) {
      return Invalid(field,
                     absl::StrCat("names token ", ids[i], ", which is not in the vocabulary of ", vocab));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSampling(const SamplingParams& p, uint32_t vocab, const std::string& path) {
  const auto check = [&path](Field field, double value) {
    return CheckBound(field, value, absl::StrCat(path, BoundOf(field).name));
  };
  RETURN_IF_ERROR(check(Field::kTemperature, p.temperature));
  RETURN_IF_ERROR(check(Field::kTopP, p.top_p));
  RETURN_IF_ERROR(check(Field::kMinP, p.min_p));
  RETURN_IF_ERROR(check(Field::kRepetitionPenalty, p.repetition_penalty));
  RETURN_IF_ERROR(check(Field::kFrequencyPenalty, p.frequency_penalty));
  RETURN_IF_ERROR(check(Field::kPresencePenalty, p.presence_penalty));
  RETURN_IF_ERROR(check(Field::kLogitBiasTokens, static_cast<double>(p.logit_bias.size())));
  for (const auto& [id, bias] : p.logit_bias) {
    RETURN_IF_ERROR(CheckIds({&id, 1}, vocab, absl::StrCat(path, "logit_bias")));
    RETURN_IF_ERROR(check(Field::kLogitBias, bias));
  }
  return absl::OkStatus();
}

absl::Status CheckStops(const StoppingParams& p, const RequestLimits& limits, const std::string& path) {
  const std::string field = absl::StrCat(path, "stop");
  RETURN_IF_ERROR(CheckBound(Field::kStopTexts, static_cast<double>(p.stop.size()), field));
  for (const std::string& text : p.stop) {
    RETURN_IF_ERROR(CheckBound(Field::kStopText, static_cast<double>(text.size()), field));
  }
  if (!p.stop.empty() && !limits.has_text) {
    return Invalid(field, "the model has no tokenizer, so there is no text to stop at");
  }
  const std::string ids = absl::StrCat(path, "stop_token_ids");
  RETURN_IF_ERROR(CheckBound(Field::kStopTokenIds, static_cast<double>(p.stop_token_ids.size()), ids));
  return CheckIds(p.stop_token_ids, limits.vocab, ids);
}

}  // namespace

absl::Span<const FieldBound> FieldBounds() { return kBounds; }

const FieldBound& BoundOf(Field field) { return kBounds[static_cast<size_t>(field)]; }

std::string RangeOf(const FieldBound& bound) {
  const std::string least = absl::StrFormat("%g", bound.least);
  const std::string most = absl::StrFormat("%.10g", bound.most);
  const std::string unit = *bound.unit == '\0' ? "" : absl::StrCat(" ", bound.unit);
  if (bound.most == kNoMost) {
    return absl::StrCat(least, " or more", unit);
  }
  if (bound.excludes_least) {
    return absl::StrCat("above ", least, ", at most ", most, unit);
  }
  return bound.least == 0 && !unit.empty()
             ? absl::StrCat("at most ", most, unit)
             : absl::StrCat(least, bound.excludes_most ? " to below " : " to ", most, unit);
}

absl::Status CheckBound(Field field, double value, const std::string& name) {
  const FieldBound& bound = BoundOf(field);
  // Comparisons that hold, not negated ones: those are false for NaN.
  const bool above = bound.excludes_least ? value > bound.least : value >= bound.least;
  const bool below = bound.excludes_most ? value < bound.most : value <= bound.most;
  return above && below ? absl::OkStatus()
                        : Invalid(name, absl::StrFormat("is %g, must be %s", value, RangeOf(bound)));
}

absl::Status ContextTooLong(const std::string& field, const std::string& description) {
  absl::Status status = Invalid(field, description);
  status.SetPayload(kReasonPayload, absl::Cord("CONTEXT_TOO_LONG"));
  return status;
}

absl::Status CheckPrompt(absl::Span<const int32_t> ids, size_t most, const RequestLimits& limits,
                         const std::string& field) {
  if (ids.empty()) {
    return Invalid(field, "is empty: the prompt must have at least one token");
  }
  if (ids.size() > most) {
    return ContextTooLong(field, absl::StrCat("the ", ids.size(), " tokens leave no room in the context of ",
                                              limits.context, " tokens"));
  }
  return CheckIds(ids, limits.vocab, field);
}

absl::Status CheckFields(const GenerateSpec& spec, const RequestLimits& limits, const FieldNames& names) {
  RETURN_IF_ERROR(CheckSampling(spec.sampling, limits.vocab, names.sampling));
  RETURN_IF_ERROR(CheckStops(spec.stopping, limits, names.stopping));
  const std::string logprobs = absl::StrCat(names.output, names.logprobs);
  RETURN_IF_ERROR(CheckBound(Field::kLogprobs, spec.logprobs, logprobs));
  if (spec.logprobs >= limits.vocab) {
    return Invalid(logprobs,
                   absl::StrCat("is ", spec.logprobs, ", must be below the vocabulary of ", limits.vocab));
  }
  return CheckBound(Field::kCacheSalt, static_cast<double>(spec.cache_salt.size()),
                    absl::StrCat(names.cache, "cache_salt"));
}

absl::Status CheckLengths(const GenerateSpec& spec, const RequestLimits& limits, const FieldNames& names,
                          const std::string& prompt_field) {
  const StoppingParams& stopping = spec.stopping;
  const std::string max_tokens = absl::StrCat(names.stopping, names.max_tokens);
  const std::string min_tokens = absl::StrCat(names.stopping, "min_tokens");
  RETURN_IF_ERROR(CheckPrompt(spec.prompt, limits.context - 1, limits, prompt_field));
  RETURN_IF_ERROR(CheckBound(Field::kMaxTokens, stopping.max_tokens, max_tokens));
  // The whole answer must fit from the start: otherwise it would be cut off at the end of the context without
  // notice.
  if (stopping.max_tokens > limits.context - spec.prompt.size()) {
    return ContextTooLong(
        max_tokens, absl::StrCat("the prompt's ", spec.prompt.size(), " tokens and ", stopping.max_tokens,
                                 " new ones exceed the context of ", limits.context, " tokens"));
  }
  if (stopping.min_tokens > stopping.max_tokens) {
    return Invalid(min_tokens, absl::StrCat("is ", stopping.min_tokens, ", above ", names.max_tokens,
                                            ", which is ", stopping.max_tokens));
  }
  // A constraint itself decides where an answer may end.
  if (spec.constraint.has_value() && (stopping.min_tokens > 0 || stopping.ignore_eos)) {
    return Invalid(stopping.min_tokens > 0 ? min_tokens : absl::StrCat(names.stopping, "ignore_eos"),
                   "cannot be set together with a constraint, which decides where the answer may end");
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
