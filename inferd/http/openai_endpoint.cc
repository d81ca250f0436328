#include "inferd/http/openai_endpoint.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "inferd/http/answer_call.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/chat_writer.h"
#include "inferd/http/completions_api.h"
#include "inferd/http/json_body.h"
#include "inferd/http/messages_api.h"
#include "inferd/http/page.h"
#include "inferd/http/responses_api.h"
#include "inferd/http/score_call.h"

namespace sluice::inferd {
namespace {

constexpr char kModelPrefix[] = "/v1/models/";
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

// Plan of an answer without its choices.
AnswerPlan PlanOf(const HttpRequest& request, const AnswerStyle& style, const char* kind,
                  const std::string& id) {
  AnswerPlan plan;
  plan.stream = style.stream;
  plan.kind = kind;
  plan.request_id = id;
  plan.client = request.client;
  plan.errors = ErrorStyleOf(request.path);
  if (request.request_id.empty()) {
    plan.headers.emplace_back("x-request-id", id);
  }
  return plan;
}

// Answers a request without a route. `allowed`: the method of the path; empty if the path is unknown.
HttpResponse UnknownAnswer(const HttpRequest& request, const std::string& allowed) {
  const std::string path = request.path.substr(0, 200);
  const HttpProblem problem = allowed.empty()
                                  ? HttpProblem{404, "", absl::StrCat("there is nothing at ", path)}
                                  : HttpProblem{405, "", absl::StrCat(request.method, " is not for ", path)};
  HttpResponse answer = ErrorAnswer(problem, ErrorStyleOf(request.path));
  if (!allowed.empty()) {
    answer.headers.emplace_back("Allow", allowed == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
  }
  return answer;
}

HttpResponse UnservedAnswer(const HttpRequest& request) {
  const std::string what = request.path.substr(sizeof("/v1/") - 1);
  return ErrorAnswer(
      {404, "unsupported_endpoint", absl::StrCat(what, ": not served; this server generates text only")},
      ErrorStyleOf(request.path));
}

}  // namespace

OpenAiEndpoint::OpenAiEndpoint(const ServingContext& context, std::function<std::string()> metrics)
    : context_(context), metrics_(std::move(metrics)), created_(absl::ToUnixSeconds(absl::Now())) {}

const OpenAiEndpoint::Route* OpenAiEndpoint::Find(const HttpRequest& request, std::string* allowed) {
  constexpr bool kWaits = true;
  static const Route kRoutes[] = {
      {"GET", "/", &OpenAiEndpoint::Page},
      {"GET", "/v1/models", &OpenAiEndpoint::Models},
      {"GET", "/models", &OpenAiEndpoint::Models},
      {"GET", "/health", &OpenAiEndpoint::Health},
      {"GET", "/v1/health", &OpenAiEndpoint::Health},
      {"GET", "/metrics", &OpenAiEndpoint::Metrics},
      {"POST", "/v1/chat/completions", &OpenAiEndpoint::Chat, kWaits, &CompletionsChatApi()},
      {"POST", "/chat/completions", &OpenAiEndpoint::Chat, kWaits, &CompletionsChatApi()},
      {"POST", "/v1/completions", &OpenAiEndpoint::Completions, kWaits},
      {"POST", "/completions", &OpenAiEndpoint::Completions, kWaits},
      {"POST", "/v1/responses", &OpenAiEndpoint::Chat, kWaits, &ResponsesApi()},
      {"POST", "/v1/messages", &OpenAiEndpoint::Chat, kWaits, &MessagesApi()},
      {"POST", "/v1/messages/count_tokens", &OpenAiEndpoint::CountTokens, !kWaits, &MessagesApi()},
      {"POST", "/tokenize", &OpenAiEndpoint::Tokenize},
      {"POST", "/detokenize", &OpenAiEndpoint::Detokenize},
      {"POST", "/apply-template", &OpenAiEndpoint::ApplyTemplate},
      {"POST", "/v1/embeddings", &OpenAiEndpoint::Unserved},
      {"POST", "/v1/images/generations", &OpenAiEndpoint::Unserved},
      {"POST", "/v1/images/edits", &OpenAiEndpoint::Unserved},
      {"POST", "/v1/audio/speech", &OpenAiEndpoint::Unserved},
      {"POST", "/v1/audio/transcriptions", &OpenAiEndpoint::Unserved},
      {"POST", "/v1/moderations", &OpenAiEndpoint::Unserved},
      {"POST", "/v1/rerank", &OpenAiEndpoint::Unserved},
  };
  for (const Route& route : kRoutes) {
    if (request.path == route.path) {
      if (request.method == route.method) {
        return &route;
      }
      *allowed = route.method;
    }
  }
  return nullptr;
}

void OpenAiEndpoint::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  if (request.foreign_form) {
    exchange->Answer(
        Refusal(request.path, {403, "foreign_origin", "a form of another site is not answered"}));
    return;
  }
  Asked asked{std::move(request), std::move(exchange), {}};
  asked.facts.client = asked.request.client;
  asked.facts.request_id = asked.request.request_id;
  std::string allowed;
  absl::Status status;
  if (const Route* route = Find(asked.request, &allowed); route != nullptr) {
    // Admission before parsing: under overload a refusal must not cost the parsing of its request.
    asked.api = route->api;
    status = route->waits ? CheckQueueSpace(context_, asked.facts.client) : absl::OkStatus();
    if (status.ok()) {
      status = (this->*route->handle)(asked);
    }
    if (route->api != nullptr) {
      status = ToApiFieldNames(status, route->api->aliases);
    }
  } else if (absl::StartsWith(asked.request.path, kModelPrefix) && asked.request.method == "GET") {
    status = Model(asked, asked.request.path.substr(sizeof(kModelPrefix) - 1));
  } else {
    asked.exchange->Answer(UnknownAnswer(asked.request, allowed));
    return;
  }
  if (!status.ok()) {
    HttpResponse answer = ErrorAnswer(status, ErrorStyleOf(asked.request.path));
    if (asked.request.request_id.empty()) {
      answer.headers.emplace_back("x-request-id", NewRequestId());
    }
    asked.exchange->Answer(std::move(answer));
  }
}

std::optional<HttpResponse> OpenAiEndpoint::AnswerUnrouted(const HttpRequest& request) {
  std::string allowed;
  const Route* route = Find(request, &allowed);
  if (route == nullptr) {
    return UnknownAnswer(request, allowed);
  }
  return route->handle == &OpenAiEndpoint::Unserved ? std::optional(UnservedAnswer(request)) : std::nullopt;
}

absl::StatusOr<OpenAiEndpoint::RoutedFields> OpenAiEndpoint::ReadRoutedFields(const std::string& body) {
  ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  const JsonFields fields(json);
  RoutedFields routed;
  RETURN_IF_ERROR(fields.Take("model", &routed.model));
  RETURN_IF_ERROR(fields.Take("stream", &routed.stream));
  return routed;
}

HttpResponse OpenAiEndpoint::Refusal(const std::string& path, const HttpProblem& problem) {
  return ErrorAnswer(problem, ErrorStyleOf(path));
}

void OpenAiEndpoint::Reply(const Asked& asked, const Json& json) const {
  HttpResponse answer;
  answer.body = Dump(json);
  asked.exchange->Answer(std::move(answer));
}

AnswerFacts OpenAiEndpoint::Facts(const std::string& id) const {
  AnswerFacts facts;
  facts.id = id;
  facts.model = context_.model.name;
  facts.fingerprint = absl::StrCat("sluice-", context_.model.id.substr(0, 12));
  facts.created = absl::ToUnixSeconds(absl::Now());
  facts.tokenizer = context_.tokenizer;
  return facts;
}

Json OpenAiEndpoint::ModelJson() const {
  const ServedModel& model = context_.model;
  return {{"id", model.name},
          {"object", "model"},
          {"type", "model"},  // Anthropic's members, for its clients
          {"display_name", model.name},
          {"created_at",
           absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(created_), absl::UTCTimeZone())},
          {"created", created_},
          {"owned_by", "sluice"},
          {"max_model_len", model.context},
          {"meta",
           {{"model_id", model.id},
            {"family", model.family},
            {"n_ctx", model.context},
            {"n_ctx_train", model.max_position},
            {"n_vocab", model.vocab},
            {"size", model.expert_bytes + model.dense_bytes}}}};
}

absl::Status OpenAiEndpoint::Page(const Asked& asked) {
  asked.exchange->Answer(PageAnswer());
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Models(const Asked& asked) {
  const std::string& name = context_.model.name;
  Reply(asked, {{"object", "list"},
                {"data", Json::array({ModelJson()})},
                {"has_more", false},
                {"first_id", name},
                {"last_id", name}});
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Model(const Asked& asked, const std::string& id) {
  RETURN_IF_ERROR(CheckModel(context_, id));
  Reply(asked, ModelJson());
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Health(const Asked& asked) {
  const ServerState::View view = context_.state->Look();
  if (view.phase != ServerState::Phase::kServing) {
    return absl::UnavailableError(view.detail);
  }
  Reply(asked, {{"status", "ok"}});
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Metrics(const Asked& asked) {
  HttpResponse answer;
  answer.content_type = kMetricsType;
  answer.body = metrics_();
  asked.exchange->Answer(std::move(answer));
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Chat(const Asked& asked) {
  const ChatApi& api = *asked.api;
  ASSIGN_OR_RETURN(Json body, ParseBody(asked.request.body));
  Json converted;
  if (api.to_chat != nullptr) {
    ASSIGN_OR_RETURN(converted, api.to_chat(body, context_.log));
  }
  ASSIGN_OR_RETURN(const ChatRequest chat, ReadChat(api.to_chat != nullptr ? converted : body, context_));
  CallFacts facts = asked.facts;
  facts.request_id = absl::StrCat(api.prefix, NewRequestId());
  ASSIGN_OR_RETURN(ChatPlan planned, PlanChatAnswer(context_, facts, chat));
  AnswerPlan plan = PlanOf(asked.request, chat.style, api.kind, facts.request_id);
  plan.wants_tokens = chat.logprobs;
  plan.specs = std::move(planned.specs);
  for (const std::string& field : planned.constraint_fields) {
    plan.constraint_fields.push_back(AliasOf(field, api.aliases));
  }
  plan.first_of.assign(plan.specs.size(), 0);
  plan.first_of[0] = 1;
  AnswerCall::Start(
      context_, std::move(plan),
      api.make_writer({Facts(facts.request_id), chat.style, chat.logprobs, chat.top_logprobs,
                       std::move(planned.dialect), std::move(planned.parsing), std::move(body)}),
      asked.exchange);
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Completions(const Asked& asked) {
  ASSIGN_OR_RETURN(const Json body, ParseBody(asked.request.body));
  CallFacts facts = asked.facts;
  facts.request_id = absl::StrCat("cmpl-", NewRequestId());
  ASSIGN_OR_RETURN(CompletionPlan planned, PlanCompletion(body, context_, facts));
  AnswerPlan plan = PlanOf(asked.request, planned.style, "http_completion", facts.request_id);
  plan.wants_tokens = planned.logprobs.has_value();
  plan.constraint_fields = {planned.constraint_field};
  for (size_t i = 0; i < planned.specs.size(); ++i) {
    plan.first_of.push_back(i % planned.style.n == 0 ? 1 : 0);
  }
  const absl::Time deadline = planned.specs[0].deadline;
  if (planned.generates) {
    plan.specs = planned.specs;
  } else {
    plan.ungenerated = planned.specs;
  }
  const AnswerFacts answer = Facts(facts.request_id);
  const bool scores = planned.echo && planned.logprobs.has_value();
  auto start = [this, plan = std::move(plan), answer,
                exchange = asked.exchange](const CompletionPlan& ready) {
    AnswerCall::Start(context_, plan, std::make_unique<CompletionsWriter>(answer, ready), exchange);
  };
  if (!scores) {
    start(planned);
    return absl::OkStatus();
  }
  ScoreWork work;
  work.request_id = facts.request_id;
  work.client = facts.client;
  work.deadline = deadline;
  work.candidates = *planned.logprobs;
  for (const CompletionPrompt& prompt : planned.prompts) {
    work.prompts.push_back(prompt.ids);
  }
  ScoreCall::Start(context_, std::move(work), asked.exchange,
                   [start = std::move(start), planned = std::move(planned), exchange = asked.exchange](
                       absl::Status status, std::vector<std::vector<TokenOut>> scored) mutable {
                     if (!status.ok()) {
                       exchange->Answer(ErrorAnswer(status, ErrorStyle::kOpenAi));
                       return;
                     }
                     for (size_t i = 0; i < scored.size(); ++i) {
                       planned.prompts[i].scores = std::move(scored[i]);
                     }
                     start(planned);
                   });
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::CountTokens(const Asked& asked) {
  ASSIGN_OR_RETURN(const Json body, ParseBody(asked.request.body));
  ASSIGN_OR_RETURN(const Json as_chat, ChatOfCountTokens(body, context_.log));
  ASSIGN_OR_RETURN(const ChatRequest chat, ReadChat(as_chat, context_));
  RETURN_IF_ERROR(CheckModel(context_, chat.fields.model));
  ASSIGN_OR_RETURN(const ChatPrompt prompt, RenderConversation(context_, ConversationOf(context_, chat)));
  Reply(asked, {{"input_tokens", prompt.ids.size()}});
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Tokenize(const Asked& asked) {
  ASSIGN_OR_RETURN(const Json body, ParseBody(asked.request.body));
  RETURN_IF_ERROR(CheckTokenizer(context_));
  const JsonFields fields(body);
  std::vector<int32_t> ids;
  if (fields.Has("messages")) {
    ASSIGN_OR_RETURN(const ChatRequest chat, ReadChat(body, context_));
    ASSIGN_OR_RETURN(const ChatPrompt prompt, RenderConversation(context_, ConversationOf(context_, chat)));
    ids = prompt.ids;
  } else {
    std::string text;
    EncodeOptions options;
    const char* name = fields.Has("prompt") ? "prompt" : "content";
    RETURN_IF_ERROR(fields.Take(name, &text));
    if (!fields.Has(name)) {
      return BadField("content", "is missing; prompt and messages do as well");
    }
    // llama.cpp's field and its default; vLLM's field, which adds special tokens to a prompt.
    options.add_special_tokens = fields.Has("prompt");
    RETURN_IF_ERROR(fields.Take("add_special", &options.add_special_tokens));
    RETURN_IF_ERROR(fields.Take("add_special_tokens", &options.add_special_tokens));
    RETURN_IF_ERROR(fields.Take("parse_special", &options.parse_special));
    ASSIGN_OR_RETURN(ids, context_.tokenizer->Encode(text, options));
  }
  Reply(asked, {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", context_.model.context}});
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Detokenize(const Asked& asked) {
  ASSIGN_OR_RETURN(const Json body, ParseBody(asked.request.body));
  RETURN_IF_ERROR(CheckTokenizer(context_));
  const JsonFields fields(body);
  if (!fields.Has("tokens")) {
    return BadField("tokens", "is missing");
  }
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(fields.TakeIds("tokens", static_cast<uint32_t>(context_.tokenizer->vocab_size()), &ids));
  ASSIGN_OR_RETURN(const std::string text, context_.tokenizer->Decode(ids, /*skip_special=*/false));
  Reply(asked, {{"content", text}, {"prompt", text}});
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::ApplyTemplate(const Asked& asked) {
  ASSIGN_OR_RETURN(const Json body, ParseBody(asked.request.body));
  ASSIGN_OR_RETURN(const ChatRequest chat, ReadChat(body, context_));
  ASSIGN_OR_RETURN(const ChatPrompt prompt, RenderConversation(context_, ConversationOf(context_, chat)));
  Reply(asked, {{"prompt", prompt.text}});
  return absl::OkStatus();
}

absl::Status OpenAiEndpoint::Unserved(const Asked& asked) {
  asked.exchange->Answer(UnservedAnswer(asked.request));
  return absl::OkStatus();
}

}  // namespace sluice::inferd
