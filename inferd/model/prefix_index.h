// Index of KV cache pages by content: the tokens of a page and, as a digest chained from page to page, all
// tokens before it. K and V of a position depend only on these.
//
// A chain begins with a digest of everything else that K and V or access to them depend on, and of a secret,
// so that a client that chooses tokens cannot search for two prefixes with one digest. The tokens of a page
// are compared, not only their digest.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/checksum.h"
#include "kernels/ops.h"

namespace sluice::inferd {

class PrefixIndex {
 public:
  explicit PrefixIndex(uint32_t pages);

  // Returns the digest after a whole page of tokens. REQUIRES: kPageTokens tokens.
  static Digest128 After(const Digest128& before, absl::Span<const int32_t> tokens);

  // Begins an empty `page` after whole pages with this digest; it is not found yet.
  void Begin(uint32_t page, const Digest128& before);
  // Adds tokens at the page's next positions. True if the page is found by them from now on; false, and the
  // page is forgotten, if another page holds the same whole content. REQUIRES: Begin() of the page, and room
  // in it.
  bool Extend(uint32_t page, absl::Span<const int32_t> tokens);
  // Removes a page from the index. No effect on an unknown page.
  void Forget(uint32_t page);

  // Number of indexed positions of the page; 0 if it is not found.
  uint32_t known(uint32_t page) const { return pages_[page].known; }
  // Digest before an indexed page, and its tokens.
  const Digest128& before(uint32_t page) const { return pages_[page].before; }
  absl::Span<const int32_t> tokens(uint32_t page) const { return TokensOf(pages_[page]); }

  // Returns the page that holds exactly these tokens after `before`, or kNoPage. REQUIRES: kPageTokens
  // tokens.
  uint32_t FindWhole(const Digest128& before, absl::Span<const int32_t> tokens) const;

  // Returns the page after `before` with the longest common prefix with these tokens, and that length; checks
  // the newest kMaxPageLooks pages. kNoPage and 0 if none begins with the first token.
  struct Part {
    uint32_t page = kNoPage;
    uint32_t tokens = 0;
  };
  static constexpr uint32_t kMaxPageLooks = 64;
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
  Lists behind_;  // by the digest before a page
  Lists whole_;   // whole pages, by the digest after them
};

}  // namespace sluice::inferd
