#include "inferd/service/service_request.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error_detail.h"
#include "common/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"
#include "inferd/api/request_checks.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;

const FieldNames kNames = {"spec.", "spec.sampling.", "spec.stopping.", "spec.output.", "spec.cache."};

absl::Status Invalid(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::Status Unsupported(bool is_set, const std::string& field) {
  return is_set ? FieldError(absl::StatusCode::kUnimplemented, field, "is not served by this build")
                : absl::OkStatus();
}

absl::Status CheckUnsupported(const v1::GenerationSpec& spec) {
  const v1::SamplingParams& sampling = spec.sampling();
  RETURN_IF_ERROR(Unsupported(sampling.has_typical_p(), "spec.sampling.typical_p"));
  RETURN_IF_ERROR(Unsupported(sampling.has_repetition_window(), "spec.sampling.repetition_window"));
  RETURN_IF_ERROR(Unsupported(sampling.has_n() && sampling.n() > 1, "spec.sampling.n"));
  if (sampling.has_n() && sampling.n() == 0) {
    return Invalid("spec.sampling.n", "is 0, must be 1");
  }
  RETURN_IF_ERROR(Unsupported(spec.output().has_prompt_logprobs(), "spec.output.prompt_logprobs"));
  return Unsupported(spec.output().echo(), "spec.output.echo");
}

absl::StatusOr<RequestFields> FieldsOf(const ServingContext& context, const v1::GenerationSpec& spec) {
  const v1::SamplingParams& sampling = spec.sampling();
  const v1::StoppingParams& stopping = spec.stopping();
  const auto set = [](bool is_set, auto value, auto* out) {
    if (is_set) {
      *out = value;
    }
  };
  RequestFields fields;
  fields.model = spec.model();
  fields.request_id = spec.request_id();
  set(sampling.has_temperature(), sampling.temperature(), &fields.temperature);
  set(sampling.has_top_p(), sampling.top_p(), &fields.top_p);
  set(sampling.has_top_k(), sampling.top_k(), &fields.top_k);
  set(sampling.has_min_p(), sampling.min_p(), &fields.min_p);
  set(sampling.has_repetition_penalty(), sampling.repetition_penalty(), &fields.repetition_penalty);
  set(sampling.has_frequency_penalty(), sampling.frequency_penalty(), &fields.frequency_penalty);
  set(sampling.has_presence_penalty(), sampling.presence_penalty(), &fields.presence_penalty);
  set(sampling.has_seed(), sampling.seed(), &fields.seed);
  fields.logit_bias.assign(sampling.logit_bias().begin(), sampling.logit_bias().end());
  std::sort(fields.logit_bias.begin(), fields.logit_bias.end());  // map order is unspecified
  set(stopping.has_max_tokens(), stopping.max_tokens(), &fields.max_tokens);
  fields.min_tokens = stopping.min_tokens();
  fields.stop.assign(stopping.stop().begin(), stopping.stop().end());
  ASSIGN_OR_RETURN(fields.stop_token_ids, TokenIdsOf(stopping.stop_token_ids(), context.model.vocab,
                                                     "spec.stopping.stop_token_ids"));
  fields.ignore_eos = stopping.ignore_eos();
  fields.include_stop_in_output = stopping.include_stop_in_output();
  fields.logprobs = spec.output().logprobs();
  fields.priority = spec.scheduling().priority();
  fields.cache_salt = spec.cache().cache_salt();
  fields.bypass_prefix_cache = spec.cache().bypass_prefix_cache();
  return fields;
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

ReportOptions Report(const v1::OutputOptions& output) {
  ReportOptions report;
  report.text = !output.has_return_text() || output.return_text();
  report.token_ids = !output.has_return_token_ids() || output.return_token_ids();
  report.logprobs = output.has_logprobs();
  report.interval_tokens = std::max(1u, output.stream_interval_tokens());
  return report;
}

// Unset: infinite.
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

absl::StatusOr<std::optional<GrammarSpec>> Guided(const v1::GenerationSpec& spec) {
  if (!spec.has_guided()) {
    return std::nullopt;
  }
  const v1::GuidedDecoding& guided = spec.guided();
  switch (guided.guide_case()) {
    case v1::GuidedDecoding::kJsonSchema:
      return GrammarSpec{GrammarSpec::Kind::kJsonSchema, guided.json_schema(), {}, {}, {}};
    case v1::GuidedDecoding::kRegex:
      return GrammarSpec{GrammarSpec::Kind::kRegex, guided.regex(), {}, {}, {}};
    case v1::GuidedDecoding::kGrammar:
      return GrammarSpec{GrammarSpec::Kind::kGrammar, guided.grammar(), {}, {}, {}};
    case v1::GuidedDecoding::kChoice:
      return GrammarSpec{
          GrammarSpec::Kind::kChoice, "", {guided.choice().texts().begin(), guided.choice().texts().end()}};
    case v1::GuidedDecoding::kJsonObject:
      return GrammarSpec{GrammarSpec::Kind::kJsonObject, "", {}, {}, {}};
    case v1::GuidedDecoding::GUIDE_NOT_SET:
      break;
  }
  return Invalid("spec.guided.guide", "must be set");
}

// A request without its prompt and everything that depends on it.
struct Draft {
  RequestFields fields;
  GenerationPlan plan;
};

absl::StatusOr<Draft> PlanWithoutPrompt(const ServingContext& context, const CallFacts& call,
                                        const v1::GenerationSpec& spec) {
  RETURN_IF_ERROR(CheckModel(context, spec.model()));
  RETURN_IF_ERROR(CheckUnsupported(spec));
  Draft draft;
  ASSIGN_OR_RETURN(draft.fields, FieldsOf(context, spec));
  ASSIGN_OR_RETURN(draft.fields.constraint, Guided(spec));
  ASSIGN_OR_RETURN(draft.fields.max_queue_wait, MaxQueueWait(spec.scheduling()));
  ASSIGN_OR_RETURN(draft.plan.spec, PlanRequest(context, call, draft.fields, kNames));
  draft.plan.report = Report(spec.output());
  return draft;
}

}  // namespace

absl::Status CheckNoUnknownFields(const google::protobuf::Message& message) {
  // An unknown field of a newer client may be essential; ignoring it silently would be wrong.
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
  ASSIGN_OR_RETURN(Draft draft, PlanWithoutPrompt(context, call, spec));
  ASSIGN_OR_RETURN(draft.plan.spec.prompt, Prompt(context, spec));
  RETURN_IF_ERROR(FitToPrompt(context, draft.fields, kNames, spec.has_text() ? "spec.text" : "spec.token_ids",
                              &draft.plan.spec));
  return std::move(draft.plan);
}

absl::StatusOr<GenerationPlan> PlanChat(const ServingContext& context, const CallFacts& call,
                                        const v1::GenerationSpec& spec,
                                        const ConversationView& conversation) {
  ASSIGN_OR_RETURN(Draft draft, PlanWithoutPrompt(context, call, spec));
  if (spec.prompt_case() != v1::GenerationSpec::PROMPT_NOT_SET) {
    return Invalid("spec.prompt", "must not be set: the messages are the prompt");
  }
  if (spec.has_add_special_tokens() || spec.has_parse_special()) {
    return Invalid(spec.has_add_special_tokens() ? "spec.add_special_tokens" : "spec.parse_special",
                   "is about text prompts, and this one is a conversation");
  }
  ASSIGN_OR_RETURN(ChatPrompt prompt, MakeChatPrompt(context, conversation));
  draft.plan.spec.prompt = std::move(prompt.ids);
  RETURN_IF_ERROR(FitToPrompt(context, draft.fields, kNames, "messages", &draft.plan.spec));
  StopAtEndOfTurn(context, prompt.end_of_turn, &draft.plan.spec);
  return std::move(draft.plan);
}

absl::StatusOr<ScoreSpec> PlanScore(const ServingContext& context, const CallFacts& call,
                                    const v1::ScoreRequest& request) {
  RETURN_IF_ERROR(CheckModel(context, request.model()));
  ScoreSpec spec;
  ASSIGN_OR_RETURN(spec.request_id, RequestIdOf(call, request.request_id(), "request_id"));
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

}  // namespace sluice::inferd
