// The paged KV cache: which page holds which positions (KvPages, pure bookkeeping), and where the pages are
// in device memory (KvCache).
//
// A page holds 32 positions (kPageTokens) in every layer: one number names K and V of all layers, so a
// sequence has one page table. Pages lie [page][kv head][32 tokens][head_dim] per layer
// (kernels/kv_layout.h); latent attention has one row a token for K and V, gated delta attention none.
//
// Thread safety: thread-compatible; both belong to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

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

  // Gives back the pages that no row from `next_position` on can see.
  void Trim(uint32_t slot, uint32_t next_position);

  // Gives back everything of `slot`.
  void Release(uint32_t slot);

  // Pages that Grow(slot, end) would take.
  uint32_t Missing(uint32_t slot, uint32_t end) const;

  // Entry i holds positions [32 i, 32 i + 32): a page, or kNoPage where a window left it behind.
  absl::Span<const uint32_t> table(uint32_t slot) const { return tables_[slot]; }

  // Pages that `slot` holds.
  uint32_t held(uint32_t slot) const { return static_cast<uint32_t>(tables_[slot].size()) - trimmed_[slot]; }

  uint32_t window() const { return window_; }
  uint32_t total() const { return total_; }
  uint32_t free_pages() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t used() const { return total_ - free_pages(); }

  // Pages that `positions` positions take.
  static constexpr uint32_t PagesFor(uint32_t positions) {
    return positions / kPageTokens + (positions % kPageTokens != 0 ? 1 : 0);
  }
  // The most pages that one sequence of `positions` holds at once when at most `chunk` rows are added a step.
  static uint32_t PeakPages(uint32_t positions, uint32_t window, uint32_t chunk);

 private:
  const uint32_t total_;
  const uint32_t window_;
  std::vector<uint32_t> free_;                 // a stack
  std::vector<std::vector<uint32_t>> tables_;  // by slot
  std::vector<uint32_t> trimmed_;              // by slot: leading entries that are kNoPage
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

 private:
  KvCache(uint32_t pages, uint32_t slots, uint32_t context, uint32_t window)
      : pages_(pages, slots, context, window) {}

  KvPages pages_;
  std::vector<KvView> views_;  // by layer
};

}  // namespace sluice
