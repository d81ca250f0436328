// A model's tokens as guides see them.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/text/tokenizer.h"

namespace sluice {

struct GuideVocabulary {
  uint32_t size = 0;                // rows of logits; at least tokens.size()
  std::vector<std::string> tokens;  // by id: its bytes; empty: no text, so never part of an answer
  std::vector<int32_t> end_ids;     // the model's end tokens
  // Of special tokens, which have no bytes: what stands for them where they are part of an answer.
  std::map<int32_t, std::string> spellings;
};

// Tokens that the model has no row for are left out. REQUIRES: `end_ids` below `vocab`.
GuideVocabulary VocabularyOf(const Tokenizer& tokenizer, uint32_t vocab, absl::Span<const int32_t> end_ids);

}  // namespace sluice
