// Chat templates: a conversation becomes text (ChatTemplate), and token ids (ChatFormatter).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/text/jinja_interpreter.h"
#include "common/text/jinja_parser.h"
#include "common/text/tokenizer.h"

namespace sluice {

// ChatTemplate: renders a conversation to the text format that the model was trained on.
//
// Templates come with the model (tokenizer_config.json's `chat_template`, or chat_template.jinja) and run in
// the bounded interpreter (common/text/jinja_interpreter.h). Globals are those of transformers'
// apply_chat_template: messages, tools, documents, add_generation_prompt, the special tokens by name
// (bos_token, eos_token, ...), and all further members of the conversation object.
//
// Thread safety: immutable after Create; Render may be called by any number of threads.

// `marks` has one byte per byte of `text`: 1 for the conversation's, 0 for the template's. Special tokens are
// parsed only in the template's bytes.
struct RenderedChat {
  std::string text;
  std::string marks;
};

// Form of a past call's arguments for a template. Clients send a text, normally of a JSON object.
enum class ArgumentsAs {
  kGiven,         // as the conversation has them
  kObject,        // a text of an object becomes the object; any other text stays
  kText,          // a text stays as it was written; an object becomes its text
  kObjectAlways,  // as kObject; other texts become the object {"arguments": text}
};

// Changes to messages for the sake of a template.
struct MessageForms {
  ArgumentsAs arguments = ArgumentsAs::kGiven;
  bool short_ids = false;   // ids of calls become nine letters or digits, the same id the same nine
  bool join_parts = false;  // content of several texts becomes one text, line by line
  bool merge_thoughts =
      false;  // the text of a message with a thought and calls becomes a part of the thought
};

struct ChatRenderOptions {
  // Appends the opening of the assistant's turn.
  bool add_generation_prompt = true;
  // Leaves the last message open for the model to continue; excludes the option above.
  bool continue_final_message = false;
  // Time that strftime_now() prints, in UTC.
  absl::Time now = absl::UnixEpoch();
  jinja::RenderLimits limits;
  MessageForms forms;
};

inline constexpr std::string_view kChatRoles[] = {"system", "developer", "user", "assistant", "tool"};

class ChatTemplate {
 public:
  // Parses the template. INVALID_ARGUMENT or UNIMPLEMENTED with the template's line.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(
      const std::string& source, std::map<std::string, std::string> special_tokens);

  // `conversation` is a JSON object with `messages` (a list of objects with `role` and usually `content`) and
  // optionally `tools`, `documents` and other variables of the template. Null members of a message count as
  // absent, and `reasoning_content`, `thinking` and `reasoning` are aliases, as servers have it. A role
  // counts as the template's text if it is one of kChatRoles, so that templates can build control tokens of
  // it. INVALID_ARGUMENT: more than 16 MiB, 100'000 values or 1024 members of one object, no JSON, no
  // messages, a variable that clients may not set, or an error raised by the template (its message is passed
  // on).
  absl::StatusOr<RenderedChat> Render(const std::string& conversation,
                                      const ChatRenderOptions& options) const;

  // True if the template reads the variable `tools`.
  bool reads_tools() const { return reads_tools_; }

 private:
  ChatTemplate() = default;

  absl::StatusOr<RenderedChat> RenderVariables(jinja::Names variables,
                                               const ChatRenderOptions& options) const;

  jinja::Block block_;
  bool reads_tools_ = false;
  std::map<std::string, std::string> special_tokens_;
};

// ChatFormatter: turns a conversation into token ids: the model's chat template, then its tokenizer. Control
// tokens are recognised in the template's own text only.
//
// Thread safety: immutable after Create; Format may be called by any number of threads.

struct FormattedChat {
  std::string text;          // as rendered
  std::vector<int32_t> ids;  // nothing is added around them: the template writes its BOS itself
};

class ChatFormatter {
 public:
  // REQUIRES: `tokenizer` outlives this. Errors of ChatTemplate::Create.
  static absl::StatusOr<std::unique_ptr<ChatFormatter>> Create(const std::string& template_source,
                                                               const Tokenizer& tokenizer);

  // Gives messages the forms that the template takes; `options.forms` is not read. Errors of
  // ChatTemplate::Render, the first one if several forms were refused, and of Tokenizer::EncodeMarked.
  absl::StatusOr<FormattedChat> Format(const std::string& conversation,
                                       const ChatRenderOptions& options) const;

  bool reads_tools() const { return template_->reads_tools(); }

  // Special token that the template puts after an answer, if any: the model ends its turn with it, even if
  // its generation defaults do not name it as an end token.
  std::optional<int32_t> end_of_turn() const { return end_of_turn_; }

 private:
  explicit ChatFormatter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::optional<int32_t> FindEndOfTurn() const;
  void FindForms();
  absl::StatusOr<RenderedChat> RenderInForms(const std::string& conversation,
                                             ChatRenderOptions options) const;

  const Tokenizer& tokenizer_;
  std::unique_ptr<const ChatTemplate> template_;
  absl::flat_hash_set<int32_t> control_;
  std::optional<int32_t> end_of_turn_;
  MessageForms forms_;  // that the template takes
};

}  // namespace sluice
