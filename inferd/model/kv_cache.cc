#include "inferd/model/kv_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/status.h"
#include "kernels/ops.h"

namespace sluice::inferd {

KvPages::KvPages(uint32_t pages, uint32_t slots, uint32_t context, uint32_t window)
    : total_(pages),
      window_(window),
      tables_(slots),
      trimmed_(slots, 0),
      holders_(pages, 0),
      kept_(pages, 0),
      next_(pages + 1, pages),
      previous_(pages + 1, pages) {
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
  if (missing > free_pages()) {
    return false;
  }
  for (uint32_t i = 0; i < missing; ++i) {
    tables_[slot].push_back(TakeFree());
  }
  return true;
}

void KvPages::Reset(uint32_t pages) {
  total_ = pages;
  free_.clear();
  for (uint32_t page = pages; page > 0; --page) {
    free_.push_back(page - 1);
  }
  holders_.assign(pages, 0);
  kept_.assign(pages, 0);
  next_.assign(pages + 1, pages);
  previous_.assign(pages + 1, pages);
  idle_kept_ = 0;
}

void KvPages::Adopt(uint32_t slot, absl::Span<const uint32_t> pages) {
  std::vector<uint32_t>& table = tables_[slot];
  for (const uint32_t page : pages) {
    if (page == kNoPage) {
      trimmed_[slot]++;
    } else {
      Hold(page);
    }
    table.push_back(page);
  }
}

void KvPages::Trim(uint32_t slot, uint32_t next_position) {
  // A page is released once its last position is outside every later position's window. Pages keep their
  // index in the table, so that a position's page is always found by division.
  std::vector<uint32_t>& table = tables_[slot];
  const uint32_t end =
      std::min(FirstVisiblePage(next_position, window_), static_cast<uint32_t>(table.size()));
  for (uint32_t i = trimmed_[slot]; i < end; ++i) {
    Drop(table[i]);
    table[i] = kNoPage;
  }
  trimmed_[slot] = std::max(trimmed_[slot], end);
}

void KvPages::Release(uint32_t slot) {
  // The end of a sequence is released first: its beginning is worth more, as more sequences share it.
  std::vector<uint32_t>& table = tables_[slot];
  for (uint32_t i = static_cast<uint32_t>(table.size()); i > trimmed_[slot]; --i) {
    Drop(table[i - 1]);
  }
  table.clear();
  trimmed_[slot] = 0;
}

// REQUIRES: free_pages() > 0.
uint32_t KvPages::TakeFree() {
  uint32_t page = next_[total_];  // the longest idle page
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    Unlink(page);
    kept_[page] = 0;
    if (forget_) {
      forget_(page);
    }
  }
  holders_[page] = 1;
  return page;
}

std::vector<uint32_t> KvPages::IdleKept() const {
  std::vector<uint32_t> pages;
  for (uint32_t page = next_[total_]; page != total_; page = next_[page]) {
    pages.push_back(page);
  }
  return pages;
}

void KvPages::Hold(uint32_t page) {
  if (holders_[page]++ == 0) {
    Unlink(page);
  }
}

void KvPages::Drop(uint32_t page) {
  if (--holders_[page] > 0) {
    return;
  }
  if (kept_[page] != 0) {
    Link(page);
  } else {
    free_.push_back(page);
  }
}

void KvPages::Link(uint32_t page) {
  const uint32_t last = previous_[total_];
  next_[last] = page;
  previous_[page] = last;
  next_[page] = total_;
  previous_[total_] = page;
  ++idle_kept_;
}

void KvPages::Unlink(uint32_t page) {
  next_[previous_[page]] = next_[page];
  previous_[next_[page]] = previous_[page];
  --idle_kept_;
}

uint32_t KvPages::PeakPages(uint32_t positions, uint32_t window, uint32_t chunk) {
  const uint32_t all = PagesFor(positions);
  if (window == 0) {
    return all;
  }
  // A window may begin and end inside a page, hence the two extra ones.
  return std::min(all, PagesFor(window) + PagesFor(chunk) + 2);
}

// A page is shared by all layers, so it may be released only when the layer with the widest window no longer
// sees it; one layer without a window keeps everything.
uint32_t WidestWindow(const ModelConfig& config) {
  uint32_t widest = 0;
  for (const LayerConfig& layer : config.layers) {
    if (IsRecurrent(layer.attention.kind) || !HasAttention(layer)) {
      continue;  // recurrent: reads no earlier positions
    }
    if (layer.attention.sliding_window == 0 || layer.attention.compress.rate > 0) {
      return 0;
    }
    widest = std::max(widest, layer.attention.sliding_window);
  }
  return widest;
}

namespace {

// Shape of a layer's cached token: latent attention keeps one row that holds K and V, recurrent attention
// nothing.
KvView ShapeOf(const AttentionConfig& attention, KvType type) {
  KvView view;
  view.type = type;
  switch (attention.kind) {
    case AttentionKind::kGrouped:
      view.kv_heads = attention.kv_heads;
      view.head_dim = attention.head_dim;
      view.value_dim = attention.value_dim;
      break;
    case AttentionKind::kLatent:
      view.kv_heads = 1;
      view.head_dim = attention.latent.kv_rank + attention.rope.dimensions;
      view.value_dim = attention.latent.kv_rank;
      break;
    case AttentionKind::kCompressed:
      view.kv_heads = 1;
      view.head_dim = view.value_dim = attention.head_dim;
      break;
    case AttentionKind::kGatedDelta:
    case AttentionKind::kMamba:
    case AttentionKind::kShortConv:
    case AttentionKind::kSelective:
    case AttentionKind::kNone:
      break;
  }
  view.page_stride = KvPageBytes(type, view.kv_heads, view.head_dim);
  const bool apart = attention.kind == AttentionKind::kGrouped;
  view.v_page_stride = apart ? KvPageBytes(type, view.kv_heads, ValueDim(attention)) : 0;
  return view;
}

// Shape of a layer's cached index key.
KvView IndexShapeOf(const AttentionConfig& attention, KvType type) {
  KvView view;
  view.type = type;
  if (HasIndexKeys(attention) && !attention.index.pooled) {
    view.kv_heads = 1;
    view.head_dim = attention.index.head_dim;
    view.page_stride = KvPageBytes(type, 1, view.head_dim);
  }
  return view;
}

EntryView EntriesOf(KvType type, uint32_t head_dim, uint32_t rate) {
  EntryView view;
  view.type = type;
  view.head_dim = head_dim;
  view.rate = rate;
  view.page_stride = rate == 0 ? 0 : EntryPageBytes(type, head_dim, rate);
  return view;
}

EntryView EntriesOf(const AttentionConfig& attention, KvType type) {
  return EntriesOf(type, attention.head_dim, attention.compress.rate);
}

EntryView IndexEntriesOf(const AttentionConfig& attention, KvType type) {
  const IndexConfig& index = attention.index;
  return EntriesOf(type, index.head_dim, HasIndexKeys(attention) && index.pooled ? index.block : 0);
}

// Bytes of a page of K and of V; if V is part of K's row (no v_page_stride) only one is stored.
uint64_t PageBytes(const KvView& view) { return view.page_stride + view.v_page_stride; }

}  // namespace

uint64_t KvBytesPerPage(const ModelConfig& config, KvType type) {
  uint64_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    const AttentionConfig& a = layer.attention;
    bytes += PageBytes(ShapeOf(a, type)) + PageBytes(IndexShapeOf(a, type)) + EntriesOf(a, type).page_stride +
             IndexEntriesOf(a, type).page_stride;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config, KvType type,
                                                         uint32_t pages, uint32_t slots, uint32_t context,
                                                         Backend* backend) {
  std::unique_ptr<KvCache> cache(new KvCache(pages, slots, context, WidestWindow(config), backend));
  for (const LayerConfig& layer : config.layers) {
    cache->views_.push_back(ShapeOf(layer.attention, type));
    cache->index_views_.push_back(IndexShapeOf(layer.attention, type));
    cache->entries_.push_back(EntriesOf(layer.attention, type));
    cache->index_entries_.push_back(IndexEntriesOf(layer.attention, type));
  }
  cache->copy_.resize(KvBytesPerPage(config, type));
  RETURN_IF_ERROR(cache->Place(pages));
  return cache;
}

// Allocates the pages, and sets each layer's view. REQUIRES: nothing is allocated.
absl::Status KvCache::Place(uint32_t pages) {
  if (!copy_.empty()) {
    ASSIGN_OR_RETURN(buffer_, backend_->Allocate(pages * copy_.size(), BufferKind::kKvCache));
  }
  uint64_t offset = 0;
  const auto place = [&](KvView& view) {
    view.pages = pages;
    view.k = {buffer_, offset};
    view.v = {buffer_, view.v_page_stride == 0 ? offset : offset + pages * view.page_stride};
    offset += pages * PageBytes(view);
  };
  const auto place_entries = [&](EntryView& view) {
    view.pages = pages;
    view.base = {buffer_, offset};
    offset += pages * view.page_stride;
  };
  for (size_t layer = 0; layer < views_.size(); ++layer) {
    place(views_[layer]);
    place(index_views_[layer]);
    place_entries(entries_[layer]);
    place_entries(index_entries_[layer]);
  }
  return absl::OkStatus();
}

absl::Status KvCache::Resize(uint32_t pages) {
  const uint32_t before = pages_.total();
  if (buffer_ != kNoBuffer) {
    RETURN_IF_ERROR(backend_->Free(buffer_));
    buffer_ = kNoBuffer;
  }
  const absl::Status status = Place(pages);
  if (status.ok()) {
    pages_.Reset(pages);
    return status;
  }
  pages_.Reset(before);
  const absl::Status again = Place(before);
  if (again.ok()) return status;
  return absl::InternalError(absl::StrCat("the KV cache has lost its memory: ", again.message()));
}

absl::Status KvCache::ForEachPart(
    uint32_t page,
    absl::FunctionRef<absl::Status(BufferRef place, uint64_t bytes, uint64_t offset)> move) const {
  uint64_t offset = 0;
  for (size_t layer = 0; layer < views_.size(); ++layer) {
    const KvView& view = views_[layer];
    const KvView& index = index_views_[layer];
    const std::pair<BufferRef, uint64_t> sides[] = {
        {view.k, view.page_stride},
        {view.v, view.v_page_stride},
        {index.k, index.page_stride},
        {entries_[layer].base, entries_[layer].page_stride},
        {index_entries_[layer].base, index_entries_[layer].page_stride}};
    for (const auto& [place, bytes] : sides) {
      if (bytes == 0) continue;
      RETURN_IF_ERROR(move(place + page * bytes, bytes, offset));
      offset += bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status KvCache::ReadPage(uint32_t page, absl::Span<std::byte> to, Queue* queue) const {
  return ForEachPart(page, [&](BufferRef place, uint64_t bytes, uint64_t offset) {
    return queue->Download(place, bytes, to.data() + offset);
  });
}

absl::Status KvCache::WritePage(uint32_t page, absl::Span<const std::byte> from, Queue* queue) const {
  return ForEachPart(page, [&](BufferRef place, uint64_t bytes, uint64_t offset) {
    return queue->Upload(from.data() + offset, bytes, place);
  });
}

absl::Status KvCache::CopyPage(uint32_t from, uint32_t to, Queue* queue) {
  RETURN_IF_ERROR(ReadPage(from, absl::MakeSpan(copy_), queue));
  RETURN_IF_ERROR(queue->Wait(queue->Record()));
  return WritePage(to, copy_, queue);
}

PrefixIndex::Lists::Lists(uint32_t pages)
    : mask_(std::bit_ceil(uint64_t{pages} + 1) - 1),
      heads_(mask_ + 1, kNoPage),
      next_(pages, kNoPage),
      previous_(pages, kNoPage) {}

void PrefixIndex::Lists::Add(const Digest128& digest, uint32_t page) {
  uint32_t& head = heads_[digest.low & mask_];
  next_[page] = head;
  previous_[page] = kNoPage;
  if (head != kNoPage) {
    previous_[head] = page;
  }
  head = page;
}

void PrefixIndex::Lists::Remove(const Digest128& digest, uint32_t page) {
  if (previous_[page] == kNoPage) {
    heads_[digest.low & mask_] = next_[page];
  } else {
    next_[previous_[page]] = next_[page];
  }
  if (next_[page] != kNoPage) {
    previous_[next_[page]] = previous_[page];
  }
}

PrefixIndex::PrefixIndex(uint32_t pages) : pages_(pages), behind_(pages), whole_(pages) {}

Digest128 PrefixIndex::After(const Digest128& before, absl::Span<const int32_t> tokens) {
  struct {
    uint64_t high;
    uint64_t low;
    int32_t tokens[kPageTokens];
  } content;
  static_assert(sizeof(content) == 16 + kPageTokens * sizeof(int32_t), "no padding, which has no value");
  content.high = before.high;
  content.low = before.low;
  std::memcpy(content.tokens, tokens.data(), sizeof(content.tokens));
  return DigestOf(std::as_bytes(std::span(&content, 1)));
}

void PrefixIndex::Begin(uint32_t page, const Digest128& before) {
  Forget(page);
  pages_[page].before = before;
}

bool PrefixIndex::Extend(uint32_t page, absl::Span<const int32_t> tokens) {
  Page& content = pages_[page];
  if (content.known == 0 && !tokens.empty()) {
    behind_.Add(content.before, page);
  }
  std::copy(tokens.begin(), tokens.end(), content.tokens.begin() + content.known);
  content.known += static_cast<uint32_t>(tokens.size());
  if (content.known < kPageTokens) {
    return content.known > 0;
  }
  if (FindWhole(content.before, content.tokens) != kNoPage) {
    behind_.Remove(content.before, page);
    content.known = 0;
    return false;
  }
  whole_.Add(After(content.before, content.tokens), page);
  return true;
}

void PrefixIndex::Forget(uint32_t page) {
  Page& content = pages_[page];
  if (content.known == 0) {
    return;
  }
  behind_.Remove(content.before, page);
  if (content.known == kPageTokens) {
    whole_.Remove(After(content.before, content.tokens), page);
  }
  content.known = 0;
}

uint32_t PrefixIndex::FindWhole(const Digest128& before, absl::Span<const int32_t> tokens) const {
  for (uint32_t page = whole_.First(After(before, tokens)); page != kNoPage; page = whole_.Next(page)) {
    if (pages_[page].before == before &&
        std::equal(tokens.begin(), tokens.end(), pages_[page].tokens.begin())) {
      return page;
    }
  }
  return kNoPage;
}

PrefixIndex::Part PrefixIndex::FindPart(const Digest128& before, absl::Span<const int32_t> tokens) const {
  Part best;
  uint32_t looks = 0;
  for (uint32_t page = behind_.First(before); page != kNoPage && looks < kMaxPageLooks;
       page = behind_.Next(page)) {
    if (pages_[page].before != before) {
      continue;  // another digest in the same list
    }
    ++looks;
    const absl::Span<const int32_t> there = TokensOf(pages_[page]);
    const auto [end, unused] = std::mismatch(there.begin(), there.end(), tokens.begin(), tokens.end());
    const uint32_t common = static_cast<uint32_t>(end - there.begin());
    if (common > best.tokens) {
      best = {page, common};
    }
  }
  return best;
}

}  // namespace sluice::inferd
