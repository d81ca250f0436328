#include "inferd/openai/fields/generation_fields.h"

#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kMaxChoices = 128;
constexpr double kMaxTemperature = 2;

absl::Status ReadBias(const JsonFields& body, RequestFields* fields) {
  ASSIGN_OR_RETURN(const Json* bias, body.TakeObject("logit_bias"));
  if (bias == nullptr) {
    return absl::OkStatus();
  }
  for (const auto& [key, value] : bias->items()) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return BadField("logit_bias",
                      absl::StrCat("has the key \"", key.substr(0, 40), "\", which is no token id"));
    }
    if (!value.is_number()) {
      return BadField(absl::StrCat("logit_bias.", key),
                      absl::StrCat("is ", KindOf(value), ", must be a number"));
    }
    fields->logit_bias.emplace_back(id, value.get<double>());
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const JsonFields& body, RequestFields* fields) {
  RETURN_IF_ERROR(body.Take("temperature", &fields->temperature));
  if (fields->temperature.has_value() && !(*fields->temperature <= kMaxTemperature)) {
    return BadField("temperature",
                    absl::StrCat("is ", *fields->temperature, ", must be 0 to ", kMaxTemperature));
  }
  RETURN_IF_ERROR(body.Take("top_p", &fields->top_p));
  if (fields->top_p == 0.0) {
    fields->top_p = std::numeric_limits<float>::min();  // only the most likely token remains
  }
  RETURN_IF_ERROR(body.Take("min_p", &fields->min_p));
  RETURN_IF_ERROR(body.Take("repeat_penalty", &fields->repetition_penalty));
  RETURN_IF_ERROR(body.Take("repetition_penalty", &fields->repetition_penalty));
  RETURN_IF_ERROR(body.Take("frequency_penalty", &fields->frequency_penalty));
  RETURN_IF_ERROR(body.Take("presence_penalty", &fields->presence_penalty));
  std::optional<int64_t> top_k;
  RETURN_IF_ERROR(body.Take("top_k", -1, std::numeric_limits<int32_t>::max(), &top_k));
  if (top_k.has_value()) {
    fields->top_k = static_cast<uint32_t>(*top_k < 0 ? 0 : *top_k);  // -1: off, same as 0
  }
  std::optional<int64_t> seed;
  RETURN_IF_ERROR(
      body.Take("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), &seed));
  if (seed.has_value()) {
    fields->seed = static_cast<uint64_t>(*seed);
  }
  return ReadBias(body, fields);
}

absl::Status ReadStopping(const JsonFields& body, const ServingContext& context, int64_t least,
                          RequestFields* fields) {
  constexpr int64_t kMaxInteger = std::numeric_limits<int32_t>::max();
  RETURN_IF_ERROR(body.Take("max_tokens", least, kMaxInteger, &fields->max_tokens));
  RETURN_IF_ERROR(body.Take("max_completion_tokens", 1, kMaxInteger, &fields->max_tokens));
  fields->clip_max_tokens = true;
  std::optional<uint32_t> min_tokens;
  RETURN_IF_ERROR(body.Take("min_tokens", 0, kMaxInteger, &min_tokens));
  fields->min_tokens = min_tokens.value_or(0);
  RETURN_IF_ERROR(body.TakeTexts("stop", &fields->stop));
  RETURN_IF_ERROR(body.TakeIds("stop_token_ids", context.model.vocab, &fields->stop_token_ids));
  RETURN_IF_ERROR(body.Take("ignore_eos", &fields->ignore_eos));
  return body.Take("include_stop_str_in_output", &fields->include_stop_in_output);
}

absl::Status ReadStyle(const JsonFields& body, AnswerStyle* style) {
  RETURN_IF_ERROR(body.Take("stream", &style->stream));
  std::optional<uint32_t> n;
  RETURN_IF_ERROR(body.Take("n", 1, kMaxChoices, &n));
  style->n = n.value_or(1);
  ASSIGN_OR_RETURN(const Json* options, body.TakeObject("stream_options"));
  if (options != nullptr) {
    const JsonFields fields(*options, "stream_options.");
    RETURN_IF_ERROR(fields.Take("include_usage", &style->include_usage));
    RETURN_IF_ERROR(fields.Take("continuous_usage_stats", &style->continuous_usage));
  }
  return absl::OkStatus();
}

// Reads a duration in seconds.
absl::Status ReadSeconds(const JsonFields& body, const char* name, absl::Duration* out) {
  constexpr double kMaxSeconds = 1e9;
  std::optional<double> seconds;
  RETURN_IF_ERROR(body.Take(name, &seconds));
  if (!seconds.has_value()) {
    return absl::OkStatus();
  }
  if (!(*seconds > 0 && *seconds <= kMaxSeconds)) {
    return BadField(body.Path(name), absl::StrCat("is ", *seconds, ", must be above 0, in seconds"));
  }
  *out = absl::Seconds(*seconds);
  return absl::OkStatus();
}

// Reads scheduling fields and the use of the prefix cache.
absl::Status ReadServing(const JsonFields& body, RequestFields* fields) {
  constexpr int64_t kMaxInteger = std::numeric_limits<int32_t>::max();
  std::optional<int64_t> priority;
  RETURN_IF_ERROR(body.Take("priority", -kMaxInteger, kMaxInteger, &priority));
  fields->priority = static_cast<int32_t>(priority.value_or(0));
  RETURN_IF_ERROR(ReadSeconds(body, "timeout", &fields->timeout));
  RETURN_IF_ERROR(ReadSeconds(body, "max_queue_wait", &fields->max_queue_wait));
  RETURN_IF_ERROR(body.Take("cache_salt", &fields->cache_salt));
  bool cache = true;
  RETURN_IF_ERROR(body.Take("cache_prompt", &cache));
  fields->bypass_prefix_cache = !cache;
  return absl::OkStatus();
}

// Refuses known but unsupported fields instead of ignoring them.
absl::Status CheckUnserved(const JsonFields& body) {
  bool beams = false;
  RETURN_IF_ERROR(body.Take("use_beam_search", &beams));
  if (beams) {
    return BadField("use_beam_search", "is not served");
  }
  return body.Has("functions") ? BadField("functions", "is not served: tools took its place")
                               : absl::OkStatus();
}

}  // namespace

absl::Status ReadGeneration(const JsonFields& body, const ServingContext& context, uint32_t least_tokens,
                            RequestFields* fields, AnswerStyle* style) {
  RETURN_IF_ERROR(body.Take("model", &fields->model));
  RETURN_IF_ERROR(ReadSampling(body, fields));
  RETURN_IF_ERROR(ReadStopping(body, context, least_tokens, fields));
  RETURN_IF_ERROR(ReadStyle(body, style));
  RETURN_IF_ERROR(ReadServing(body, fields));
  return CheckUnserved(body);
}

void CopyServingFields(const JsonFields& body, Json* to) {
  for (const char* name : {"priority", "timeout", "max_queue_wait", "cache_salt", "cache_prompt"}) {
    if (const Json* value = body.Find(name); value != nullptr) {
      (*to)[name] = *value;
    }
  }
}

FieldNames ApiFieldNames(const JsonFields& body) {
  FieldNames names;
  names.max_tokens = body.Has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  return names;
}

}  // namespace sluice::inferd
