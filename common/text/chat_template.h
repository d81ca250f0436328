// A model's chat template: a conversation becomes the text that the model was trained to continue.
//
// Templates are the models' own (tokenizer_config.json's `chat_template`, or chat_template.jinja), run by the
// bounded interpreter in jinja/. Globals are those of transformers' apply_chat_template: messages, tools,
// documents, add_generation_prompt, the special tokens by name (bos_token, eos_token, ...), and whatever else
// the conversation's object holds.
//
// Thread safety: immutable after Create; Render may be called by any number of threads.
#ifndef SLUICE_COMMON_TEXT_CHAT_TEMPLATE_H_
#define SLUICE_COMMON_TEXT_CHAT_TEMPLATE_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/text/jinja/ast.h"

namespace sluice {

// `marks` has a byte for each of `text`: 1 where it came from the conversation, 0 where from the template.
// Special tokens are parsed in the template's bytes only.
struct RenderedChat {
  std::string text;
  std::string marks;
};

class ChatTemplate {
 public:
  // Parses. INVALID_ARGUMENT or UNIMPLEMENTED with the template's line.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(
      const std::string& source, std::map<std::string, std::string> special_tokens);

  // `conversation` is a JSON object with `messages` (a list of objects with `role` and `content`) and
  // optionally `tools` and other variables. INVALID_ARGUMENT: no JSON, no messages, or the template refused
  // it (in its words).
  absl::StatusOr<RenderedChat> Render(const std::string& conversation, bool add_generation_prompt,
                                      absl::Time now) const;

 private:
  ChatTemplate() = default;

  jinja::Block block_;
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_TEXT_CHAT_TEMPLATE_H_
