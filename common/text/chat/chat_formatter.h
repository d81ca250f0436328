// ChatFormatter: a conversation to the token ids that a model answers: its chat template, then its tokenizer,
// control tokens being recognised in the template's own text only.
//
// Thread safety: immutable after Create; Format may be called by any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/text/chat/chat_template.h"
#include "common/text/tokenizer.h"

namespace sluice {

struct FormattedChat {
  std::string text;          // as the template gave it
  std::vector<int32_t> ids;  // nothing is added around them: a template spells its BOS itself
};

class ChatFormatter {
 public:
  // `tokenizer` is borrowed and outlives this. Errors of ChatTemplate::Create.
  static absl::StatusOr<std::unique_ptr<ChatFormatter>> Create(const std::string& template_source,
                                                               const Tokenizer& tokenizer);

  // Errors of ChatTemplate::Render and Tokenizer::EncodeMarked.
  absl::StatusOr<FormattedChat> Format(const std::string& conversation,
                                       const ChatRenderOptions& options) const;

  // The special token that the template puts behind an answer, where it does: a model ends its turn with it,
  // whether or not its generation defaults name it as an end token.
  std::optional<int32_t> end_of_turn() const { return end_of_turn_; }

 private:
  explicit ChatFormatter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::optional<int32_t> FindEndOfTurn() const;

  const Tokenizer& tokenizer_;
  std::unique_ptr<const ChatTemplate> template_;
  absl::flat_hash_set<int32_t> control_;
  std::optional<int32_t> end_of_turn_;
};

}  // namespace sluice
