#include "inferd/serving/generation_plan.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/text/chat_template.h"
#include "inferd/api/request_checks.h"

namespace sluice::inferd {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr uint32_t kMaxLogprobs = 20;

absl::Status Invalid(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::Status TooLong(const std::string& field, const std::string& message) {
  absl::Status status = Invalid(field, message);
  status.SetPayload(kReasonPayload, absl::Cord("CONTEXT_TOO_LONG"));
  return status;
}

struct Interval {
  double low;
  double high;
  bool open_low = false;  // excludes the bound itself
  bool open_high = false;
};

// Copies a value if it is set and within its interval, which the error prints.
absl::Status TakeNumber(const std::optional<double>& value, const Interval& in, const std::string& field,
                        float* out) {
  if (!value.has_value()) {
    return absl::OkStatus();
  }
  const bool ok = std::isfinite(*value) && (in.open_low ? *value > in.low : *value >= in.low) &&
                  (in.open_high ? *value < in.high : *value <= in.high);
  if (!ok) {
    return Invalid(field, absl::StrFormat("is %g, must be in %c%g, %g%c", *value, in.open_low ? '(' : '[',
                                          in.low, in.high, in.open_high ? ')' : ']'));
  }
  *out = static_cast<float>(*value);
  return absl::OkStatus();
}

absl::Status TakeBias(const ServingContext& context, const RequestFields& fields, const std::string& field,
                      SamplingParams* sampling) {
  if (fields.logit_bias.size() > kMaxLogitBias) {
    return Invalid(field, absl::StrCat("has ", fields.logit_bias.size(), " entries, at most ", kMaxLogitBias,
                                       " are allowed"));
  }
  for (const auto& [id, bias] : fields.logit_bias) {
    if (id < 0 || id >= context.model.vocab) {
      return Invalid(field, absl::StrCat("names token ", id, ", which is not in the vocabulary of ",
                                         context.model.vocab));
    }
    float value = 0;
    RETURN_IF_ERROR(TakeNumber(bias, {-100, 100}, field, &value));
    sampling->logit_bias.emplace_back(static_cast<int32_t>(id), value);
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> Sampling(const ServingContext& context, const RequestFields& fields,
                                        const std::string& path) {
  SamplingParams sampling = DefaultSampling(context.model.generation);
  RETURN_IF_ERROR(
      TakeNumber(fields.temperature, {0, 100}, absl::StrCat(path, "temperature"), &sampling.temperature));
  RETURN_IF_ERROR(
      TakeNumber(fields.top_p, {0, 1, /*open_low=*/true}, absl::StrCat(path, "top_p"), &sampling.top_p));
  sampling.top_k = fields.top_k.value_or(sampling.top_k);
  RETURN_IF_ERROR(TakeNumber(fields.min_p, {0, 1, false, /*open_high=*/true}, absl::StrCat(path, "min_p"),
                             &sampling.min_p));
  RETURN_IF_ERROR(TakeNumber(fields.repetition_penalty, {0, 100, /*open_low=*/true},
                             absl::StrCat(path, "repetition_penalty"), &sampling.repetition_penalty));
  RETURN_IF_ERROR(TakeNumber(fields.frequency_penalty, {-2, 2}, absl::StrCat(path, "frequency_penalty"),
                             &sampling.frequency_penalty));
  RETURN_IF_ERROR(TakeNumber(fields.presence_penalty, {-2, 2}, absl::StrCat(path, "presence_penalty"),
                             &sampling.presence_penalty));
  RETURN_IF_ERROR(TakeBias(context, fields, absl::StrCat(path, "logit_bias"), &sampling));
  sampling.seed = fields.seed;
  return sampling;
}

// Returns the stop conditions. By default an answer may continue until the context is full.
absl::StatusOr<StoppingParams> Stopping(const ServingContext& context, uint32_t prompt_tokens,
                                        const RequestFields& fields, const FieldNames& names) {
  const std::string& path = names.stopping;
  StoppingParams stopping;
  const uint32_t room = context.model.context - prompt_tokens;
  stopping.max_tokens = fields.max_tokens.value_or(room);
  if (stopping.max_tokens == 0) {
    return Invalid(absl::StrCat(path, names.max_tokens), "is 0, must be at least 1");
  }
  if (stopping.max_tokens > room) {
    if (!fields.clip_max_tokens) {
      return TooLong(absl::StrCat(path, names.max_tokens),
                     absl::StrCat("the prompt's ", prompt_tokens, " tokens and ", stopping.max_tokens,
                                  " new ones exceed the context of ", context.model.context, " tokens"));
    }
    stopping.max_tokens = room;
  }
  stopping.min_tokens = fields.min_tokens;
  if (stopping.min_tokens > stopping.max_tokens) {
    return Invalid(absl::StrCat(path, "min_tokens"),
                   absl::StrCat("is ", stopping.min_tokens, ", above ", names.max_tokens, ", which is ",
                                stopping.max_tokens));
  }
  if (fields.stop.size() > kMaxStopStrings) {
    return Invalid(absl::StrCat(path, "stop"), absl::StrCat("has ", fields.stop.size(), " texts, at most ",
                                                            kMaxStopStrings, " are allowed"));
  }
  for (const std::string& text : fields.stop) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      return Invalid(absl::StrCat(path, "stop"),
                     absl::StrCat("holds a text of ", text.size(), " bytes, must be 1 to ", kMaxStopBytes));
    }
  }
  stopping.stop = fields.stop;
  stopping.stop_token_ids = fields.stop_token_ids;
  stopping.ignore_eos = fields.ignore_eos;
  stopping.include_stop_in_output = fields.include_stop_in_output;
  return stopping;
}

}  // namespace

absl::StatusOr<GenerateSpec> PlanRequest(const ServingContext& context, const CallFacts& call,
                                         const RequestFields& fields, const FieldNames& names) {
  RETURN_IF_ERROR(CheckModel(context, fields.model));
  GenerateSpec spec;
  ASSIGN_OR_RETURN(spec.request_id,
                   RequestIdOf(call, fields.request_id, absl::StrCat(names.request, "request_id")));
  ASSIGN_OR_RETURN(spec.sampling, Sampling(context, fields, names.sampling));
  if (fields.logprobs > kMaxLogprobs) {
    return Invalid(absl::StrCat(names.output, "logprobs"),
                   absl::StrCat("is ", fields.logprobs, ", at most ", kMaxLogprobs, " are served"));
  }
  spec.logprobs = fields.logprobs;
  spec.priority = fields.priority;
  if (fields.constraint.has_value()) {
    RETURN_IF_ERROR(CheckTokenizer(context));
    spec.constraint = fields.constraint;
  }
  if (fields.cache_salt.size() > kMaxSaltBytes) {
    return Invalid(
        absl::StrCat(names.cache, "cache_salt"),
        absl::StrCat("has ", fields.cache_salt.size(), " bytes, at most ", kMaxSaltBytes, " are allowed"));
  }
  spec.cache_salt = fields.cache_salt;
  spec.bypass_prefix_cache = fields.bypass_prefix_cache;
  spec.client = call.client;
  spec.deadline = std::min(DeadlineOf(context, call), absl::Now() + fields.timeout);
  spec.max_queue_wait = fields.max_queue_wait;
  return spec;
}

absl::Status FitToPrompt(const ServingContext& context, const RequestFields& fields, const FieldNames& names,
                         const std::string& prompt_field, GenerateSpec* spec) {
  const size_t tokens = spec->prompt.size();
  RETURN_IF_ERROR(CheckPromptFits(context, tokens, context.model.context - 1, prompt_field));
  ASSIGN_OR_RETURN(spec->stopping, Stopping(context, static_cast<uint32_t>(tokens), fields, names));
  return absl::OkStatus();
}

void StopAtEndOfTurn(const ServingContext& context, std::optional<int32_t> end_of_turn, GenerateSpec* spec) {
  const auto holds = [&end_of_turn](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), *end_of_turn) != ids.end();
  };
  std::vector<int32_t>& stops = spec->stopping.stop_token_ids;
  if (end_of_turn.has_value() && !spec->stopping.ignore_eos && !holds(context.model.eos) && !holds(stops)) {
    stops.push_back(*end_of_turn);
  }
}

absl::Status CheckPromptFits(const ServingContext& context, size_t tokens, size_t room,
                             const std::string& field) {
  if (tokens == 0) {
    return Invalid(field, "is empty: the prompt must have at least one token");
  }
  if (tokens > room) {
    return TooLong(field, absl::StrCat("the ", tokens, " tokens leave no room in the context of ",
                                       context.model.context, " tokens"));
  }
  return absl::OkStatus();
}

std::string NewRequestId() {
  std::random_device random;
  uint32_t word[4];
  for (uint32_t& w : word) {
    w = random();
  }
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%04x%08x", word[0], word[1] >> 16, word[1] & 0xfff,
                         0x8000 | (word[2] >> 16 & 0x3fff), word[2] & 0xffff, word[3]);
}

// Ids are echoed in metadata and heads, which allow only printable ASCII.
absl::StatusOr<std::string> RequestIdOf(const CallFacts& call, const std::string& own,
                                        const std::string& field) {
  const std::string& id = own.empty() ? call.request_id : own;
  if (id.size() > kMaxRequestIdBytes) {
    return Invalid(field,
                   absl::StrCat("has ", id.size(), " bytes, at most ", kMaxRequestIdBytes, " are allowed"));
  }
  if (!std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isgraph(c); })) {
    return Invalid(field, "must consist of printable ASCII without spaces");
  }
  return id.empty() ? NewRequestId() : id;
}

absl::Time DeadlineOf(const ServingContext& context, const CallFacts& call) {
  return std::min(call.deadline, absl::Now() + context.limits.max_request_time.Get());
}

SamplingParams DefaultSampling(const GenerationDefaults& defaults) {
  SamplingParams sampling;
  // Hugging Face's rule: a temperature applies only with do_sample.
  if (defaults.do_sample.value_or(false)) {
    sampling.temperature = static_cast<float>(defaults.temperature.value_or(1.0));
  }
  sampling.top_p = static_cast<float>(defaults.top_p.value_or(1.0));
  sampling.top_k = defaults.top_k.value_or(0);
  sampling.min_p = static_cast<float>(defaults.min_p.value_or(0.0));
  sampling.repetition_penalty = static_cast<float>(defaults.repetition_penalty.value_or(1.0));
  return sampling;
}

absl::Status CheckModel(const ServingContext& context, const std::string& model) {
  if (model.empty() || model == context.model.id || model == context.model.name) {
    return absl::OkStatus();
  }
  return ReasonError(absl::StatusCode::kNotFound, "UNKNOWN_MODEL",
                     absl::StrCat("model \"", model, "\" is not served; the one that is: ",
                                  context.model.name, " (", context.model.id, ")"));
}

absl::Status CheckTokenizer(const ServingContext& context) {
  if (context.tokenizer != nullptr) {
    return absl::OkStatus();
  }
  return ReasonError(absl::StatusCode::kFailedPrecondition, "NO_TOKENIZER",
                     absl::StrCat("model ", context.model.name, " has no tokenizer: send token ids"));
}

namespace {

absl::Status WithReason(absl::Status status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      status.SetPayload(kReasonPayload, absl::Cord("TEMPLATE_REFUSED"));
      break;
    case absl::StatusCode::kUnimplemented:
      status.SetPayload(kReasonPayload, absl::Cord("TEMPLATE_UNSUPPORTED"));
      break;
    case absl::StatusCode::kResourceExhausted:
      status.SetPayload(kReasonPayload, absl::Cord("TEMPLATE_LIMIT"));
      break;
    default:
      break;
  }
  return status;
}

absl::StatusOr<FormattedChat> Format(const ChatFormatter& formatter, const Conversation& conversation) {
  ASSIGN_OR_RETURN(const std::string json, conversation.json(ArgumentsAs::kObject));
  absl::StatusOr<FormattedChat> chat = formatter.Format(json, conversation.render);
  // Templates differ in whether they need tool call arguments as an object or as its text, and do not declare
  // it. A template that refuses the object gets the text; if it refuses both, the first error is reported.
  if (absl::IsInvalidArgument(chat.status()) && conversation.has_tool_calls) {
    ASSIGN_OR_RETURN(const std::string with_text, conversation.json(ArgumentsAs::kText));
    if (auto second = formatter.Format(with_text, conversation.render); second.ok()) {
      return second;
    }
  }
  return chat.ok() ? std::move(chat) : WithReason(chat.status());
}

}  // namespace

absl::StatusOr<ChatPrompt> RenderConversation(const ServingContext& context,
                                              const Conversation& conversation) {
  RETURN_IF_ERROR(CheckTokenizer(context));
  const ChatFormatter* formatter = context.chat;
  std::unique_ptr<ChatFormatter> own;
  if (const std::string& source = conversation.chat_template; !source.empty()) {
    auto made = ChatFormatter::Create(source, *context.tokenizer);
    if (!made.ok()) {
      return WithReason(Annotate(made.status(), conversation.template_field));
    }
    own = *std::move(made);
    formatter = own.get();
  }
  if (formatter == nullptr) {
    return context.chat_error.ok()
               ? ReasonError(absl::StatusCode::kFailedPrecondition, "NO_CHAT_TEMPLATE",
                             absl::StrCat("model ", context.model.name,
                                          " has no chat template: give one with the request or when packing, "
                                          "or call Generate"))
               : WithReason(context.chat_error);
  }
  ASSIGN_OR_RETURN(FormattedChat chat, Format(*formatter, conversation));
  return ChatPrompt{std::move(chat.text), std::move(chat.ids), formatter->end_of_turn()};
}

}  // namespace sluice::inferd
