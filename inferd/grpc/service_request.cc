#include "inferd/grpc/service_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"
#include "inferd/api/request_checks.h"
#include "inferd/serving/generation_plan.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;
using Json = nlohmann::ordered_json;

constexpr JsonLimits kClientJson{.max_members = 1024, .allow_duplicate_keys = true};
constexpr int kMaxVariables = 64;
constexpr std::array<const char*, 3> kReservedVariables = {"messages", "tools", "add_generation_prompt"};

absl::Status InvalidPrompt(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::StatusOr<std::string> RoleName(v1::ChatRole role, const std::string& field) {
  switch (role) {
    case v1::CHAT_ROLE_SYSTEM:
      return "system";
    case v1::CHAT_ROLE_USER:
      return "user";
    case v1::CHAT_ROLE_ASSISTANT:
      return "assistant";
    case v1::CHAT_ROLE_TOOL:
      return "tool";
    case v1::CHAT_ROLE_DEVELOPER:
      return "developer";
    default:
      return InvalidPrompt(field, absl::StrCat("is ", static_cast<int>(role), ", which is no role"));
  }
}

absl::StatusOr<Json> ParseObject(const std::string& text, const std::string& field) {
  absl::StatusOr<Json> json = ParseOrderedJson(text.empty() ? "{}" : text, field, kClientJson);
  if (!json.ok() || !json->is_object()) {
    return InvalidPrompt(field, "is not a JSON object");
  }
  return json;
}

absl::StatusOr<Json> ToolCallJson(const v1::ToolCall& call, const std::string& field) {
  if (call.name().empty()) {
    return InvalidPrompt(absl::StrCat(field, ".name"), "is empty");
  }
  RETURN_IF_ERROR(ParseObject(call.arguments(), absl::StrCat(field, ".arguments")).status());
  Json json = {{"type", "function"}};
  if (!call.id().empty()) {
    json["id"] = call.id();
  }
  json["function"] = {{"name", call.name()}};
  json["function"]["arguments"] = call.arguments().empty() ? "{}" : call.arguments();
  return json;
}

absl::StatusOr<Json> MessageJson(const v1::ChatMessage& message, const std::string& field) {
  ASSIGN_OR_RETURN(const std::string role, RoleName(message.role(), absl::StrCat(field, ".role")));
  Json json = {{"role", role}, {"content", message.content()}};
  for (const auto& [name, text] :
       {std::pair("name", &message.name()), std::pair("tool_call_id", &message.tool_call_id()),
        std::pair("reasoning_content", &message.reasoning())}) {
    if (!text->empty()) {
      json[name] = *text;
    }
  }
  if (message.tool_calls_size() > 0 && message.role() != v1::CHAT_ROLE_ASSISTANT) {
    return InvalidPrompt(absl::StrCat(field, ".tool_calls"), "is the assistant's alone");
  }
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    ASSIGN_OR_RETURN(Json call,
                     ToolCallJson(message.tool_calls(i), absl::StrCat(field, ".tool_calls[", i, "]")));
    json["tool_calls"].push_back(std::move(call));
  }
  return json;
}

absl::StatusOr<Json> ToolJson(const v1::ChatTool& tool, const std::string& field) {
  if (tool.name().empty()) {
    return InvalidPrompt(absl::StrCat(field, ".name"), "is empty");
  }
  Json json = {{"type", "function"}};
  json["function"] = {{"name", tool.name()}};
  if (!tool.description().empty()) {
    json["function"]["description"] = tool.description();
  }
  if (tool.parameters().empty()) {
    json["function"]["parameters"] = {{"type", "object"}, {"properties", Json::object()}};
  } else {
    ASSIGN_OR_RETURN(json["function"]["parameters"],
                     ParseObject(tool.parameters(), absl::StrCat(field, ".parameters")));
  }
  return json;
}

absl::Status AddVariables(const v1::ChatOptions& options, Json* conversation) {
  if (options.template_variables().size() > kMaxVariables) {
    return InvalidPrompt(
        "options.template_variables",
        absl::StrCat("has ", options.template_variables().size(), " entries, at most ", kMaxVariables));
  }
  for (const auto& [name, text] : options.template_variables()) {
    const std::string field = absl::StrCat("options.template_variables[\"", name, "\"]");
    if (std::find(kReservedVariables.begin(), kReservedVariables.end(), name) != kReservedVariables.end()) {
      return InvalidPrompt(field, "is set by a field of its own");
    }
    absl::StatusOr<Json> value = ParseOrderedJson(text, field, kClientJson);
    if (!value.ok()) {
      return InvalidPrompt(field, "is no JSON value (a text needs its quotation marks)");
    }
    (*conversation)[name] = *std::move(value);
  }
  return absl::OkStatus();
}

// Returns the conversation in the form of ChatTemplate::Render(). Members keep their order, since templates
// print objects in that order.
absl::StatusOr<std::string> ConversationJson(const ConversationView& conversation) {
  Json json = {{"messages", Json::array()}};
  for (int i = 0; i < conversation.messages.size(); ++i) {
    ASSIGN_OR_RETURN(Json message, MessageJson(conversation.messages[i], absl::StrCat("messages[", i, "]")));
    json["messages"].push_back(std::move(message));
  }
  for (int i = 0; i < conversation.options.tools_size(); ++i) {
    ASSIGN_OR_RETURN(Json tool,
                     ToolJson(conversation.options.tools(i), absl::StrCat("options.tools[", i, "]")));
    json["tools"].push_back(std::move(tool));
  }
  RETURN_IF_ERROR(AddVariables(conversation.options, &json));
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

absl::StatusOr<ChatRenderOptions> RenderOptions(const v1::ChatOptions& options) {
  ChatRenderOptions render;
  render.continue_final_message = options.continue_final_message();
  render.add_generation_prompt =
      options.has_add_generation_prompt() ? options.add_generation_prompt() : !render.continue_final_message;
  if (render.continue_final_message && render.add_generation_prompt) {
    return InvalidPrompt("options.add_generation_prompt", "and continue_final_message exclude each other");
  }
  render.now = absl::Now();
  if (options.has_now()) {
    constexpr int64_t kYear10000 = 253402300800;  // maximum of protobuf timestamps
    const int64_t seconds = options.now().seconds();
    if (seconds < -62135596800 || seconds >= kYear10000) {
      return InvalidPrompt("options.now", absl::StrCat("is ", seconds, " s, outside of the years 1 to 9999"));
    }
    render.now = absl::FromUnixSeconds(seconds);
  }
  return render;
}

}  // namespace

absl::StatusOr<ChatPrompt> MakeChatPrompt(const ServingContext& context, const ConversationView& view) {
  RETURN_IF_ERROR(CheckTokenizer(context));
  if (view.messages.empty()) {
    return InvalidPrompt("messages", "is empty: a conversation has at least one");
  }
  Conversation conversation;
  ASSIGN_OR_RETURN(conversation.json, ConversationJson(view));
  conversation.chat_template = view.options.chat_template();
  ASSIGN_OR_RETURN(conversation.render, RenderOptions(view.options));
  return RenderConversation(context, conversation);
}

namespace {

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
  RequestFields fields(context);
  fields.model = spec.model();
  fields.spec.request_id = spec.request_id();
  SamplingParams& out = fields.spec.sampling;
  set(sampling.has_temperature(), sampling.temperature(), &out.temperature);
  set(sampling.has_top_p(), sampling.top_p(), &out.top_p);
  set(sampling.has_top_k(), sampling.top_k(), &out.top_k);
  set(sampling.has_min_p(), sampling.min_p(), &out.min_p);
  set(sampling.has_repetition_penalty(), sampling.repetition_penalty(), &out.repetition_penalty);
  set(sampling.has_frequency_penalty(), sampling.frequency_penalty(), &out.frequency_penalty);
  set(sampling.has_presence_penalty(), sampling.presence_penalty(), &out.presence_penalty);
  set(sampling.has_seed(), sampling.seed(), &out.seed);
  out.logit_bias.assign(sampling.logit_bias().begin(), sampling.logit_bias().end());
  std::sort(out.logit_bias.begin(), out.logit_bias.end());  // map order is unspecified
  set(stopping.has_max_tokens(), stopping.max_tokens(), &fields.max_tokens);
  StoppingParams& stop = fields.spec.stopping;
  stop.min_tokens = stopping.min_tokens();
  stop.stop.assign(stopping.stop().begin(), stopping.stop().end());
  ASSIGN_OR_RETURN(stop.stop_token_ids, TokenIdsOf(stopping.stop_token_ids(), context.model.vocab,
                                                   "spec.stopping.stop_token_ids"));
  stop.ignore_eos = stopping.ignore_eos();
  stop.include_stop_in_output = stopping.include_stop_in_output();
  fields.spec.logprobs = spec.output().logprobs();
  fields.spec.priority = spec.scheduling().priority();
  fields.spec.cache_salt = spec.cache().cache_salt();
  fields.spec.bypass_prefix_cache = spec.cache().bypass_prefix_cache();
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
  RETURN_IF_ERROR(
      CheckBound(Field::kMaxQueueWait, absl::ToDoubleSeconds(duration), "spec.scheduling.max_queue_wait"));
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

absl::StatusOr<std::optional<StatedDrafts>> Stated(const ServingContext& context,
                                                   const v1::GenerationSpec& spec) {
  if (!spec.has_stated_drafts()) {
    return std::nullopt;
  }
  const v1::StatedDrafts& stated = spec.stated_drafts();
  if (stated.token_ids().empty()) {
    return Invalid("spec.stated_drafts.token_ids", "is empty: the answer must have at least one token");
  }
  if (!(stated.acceptance() >= 0 && stated.acceptance() <= 1)) {
    return Invalid("spec.stated_drafts.acceptance",
                   absl::StrCat("is ", stated.acceptance(), ", must be 0 to 1"));
  }
  if (stated.drafts() < 1 || stated.drafts() > kMaxDrafts) {
    return Invalid("spec.stated_drafts.drafts",
                   absl::StrCat("is ", stated.drafts(), ", must be 1 to ", kMaxDrafts));
  }
  StatedDrafts drafts{{}, stated.acceptance(), stated.drafts(), stated.seed(), stated.all()};
  ASSIGN_OR_RETURN(drafts.answer,
                   TokenIdsOf(stated.token_ids(), context.model.vocab, "spec.stated_drafts.token_ids"));
  return drafts;
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
  ASSIGN_OR_RETURN(RequestFields fields, FieldsOf(context, spec));
  ASSIGN_OR_RETURN(fields.spec.constraint, Guided(spec));
  ASSIGN_OR_RETURN(fields.spec.stated_drafts, Stated(context, spec));
  ASSIGN_OR_RETURN(fields.spec.max_queue_wait, MaxQueueWait(spec.scheduling()));
  Draft draft{std::move(fields), {}};
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
  RETURN_IF_ERROR(CheckPrompt(spec.input, context.model.context, LimitsOf(context), "token_ids"));
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
