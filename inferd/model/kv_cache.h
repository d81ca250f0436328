// The paged KV cache: the pages of each position (KvPages, pure bookkeeping), and their device memory
// (KvCache).
//
// A page holds 32 positions (kPageTokens) in every layer: one number names K and V of all layers, so a
// sequence has one page table. Pages lie [page][kv head][32 tokens][head_dim] per layer
// (kernels/ops.h); latent attention has one row per token for K and V, recurrent attention none.
//
// Several sequences may hold a page, since K and V of a position depend only on the tokens up to it
// (kv_cache.h). A page without holders is free; a free page whose content is worth keeping is reused only
// after all others, the longest idle first.
//
// Thread safety: thread-compatible; both belong to the engine thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/checksum.h"
#include "common/model/model_config.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace sluice::inferd {

// Pages and the tables of the running sequences. A sequence is named by its slot, 0..slots-1.
class KvPages {
 public:
  // `window`: number of positions that any layer still sees, including the own one; 0: all. Tables are sized
  // for `context` positions, so nothing allocates later.
  KvPages(uint32_t pages, uint32_t slots, uint32_t context, uint32_t window);

  // Gives `slot` pages for its positions up to `end` (exclusive); pages outside the window are not allocated.
  // False, and nothing changed, if too few are free. REQUIRES: end <= context.
  bool Grow(uint32_t slot, uint32_t end);

  // Gives `slot`, which holds nothing, the cached pages of its first positions; kNoPage for pages outside the
  // window.
  void Adopt(uint32_t slot, absl::Span<const uint32_t> pages);

  // Releases the pages that no row from `next_position` on can see.
  void Trim(uint32_t slot, uint32_t next_position);

  // Releases all pages of `slot`, the last page first.
  void Release(uint32_t slot);

  // Marks the content of a held page as worth keeping after its release. Reuse of the page for other content
  // clears the mark.
  void SetKept(uint32_t page, bool kept) { kept_[page] = kept; }
  // Sets the callback for a kept page, called before its reuse for other content.
  void SetForget(std::function<void(uint32_t page)> forget) { forget_ = std::move(forget); }

  // Takes a page for new content, held by the caller; kNoPage if all are held.
  uint32_t Take() { return free_pages() > 0 ? TakeFree() : kNoPage; }
  // Returns the kept pages without holders, longest idle first.
  std::vector<uint32_t> IdleKept() const;

  // Holds a page with content like a slot does, so that it is not reused; the second function releases it.
  void Hold(uint32_t page);
  void Drop(uint32_t page);
  uint32_t holders(uint32_t page) const { return holders_[page]; }

  // Number of pages that Grow(slot, end) would take.
  uint32_t Missing(uint32_t slot, uint32_t end) const;

  // Entry i holds positions [32 i, 32 i + 32): a page, or kNoPage outside the window.
  absl::Span<const uint32_t> table(uint32_t slot) const { return tables_[slot]; }

  // Number of pages that `slot` holds.
  uint32_t held(uint32_t slot) const { return static_cast<uint32_t>(tables_[slot].size()) - trimmed_[slot]; }

  // Changes the number of pages; all are free and none is kept, without forget callbacks. REQUIRES: no slot
  // holds a page.
  void Reset(uint32_t pages);

  uint32_t window() const { return window_; }
  uint32_t total() const { return total_; }
  // Number of pages without holders, including kept ones.
  uint32_t free_pages() const { return static_cast<uint32_t>(free_.size()) + idle_kept_; }
  uint32_t used() const { return total_ - free_pages(); }
  // Number of kept pages without holders.
  uint32_t kept_pages() const { return idle_kept_; }

  // The first page visible to a row at `position`, with this window (0: no window).
  static constexpr uint32_t FirstVisiblePage(uint32_t position, uint32_t window) {
    return window == 0 || position < window ? 0 : (position - window + 1) / kPageTokens;
  }

  // Number of pages for `positions` positions.
  static constexpr uint32_t PagesFor(uint32_t positions) {
    return positions / kPageTokens + (positions % kPageTokens != 0 ? 1 : 0);
  }
  // Maximum number of pages that one sequence of `positions` holds at once when a step adds at most `chunk`
  // rows.
  static uint32_t PeakPages(uint32_t positions, uint32_t window, uint32_t chunk);

 private:
  uint32_t TakeFree();
  void Link(uint32_t page);
  void Unlink(uint32_t page);

  uint32_t total_;
  const uint32_t window_;
  std::vector<uint32_t> free_;                 // a stack, without kept pages
  std::vector<std::vector<uint32_t>> tables_;  // by slot
  std::vector<uint32_t> trimmed_;              // by slot: number of leading entries that are kNoPage
  std::vector<uint32_t> holders_;              // number of holders by page
  std::vector<uint8_t> kept_;                  // by page: 1 if its content is worth keeping
  // Ring of the kept pages without holders, longest idle first; entry total_ is its end.
  std::vector<uint32_t> next_;
  std::vector<uint32_t> previous_;
  uint32_t idle_kept_ = 0;
  std::function<void(uint32_t)> forget_;
};

// Returns the widest window of all layers; 0 if a layer has none. A chunked layer counts as unlimited.
uint32_t WidestWindow(const ModelConfig& config);

// Bytes of one page over all layers: K, V, entries and index keys.
uint64_t KvBytesPerPage(const ModelConfig& config, KvType type);

// Device memory of the pages, and the view of each layer.
class KvCache {
 public:
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const ModelConfig& config, KvType type,
                                                         uint32_t pages, uint32_t slots, uint32_t context,
                                                         Backend* backend);

  KvPages& pages() { return pages_; }
  const KvView& view(uint32_t layer) const { return views_[layer]; }
  // The index keys of a layer with an indexer of its own: one head, V is K. No pages in other layers.
  const KvView& index_view(uint32_t layer) const { return index_views_[layer]; }
  // The compressed entries of a layer, and the keys of a pooled indexer; rate 0 in other layers.
  const EntryView& entries(uint32_t layer) const { return entries_[layer]; }
  const EntryView& index_entries(uint32_t layer) const { return index_entries_[layer]; }

  // Changes the number of pages; their content is lost. Frees the old memory first: if the new size cannot be
  // allocated it restores the old size and returns RESOURCE_EXHAUSTED; INTERNAL if even that fails, which
  // leaves no pages. REQUIRES: no slot holds a page, and no queued work uses one.
  absl::Status Resize(uint32_t pages);

  // Enqueues a copy of K, V and index keys of page `from` to page `to` in all layers. Copies through host
  // memory, which every device allows: a sequence that continues within a page needs it once.
  absl::Status CopyPage(uint32_t from, uint32_t to, Queue* queue);

  // Bytes of a page over all layers.
  uint64_t page_bytes() const { return copy_.size(); }
  // Enqueues a read or write of a page, layer by layer, K, V, then index keys, from or to `page_bytes` bytes
  // of host memory, which the caller keeps until the queue has run the copy.
  absl::Status ReadPage(uint32_t page, absl::Span<std::byte> to, Queue* queue) const;
  absl::Status WritePage(uint32_t page, absl::Span<const std::byte> from, Queue* queue) const;

 private:
  KvCache(uint32_t pages, uint32_t slots, uint32_t context, uint32_t window, Backend* backend)
      : backend_(backend), pages_(pages, slots, context, window) {}
  absl::Status Place(uint32_t pages);
  // Calls move(address, bytes, offset) for each part of a page: its device address and its host offset.
  absl::Status ForEachPart(
      uint32_t page,
      absl::FunctionRef<absl::Status(BufferRef place, uint64_t bytes, uint64_t offset)> move) const;

  Backend* const backend_;
  BufferId buffer_ = kNoBuffer;
  KvPages pages_;
  std::vector<KvView> views_;             // by layer
  std::vector<KvView> index_views_;       // by layer
  std::vector<EntryView> entries_;        // by layer
  std::vector<EntryView> index_entries_;  // by layer
  std::vector<std::byte> copy_;           // one page over all layers
};

// Index of KV cache pages by content: the tokens of a page and, as a digest chained from page to page, all
// tokens before it. K and V of a position depend only on these.
//
// A chain begins with a digest of everything else that K and V or access to them depend on, and of a secret,
// so that a client that chooses tokens cannot search for two prefixes with one digest. The tokens of a page
// are compared, not only their digest.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.

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
