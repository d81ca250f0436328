// Helpers for tests of guides: tokenizers of the tree, synchronous compilation, masks by token.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "inferd/grammar/grammar_compiler.h"

namespace sluice::inferd {

// Byte-level BPE, and SentencePiece's with byte tokens.
inline constexpr const char* kTokenizers[] = {"tests/common/text/data/bytebpe_qwen2",
                                              "tests/common/text/data/spm2048"};

class GrammarLanguage {
 public:
  explicit GrammarLanguage(const std::string& folder) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(folder);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = std::move(*tokenizer);
    const auto vocab =
        static_cast<uint32_t>(tokenizer_->vocab_size()) + 5;  // models have more rows than tokens
    vocabulary_ = VocabularyOf(*tokenizer_, vocab, {*tokenizer_->eos_id()});
    compiler_ = std::make_unique<GrammarCompiler>(&vocabulary_);
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const GrammarVocabulary& vocabulary() const { return vocabulary_; }
  int32_t end() const { return vocabulary_.end_ids[0]; }

  absl::StatusOr<std::unique_ptr<GrammarMatcher>> Begin(const GrammarSpec& spec) {
    ASSIGN_OR_RETURN(const GrammarSource source, SourceOf(spec));
    ASSIGN_OR_RETURN(std::shared_ptr<const CompiledGrammar> constraint, compiler_->Compile(source));
    return GrammarMatcher::Create(std::move(constraint), vocabulary_.end_ids);
  }

  // Encodes `text` as if in the middle of another: the longest match, repeatedly.
  std::vector<int32_t> Spell(const std::string& text) const {
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size();) {
      int32_t best = -1;
      for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
        const std::string& token = vocabulary_.tokens[id];
        if (!token.empty() && text.compare(at, token.size(), token) == 0 &&
            (best < 0 || token.size() > vocabulary_.tokens[best].size())) {
          best = static_cast<int32_t>(id);
        }
      }
      if (best < 0) {
        ADD_FAILURE() << "no token begins " << text.substr(at);
        return ids;
      }
      ids.push_back(best);
      at += vocabulary_.tokens[best].size();
    }
    return ids;
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  GrammarVocabulary vocabulary_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

inline GrammarSpec Guided(GrammarSpec::Kind kind, std::string text) { return {kind, std::move(text), {}}; }
inline GrammarSpec Schema(std::string text) {
  return Guided(GrammarSpec::Kind::kJsonSchema, std::move(text));
}
inline GrammarSpec Regex(std::string text) { return Guided(GrammarSpec::Kind::kRegex, std::move(text)); }
inline GrammarSpec Gbnf(std::string text) { return Guided(GrammarSpec::Kind::kGrammar, std::move(text)); }

inline bool Allows(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[id / 32] >> (id % 32) & 1) != 0;
}

inline std::vector<uint32_t> MaskOf(GrammarMatcher* matcher) {
  std::vector<uint32_t> mask;
  const absl::Status status = matcher->FillMask(&mask);
  EXPECT_TRUE(status.ok()) << status;
  return mask;
}

}  // namespace sluice::inferd
