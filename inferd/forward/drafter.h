// Drafters propose tokens that probably follow a text, for a step to verify (speculation). A wrong proposal
// costs the time of its row and never changes a token, so a drafter needs no promise of its own.
//
// NgramDrafter needs no model: it finds the longest earlier place in the sequence's own tokens that ends like
// the text does, and proposes what followed there ("prompt lookup decoding", A. Saxena, 2023,
// github.com/apoorvumang/prompt-lookup-decoding; the longest of several matches as in llama.cpp's
// ngram lookup). Texts that repeat themselves profit: edits of a file, quotations, tables, loops.
//
// DraftStated needs no model either: it knows the answer, and errs on purpose, which measures the price of
// verification at a stated acceptance.
//
// Thread safety: thread-compatible; a drafter belongs to one sequence and the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "inferd/api/engine_api.h"

namespace sluice::inferd {

// Tokens that probably follow a text.
struct Draft {
  static constexpr uint32_t kMaxTokens = kMaxDrafts;
  // Number of confidence classes, so that acceptance can be measured by class.
  static constexpr uint32_t kConfidences = 4;

  std::array<int32_t, kMaxTokens> tokens{};
  uint32_t count = 0;       // 0: no proposal
  uint32_t confidence = 0;  // class below kConfidences; a higher one is right more often

  absl::Span<const int32_t> first(uint32_t n) const { return absl::MakeConstSpan(tokens.data(), n); }
};

// Drafts what follows the first `generated` tokens of a known answer. A draft is right with the stated
// probability, by its place in the answer alone: how a text is cut into steps changes no draft.
Draft DraftStated(const StatedDrafts& stated, uint32_t generated);

class Drafter {
 public:
  virtual ~Drafter() = default;

  // Begins a new text, which grows to at most `most` tokens; forgets the earlier one. Only this allocates.
  virtual void Begin(uint32_t most) = 0;
  // Proposes tokens that follow `text`, which begins with the text of the last call since Begin().
  virtual Draft Propose(absl::Span<const int32_t> text) = 0;
};

class NgramDrafter final : public Drafter {
 public:
  // The shortest match, and the length beyond which a longer one counts no more.
  static constexpr uint32_t kShortest = 2;
  static constexpr uint32_t kLongest = 32;

  void Begin(uint32_t most) override;
  Draft Propose(absl::Span<const int32_t> text) override;

 private:
  // Earlier places tried for a text, the latest first. Bounds the time in a text of one repeated token.
  static constexpr uint32_t kMaxPlaces = 32;

  struct Match {
    uint32_t end = 0;     // index behind the match: the token that followed
    uint32_t length = 0;  // 0: no match
  };

  uint32_t BucketOf(int32_t before, int32_t last) const;
  void Index(absl::Span<const int32_t> text);
  Match FindLongest(absl::Span<const int32_t> text) const;

  // Places by the hash of their last two tokens: the latest index behind such a pair, and for each index the
  // next earlier one of its bucket. 0: none.
  std::vector<uint32_t> latest_;   // a power of two
  std::vector<uint32_t> earlier_;  // by index
};

}  // namespace sluice::inferd
