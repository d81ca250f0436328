// The paged KV cache: which page holds which positions (KvPages, pure bookkeeping), and where the pages are
// in device memory (KvCache).
//
// A page holds 32 positions (kPageTokens) in every layer: one number names K and V of all layers, so a
// sequence has one page table. Pages lie [page][kv head][32 tokens][head_dim] per layer
// (kernels/kv_layout.h); latent attention has one row a token for K and V, recurrent attention none.
//
// Several sequences may hold a page, since what K and V of a position are is decided by the tokens up to it
// (prefix_index.h). A page that nobody holds any more is free; one whose content is worth keeping is free as
// well, but is given to others only after all the rest, the one that was given back first before the others.
//
// Thread safety: thread-compatible; both belong to the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "kernels/backend.h"

namespace sluice {

// Pages and the tables of the running sequences. A sequence is named by its slot, 0..slots-1.
class KvPages {
 public:
  // `window`: positions that any layer may still look back on, the own one included; 0: all. Tables are sized
  // for `context` positions, so nothing allocates later.
  KvPages(uint32_t pages, uint32_t slots, uint32_t context, uint32_t window);

  // Gives `slot` pages for its positions up to `end` (exclusive); pages that a window left behind stay away.
  // False, and nothing changed, when too few are free. REQUIRES: end <= context.
  bool Grow(uint32_t slot, uint32_t end);

  // Gives `slot`, which holds nothing, the pages that have its first positions already; kNoPage where a
  // window has left them behind.
  void Adopt(uint32_t slot, absl::Span<const uint32_t> pages);

  // Gives back the pages that no row from `next_position` on can see.
  void Trim(uint32_t slot, uint32_t next_position);

  // Gives back everything of `slot`, its last page first.
  void Release(uint32_t slot);

  // Whether the content of a page that somebody holds is worth keeping once nobody does. A page that is taken
  // for other content is so no longer.
  void SetKept(uint32_t page, bool kept) { kept_[page] = kept; }
  // Called with a page that was kept, before it is taken for other content.
  void SetForget(std::function<void(uint32_t page)> forget) { forget_ = std::move(forget); }

  // A page for other content, held by the caller; kNoPage if all are held.
  uint32_t Take() { return free_pages() > 0 ? TakeFree() : kNoPage; }
  // The pages that nobody holds and whose content is kept, longest idle first.
  std::vector<uint32_t> IdleKept() const;

  // Holds a page that has content as a slot does, so that it is not taken for other content; and back.
  void Hold(uint32_t page);
  void Drop(uint32_t page);
  uint32_t holders(uint32_t page) const { return holders_[page]; }

  // Pages that Grow(slot, end) would take.
  uint32_t Missing(uint32_t slot, uint32_t end) const;

  // Entry i holds positions [32 i, 32 i + 32): a page, or kNoPage where a window left it behind.
  absl::Span<const uint32_t> table(uint32_t slot) const { return tables_[slot]; }

  // Pages that `slot` holds.
  uint32_t held(uint32_t slot) const { return static_cast<uint32_t>(tables_[slot].size()) - trimmed_[slot]; }

  // Another number of pages from now on, all of them free; nothing is kept, and nobody is told to forget.
  // REQUIRES: no slot holds any.
  void Reset(uint32_t pages);

  uint32_t window() const { return window_; }
  uint32_t total() const { return total_; }
  // Pages that nobody holds, kept ones included.
  uint32_t free_pages() const { return static_cast<uint32_t>(free_.size()) + idle_kept_; }
  uint32_t used() const { return total_ - free_pages(); }
  // Pages that nobody holds and whose content is kept.
  uint32_t kept_pages() const { return idle_kept_; }

  // The first page that a row at `position` can see, with this window (0: none).
  static constexpr uint32_t FirstVisiblePage(uint32_t position, uint32_t window) {
    return window == 0 || position < window ? 0 : (position - window + 1) / kPageTokens;
  }

  // Pages that `positions` positions take.
  static constexpr uint32_t PagesFor(uint32_t positions) {
    return positions / kPageTokens + (positions % kPageTokens != 0 ? 1 : 0);
  }
  // The most pages that one sequence of `positions` holds at once when at most `chunk` rows are added a step.
  static uint32_t PeakPages(uint32_t positions, uint32_t window, uint32_t chunk);

 private:
  uint32_t TakeFree();
  void Link(uint32_t page);
  void Unlink(uint32_t page);

  uint32_t total_;
  const uint32_t window_;
  std::vector<uint32_t> free_;                 // a stack; without the kept ones
  std::vector<std::vector<uint32_t>> tables_;  // by slot
  std::vector<uint32_t> trimmed_;              // by slot: leading entries that are kNoPage
  std::vector<uint32_t> holders_;              // by page
  std::vector<uint8_t> kept_;                  // by page
  // A ring of the kept pages that nobody holds, longest idle first; entry total_ is its end.
  std::vector<uint32_t> next_;
  std::vector<uint32_t> previous_;
  uint32_t idle_kept_ = 0;
  std::function<void(uint32_t)> forget_;
};

// Layers whose window is unlimited see everything: 0 if there is one, else the widest window. A chunked layer
// counts as unlimited.
uint32_t WidestWindow(const ModelConfig& config);

// Bytes that one page takes over all layers, K and V.
uint64_t KvBytesPerPage(const ModelConfig& config, KvType type);

// Device memory of the pages, and the view of each layer.
class KvCache {
 public:
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const ModelConfig& config, KvType type,
                                                         uint32_t pages, uint32_t slots, uint32_t context,
                                                         Backend* backend);

  KvPages& pages() { return pages_; }
  const KvView& view(uint32_t layer) const { return views_[layer]; }

  // Another number of pages; what was in them is gone. Never has memory for both: if there is none for the
  // new ones it takes as many as before again, and says RESOURCE_EXHAUSTED; INTERNAL if even those are not to
  // be had, which leaves it without any. REQUIRES: no slot holds a page, and no queued work uses one.
  absl::Status Resize(uint32_t pages);

  // K and V of page `from` in all layers also in page `to`, behind everything enqueued and before what comes.
  // Goes through host memory, which every device allows: a text that goes on within a page needs it once.
  absl::Status CopyPage(uint32_t from, uint32_t to, Queue* queue);

  // Bytes of a page of all layers.
  uint64_t page_bytes() const { return copy_.size(); }
  // Enqueues that a page is read into, or written from, `page_bytes` bytes of host memory, which the caller
  // keeps until the queue has got there: layer by layer, K before V.
  absl::Status ReadPage(uint32_t page, absl::Span<std::byte> to, Queue* queue) const;
  absl::Status WritePage(uint32_t page, absl::Span<const std::byte> from, Queue* queue) const;

 private:
  KvCache(uint32_t pages, uint32_t slots, uint32_t context, uint32_t window, Backend* backend)
      : backend_(backend), pages_(pages, slots, context, window) {}
  absl::Status Place(uint32_t pages);
  // Calls move(place, bytes, offset) for each part of a page: where it is on the device and in host memory.
  absl::Status ForEachPart(
      uint32_t page,
      absl::FunctionRef<absl::Status(BufferRef place, uint64_t bytes, uint64_t offset)> move) const;

  Backend* const backend_;
  BufferId buffer_ = kNoBuffer;
  KvPages pages_;
  std::vector<KvView> views_;    // by layer
  std::vector<std::byte> copy_;  // of one page of all layers
};

}  // namespace sluice
