#include "inferd/service/service_request.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/error_detail.h"
#include "common/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"
#include "inferd/api/request_checks.h"

namespace sluice {
namespace {

namespace v1 = inference::v1;

constexpr size_t kMaxRequestIdBytes = 128;
constexpr uint32_t kMaxLogprobs = 20;

absl::Status Invalid(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::Status Unsupported(bool is_set, const std::string& field) {
  return is_set ? FieldError(absl::StatusCode::kUnimplemented, field, "is not served by this build")
                : absl::OkStatus();
}

absl::Status TooLong(const std::string& field, const std::string& message) {
  absl::Status status = Invalid(field, message);
  status.SetPayload(kReasonPayload, absl::Cord("CONTEXT_TOO_LONG"));
  return status;
}

// Refuses a value outside of [low, high]; `open_low` and `open_high` leave out the bound itself. The error
// spells the interval.
absl::Status InRange(double value, double low, double high, bool open_low, bool open_high,
                     const std::string& field) {
  const bool ok = std::isfinite(value) && (open_low ? value > low : value >= low) &&
                  (open_high ? value < high : value <= high);
  if (ok) {
    return absl::OkStatus();
  }
  return Invalid(field, absl::StrFormat("is %g, must be in %c%g, %g%c", value, open_low ? '(' : '[', low,
                                        high, open_high ? ')' : ']'));
}

// A random UUID of version 4, so that ids of different servers and lives never meet in a log.
std::string NewRequestId() {
  std::random_device random;
  uint32_t word[4];
  for (uint32_t& w : word) {
    w = random();
  }
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%04x%08x", word[0], word[1] >> 16, word[1] & 0xfff,
                         0x8000 | (word[2] >> 16 & 0x3fff), word[2] & 0xffff, word[3]);
}

// The request's own id, else the one in the metadata, else a new one. It is echoed in metadata, which takes
// only printable ASCII.
absl::StatusOr<std::string> RequestId(const CallFacts& call, const std::string& own,
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

absl::StatusOr<SamplingParams> Sampling(const GenerationDefaults& defaults,
                                        const v1::SamplingParams& request) {
  const std::string path = "spec.sampling.";
  RETURN_IF_ERROR(Unsupported(request.has_typical_p(), path + "typical_p"));
  RETURN_IF_ERROR(Unsupported(request.has_repetition_window(), path + "repetition_window"));
  RETURN_IF_ERROR(Unsupported(!request.logit_bias().empty(), path + "logit_bias"));
  RETURN_IF_ERROR(Unsupported(request.has_n() && request.n() > 1, path + "n"));
  if (request.has_n() && request.n() == 0) {
    return Invalid(path + "n", "is 0, must be 1");
  }
  SamplingParams sampling = DefaultSampling(defaults);
  if (request.has_temperature()) {
    RETURN_IF_ERROR(InRange(request.temperature(), 0, 100, false, false, path + "temperature"));
    sampling.temperature = request.temperature();
  }
  if (request.has_top_p()) {
    RETURN_IF_ERROR(InRange(request.top_p(), 0, 1, true, false, path + "top_p"));
    sampling.top_p = request.top_p();
  }
  if (request.has_top_k()) {
    sampling.top_k = request.top_k();
  }
  if (request.has_min_p()) {
    RETURN_IF_ERROR(InRange(request.min_p(), 0, 1, false, true, path + "min_p"));
    sampling.min_p = request.min_p();
  }
  if (request.has_repetition_penalty()) {
    RETURN_IF_ERROR(InRange(request.repetition_penalty(), 0, 100, true, false, path + "repetition_penalty"));
    sampling.repetition_penalty = request.repetition_penalty();
  }
  if (request.has_frequency_penalty()) {
    RETURN_IF_ERROR(InRange(request.frequency_penalty(), -2, 2, false, false, path + "frequency_penalty"));
    sampling.frequency_penalty = request.frequency_penalty();
  }
  if (request.has_presence_penalty()) {
    RETURN_IF_ERROR(InRange(request.presence_penalty(), -2, 2, false, false, path + "presence_penalty"));
    sampling.presence_penalty = request.presence_penalty();
  }
  if (request.has_seed()) {
    sampling.seed = request.seed();
  }
  return sampling;
}

// What ends the answer. By default it may go on until the context is full, of which `prompt_tokens` are
// taken.
absl::StatusOr<StoppingParams> Stopping(const ServedModel& model, uint32_t prompt_tokens,
                                        const v1::StoppingParams& request) {
  const std::string path = "spec.stopping.";
  StoppingParams stopping;
  const uint32_t room = model.context - prompt_tokens;
  stopping.max_tokens = request.has_max_tokens() ? request.max_tokens() : room;
  if (stopping.max_tokens == 0) {
    return Invalid(path + "max_tokens", "is 0, must be at least 1");
  }
  if (stopping.max_tokens > room) {
    return TooLong(path + "max_tokens",
                   absl::StrCat("the prompt's ", prompt_tokens, " tokens and ", stopping.max_tokens,
                                " new ones exceed the context of ", model.context, " tokens"));
  }
  stopping.min_tokens = request.min_tokens();
  if (stopping.min_tokens > stopping.max_tokens) {
    return Invalid(path + "min_tokens", absl::StrCat("is ", stopping.min_tokens,
                                                     ", above max_tokens, which is ", stopping.max_tokens));
  }
  if (static_cast<size_t>(request.stop_size()) > kMaxStopStrings) {
    return Invalid(path + "stop", absl::StrCat("has ", request.stop_size(), " texts, at most ",
                                               kMaxStopStrings, " are allowed"));
  }
  for (const std::string& text : request.stop()) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      return Invalid(path + "stop",
                     absl::StrCat("holds a text of ", text.size(), " bytes, must be 1 to ", kMaxStopBytes));
    }
    stopping.stop.push_back(text);
  }
  ASSIGN_OR_RETURN(stopping.stop_token_ids,
                   TokenIdsOf(request.stop_token_ids(), model.vocab, path + "stop_token_ids"));
  stopping.ignore_eos = request.ignore_eos();
  stopping.include_stop_in_output = request.include_stop_in_output();
  return stopping;
}

absl::StatusOr<std::vector<int32_t>> Prompt(const ServingContext& context, const v1::GenerationSpec& spec) {
  switch (spec.prompt_case()) {
    case v1::GenerationSpec::kTokenIds:
      if (spec.has_add_special_tokens() || spec.has_parse_special()) {
        return Invalid(spec.has_add_special_tokens() ? "spec.add_special_tokens" : "spec.parse_special",
                       "is about text prompts, and this one is token ids");
      }
      return TokenIdsOf(spec.token_ids().ids(), context.model.vocab, "spec.token_ids");
    case v1::GenerationSpec::kText: {
      RETURN_IF_ERROR(CheckTokenizer(context));
      EncodeOptions options;
      options.add_special_tokens = !spec.has_add_special_tokens() || spec.add_special_tokens();
      options.parse_special = !spec.has_parse_special() || spec.parse_special();
      auto ids = context.tokenizer->Encode(spec.text(), options);
      if (!ids.ok()) {
        return Invalid("spec.text", std::string(ids.status().message()));
      }
      return ids;
    }
    case v1::GenerationSpec::PROMPT_NOT_SET:
      break;
  }
  return Invalid("spec.prompt", "text or token_ids must be set");
}

absl::StatusOr<ReportOptions> Report(const v1::OutputOptions& output) {
  const std::string path = "spec.output.";
  RETURN_IF_ERROR(Unsupported(output.has_prompt_logprobs(), path + "prompt_logprobs"));
  RETURN_IF_ERROR(Unsupported(output.echo(), path + "echo"));
  if (output.logprobs() > kMaxLogprobs) {
    return Invalid(path + "logprobs",
                   absl::StrCat("is ", output.logprobs(), ", at most ", kMaxLogprobs, " are served"));
  }
  ReportOptions report;
  report.text = !output.has_return_text() || output.return_text();
  report.token_ids = !output.has_return_token_ids() || output.return_token_ids();
  report.logprobs = output.has_logprobs();
  report.interval_tokens = std::max(1u, output.stream_interval_tokens());
  return report;
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

// Not set: forever.
absl::StatusOr<absl::Duration> MaxQueueWait(const v1::SchedulingParams& scheduling) {
  if (!scheduling.has_max_queue_wait()) {
    return absl::InfiniteDuration();
  }
  const google::protobuf::Duration& wait = scheduling.max_queue_wait();
  const absl::Duration duration = absl::Seconds(wait.seconds()) + absl::Nanoseconds(wait.nanos());
  if (duration <= absl::ZeroDuration()) {
    return Invalid("spec.scheduling.max_queue_wait",
                   absl::StrCat("is ", absl::FormatDuration(duration), ", must be above 0"));
  }
  return duration;
}

absl::Status CheckSalt(const v1::CacheOptions& cache) {
  if (cache.cache_salt().size() <= kMaxSaltBytes) {
    return absl::OkStatus();
  }
  return Invalid("spec.cache.cache_salt", absl::StrCat("has ", cache.cache_salt().size(), " bytes, at most ",
                                                       kMaxSaltBytes, " are allowed"));
}

absl::StatusOr<std::optional<GuideSpec>> Guided(const ServingContext& context,
                                                const v1::GenerationSpec& spec) {
  if (!spec.has_guided()) {
    return std::nullopt;
  }
  RETURN_IF_ERROR(CheckTokenizer(context));
  const v1::GuidedDecoding& guided = spec.guided();
  switch (guided.guide_case()) {
    case v1::GuidedDecoding::kJsonSchema:
      return GuideSpec{GuideSpec::Kind::kJsonSchema, guided.json_schema(), {}, {}, {}};
    case v1::GuidedDecoding::kRegex:
      return GuideSpec{GuideSpec::Kind::kRegex, guided.regex(), {}, {}, {}};
    case v1::GuidedDecoding::kGrammar:
      return GuideSpec{GuideSpec::Kind::kGrammar, guided.grammar(), {}, {}, {}};
    case v1::GuidedDecoding::kChoice:
      return GuideSpec{
          GuideSpec::Kind::kChoice, "", {guided.choice().texts().begin(), guided.choice().texts().end()}};
    case v1::GuidedDecoding::kJsonObject:
      return GuideSpec{GuideSpec::Kind::kJsonObject, "", {}, {}, {}};
    case v1::GuidedDecoding::GUIDE_NOT_SET:
      break;
  }
  return Invalid("spec.guided.guide", "must be set");
}

// Plans everything but the prompt and the stopping, which depends on the prompt's length.
absl::StatusOr<GenerationPlan> PlanWithoutPrompt(const ServingContext& context, const CallFacts& call,
                                                 const v1::GenerationSpec& spec) {
  RETURN_IF_ERROR(CheckModel(context, spec.model()));
  GenerationPlan plan;
  ASSIGN_OR_RETURN(plan.spec.request_id, RequestId(call, spec.request_id(), "spec.request_id"));
  ASSIGN_OR_RETURN(plan.spec.sampling, Sampling(context.model.generation, spec.sampling()));
  ASSIGN_OR_RETURN(plan.spec.guide, Guided(context, spec));
  ASSIGN_OR_RETURN(plan.report, Report(spec.output()));
  plan.spec.logprobs = spec.output().logprobs();
  plan.spec.priority = spec.scheduling().priority();
  ASSIGN_OR_RETURN(plan.spec.max_queue_wait, MaxQueueWait(spec.scheduling()));
  RETURN_IF_ERROR(CheckSalt(spec.cache()));
  plan.spec.cache_salt = spec.cache().cache_salt();
  plan.spec.bypass_prefix_cache = spec.cache().bypass_prefix_cache();
  plan.spec.client = call.client;
  plan.spec.deadline = DeadlineOf(context, call);
  return plan;
}

// Checks the prompt's length and plans the stopping, which depends on it.
absl::Status FitToPrompt(const ServingContext& context, const v1::GenerationSpec& spec,
                         const std::string& field, GenerationPlan* plan) {
  const size_t tokens = plan->spec.prompt.size();
  RETURN_IF_ERROR(CheckPromptFits(context, tokens, context.model.context - 1, field));
  ASSIGN_OR_RETURN(plan->spec.stopping,
                   Stopping(context.model, static_cast<uint32_t>(tokens), spec.stopping()));
  return absl::OkStatus();
}

}  // namespace

SamplingParams DefaultSampling(const GenerationDefaults& defaults) {
  SamplingParams sampling;
  // Hugging Face's rule: a temperature counts only where do_sample says so.
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

absl::Status CheckNoUnknownFields(const google::protobuf::Message& message) {
  // A field of a newer client may matter to it; answering as if it were not there would be wrong without a
  // word.
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    return ReasonError(absl::StatusCode::kInvalidArgument, "UNKNOWN_FIELD",
                       absl::StrCat(message.GetDescriptor()->name(), " has a field of number ",
                                    unknown.field(0).number(), ", which this build does not know"));
  }
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->message_type() == nullptr) {
      continue;
    }
    if (!field->is_repeated()) {
      RETURN_IF_ERROR(CheckNoUnknownFields(reflection.GetMessage(message, field)));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      RETURN_IF_ERROR(CheckNoUnknownFields(reflection.GetRepeatedMessage(message, field, i)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> TokenIdsOf(const google::protobuf::RepeatedField<uint32_t>& ids,
                                                uint32_t limit, const std::string& field) {
  limit = std::min(limit, static_cast<uint32_t>(std::numeric_limits<int32_t>::max()));
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= limit) {
      return Invalid(field, absl::StrCat("entry ", i, " is ", ids[i], ", must be below ", limit));
    }
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

absl::StatusOr<GenerationPlan> PlanGeneration(const ServingContext& context, const CallFacts& call,
                                              const v1::GenerationSpec& spec) {
  ASSIGN_OR_RETURN(GenerationPlan plan, PlanWithoutPrompt(context, call, spec));
  ASSIGN_OR_RETURN(plan.spec.prompt, Prompt(context, spec));
  RETURN_IF_ERROR(FitToPrompt(context, spec, spec.has_text() ? "spec.text" : "spec.token_ids", &plan));
  return plan;
}

absl::StatusOr<GenerationPlan> PlanChat(const ServingContext& context, const CallFacts& call,
                                        const v1::GenerationSpec& spec,
                                        const ConversationView& conversation) {
  ASSIGN_OR_RETURN(GenerationPlan plan, PlanWithoutPrompt(context, call, spec));
  if (spec.prompt_case() != v1::GenerationSpec::PROMPT_NOT_SET) {
    return Invalid("spec.prompt", "must not be set: the messages are the prompt");
  }
  if (spec.has_add_special_tokens() || spec.has_parse_special()) {
    return Invalid(spec.has_add_special_tokens() ? "spec.add_special_tokens" : "spec.parse_special",
                   "is about text prompts, and this one is a conversation");
  }
  ASSIGN_OR_RETURN(ChatPrompt prompt, MakeChatPrompt(context, conversation));
  plan.spec.prompt = std::move(prompt.ids);
  RETURN_IF_ERROR(FitToPrompt(context, spec, "messages", &plan));
  std::vector<int32_t>& stops = plan.spec.stopping.stop_token_ids;
  if (prompt.end_of_turn.has_value() && !plan.spec.stopping.ignore_eos &&
      std::find(context.model.eos.begin(), context.model.eos.end(), *prompt.end_of_turn) ==
          context.model.eos.end() &&
      std::find(stops.begin(), stops.end(), *prompt.end_of_turn) == stops.end()) {
    // Some models end a turn with a token that is not among their end-of-text tokens; without it the answer
    // would run on into an invented next turn.
    stops.push_back(*prompt.end_of_turn);
  }
  return plan;
}

absl::StatusOr<ScoreSpec> PlanScore(const ServingContext& context, const CallFacts& call,
                                    const v1::ScoreRequest& request) {
  RETURN_IF_ERROR(CheckModel(context, request.model()));
  ScoreSpec spec;
  ASSIGN_OR_RETURN(spec.request_id, RequestId(call, request.request_id(), "request_id"));
  ASSIGN_OR_RETURN(spec.input, TokenIdsOf(request.token_ids(), context.model.vocab, "token_ids"));
  RETURN_IF_ERROR(CheckPromptFits(context, spec.input.size(), context.model.context, "token_ids"));
  ASSIGN_OR_RETURN(spec.targets, TokenIdsOf(request.targets(), context.model.vocab, "targets"));
  if (!spec.targets.empty() && spec.targets.size() != spec.input.size()) {
    return Invalid("targets", absl::StrCat("has ", spec.targets.size(), " entries and token_ids has ",
                                           spec.input.size(), ": must be equal, or targets empty"));
  }
  spec.want_logits = request.want_logits();
  spec.client = call.client;
  spec.deadline = DeadlineOf(context, call);
  return spec;
}

}  // namespace sluice
