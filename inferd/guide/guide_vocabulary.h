// Grammar compilation: a model's vocabulary, the compiler, and the matcher of one answer.
//
// GrammarVocabulary: a model's tokens as needed by guides.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/text/tokenizer.h"

namespace sluice::inferd {

struct GrammarVocabulary {
  uint32_t size = 0;                // rows of logits; at least tokens.size()
  std::vector<std::string> tokens;  // bytes by id; empty: no text, so never part of an answer
  std::vector<int32_t> end_ids;     // the model's end tokens
  // Spellings of special tokens, which have no bytes, for answers in which they are visible.
  std::map<int32_t, std::string> spellings;
};

// Drops tokens that have no row in the model. REQUIRES: `end_ids` below `vocab`.
GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, uint32_t vocab, absl::Span<const int32_t> end_ids);

}  // namespace sluice::inferd
