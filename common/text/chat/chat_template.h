// A model's chat template: a conversation becomes the text that the model was trained to continue.
//
// Templates are the models' own (tokenizer_config.json's `chat_template`, or chat_template.jinja), run by the
// bounded interpreter in jinja/. Globals are those of transformers' apply_chat_template: messages, tools,
// documents, add_generation_prompt, the special tokens by name (bos_token, eos_token, ...), and whatever else
// the conversation's object holds.
//
// Thread safety: immutable after Create; Render may be called by any number of threads.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/interpreter.h"

namespace sluice {

// `marks` has a byte for each of `text`: 1 where it came from the conversation, 0 where from the template.
// Special tokens are parsed in the template's bytes only.
struct RenderedChat {
  std::string text;
  std::string marks;
};

struct ChatRenderOptions {
  // Ends with what begins the assistant's turn.
  bool add_generation_prompt = true;
  // Leaves the last message open, so that the model goes on with it; not together with the above.
  bool continue_final_message = false;
  // What strftime_now() prints, in UTC.
  absl::Time now = absl::UnixEpoch();
  jinja::RenderLimits limits;
};

inline constexpr std::string_view kChatRoles[] = {"system", "developer", "user", "assistant", "tool"};

class ChatTemplate {
 public:
  // Parses. INVALID_ARGUMENT or UNIMPLEMENTED with the template's line.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(
      const std::string& source, std::map<std::string, std::string> special_tokens);

  // `conversation` is a JSON object with `messages` (a list of objects with `role` and mostly `content`) and
  // optionally `tools`, `documents` and other variables of the template. As in transformers, null members of
  // a message count as absent, and `reasoning_content`, `thinking` and `reasoning` stand in for each other.
  // A role is the template's text where it is one of kChatRoles, so that templates can build control tokens
  // of it. INVALID_ARGUMENT: more than 16 MiB, 100'000 values or 1024 members of one object, no JSON, no
  // messages, a variable that is not a client's to set, or the template refused it (in its words).
  absl::StatusOr<RenderedChat> Render(const std::string& conversation,
                                      const ChatRenderOptions& options) const;

 private:
  ChatTemplate() = default;

  absl::StatusOr<RenderedChat> RenderVariables(jinja::Map variables, const ChatRenderOptions& options) const;

  jinja::Block block_;
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace sluice
