// Which page of the KV cache holds what, found by content: the tokens of a page and, as a digest chained from
// page to page, all the text in front of it. K and V of a position are a function of just that.
//
// A chain begins with a digest of whatever else K and V or the right to see them depend on, and of a secret,
// so that nobody who chooses tokens can look for two texts of one digest. The tokens of a page are compared,
// not only their digest.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/checksum.h"
#include "kernels/ops.h"

namespace sluice {

class PrefixIndex {
 public:
  explicit PrefixIndex(uint32_t pages);

  // The digest of a text that goes on with a whole page of tokens. REQUIRES: kPageTokens of them.
  static Digest128 After(const Digest128& before, absl::Span<const int32_t> tokens);

  // `page` comes behind a text of whole pages with this digest; it holds nothing yet and is not found.
  void Begin(uint32_t page, const Digest128& before);
  // The page's next positions hold these tokens. True if it is found by them from now on; false, and it is
  // forgotten, if another page holds the same whole content. REQUIRES: Begin() of the page, and room in it.
  bool Extend(uint32_t page, absl::Span<const int32_t> tokens);
  // It is found no more. No effect on a page that is not.
  void Forget(uint32_t page);

  // Positions of the page that are known; 0 if it is not found.
  uint32_t known(uint32_t page) const { return pages_[page].known; }
  // Of a page that is found: the digest in front of it, and what it holds.
  const Digest128& before(uint32_t page) const { return pages_[page].before; }
  absl::Span<const int32_t> tokens(uint32_t page) const { return TokensOf(pages_[page]); }

  // The page that holds just these tokens behind `before`, or kNoPage. REQUIRES: kPageTokens of them.
  uint32_t FindWhole(const Digest128& before, absl::Span<const int32_t> tokens) const;

  // Of the pages behind `before`, the one that begins with the most of these tokens, and how many; looks at
  // the newest kLooks of them. kNoPage and 0 if none begins with the first.
  struct Part {
    uint32_t page = kNoPage;
    uint32_t tokens = 0;
  };
  static constexpr uint32_t kLooks = 64;
  Part FindPart(const Digest128& before, absl::Span<const int32_t> tokens) const;

 private:
  struct Page {
    Digest128 before;
    std::array<int32_t, kPageTokens> tokens{};
    uint32_t known = 0;
  };
  // Lists of pages by digest, newest first.
  class Lists {
   public:
    explicit Lists(uint32_t pages);
    void Add(const Digest128& digest, uint32_t page);
    void Remove(const Digest128& digest, uint32_t page);
    uint32_t First(const Digest128& digest) const { return heads_[digest.low & mask_]; }
    uint32_t Next(uint32_t page) const { return next_[page]; }

   private:
    uint64_t mask_;
    std::vector<uint32_t> heads_;
    std::vector<uint32_t> next_;
    std::vector<uint32_t> previous_;
  };
  absl::Span<const int32_t> TokensOf(const Page& page) const {
    return absl::MakeConstSpan(page.tokens.data(), page.known);
  }

  std::vector<Page> pages_;
  Lists behind_;  // by the digest in front of a page
  Lists whole_;   // whole pages, by the digest behind them
};

}  // namespace sluice
