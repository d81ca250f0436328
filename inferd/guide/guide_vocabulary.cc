#include "inferd/guide/guide_vocabulary.h"

#include <algorithm>

namespace sluice::inferd {

GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, uint32_t vocab,
                               absl::Span<const int32_t> end_ids) {
  GrammarVocabulary vocabulary;
  vocabulary.size = vocab;
  vocabulary.end_ids.assign(end_ids.begin(), end_ids.end());
  // A tokenizer can have more tokens than the model has rows; those are never sampled.
  vocabulary.tokens.resize(std::min<uint32_t>(vocab, static_cast<uint32_t>(tokenizer.vocab_size())));
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    vocabulary.tokens[id] = tokenizer.TokenBytes(token);
    if (tokenizer.is_special(token)) {
      vocabulary.spellings[token] = std::string(tokenizer.IdToToken(token).value_or(""));
    }
  }
  return vocabulary;
}

}  // namespace sluice::inferd
