#include "inferd/model/kv_cache.h"

#include <random>
#include <set>

#include "gtest/gtest.h"
#include "inferd/model/recurrent_states.h"

namespace sluice::inferd {
namespace {

TEST(KvPagesTest, GrowTakesOnePageFor32Positions) {
  KvPages pages(4, 2, 128, 0);
  EXPECT_TRUE(pages.Grow(0, 1));
  EXPECT_EQ(pages.used(), 1u);
  EXPECT_TRUE(pages.Grow(0, 32));
  EXPECT_EQ(pages.used(), 1u);
  EXPECT_TRUE(pages.Grow(0, 33));
  EXPECT_EQ(pages.used(), 2u);
  EXPECT_EQ(pages.table(0).size(), 2u);
}

TEST(KvPagesTest, GrowBeyondTheFreePagesChangesNothing) {
  KvPages pages(3, 2, 128, 0);
  ASSERT_TRUE(pages.Grow(0, 64));
  EXPECT_FALSE(pages.Grow(1, 64));
  EXPECT_EQ(pages.used(), 2u);
  EXPECT_TRUE(pages.table(1).empty());
  EXPECT_TRUE(pages.Grow(1, 32));
}

TEST(KvPagesTest, ReleaseFreesAllPages) {
  KvPages pages(4, 1, 128, 0);
  ASSERT_TRUE(pages.Grow(0, 128));
  pages.Release(0);
  EXPECT_EQ(pages.used(), 0u);
  EXPECT_TRUE(pages.table(0).empty());
}

TEST(KvPagesTest, WindowReleasesInvisiblePages) {
  KvPages pages(8, 1, 256, 40);
  ASSERT_TRUE(pages.Grow(0, 128));
  pages.Trim(0, 70);  // sees 31..: page 0 holds 31
  EXPECT_EQ(pages.used(), 4u);
  pages.Trim(0, 71);  // sees 32..
  EXPECT_EQ(pages.used(), 3u);
  EXPECT_EQ(pages.table(0)[0], kNoPage);
  EXPECT_NE(pages.table(0)[1], kNoPage);
  pages.Trim(0, 71);
  EXPECT_EQ(pages.used(), 3u);
  EXPECT_EQ(pages.held(0), 3u);
  pages.Release(0);
  EXPECT_EQ(pages.used(), 0u);
}

TEST(KvPagesTest, NoWindowKeepsEverything) {
  KvPages pages(8, 1, 256, 0);
  ASSERT_TRUE(pages.Grow(0, 256));
  pages.Trim(0, 255);
  EXPECT_EQ(pages.used(), 8u);
}

TEST(KvPagesTest, SharedPageIsFreedByItsLastHolder) {
  KvPages pages(4, 3, 128, 0);
  ASSERT_TRUE(pages.Grow(0, 64));
  const std::vector<uint32_t> table(pages.table(0).begin(), pages.table(0).end());
  pages.Adopt(1, table);
  EXPECT_EQ(pages.used(), 2u);
  EXPECT_EQ(pages.holders(table[0]), 2u);
  pages.Release(0);
  EXPECT_EQ(pages.used(), 2u);
  EXPECT_EQ(pages.held(1), 2u);
  pages.Release(1);
  EXPECT_EQ(pages.used(), 0u);
  EXPECT_EQ(pages.kept_pages(), 0u);
}

TEST(KvPagesTest, KeptPagesAreReusedLastOldestFirst) {
  KvPages pages(4, 3, 128, 0);
  std::vector<uint32_t> forgotten;
  pages.SetForget([&](uint32_t page) { forgotten.push_back(page); });
  ASSERT_TRUE(pages.Grow(0, 96));
  const std::vector<uint32_t> table(pages.table(0).begin(), pages.table(0).end());
  for (const uint32_t page : table) {
    pages.SetKept(page, true);
  }
  pages.Release(0);
  EXPECT_EQ(pages.used(), 0u);
  EXPECT_EQ(pages.free_pages(), 4u);
  EXPECT_EQ(pages.kept_pages(), 3u);
  ASSERT_TRUE(pages.Grow(1, 64));  // the free page, then the sequence's last page
  EXPECT_EQ(forgotten, std::vector<uint32_t>{table[2]});
  pages.Adopt(2, absl::MakeConstSpan(table).first(1));  // used again
  EXPECT_EQ(pages.kept_pages(), 1u);
  EXPECT_FALSE(pages.Grow(1, 128));
  ASSERT_TRUE(pages.Grow(1, 96));
  EXPECT_EQ(forgotten, (std::vector<uint32_t>{table[2], table[1]}));
  pages.Release(1);
  pages.Release(2);
  EXPECT_EQ(pages.kept_pages(), 1u) << "what was taken for other content is kept no longer";
}

TEST(KvPagesTest, AdoptedPagesBeginWhereTheWindowDoes) {
  KvPages pages(4, 2, 256, 40);
  ASSERT_TRUE(pages.Grow(0, 96));
  const std::vector<uint32_t> table = {kNoPage, pages.table(0)[1], pages.table(0)[2]};
  pages.Adopt(1, table);
  EXPECT_EQ(pages.held(1), 2u);
  EXPECT_EQ(pages.Missing(1, 97), 1u);
  pages.Trim(1, 103);
  EXPECT_EQ(pages.held(1), 1u);
  pages.Release(0);
  pages.Release(1);
  EXPECT_EQ(pages.used(), 0u);
}

TEST(KvPagesTest, PagesAreNeverSharedOverRandomUse) {
  std::mt19937 random(7);
  KvPages pages(20, 4, 256, 64);
  std::vector<uint32_t> ends(4, 0);
  for (int i = 0; i < 20000; ++i) {
    const uint32_t slot = random() % 4;
    if (random() % 8 == 0) {
      pages.Release(slot);
      ends[slot] = 0;
    } else if (ends[slot] < 256) {
      const uint32_t end = std::min<uint32_t>(256, ends[slot] + 1 + random() % 40);
      pages.Trim(slot, ends[slot]);
      if (pages.Grow(slot, end)) {
        ends[slot] = end;
      }
    }
    std::multiset<uint32_t> held;
    for (uint32_t s = 0; s < 4; ++s) {
      for (const uint32_t page : pages.table(s)) {
        if (page != kNoPage) {
          held.insert(page);
        }
      }
    }
    ASSERT_EQ(held.size(), std::set<uint32_t>(held.begin(), held.end()).size());
    ASSERT_EQ(held.size(), pages.used());
    ASSERT_TRUE(held.empty() || *held.rbegin() < 20u);
  }
}

TEST(KvPagesTest, PeakIsBoundedByTheWindow) {
  EXPECT_EQ(KvPages::PeakPages(1024, 0, 512), 32u);
  EXPECT_EQ(KvPages::PeakPages(1024, 64, 32), 5u);
  EXPECT_EQ(KvPages::PeakPages(40, 64, 512), 2u);
}

TEST(KvCacheTest, AllLayersShareOneWindowOnlyIfAllHaveOne) {
  ModelConfig config;
  config.layers.resize(2);
  config.layers[0].attention.sliding_window = 8;
  EXPECT_EQ(WidestWindow(config), 0u);
  config.layers[1].attention.sliding_window = 16;
  EXPECT_EQ(WidestWindow(config), 16u);
}

// One layer of each kind of attention.
ModelConfig OneOfEachKind() {
  ModelConfig config;
  config.layers.resize(3);
  AttentionConfig& grouped = config.layers[0].attention;
  grouped.heads = 4;
  grouped.kv_heads = 2;
  grouped.head_dim = 16;
  AttentionConfig& latent = config.layers[1].attention;
  latent.kind = AttentionKind::kLatent;
  latent.heads = latent.kv_heads = 4;
  latent.head_dim = 24;
  latent.rope.dimensions = 8;
  latent.latent = {0, 32, 16, 16};
  AttentionConfig& delta = config.layers[2].attention;
  delta.kind = AttentionKind::kGatedDelta;
  delta.delta = {2, 4, 16, 8, 4};
  return config;
}

TEST(KvCacheTest, EachKindOfAttentionKeepsWhatItNeeds) {
  const ModelConfig config = OneOfEachKind();
  const uint64_t grouped = 2 * 32 * 2 * 16 * sizeof(float);
  const uint64_t latent = 32 * (32 + 8) * sizeof(float);
  EXPECT_EQ(KvBytesPerPage(config, KvType::kF32), grouped + latent);
  auto backend = CreateReferenceBackend({});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto cache = KvCache::Create(config, KvType::kF32, 3, 1, 64, backend->get());
  ASSERT_TRUE(cache.ok()) << cache.status();
  const KvView& row = (*cache)->view(1);
  EXPECT_EQ(row.kv_heads, 1u);
  EXPECT_EQ(row.head_dim, 40u);
  EXPECT_EQ(row.value_dim, 32u);
  EXPECT_EQ(row.k.offset, row.v.offset);
  EXPECT_EQ(row.k.offset, 3 * grouped);
  EXPECT_EQ((*cache)->view(2).page_stride, 0u);
}

TEST(KvCacheTest, IndexKeysArePartOfEveryPage) {
  ModelConfig config = OneOfEachKind();
  const uint64_t others = KvBytesPerPage(config, KvType::kQ8);
  IndexConfig& index = config.layers[1].attention.index;
  index = {.heads = 3, .head_dim = 10, .top = 4, .weighted = true};
  const uint64_t keys = 32 * (10 + 4);  // codes and a scale
  EXPECT_EQ(KvBytesPerPage(config, KvType::kQ8), others + keys);
  auto backend = CreateReferenceBackend({});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto cache = KvCache::Create(config, KvType::kQ8, 3, 1, 64, backend->get());
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ((*cache)->page_bytes(), others + keys);
  EXPECT_EQ((*cache)->index_view(0).page_stride, 0u);
  const KvView& view = (*cache)->index_view(1);
  EXPECT_EQ(view.page_stride, keys);
  EXPECT_EQ(view.kv_heads, 1u);
  EXPECT_EQ(view.k, view.v);
  std::byte* pages = (*backend)->HostWrite(view.k, 3 * keys);
  ASSERT_NE(pages, nullptr);
  std::fill_n(pages, 3 * keys, std::byte{1});
  std::fill_n(pages + 2 * keys, keys, std::byte{7});
  ASSERT_TRUE((*cache)->CopyPage(2, 0, &(*backend)->queue()).ok());
  EXPECT_TRUE(std::all_of(pages, pages + keys, [](std::byte b) { return b == std::byte{7}; }));
  EXPECT_EQ(pages[keys], std::byte{1});
  index.shared = true;
  EXPECT_EQ(KvBytesPerPage(config, KvType::kQ8), others);
}

TEST(KvCacheTest, ACopiedPageHoldsTheSameInEveryLayer) {
  const ModelConfig config = OneOfEachKind();
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8}) {
    auto backend = CreateReferenceBackend({});
    ASSERT_TRUE(backend.ok()) << backend.status();
    const auto cache = KvCache::Create(config, type, 3, 1, 64, backend->get());
    ASSERT_TRUE(cache.ok()) << cache.status();
    for (uint32_t layer = 0; layer < 2; ++layer) {  // the third layer keeps nothing
      const KvView& view = (*cache)->view(layer);
      for (const BufferRef place : {view.k, view.v}) {
        const uint64_t stride = view.page_stride;
        std::byte* pages = (*backend)->HostWrite(place, 3 * stride);
        ASSERT_NE(pages, nullptr);
        std::fill_n(pages, stride, std::byte{1});
        std::fill_n(pages + stride, stride, std::byte{2});
        std::fill_n(pages + 2 * stride, stride, static_cast<std::byte>(16 * (layer + 1)));
      }
    }
    ASSERT_TRUE((*cache)->CopyPage(2, 1, &(*backend)->queue()).ok());
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const KvView& view = (*cache)->view(layer);
      for (const BufferRef place : {view.k, view.v}) {
        const std::byte* pages = (*backend)->HostRead(place, 3 * view.page_stride);
        for (uint64_t i = 0; i < 2 * view.page_stride; ++i) {
          ASSERT_EQ(pages[i], i < view.page_stride ? std::byte{1} : static_cast<std::byte>(16 * (layer + 1)));
        }
      }
    }
  }
}

TEST(RecurrentStatesTest, KeptStateIsNotWrittenUntilDropped) {
  auto backend = CreateReferenceBackend({});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto states = RecurrentStates::Create(OneOfEachKind(), 2, /*kept=*/1, backend->get());
  ASSERT_TRUE(states.ok()) << states.status();
  EXPECT_EQ((*states)->view(2).slots, 5u);
  (*states)->Commit(0);
  const uint32_t kept = (*states)->Keep(0);
  EXPECT_EQ(kept, (*states)->slots(0).from);
  for (int step = 0; step < 5; ++step) {
    (*states)->Commit(0);
    (*states)->Commit(1);
    for (const uint32_t sequence : {0u, 1u}) {
      EXPECT_NE((*states)->slots(sequence).from, kept);
      EXPECT_NE((*states)->slots(sequence).to, kept);
      EXPECT_NE((*states)->slots(sequence).to, (*states)->slots(1 - sequence).to);
    }
  }
  (*states)->Adopt(0, kept);
  (*states)->Adopt(1, kept);
  (*states)->Drop(kept);
  EXPECT_EQ((*states)->slots(0).from, kept);
  EXPECT_EQ((*states)->slots(1).from, kept);
  (*states)->Commit(0);
  const uint32_t other = (*states)->Keep(0);
  for (int step = 0; step < 5; ++step) {
    EXPECT_NE((*states)->slots(0).to, kept) << "sequence 1 still begins with it";
    EXPECT_NE((*states)->slots(0).to, other);
    (*states)->Commit(0);
  }
}

TEST(RecurrentStatesTest, StepsAlternateBetweenTheTwoSlots) {
  auto backend = CreateReferenceBackend({});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto states = RecurrentStates::Create(OneOfEachKind(), 2, /*kept=*/0, backend->get());
  ASSERT_TRUE(states.ok()) << states.status();
  // 3 rows of 2 * 2 * 16 + 4 * 8 values for the convolution, 4 * 16 * 8 of state.
  EXPECT_EQ((*states)->view(2).slot_stride, (3 * 96 + 512) * sizeof(float));
  EXPECT_EQ((*states)->view(2).slots, 4u);
  EXPECT_EQ((*states)->view(0).slots, 0u);
  EXPECT_EQ(StateBytesPerSequence(OneOfEachKind()), 2 * (3 * 96 + 512) * sizeof(float));
  const StateSlots first = (*states)->slots(1);
  EXPECT_NE(first.from, first.to);
  EXPECT_EQ((*states)->slots(1).to, first.to);  // until the step is committed
  (*states)->Commit(1);
  EXPECT_EQ((*states)->slots(1).from, first.to);
  EXPECT_EQ((*states)->slots(1).to, first.from);
  for (const uint32_t slot : {(*states)->slots(0).from, (*states)->slots(0).to}) {
    EXPECT_NE(slot, first.from);
    EXPECT_NE(slot, first.to);
  }
}

}  // namespace
}  // namespace sluice::inferd
