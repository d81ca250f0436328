#include "inferd/http/completions_api.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/chat_request.h"
#include "inferd/http/request_fields.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kDefaultMaxTokens = 16;
constexpr size_t kMaxCompletionChoices = 1024;

absl::StatusOr<CompletionPrompt> TextPrompt(const ServingContext& context, const std::string& text,
                                            const std::string& field) {
  RETURN_IF_ERROR(CheckTokenizer(context));
  auto ids = context.tokenizer->Encode(text, EncodeOptions());
  if (!ids.ok()) {
    return BadField(field, std::string(ids.status().message()));
  }
  if (ids->empty() && context.model.bos.has_value()) {
    ids->push_back(*context.model.bos);  // an empty document
  }
  return CompletionPrompt{*std::move(ids), text, {}};
}

absl::StatusOr<CompletionPrompt> IdsPrompt(const ServingContext& context, const Json& list,
                                           const std::string& field) {
  CompletionPrompt prompt;
  ASSIGN_OR_RETURN(prompt.ids, IdsOf(list, context.model.vocab, field));
  if (context.tokenizer != nullptr) {
    auto text = context.tokenizer->Decode(prompt.ids, /*skip_special=*/true);
    prompt.text = text.ok() ? *std::move(text) : "";
  }
  return prompt;
}

absl::StatusOr<std::vector<CompletionPrompt>> ReadPrompts(const JsonFields& body,
                                                          const ServingContext& context) {
  std::vector<CompletionPrompt> prompts;
  const Json* prompt = body.Find("prompt");
  if (prompt == nullptr || prompt->is_string()) {
    ASSIGN_OR_RETURN(auto one,
                     TextPrompt(context, prompt == nullptr ? "" : prompt->get<std::string>(), "prompt"));
    prompts.push_back(std::move(one));
    return prompts;
  }
  if (!prompt->is_array() || prompt->empty()) {
    return BadField("prompt",
                    absl::StrCat("is ", prompt->is_array() ? "an empty list" : KindOf(*prompt),
                                 ", must be a string, a list of strings, token ids or lists of these"));
  }
  if ((*prompt)[0].is_number()) {
    ASSIGN_OR_RETURN(auto one, IdsPrompt(context, *prompt, "prompt"));
    prompts.push_back(std::move(one));
    return prompts;
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& item = (*prompt)[i];
    const std::string field = absl::StrCat("prompt[", i, "]");
    if (!item.is_string() && !item.is_array()) {
      return BadField(field, absl::StrCat("is ", KindOf(item), ", must be a string or a list of token ids"));
    }
    ASSIGN_OR_RETURN(auto one, item.is_string() ? TextPrompt(context, item.get<std::string>(), field)
                                                : IdsPrompt(context, item, field));
    prompts.push_back(std::move(one));
  }
  return prompts;
}

absl::Status ReadRest(const JsonFields& body, CompletionPlan* plan) {
  RETURN_IF_ERROR(body.Take("echo", &plan->echo));
  RETURN_IF_ERROR(body.Take("logprobs", 0, UINT32_MAX, &plan->logprobs));
  std::string suffix;
  RETURN_IF_ERROR(body.Take("suffix", &suffix));
  if (!suffix.empty()) {
    return BadField("suffix", "is not served: text is made behind the prompt only");
  }
  std::optional<uint32_t> best_of;
  RETURN_IF_ERROR(body.Take("best_of", 1, UINT32_MAX, &best_of));
  if (best_of.has_value() && *best_of != plan->style.n) {
    return BadField("best_of", "is not served: it must be as n");
  }
  return absl::OkStatus();
}

// Counts characters as clients do.
size_t Characters(const std::string& bytes) {
  size_t count = 0;
  for (const char c : bytes) {
    count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  }
  return count;
}

// Name of a token in old logprobs: tokens that are no whole characters must stay distinguishable.
std::string TokenName(const Tokenizer* tokenizer, int32_t id) {
  const std::string bytes = BytesOfToken(tokenizer, id);
  if (TextOfToken(tokenizer, id) == bytes) {
    return bytes;
  }
  std::string name = "bytes:";
  for (const char c : bytes) {
    absl::StrAppend(&name, "\\x", absl::BytesToHexString(absl::string_view(&c, 1)));
  }
  return name;
}

}  // namespace

absl::StatusOr<CompletionPlan> PlanCompletion(const Json& body, const ServingContext& context,
                                              const CallFacts& call) {
  const JsonFields fields(body);
  CompletionPlan plan;
  RequestFields request(context);
  RETURN_IF_ERROR(ReadGeneration(fields, context, &request, &plan.style));
  RETURN_IF_ERROR(ReadRest(fields, &plan));
  ASSIGN_OR_RETURN(std::optional<RequestedGrammar> constraint, ReadGrammar(fields));
  if (constraint.has_value()) {
    plan.constraint_field = std::move(constraint->field);
    request.spec.constraint = std::move(constraint->spec);
  }
  request.max_tokens = request.max_tokens.value_or(kDefaultMaxTokens);
  plan.generates = *request.max_tokens > 0 || !plan.echo;
  if (!plan.generates) {
    request.max_tokens = 1;  // needed by the checks; no token is generated
    request.spec.stopping.min_tokens = 0;
  }
  request.spec.logprobs = plan.logprobs.value_or(0);
  const FieldNames names = ApiFieldNames(fields);
  ASSIGN_OR_RETURN(GenerateSpec spec, PlanRequest(context, call, request, names));
  ASSIGN_OR_RETURN(plan.prompts, ReadPrompts(fields, context));
  if (plan.prompts.size() * plan.style.n > kMaxCompletionChoices) {
    return BadField("prompt", absl::StrCat(plan.prompts.size(), " prompts with ", plan.style.n,
                                           " choices each are more than ", kMaxCompletionChoices));
  }
  for (const CompletionPrompt& prompt : plan.prompts) {
    GenerateSpec own = spec;
    own.prompt = prompt.ids;
    RETURN_IF_ERROR(FitToPrompt(context, request, names, "prompt", &own));
    for (GenerateSpec& choice : Choices(own, plan.style.n, static_cast<uint32_t>(plan.specs.size()))) {
      plan.specs.push_back(std::move(choice));
    }
  }
  return plan;
}

CompletionsWriter::CompletionsWriter(AnswerFacts facts, const CompletionPlan& plan)
    : facts_(std::move(facts)), style_(plan.style), logprobs_(plan.logprobs) {
  for (const CompletionPrompt& prompt : plan.prompts) {
    Choice choice;
    if (plan.echo) {
      choice.text = prompt.text;
      choice.tokens = prompt.scores;
      choice.unscored = prompt.scores.empty() ? 0 : 1;
      choice.offset = prompt.scores.empty() ? Characters(prompt.text) : 0;
    }
    choices_.insert(choices_.end(), plan.style.n, choice);
  }
}

Json CompletionsWriter::Chunk() const {
  return {{"id", facts_.id},
          {"object", "text_completion"},
          {"created", facts_.created},
          {"model", facts_.model},
          {"system_fingerprint", facts_.fingerprint}};
}

Json CompletionsWriter::Logprobs(Choice* choice) {
  Json names = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenOut& token : std::exchange(choice->tokens, {})) {
    const std::string name = TokenName(facts_.tokenizer, token.token_id);
    names.push_back(name);
    offsets.push_back(choice->offset);
    const bool special = facts_.tokenizer == nullptr || facts_.tokenizer->is_special(token.token_id);
    choice->offset += special ? 0 : Characters(BytesOfToken(facts_.tokenizer, token.token_id));
    if (choice->unscored > 0) {
      choice->unscored = 0;
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(LogprobNumber(token.logprob));
    Json top = Json::object();
    for (const TokenLogprob& candidate : token.candidates) {
      top[TokenName(facts_.tokenizer, candidate.token_id)] = LogprobNumber(candidate.logprob);
    }
    if (!top.contains(name)) {
      top[name] = LogprobNumber(token.logprob);
    }
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json CompletionsWriter::Entry(size_t index, Choice* choice) {
  Json entry = {{"index", index},
                {"text", std::exchange(choice->text, "")},
                {"logprobs", logprobs_.has_value() ? Logprobs(choice) : Json()},
                {"finish_reason", choice->finish.empty() ? Json() : Json(choice->finish)}};
  if (!choice->stop_reason.is_null()) {
    entry["stop_reason"] = choice->stop_reason;
  }
  return entry;
}

void CompletionsWriter::Add(size_t index, AnswerPiece piece, const Usage& running, std::string* out) {
  Choice& choice = choices_[index];
  choice.text += piece.text;
  choice.tokens.insert(choice.tokens.end(), std::make_move_iterator(piece.tokens.begin()),
                       std::make_move_iterator(piece.tokens.end()));
  if (style_.stream) {
    Json chunk = Chunk();
    chunk["choices"] = Json::array({Entry(index, &choice)});
    if (style_.continuous_usage) {
      chunk["usage"] = UsageJson(running, 0);
    } else if (style_.include_usage) {
      chunk["usage"] = Json();
    }
    AppendEvent(chunk, out);
  }
}

void CompletionsWriter::Finish(size_t index, const FinishInfo& info, std::string* out) {
  Choice& choice = choices_[index];
  choice.finish = FinishWord(info.reason);
  if (info.matched_stop_string.has_value()) {
    choice.stop_reason = *info.matched_stop_string;
  }
  if (style_.stream) {
    Json chunk = Chunk();
    chunk["choices"] = Json::array({Entry(index, &choice)});
    chunk["timings"] = TimingsJson(info.timings, info.usage);
    if (style_.include_usage) {
      chunk["usage"] = Json();
    }
    AppendEvent(chunk, out);
  }
}

void CompletionsWriter::End(const AnswerTotals& totals, std::string* out) {
  Json chunk = Chunk();
  const Json usage = UsageJson(totals.usage, 0);
  chunk["choices"] = Json::array();
  if (style_.stream) {
    if (style_.include_usage) {
      chunk["usage"] = usage;
      AppendEvent(chunk, out);
    }
    out->append("data: [DONE]\n\n");
    return;
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    chunk["choices"].push_back(Entry(i, &choices_[i]));
  }
  chunk["usage"] = usage;
  chunk["timings"] = TimingsJson(totals.timings, totals.usage);
  *out = Dump(chunk);
}

std::string CompletionsWriter::ErrorEvent(const absl::Status& status) const {
  return absl::StrCat("data: ", ErrorObject(status, ErrorStyle::kOpenAi), "\n\n");
}

}  // namespace sluice::inferd
