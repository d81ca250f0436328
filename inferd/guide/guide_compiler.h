// GrammarCompiler: compiles a client's constraint to a grammar over the model's tokens.
//
// Two halves, because only the first is quick: SourceOf parses the client's text and refuses unsupported
// constructs; GrammarCompiler computes the tokens allowed in each state of the grammar, which takes
// milliseconds to seconds.
//
// Thread safety: SourceOf may be called from any thread; a GrammarCompiler belongs to one thread; a
// CompiledGrammar is immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/api/guide_spec.h"
#include "inferd/guide/guide_vocabulary.h"

namespace sluice::inferd {

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

struct CompiledGrammar;  // inferd/guide/compiled_guide.h

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

}  // namespace sluice::inferd
