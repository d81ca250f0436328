#include "inferd/serving/generation_plan.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/text/chat_template.h"

namespace sluice::inferd {
namespace {

absl::Status Invalid(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

}  // namespace

RequestFields::RequestFields(const ServingContext& context) {
  spec.sampling = DefaultSampling(context.model.generation);
}

RequestLimits LimitsOf(const ServingContext& context) {
  return {context.model.vocab, context.model.context, context.tokenizer != nullptr};
}

absl::StatusOr<GenerateSpec> PlanRequest(const ServingContext& context, const CallFacts& call,
                                         const RequestFields& fields, const FieldNames& names) {
  RETURN_IF_ERROR(CheckModel(context, fields.model));
  GenerateSpec spec = fields.spec;
  ASSIGN_OR_RETURN(spec.request_id,
                   RequestIdOf(call, spec.request_id, absl::StrCat(names.request, "request_id")));
  RETURN_IF_ERROR(spec.constraint.has_value() ? CheckTokenizer(context) : absl::OkStatus());
  RETURN_IF_ERROR(CheckFields(spec, LimitsOf(context), names));
  spec.client = call.client;
  spec.deadline = std::min(DeadlineOf(context, call), SteadyNow() + fields.timeout);
  return spec;
}

absl::Status FitToPrompt(const ServingContext& context, const RequestFields& fields, const FieldNames& names,
                         const std::string& prompt_field, GenerateSpec* spec) {
  const uint32_t room = context.model.context -
                        static_cast<uint32_t>(std::min<size_t>(spec->prompt.size(), context.model.context));
  const uint32_t wanted = fields.max_tokens.value_or(room);
  spec->stopping.max_tokens = fields.clip_max_tokens ? std::min(wanted, room) : wanted;
  return CheckLengths(*spec, LimitsOf(context), names, prompt_field);
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
  RETURN_IF_ERROR(CheckBound(Field::kRequestId, static_cast<double>(id.size()), field));
  if (!std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isgraph(c); })) {
    return Invalid(field, "must consist of printable ASCII without spaces");
  }
  return id.empty() ? NewRequestId() : id;
}

absl::Time DeadlineOf(const ServingContext& context, const CallFacts& call) {
  return std::min(call.deadline, SteadyNow() + context.limits.max_request_time.Get());
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

absl::Status CheckQueueSpace(const ServingContext& context, const std::string& client) {
  ASSIGN_OR_RETURN(EngineApi* const engine, context.state->Engine());
  return engine->CheckQueueSpace(client);
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
  absl::StatusOr<FormattedChat> chat = formatter->Format(conversation.json, conversation.render);
  if (!chat.ok()) {
    return WithReason(chat.status());
  }
  return ChatPrompt{std::move(chat->text), std::move(chat->ids), formatter->end_of_turn()};
}

}  // namespace sluice::inferd
