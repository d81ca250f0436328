#include "inferd/http/chat_request.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "inferd/serving/dialect.h"

namespace sluice::inferd {
namespace {

constexpr char kPlainTemplate[] =
    "{% if bos_token %}{{ bos_token }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% if not loop.last %}\n{% endif %}{% endfor %}";
constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool"};
constexpr const char* kReserved[] = {"messages", "tools", "add_generation_prompt"};

// Reads a message's content: a text, or a list of text parts if there are several.
absl::StatusOr<Json> ReadContent(const JsonFields& message) {
  const Json* content = message.Find("content");
  if (content == nullptr) {
    return Json("");
  }
  if (content->is_string()) {
    return *content;
  }
  if (!content->is_array()) {
    return BadField(message.Path("content"),
                    absl::StrCat("is ", KindOf(*content), ", must be a string or a list of parts"));
  }
  Json parts = Json::array();
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string path = absl::StrCat(message.Path("content"), "[", i, "]");
    const Json& part = (*content)[i];
    if (!part.is_object()) {
      return BadField(path, absl::StrCat("is ", KindOf(part), ", must be an object"));
    }
    const JsonFields fields(part, path + ".");
    std::string type;
    std::string own;
    RETURN_IF_ERROR(fields.Take("type", &type));
    if (type != "text" && type != "input_text" && type != "output_text" && type != "refusal") {
      return BadField(
          fields.Path("type"),
          absl::StrCat("is \"", type.substr(0, 40), "\": only parts of text are understood by this model"));
    }
    RETURN_IF_ERROR(fields.Take(type == "refusal" ? "refusal" : "text", &own));
    parts.push_back({{"type", "text"}, {"text", own}});
  }
  return parts.empty() ? Json("") : parts.size() == 1 ? parts[0]["text"] : parts;
}

// Reads a past call's arguments: the text of an object, as the client has it. A call that max_tokens cut has
// a part of it; texts of other values come from models. The formatter gives templates the form they take.
Json ReadArguments(const JsonFields& function) {
  const Json* arguments = function.Find("arguments");
  if (arguments == nullptr) {
    return Json::object();
  }
  if (arguments->is_object()) {
    return *arguments;
  }
  return arguments->is_string() ? *arguments : Json(Dump(*arguments));
}

absl::StatusOr<Json> ReadCalls(const JsonFields& message) {
  ASSIGN_OR_RETURN(const Json* calls, message.TakeList("tool_calls"));
  Json out = Json::array();
  for (size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
    const std::string path = absl::StrCat(message.Path("tool_calls"), "[", i, "]");
    if (!(*calls)[i].is_object()) {
      return BadField(path, "must be an object");
    }
    const JsonFields call((*calls)[i], path + ".");
    ASSIGN_OR_RETURN(const Json* function, call.TakeObject("function"));
    if (function == nullptr) {
      return BadField(call.Path("function"), "is missing");
    }
    const JsonFields fields(*function, call.Path("function") + ".");
    std::string name;
    std::string id;
    RETURN_IF_ERROR(fields.Take("name", &name));
    RETURN_IF_ERROR(call.Take("id", &id));
    if (name.empty()) {
      return BadField(fields.Path("name"), "is missing or empty");
    }
    Json one = {{"type", "function"}};
    if (!id.empty()) {
      one["id"] = id;
    }
    one["function"] = {{"name", name}, {"arguments", ReadArguments(fields)}};
    out.push_back(std::move(one));
  }
  return out;
}

// Maps a result to its tool: clients send only the call's id, but some templates need the name.
class ResultNames {
 public:
  void Look(Json* message) {
    if (const auto calls = message->find("tool_calls"); calls != message->end()) {
      for (const Json& call : *calls) {
        names_[call.value("id", "")] = call["function"]["name"];
      }
    }
    if ((*message)["role"] == "tool" && message->contains("tool_call_id") && !message->contains("name")) {
      if (const auto found = names_.find((*message)["tool_call_id"]); found != names_.end()) {
        (*message)["name"] = found->second;
      }
    }
  }

 private:
  std::map<std::string, std::string> names_;  // names by id
};

absl::Status ReadMessages(const JsonFields& body, ChatRequest* chat) {
  ASSIGN_OR_RETURN(const Json* messages, body.TakeList("messages"));
  if (messages == nullptr || messages->empty()) {
    return BadField("messages",
                    messages == nullptr ? "is missing" : "is empty: a conversation has at least one");
  }
  ResultNames results;
  for (size_t i = 0; i < messages->size(); ++i) {
    ASSIGN_OR_RETURN(Json message, ReadChatMessage((*messages)[i], absl::StrCat("messages[", i, "]")));
    results.Look(&message);
    chat->messages.push_back(std::move(message));
  }
  return absl::OkStatus();
}

absl::Status ReadVariables(const JsonFields& body, ChatRequest* chat) {
  ASSIGN_OR_RETURN(const Json* variables, body.TakeObject("chat_template_kwargs"));
  std::string effort;
  RETURN_IF_ERROR(body.Take("reasoning_effort", &effort));
  if (!effort.empty()) {
    chat->variables["reasoning_effort"] = effort;
    chat->variables["enable_thinking"] = effort != "none";
  }
  static const Json kNone = Json::object();
  for (const auto& [name, value] : (variables != nullptr ? *variables : kNone).items()) {
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      return BadField(absl::StrCat("chat_template_kwargs.", name), "is set by a field of its own");
    }
    chat->variables[name] = value;
  }
  return body.Take("continue_final_message", &chat->continue_last);
}

absl::Status ReadLogprobs(const JsonFields& body, ChatRequest* chat) {
  RETURN_IF_ERROR(body.Take("logprobs", &chat->logprobs));
  std::optional<uint32_t> top;
  RETURN_IF_ERROR(body.Take("top_logprobs", 0, UINT32_MAX, &top));
  if (top.has_value() && *top > 0 && !chat->logprobs) {
    return BadField("top_logprobs", "needs logprobs: true");
  }
  chat->top_logprobs = top.value_or(0);
  chat->fields.spec.logprobs = chat->top_logprobs;
  return absl::OkStatus();
}

// Appends the text that the model itself would write before the constrained part, such as a channel header.
absl::Status Open(const ServingContext& context, const std::string& text, ChatPrompt* prompt) {
  EncodeOptions options;
  options.add_special_tokens = false;
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, context.tokenizer->Encode(text, options));
  prompt->ids.insert(prompt->ids.end(), ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::StatusOr<ToolCallGrammar> CallOf(const Json& tool, const CallForm& form, const std::string& field) {
  std::string name = tool["function"]["name"];
  if (form.quoted) {
    const std::string quoted = Dump(Json(name));
    name = quoted.substr(1, quoted.size() - 2);
  } else if (!std::all_of(name.begin(), name.end(), [](char c) {
               return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
             })) {
    return BadField(field, absl::StrCat("belongs to a tool of the name \"", name.substr(0, 100),
                                        "\": letters, digits, _, - and . are called by this model"));
  }
  const Json& function = tool["function"];
  const auto parameters = function.find("parameters");
  const bool given = parameters != function.end() && !parameters->is_null();
  return ToolCallGrammar{absl::StrCat(form.before_name, name, form.before_arguments),
                         given ? Dump(*parameters) : R"({"type": "object"})", form.end};
}

// Constraint for an answer that is a call; or, if tools are offered and the answer must be JSON, either of
// both.
absl::StatusOr<GrammarSpec> ToolCallConstraint(const ChatRequest& chat, const CallForm& form,
                                               ChatPlan* plan) {
  GrammarSpec constraint;
  constraint.kind = GrammarSpec::Kind::kCall;
  const ChatTools& tools = chat.tools;
  const Json& callable = tools.forced ? tools.callable : tools.offered;
  for (size_t i = 0; i < callable.size(); ++i) {
    plan->constraint_fields.push_back(tools.forced ? tools.callable_fields[i]
                                                   : absl::StrCat("tools[", i, "].function.parameters"));
    ASSIGN_OR_RETURN(ToolCallGrammar call, CallOf(callable[i], form, plan->constraint_fields.back()));
    constraint.calls.push_back(std::move(call));
  }
  if (tools.forced) {
    return constraint;
  }
  const GrammarSpec& text = *chat.fields.spec.constraint;
  if (text.kind != GrammarSpec::Kind::kJsonSchema && text.kind != GrammarSpec::Kind::kJsonObject) {
    return BadField(chat.constraint_field, "does not go with tools, with which only JSON does");
  }
  plan->constraint_fields.push_back(chat.constraint_field);
  constraint.calls.push_back(
      {TextOpening(form.style),
       text.kind == GrammarSpec::Kind::kJsonObject ? R"({"type": "object"})" : text.text, ""});
  return constraint;
}

// Opens a thought for a model that would open one itself: the constrained part follows it.
absl::Status OpenThought(const ServingContext& context, const ChatRequest& chat, ChatPrompt* prompt,
                         ChatPlan* plan) {
  const auto enabled = chat.variables.find("enable_thinking");
  const bool off = enabled != chat.variables.end() && *enabled == false;
  const Dialect& dialect = plan->dialect;
  const bool closed = absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt->text), dialect.think_close);
  if (!dialect.thinks_unasked || off || closed || chat.continue_last || plan->parsing.begins_in_thought ||
      !context.tokenizer->TokenToId(dialect.think_close).has_value()) {
    return absl::OkStatus();
  }
  plan->parsing.begins_in_thought = true;
  return Open(context, dialect.think_open + "\n", prompt);
}

// Sets spec's constraint, and the parsing options that follow from it. A thought before it is unconstrained.
absl::Status PlanConstraint(const ServingContext& context, const ChatRequest& chat, ChatPrompt* prompt,
                            GenerateSpec* spec, ChatPlan* plan) {
  const CallForm form = CallFormOf(plan->dialect.tools);
  RETURN_IF_ERROR(OpenThought(context, chat, prompt, plan));
  if (!chat.tools.offered.is_null()) {
    ASSIGN_OR_RETURN(spec->constraint, ToolCallConstraint(chat, form, plan));
    plan->dialect.tools = form.style;
  } else {
    plan->constraint_fields = {chat.constraint_field};
    plan->parsing.opening = TextOpening(plan->dialect.tools);
    RETURN_IF_ERROR(Open(context, plan->parsing.opening, prompt));
  }
  if (plan->parsing.begins_in_thought) {
    spec->constraint->after_token = context.tokenizer->TokenToId(plan->dialect.think_close);
    if (!spec->constraint->after_token.has_value()) {  // no token marks the end of the thought
      plan->parsing.begins_in_thought = false;
      RETURN_IF_ERROR(Open(context, plan->dialect.think_close + "\n\n", prompt));
    }
  }
  return absl::OkStatus();
}

std::string ConversationText(const ChatRequest& chat) {
  Json json = chat.variables;
  json["messages"] = chat.messages;
  if (!chat.tools.offered.is_null() && !chat.tools.in_prompt) {
    json["tools"] = chat.tools.offered;
  }
  return Dump(json);
}

}  // namespace

absl::StatusOr<Json> ReadChatMessage(const Json& message, const std::string& path) {
  if (!message.is_object()) {
    return BadField(path, absl::StrCat("is ", KindOf(message), ", must be an object"));
  }
  const JsonFields fields(message, path + ".");
  std::string role;
  RETURN_IF_ERROR(fields.Take("role", &role));
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    return BadField(fields.Path("role"),
                    role.empty() ? std::string("is missing")
                                 : absl::StrCat("is \"", role.substr(0, 40),
                                                "\", must be system, developer, user, assistant or tool"));
  }
  Json out = {{"role", role == "developer" ? "system" : role}};
  ASSIGN_OR_RETURN(out["content"], ReadContent(fields));
  const bool assistant = role == "assistant";
  if (!fields.Has("content") && !assistant) {  // SDKs send back an empty answer as null
    return BadField(fields.Path("content"), "is missing");
  }
  for (const char* name : {"name", "tool_call_id", "reasoning_content", "reasoning"}) {
    std::string text;
    RETURN_IF_ERROR(fields.Take(name, &text));
    if (!text.empty()) {
      out[name] = text;
    }
  }
  ASSIGN_OR_RETURN(Json calls, ReadCalls(fields));
  if (!calls.empty() && !assistant) {
    return BadField(fields.Path("tool_calls"), "is the assistant's alone");
  }
  if (!calls.empty()) {
    out["tool_calls"] = std::move(calls);
  }
  return out;
}

absl::StatusOr<ChatRequest> ReadChat(const Json& body, const ServingContext& context) {
  const JsonFields fields(body);
  ChatRequest chat{RequestFields(context)};
  chat.names = ApiFieldNames(fields);
  chat.names.logprobs = "top_logprobs";
  RETURN_IF_ERROR(ReadGeneration(fields, context, &chat.fields, &chat.style));
  ASSIGN_OR_RETURN(std::optional<RequestedGrammar> constraint, ReadGrammar(fields));
  if (constraint.has_value()) {
    chat.constraint_field = std::move(constraint->field);
    chat.fields.spec.constraint = std::move(constraint->spec);
  }
  RETURN_IF_ERROR(ReadMessages(fields, &chat));
  const bool reads_tools = context.chat != nullptr && context.chat->reads_tools();
  RETURN_IF_ERROR(ReadTools(fields, context.dialect, reads_tools, &chat.messages, &chat.tools));
  RETURN_IF_ERROR(ReadLogprobs(fields, &chat));
  RETURN_IF_ERROR(ReadVariables(fields, &chat));
  return chat;
}

Conversation ConversationOf(const ServingContext& context, const ChatRequest& chat) {
  Conversation conversation;
  if (context.chat == nullptr && context.chat_error.ok()) {
    conversation.chat_template = kPlainTemplate;
  }
  conversation.json = ConversationText(chat);
  conversation.render.continue_final_message = chat.continue_last;
  conversation.render.add_generation_prompt = !chat.continue_last;
  conversation.render.now = absl::Now();
  return conversation;
}

std::vector<int32_t> VisibleSpecialTokens(const Tokenizer& tokenizer, const std::vector<std::string>& marks) {
  std::vector<int32_t> ids;
  for (const std::string& mark : marks) {
    const std::optional<int32_t> id = mark.empty() ? std::nullopt : tokenizer.TokenToId(mark);
    if (id.has_value() && tokenizer.is_special(*id)) {
      ids.push_back(*id);
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<GenerateSpec> Choices(const GenerateSpec& spec, uint32_t n, uint32_t first) {
  std::vector<GenerateSpec> specs(n, spec);
  for (uint32_t i = 0; i < n; ++i) {
    if (first + i > 0) {
      absl::StrAppend(&specs[i].request_id, "-", first + i);
    }
    if (spec.sampling.seed.has_value()) {
      specs[i].sampling.seed = *spec.sampling.seed + i;
    }
  }
  return specs;
}

absl::StatusOr<ChatPlan> PlanChatAnswer(const ServingContext& context, const CallFacts& call,
                                        const ChatRequest& chat) {
  ASSIGN_OR_RETURN(GenerateSpec spec, PlanRequest(context, call, chat.fields, chat.names));
  ASSIGN_OR_RETURN(ChatPrompt prompt, RenderConversation(context, ConversationOf(context, chat)));
  ChatPlan plan;
  plan.dialect = context.dialect;
  plan.parsing.tools = !chat.tools.offered.is_null();
  if (plan.parsing.tools && plan.dialect.tools == ToolStyle::kNone) {
    SetFallbackTools(ToolStyle::kHermes, &plan.dialect);
  }
  plan.parsing.max_calls = chat.tools.max_calls;
  plan.parsing.types = chat.tools.types;
  // If the template itself opens the thought, the model writes only its end.
  const absl::string_view text = absl::StripTrailingAsciiWhitespace(prompt.text);
  const std::string& think_open = plan.dialect.think_open;
  plan.parsing.begins_in_thought = !think_open.empty() && absl::EndsWith(text, think_open);
  if (chat.tools.forced || spec.constraint.has_value()) {
    RETURN_IF_ERROR(PlanConstraint(context, chat, &prompt, &spec, &plan));
  }
  spec.prompt = std::move(prompt.ids);
  RETURN_IF_ERROR(FitToPrompt(context, chat.fields, chat.names, "messages", &spec));
  StopAtEndOfTurn(context, prompt.end_of_turn, &spec);
  spec.visible_special_tokens = VisibleSpecialTokens(*context.tokenizer, plan.dialect.marks);
  plan.specs = Choices(spec, chat.style.n, 0);
  return plan;
}

}  // namespace sluice::inferd
