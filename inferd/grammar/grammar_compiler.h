// Grammar compilation: a model's vocabulary, the compiler, and the matcher of one answer.
//
// GrammarVocabulary: a model's tokens as needed by grammars.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/text/tokenizer.h"
#include "inferd/api/engine_api.h"

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

// GrammarCompiler: compiles a client's constraint to a grammar over the model's tokens.
//
// Two halves, because only the first is quick: SourceOf parses the client's text and refuses unsupported
// constructs; GrammarCompiler computes the tokens allowed in each state of the grammar, which takes
// milliseconds to seconds.
//
// Thread safety: SourceOf may be called from any thread; a GrammarCompiler belongs to one thread; a
// CompiledGrammar is immutable.

inline constexpr size_t kMaxGrammarBytes = 128 << 10;
inline constexpr size_t kMaxChoices = 1000;
inline constexpr size_t kMaxCalls = 128;
// Maximum memory of one compiled grammar, bytes.
inline constexpr uint64_t kMaxCompiledBytes = 256ull << 20;

// A constraint in a language that xgrammar compiles.
struct GrammarSource {
  enum class Language : char { kSchema = 's', kRegex = 'r', kGrammar = 'g', kCalls = 'c' };
  Language language = Language::kGrammar;
  std::string text;
  std::vector<ToolCallGrammar> calls;   // with schemas in the converter's form
  std::vector<int32_t> visible_tokens;  // special tokens that may be part of calls

  // Cache key: equal for constraints of equal text.
  std::string Key() const;
};

// `visible_tokens`: special tokens that are visible in the answer's text; calls may contain them.
// INVALID_ARGUMENT naming the field ("guided.regex") and the error in it.
absl::StatusOr<GrammarSource> SourceOf(const GrammarSpec& spec,
                                       absl::Span<const int32_t> visible_tokens = {});

struct CompiledGrammar;  // inferd/grammar/xgrammar_bridge.h

class GrammarCompiler {
 public:
  // `vocabulary` outlives the compiler.
  explicit GrammarCompiler(const GrammarVocabulary* vocabulary);
  ~GrammarCompiler();

  // INVALID_ARGUMENT: an invalid grammar, or one that allows no answer of these tokens; RESOURCE_EXHAUSTED:
  // larger than kMaxCompiledBytes.
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// GrammarMatcher: state of one answer in a compiled grammar; computes the tokens allowed next.
//
// Thread safety: thread-compatible.

class GrammarMatcher {
 public:
  // `end_ids`: tokens that end an answer; they are allowed only where the answer is complete.
  static absl::StatusOr<std::unique_ptr<GrammarMatcher>> Create(
      std::shared_ptr<const CompiledGrammar> grammar, absl::Span<const int32_t> end_ids);
  ~GrammarMatcher();

  // Sets the bits of the allowed tokens: bit id % 32 of word id / 32. INTERNAL: the matcher failed.
  absl::Status FillMask(std::vector<uint32_t>* mask);

  // Advances by `token`. INTERNAL if the mask had not allowed it.
  absl::Status Accept(int32_t token);

  // True if the answer so far is complete.
  bool complete() const;

 private:
  struct Impl;
  explicit GrammarMatcher(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::inferd
