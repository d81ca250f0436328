#include "inferd/model/kv_cache.h"

#include <algorithm>

#include "common/status.h"
#include "kernels/kv_layout.h"

namespace sluice {

KvPages::KvPages(uint32_t pages, uint32_t slots, uint32_t context, uint32_t window)
    : total_(pages), window_(window), tables_(slots), trimmed_(slots, 0) {
  free_.reserve(pages);
  for (uint32_t page = pages; page > 0; --page) {
    free_.push_back(page - 1);  // the lowest page is on top
  }
  for (std::vector<uint32_t>& table : tables_) {
    table.reserve(PagesFor(context));
  }
}

uint32_t KvPages::Missing(uint32_t slot, uint32_t end) const {
  const uint32_t wanted = PagesFor(end);
  const uint32_t there = static_cast<uint32_t>(tables_[slot].size());
  return wanted > there ? wanted - there : 0;
}

bool KvPages::Grow(uint32_t slot, uint32_t end) {
  const uint32_t missing = Missing(slot, end);
  if (missing > free_.size()) {
    return false;
  }
  for (uint32_t i = 0; i < missing; ++i) {
    tables_[slot].push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void KvPages::Trim(uint32_t slot, uint32_t next_position) {
  if (window_ == 0 || next_position < window_) {
    return;
  }
  // A page goes back once its last position is behind every later position's window. Pages keep their places
  // in the table, so that a position's page is always found by division.
  const uint32_t first_visible = next_position - window_ + 1;
  const uint32_t whole_pages_behind = first_visible / kPageTokens;
  std::vector<uint32_t>& table = tables_[slot];
  const uint32_t end = std::min(whole_pages_behind, static_cast<uint32_t>(table.size()));
  for (uint32_t i = trimmed_[slot]; i < end; ++i) {
    free_.push_back(table[i]);
    table[i] = kNoPage;
  }
  trimmed_[slot] = std::max(trimmed_[slot], end);
}

void KvPages::Release(uint32_t slot) {
  std::vector<uint32_t>& table = tables_[slot];
  for (uint32_t i = static_cast<uint32_t>(table.size()); i > trimmed_[slot]; --i) {
    free_.push_back(table[i - 1]);
  }
  table.clear();
  trimmed_[slot] = 0;
}

uint32_t KvPages::PeakPages(uint32_t positions, uint32_t window, uint32_t chunk) {
  const uint32_t all = PagesFor(positions);
  if (window == 0) {
    return all;
  }
  // A window may begin and end inside a page, hence the two extra ones.
  return std::min(all, PagesFor(window) + PagesFor(chunk) + 2);
}

// A page is shared by all layers, so it may go only when the layer that looks back farthest is done with it;
// one layer without a window keeps everything.
uint32_t WidestWindow(const ModelConfig& config) {
  uint32_t widest = 0;
  for (const LayerConfig& layer : config.layers) {
    if (layer.attention.kind == AttentionKind::kGatedDelta) {
      continue;  // looks back on nothing
    }
    if (layer.attention.sliding_window == 0) {
      return 0;
    }
    widest = std::max(widest, layer.attention.sliding_window);
  }
  return widest;
}

namespace {

// What a layer keeps of a token: latent attention one row that holds K and V, gated delta attention nothing.
KvView ShapeOf(const AttentionConfig& attention, KvType type) {
  KvView view;
  view.type = type;
  switch (attention.kind) {
    case AttentionKind::kGrouped:
      view.kv_heads = attention.kv_heads;
      view.head_dim = attention.head_dim;
      break;
    case AttentionKind::kLatent:
      view.kv_heads = 1;
      view.head_dim = attention.latent.kv_rank + attention.rope.dimensions;
      view.value_dim = attention.latent.kv_rank;
      break;
    case AttentionKind::kGatedDelta:
      break;
  }
  view.page_stride = KvPageBytes(type, view.kv_heads, view.head_dim);
  return view;
}

// Bytes of a page of K and of V; where V is part of K's row (value_dim) there is one of them.
uint64_t PageBytes(const KvView& view) { return (view.value_dim > 0 ? 1 : 2) * view.page_stride; }

}  // namespace

uint64_t KvBytesPerPage(const ModelConfig& config, KvType type) {
  uint64_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    bytes += PageBytes(ShapeOf(layer.attention, type));
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config, KvType type,
                                                         uint32_t pages, uint32_t slots, uint32_t context,
                                                         Backend* backend) {
  std::unique_ptr<KvCache> cache(new KvCache(pages, slots, context, WidestWindow(config)));
  BufferId buffer = kNoBuffer;
  if (KvBytesPerPage(config, type) > 0) {
    ASSIGN_OR_RETURN(buffer, backend->Allocate(pages * KvBytesPerPage(config, type), BufferKind::kKvCache));
  }
  uint64_t offset = 0;
  for (const LayerConfig& layer : config.layers) {
    KvView view = ShapeOf(layer.attention, type);
    view.pages = pages;
    view.k = {buffer, offset};
    view.v = {buffer, view.value_dim > 0 ? offset : offset + pages * view.page_stride};
    offset += pages * PageBytes(view);
    cache->views_.push_back(view);
  }
  return cache;
}

}  // namespace sluice
