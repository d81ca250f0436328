#include "inferd/http/request_fields.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

// Bound of JSON integers, whose own bounds are checked with all others (request_checks.h).
constexpr int64_t kMaxInteger = std::numeric_limits<int32_t>::max();

// A number beyond float's range becomes the largest float, which no bound admits.
float ToFloat(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMost, kMost));
}

absl::Status ReadBias(const JsonFields& body, SamplingParams* sampling) {
  ASSIGN_OR_RETURN(const Json* bias, body.TakeObject("logit_bias"));
  if (bias == nullptr) {
    return absl::OkStatus();
  }
  for (const auto& [key, value] : bias->items()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return BadField("logit_bias",
                      absl::StrCat("has the key \"", key.substr(0, 40), "\", which is no token id"));
    }
    if (!value.is_number()) {
      return BadField(absl::StrCat("logit_bias.", key),
                      absl::StrCat("is ", KindOf(value), ", must be a number"));
    }
    sampling->logit_bias.emplace_back(id, ToFloat(value.get<double>()));
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const JsonFields& body, SamplingParams* sampling) {
  for (const auto& [name, out] :
       {std::pair("temperature", &sampling->temperature), std::pair("top_p", &sampling->top_p),
        std::pair("min_p", &sampling->min_p), std::pair("repeat_penalty", &sampling->repetition_penalty),
        std::pair("repetition_penalty", &sampling->repetition_penalty),
        std::pair("frequency_penalty", &sampling->frequency_penalty),
        std::pair("presence_penalty", &sampling->presence_penalty)}) {
    std::optional<double> value;
    RETURN_IF_ERROR(body.Take(name, &value));
    *out = value.has_value() ? ToFloat(*value) : *out;
  }
  if (sampling->top_p == 0) {
    sampling->top_p = std::numeric_limits<float>::min();  // only the most likely token remains
  }
  std::optional<int64_t> top_k;
  RETURN_IF_ERROR(body.Take("top_k", -1, kMaxInteger, &top_k));
  if (top_k.has_value()) {
    sampling->top_k = static_cast<uint32_t>(*top_k < 0 ? 0 : *top_k);  // -1: off, same as 0
  }
  std::optional<int64_t> seed;
  RETURN_IF_ERROR(
      body.Take("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), &seed));
  if (seed.has_value()) {
    sampling->seed = static_cast<uint64_t>(*seed);
  }
  return ReadBias(body, sampling);
}

absl::Status ReadStopping(const JsonFields& body, const ServingContext& context, RequestFields* fields) {
  StoppingParams& stopping = fields->spec.stopping;
  RETURN_IF_ERROR(body.Take("max_tokens", 0, kMaxInteger, &fields->max_tokens));
  RETURN_IF_ERROR(body.Take("max_completion_tokens", 0, kMaxInteger, &fields->max_tokens));
  fields->clip_max_tokens = true;
  std::optional<uint32_t> min_tokens;
  RETURN_IF_ERROR(body.Take("min_tokens", 0, kMaxInteger, &min_tokens));
  stopping.min_tokens = min_tokens.value_or(0);
  RETURN_IF_ERROR(body.TakeTexts("stop", &stopping.stop));
  RETURN_IF_ERROR(body.TakeIds("stop_token_ids", context.model.vocab, &stopping.stop_token_ids));
  RETURN_IF_ERROR(body.Take("ignore_eos", &stopping.ignore_eos));
  return body.Take("include_stop_str_in_output", &stopping.include_stop_in_output);
}

absl::Status ReadStyle(const JsonFields& body, AnswerStyle* style) {
  RETURN_IF_ERROR(body.Take("stream", &style->stream));
  std::optional<uint32_t> n;
  RETURN_IF_ERROR(body.Take("n", 0, kMaxInteger, &n));
  style->n = n.value_or(1);
  RETURN_IF_ERROR(CheckBound(Field::kChoices, style->n, body.Path("n")));
  ASSIGN_OR_RETURN(const Json* options, body.TakeObject("stream_options"));
  if (options != nullptr) {
    const JsonFields fields(*options, "stream_options.");
    RETURN_IF_ERROR(fields.Take("include_usage", &style->include_usage));
    RETURN_IF_ERROR(fields.Take("continuous_usage_stats", &style->continuous_usage));
  }
  return absl::OkStatus();
}

// Reads a duration in seconds.
absl::Status ReadSeconds(const JsonFields& body, Field field, absl::Duration* out) {
  const char* const name = BoundOf(field).name;
  std::optional<double> seconds;
  RETURN_IF_ERROR(body.Take(name, &seconds));
  if (seconds.has_value()) {
    RETURN_IF_ERROR(CheckBound(field, *seconds, body.Path(name)));
    *out = absl::Seconds(*seconds);
  }
  return absl::OkStatus();
}

// Reads scheduling fields and the use of the prefix cache.
absl::Status ReadServing(const JsonFields& body, RequestFields* fields) {
  std::optional<int64_t> priority;
  RETURN_IF_ERROR(body.Take("priority", -kMaxInteger, kMaxInteger, &priority));
  fields->spec.priority = static_cast<int32_t>(priority.value_or(0));
  RETURN_IF_ERROR(ReadSeconds(body, Field::kTimeout, &fields->timeout));
  RETURN_IF_ERROR(ReadSeconds(body, Field::kMaxQueueWait, &fields->spec.max_queue_wait));
  RETURN_IF_ERROR(body.Take("cache_salt", &fields->spec.cache_salt));
  bool cache = true;
  RETURN_IF_ERROR(body.Take("cache_prompt", &cache));
  fields->spec.bypass_prefix_cache = !cache;
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

absl::Status ReadGeneration(const JsonFields& body, const ServingContext& context, RequestFields* fields,
                            AnswerStyle* style) {
  RETURN_IF_ERROR(body.Take("model", &fields->model));
  RETURN_IF_ERROR(ReadSampling(body, &fields->spec.sampling));
  RETURN_IF_ERROR(ReadStopping(body, context, fields));
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

namespace {

constexpr char kCalls[] = "guided.calls[";

RequestedGrammar Asked(GrammarSpec::Kind kind, std::string text, std::string field) {
  RequestedGrammar asked;
  asked.spec.kind = kind;
  asked.spec.text = std::move(text);
  asked.field = std::move(field);
  return asked;
}

// Reads a schema, given as an object or as its text.
absl::StatusOr<RequestedGrammar> Schema(const JsonFields& fields, const char* name) {
  const Json& schema = *fields.Find(name);
  if (!schema.is_object() && !schema.is_string()) {
    return BadField(fields.Path(name), absl::StrCat("is ", KindOf(schema), ", must be a JSON schema"));
  }
  return Asked(GrammarSpec::Kind::kJsonSchema, schema.is_string() ? schema.get<std::string>() : Dump(schema),
               fields.Path(name));
}

absl::StatusOr<RequestedGrammar> Text(const JsonFields& fields, const char* name, GrammarSpec::Kind kind) {
  RequestedGrammar asked = Asked(kind, "", fields.Path(name));
  RETURN_IF_ERROR(fields.Take(name, &asked.spec.text));
  return asked;
}

absl::StatusOr<RequestedGrammar> Choice(const JsonFields& fields, const char* name) {
  RequestedGrammar asked = Asked(GrammarSpec::Kind::kChoice, "", fields.Path(name));
  RETURN_IF_ERROR(fields.TakeTexts(name, &asked.spec.choices));
  return asked;
}

// Reads {"type": "json_schema", "json_schema": {"name", "schema"}}; other APIs have the schema at "schema",
// and so does json_object in llama.cpp.
absl::StatusOr<std::optional<RequestedGrammar>> Format(const Json& format, const std::string& path) {
  const JsonFields fields(format, path + ".");
  std::string type;
  RETURN_IF_ERROR(fields.Take("type", &type));
  if (type == "text") {
    return std::nullopt;
  }
  if (type != "json_object" && type != "json_schema") {
    return BadField(fields.Path("type"), absl::StrCat("is \"", type.substr(0, 40),
                                                      "\", must be text, json_object or json_schema"));
  }
  if (fields.Has("schema")) {
    return Schema(fields, "schema");
  }
  if (type == "json_object") {
    return Asked(GrammarSpec::Kind::kJsonObject, "", path);
  }
  ASSIGN_OR_RETURN(const Json* named, fields.TakeObject("json_schema"));
  if (named == nullptr) {
    return BadField(fields.Path("json_schema"), "is missing");
  }
  const JsonFields own(*named, fields.Path("json_schema") + ".");
  if (!own.Has("schema")) {
    return BadField(own.Path("schema"), "is missing");
  }
  return Schema(own, "schema");
}

struct Name {
  const char* name;
  GrammarSpec::Kind kind;
};

absl::StatusOr<RequestedGrammar> Read(const JsonFields& fields, const Name& name) {
  switch (name.kind) {
    case GrammarSpec::Kind::kJsonSchema:
      return Schema(fields, name.name);
    case GrammarSpec::Kind::kChoice:
      return Choice(fields, name.name);
    default:
      return Text(fields, name.name, name.kind);
  }
}

// Adds the members of `names` that are present in `fields`.
absl::Status AddNamed(const JsonFields& fields, absl::Span<const Name> names,
                      std::vector<RequestedGrammar>* out) {
  for (const Name& name : names) {
    if (fields.Has(name.name)) {
      ASSIGN_OR_RETURN(RequestedGrammar asked, Read(fields, name));
      out->push_back(std::move(asked));
    }
  }
  return absl::OkStatus();
}

absl::Status AddStructured(const JsonFields& body, std::vector<RequestedGrammar>* out) {
  constexpr char kStructured[] = "structured_outputs";
  ASSIGN_OR_RETURN(const Json* structured, body.TakeObject(kStructured));
  if (structured == nullptr) {
    return absl::OkStatus();
  }
  const JsonFields fields(*structured, absl::StrCat(kStructured, "."));
  const size_t before = out->size();
  RETURN_IF_ERROR(AddNamed(fields,
                           {{"json", GrammarSpec::Kind::kJsonSchema},
                            {"regex", GrammarSpec::Kind::kRegex},
                            {"grammar", GrammarSpec::Kind::kGrammar},
                            {"choice", GrammarSpec::Kind::kChoice}},
                           out));
  bool object = false;
  RETURN_IF_ERROR(fields.Take("json_object", &object));
  if (object) {
    out->push_back(Asked(GrammarSpec::Kind::kJsonObject, "", fields.Path("json_object")));
  }
  if (fields.Has("structural_tag")) {
    return BadField(fields.Path("structural_tag"), "is not served");
  }
  return out->size() > before
             ? absl::OkStatus()
             : BadField(kStructured, "must have one of json, regex, grammar, choice and json_object");
}

// Returns the part of the message behind "<field>: ".
std::string DescriptionOf(const absl::Status& status, const std::string& field) {
  return std::string(absl::StripPrefix(status.message(), absl::StrCat(field, ": ")));
}

}  // namespace

absl::StatusOr<std::optional<RequestedGrammar>> ReadGrammar(const JsonFields& body) {
  std::vector<RequestedGrammar> all;
  for (const char* name : {"response_format", "text.format", "output_config.format", "output_format"}) {
    ASSIGN_OR_RETURN(const Json* format, body.TakeObject(name));
    if (format != nullptr) {
      ASSIGN_OR_RETURN(std::optional<RequestedGrammar> asked, Format(*format, body.Path(name)));
      if (asked.has_value()) {
        all.push_back(*std::move(asked));
      }
    }
  }
  RETURN_IF_ERROR(AddNamed(body,
                           {{"guided_json", GrammarSpec::Kind::kJsonSchema},
                            {"guided_regex", GrammarSpec::Kind::kRegex},
                            {"guided_grammar", GrammarSpec::Kind::kGrammar},
                            {"guided_choice", GrammarSpec::Kind::kChoice},
                            {"json_schema", GrammarSpec::Kind::kJsonSchema},
                            {"grammar", GrammarSpec::Kind::kGrammar}},
                           &all));
  RETURN_IF_ERROR(AddStructured(body, &all));
  if (all.size() > 1) {
    return BadField(all[1].field,
                    absl::StrCat("and ", all[0].field, " both say what the answer conforms to; one may"));
  }
  return all.empty() ? std::nullopt : std::optional(std::move(all[0]));
}

absl::Status ToClientFieldNames(const absl::Status& status, absl::Span<const std::string> fields) {
  const std::string field = FieldOf(status);
  const bool compiled = ReasonOf(status) == "INVALID_GUIDE";
  if (fields.empty() || (!compiled && !absl::StartsWith(field, "guided."))) {
    return status;
  }
  size_t index = 0;
  if (absl::StartsWith(field, kCalls)) {
    const std::string digits = field.substr(sizeof(kCalls) - 1);
    if (!absl::SimpleAtoi(digits.substr(0, digits.find(']')), &index) || index >= fields.size()) {
      index = 0;
    }
  }
  absl::Status renamed =
      FieldError(status.code(), fields[index], DescriptionOf(status, compiled ? "guided" : field));
  if (compiled) {
    renamed.SetPayload(kReasonPayload, absl::Cord("INVALID_GUIDE"));
  }
  return renamed;
}

std::string AliasOf(const std::string& field, const FieldAliases& aliases) {
  for (const auto& [from, to] : aliases) {
    if (const size_t at = field.find(from); at != std::string::npos) {
      return absl::StrCat(field.substr(0, at), to, field.substr(at + from.size()));
    }
  }
  return field;
}

absl::Status ToApiFieldNames(const absl::Status& status, const FieldAliases& aliases) {
  const std::string field = FieldOf(status);
  const std::string alias = AliasOf(field, aliases);
  if (alias == field) {
    return status;
  }
  const absl::string_view description = absl::StripPrefix(status.message(), field);
  absl::Status renamed(status.code(), absl::StrCat(alias, description));
  status.ForEachPayload(
      [&renamed](absl::string_view type, const absl::Cord& payload) { renamed.SetPayload(type, payload); });
  renamed.SetPayload(kFieldPayload, absl::Cord(alias));
  return renamed;
}

}  // namespace sluice::inferd
