// From a client's guide to a grammar over the model's tokens.
//
// Two halves, because only the first is quick: SourceOf reads what the client wrote and refuses what cannot
// be kept; GuideCompiler works out which tokens each state of the grammar allows, which takes milliseconds to
// seconds.
//
// Thread safety: SourceOf may be called from any thread; a GuideCompiler belongs to one thread; a
// CompiledGuide is immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/api/guide_spec.h"
#include "inferd/guide/guide_vocabulary.h"

namespace sluice {

inline constexpr size_t kMaxGuideBytes = 128 << 10;
inline constexpr size_t kMaxChoices = 1000;
inline constexpr size_t kMaxCalls = 128;
// Memory of one compiled guide.
inline constexpr uint64_t kMaxCompiledBytes = 256ull << 20;

// A guide in a language that is compiled.
struct GuideSource {
  enum class Language : char { kSchema = 's', kRegex = 'r', kGrammar = 'g', kCalls = 'c' };
  Language language = Language::kGrammar;
  std::string text;
  std::vector<GuideCall> calls;  // their schemas as the converter is to see them
  std::vector<int32_t> spelled;  // special tokens that may be part of calls

  // Equal for guides that allow the same answers because they say the same.
  std::string Key() const;
};

// `spelled`: special tokens that an answer's text has; those of calls may be made of them. INVALID_ARGUMENT
// naming the field ("guided.regex") and what is wrong with it.
absl::StatusOr<GuideSource> SourceOf(const GuideSpec& spec, absl::Span<const int32_t> spelled = {});

struct CompiledGuide;  // inferd/guide/compiled_guide.h

class GuideCompiler {
 public:
  // `vocabulary` outlives the compiler.
  explicit GuideCompiler(const GuideVocabulary* vocabulary);
  ~GuideCompiler();

  // INVALID_ARGUMENT: no grammar, or one that allows no answer of these tokens; RESOURCE_EXHAUSTED: larger
  // than kMaxCompiledBytes.
  absl::StatusOr<std::shared_ptr<const CompiledGuide>> Compile(const GuideSource& source);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
