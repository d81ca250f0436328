#include "inferd/http/chat_writer.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "inferd/http/answer_format.h"

namespace sluice::inferd {
namespace {

using Kind = MessageEvent::Kind;

// Returns a prefix with nine letters and digits: some templates accept no longer ids.
std::string NewCallId() {
  constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id;
  for (int i = 0; i < 9; ++i) {
    id += kLetters[random() % (sizeof(kLetters) - 1)];
  }
  return id;
}

Json CallJson(const ToolCallText& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

}  // namespace

std::vector<MessageEvent> ChoiceText::Push(const std::string& text, uint32_t tokens) {
  std::vector<MessageEvent> events;
  parser_.Push(text, &events);
  Keep(events);
  if (!reasoning_.empty() && content_.empty() && calls_.empty()) {
    reasoning_tokens_ += tokens;
  }
  return events;
}

std::vector<MessageEvent> ChoiceText::Finish() {
  std::vector<MessageEvent> events;
  parser_.Finish(&events);
  Keep(events);
  return events;
}

void ChoiceText::Keep(const std::vector<MessageEvent>& events) {
  for (const MessageEvent& event : events) {
    switch (event.kind) {
      case Kind::kReasoning:
        reasoning_ += event.text;
        break;
      case Kind::kText:
        content_ += event.text;
        break;
      case Kind::kCall:
        calls_.push_back({event.id.empty() ? NewCallId() : event.id, event.text, ""});
        break;
      case Kind::kArguments:
        calls_.back().arguments += event.text;
        break;
    }
  }
}

const ChatApi& CompletionsChatApi() {
  static const ChatApi* const api =
      new ChatApi{"http_chat", "chatcmpl-", /*to_chat=*/nullptr, {}, &MakeWriter<ChatWriter>};
  return *api;
}

ChatWriter::ChatWriter(ChatWriterOptions options) : options_(std::move(options)) {
  for (uint32_t i = 0; i < options_.style.n; ++i) {
    choices_.push_back(
        {ChoiceText(options_.dialect, options_.parsing), {}, Json::array(), false, {}, "", Json(), Json()});
  }
}

Json ChatWriter::Chunk() const {
  return {{"id", options_.facts.id},
          {"object", options_.style.stream ? "chat.completion.chunk" : "chat.completion"},
          {"created", options_.facts.created},
          {"model", options_.facts.model},
          {"system_fingerprint", options_.facts.fingerprint}};
}

Json ChatWriter::TakeLogprobs(Choice* choice) {
  if (!options_.logprobs) {
    return Json();
  }
  const std::vector<TokenOut> tokens = std::exchange(choice->held, {});
  return {{"content", ChatLogprobs(options_.facts.tokenizer, tokens, options_.top_logprobs)}};
}

// Appends one event with a choice's delta; the first event also has the role.
void ChatWriter::Say(size_t index, Json delta, std::string* out) {
  Choice& choice = choices_[index];
  if (!std::exchange(choice.begun, true)) {
    Json with_role = {{"role", "assistant"}};
    if (!delta.contains("content")) {
      with_role["content"] = "";
    }
    with_role.update(delta);
    delta = std::move(with_role);
  }
  Json chunk = Chunk();
  chunk["choices"] = Json::array({{{"index", index},
                                   {"delta", std::move(delta)},
                                   {"logprobs", TakeLogprobs(&choice)},
                                   {"finish_reason", choice.finish.empty() ? Json() : Json(choice.finish)}}});
  if (!choice.finish.empty() && !choice.stop_reason.is_null()) {
    chunk["choices"][0]["stop_reason"] = choice.stop_reason;
  }
  if (!choice.timings.is_null()) {
    chunk["timings"] = choice.timings;
  }
  if (options_.style.continuous_usage) {
    chunk["usage"] = UsageJson(choice.running, choice.text.reasoning_tokens());
  } else if (options_.style.include_usage) {
    chunk["usage"] = Json();
  }
  AppendEvent(chunk, out);
}

void ChatWriter::Events(size_t index, const std::vector<MessageEvent>& events, std::string* out) {
  const std::vector<ToolCallText>& calls = choices_[index].text.calls();
  size_t begun = 0;  // number of calls before these events
  for (const MessageEvent& event : events) {
    begun += event.kind == Kind::kCall ? 1 : 0;
  }
  size_t call = calls.size() - begun;
  for (const MessageEvent& event : events) {
    switch (event.kind) {
      case Kind::kReasoning:
        Say(index, {{"reasoning_content", event.text}}, out);
        break;
      case Kind::kText:
        Say(index, {{"content", event.text}}, out);
        break;
      case Kind::kCall: {
        const Json function = {{"name", event.text}, {"arguments", ""}};
        const Json one = {
            {"index", call}, {"id", calls[call].id}, {"type", "function"}, {"function", function}};
        Say(index, {{"tool_calls", Json::array({one})}}, out);
        ++call;
        break;
      }
      case Kind::kArguments: {
        const Json one = {{"index", call - 1}, {"function", {{"arguments", event.text}}}};
        Say(index, {{"tool_calls", Json::array({one})}}, out);
        break;
      }
    }
  }
}

void ChatWriter::Add(size_t index, AnswerPiece piece, const Usage& running, std::string* out) {
  Choice& choice = choices_[index];
  const uint32_t fresh = running.completion_tokens - choice.running.completion_tokens;
  choice.running = running;
  choice.held.insert(choice.held.end(), std::make_move_iterator(piece.tokens.begin()),
                     std::make_move_iterator(piece.tokens.end()));
  const std::vector<MessageEvent> events = choice.text.Push(piece.text, fresh);
  if (options_.style.stream) {
    Events(index, events, out);
  }
}

void ChatWriter::Finish(size_t index, const FinishInfo& info, std::string* out) {
  Choice& choice = choices_[index];
  const std::vector<MessageEvent> events = choice.text.Finish();
  if (options_.style.stream) {
    Events(index, events, out);
  }
  choice.running = info.usage;
  choice.finish = FinishWord(info.reason);
  if (info.reason != FinishReason::kLength && !choice.text.calls().empty()) {
    choice.finish = "tool_calls";
  }
  if (info.matched_stop_string.has_value()) {
    choice.stop_reason = *info.matched_stop_string;
  }
  if (options_.style.stream) {
    choice.timings = TimingsJson(info.timings, info.usage);
    Say(index, Json::object(), out);
  }
}

uint32_t ChatWriter::ReasoningTokens() const {
  uint32_t tokens = 0;
  for (const Choice& choice : choices_) {
    tokens += choice.text.reasoning_tokens();
  }
  return tokens;
}

void ChatWriter::End(const AnswerTotals& totals, std::string* out) {
  Json chunk = Chunk();
  const Json usage = UsageJson(totals.usage, ReasoningTokens());
  if (options_.style.stream) {
    if (options_.style.include_usage) {
      chunk["choices"] = Json::array();
      chunk["usage"] = usage;
      AppendEvent(chunk, out);
    }
    out->append("data: [DONE]\n\n");
    return;
  }
  chunk["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const std::vector<ToolCallText>& calls = choice.text.calls();
    Json message = {{"role", "assistant"}, {"content", choice.text.content()}, {"refusal", Json()}};
    if (!choice.text.reasoning().empty()) {
      message["reasoning_content"] = choice.text.reasoning();
    }
    if (!calls.empty()) {
      if (choice.text.content().empty()) {
        message["content"] = Json();
      }
      message["tool_calls"] = Json::array();
      for (const ToolCallText& call : calls) {
        message["tool_calls"].push_back(CallJson(call));
      }
    }
    Json entry = {{"index", i},
                  {"message", std::move(message)},
                  {"logprobs", TakeLogprobs(&choice)},
                  {"finish_reason", choice.finish}};
    if (!choice.stop_reason.is_null()) {
      entry["stop_reason"] = choice.stop_reason;
    }
    chunk["choices"].push_back(std::move(entry));
  }
  chunk["usage"] = usage;
  chunk["timings"] = TimingsJson(totals.timings, totals.usage);
  *out = Dump(chunk);
}

std::string ChatWriter::ErrorEvent(const absl::Status& status) const {
  return absl::StrCat("data: ", ErrorObject(status, ErrorStyle::kOpenAi), "\n\n");
}

}  // namespace sluice::inferd
