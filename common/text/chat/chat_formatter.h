// ChatFormatter: turns a conversation into token ids: the model's chat template, then its tokenizer. Control
// tokens are recognised in the template's own text only.
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
  std::string text;          // as rendered
  std::vector<int32_t> ids;  // nothing is added around them: the template writes its BOS itself
};

class ChatFormatter {
 public:
  // REQUIRES: `tokenizer` outlives this. Errors of ChatTemplate::Create.
  static absl::StatusOr<std::unique_ptr<ChatFormatter>> Create(const std::string& template_source,
                                                               const Tokenizer& tokenizer);

  // Errors of ChatTemplate::Render and Tokenizer::EncodeMarked.
  absl::StatusOr<FormattedChat> Format(const std::string& conversation,
                                       const ChatRenderOptions& options) const;

  // Special token that the template puts after an answer, if any: the model ends its turn with it, even if
  // its generation defaults do not name it as an end token.
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
