#include "weightd/store/prefaulter.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace sluice::weightd {
namespace {

size_t PresentPages(const Mapping& map) {
  std::vector<unsigned char> present((map.bytes() + 4095) / 4096);
  EXPECT_EQ(mincore(map.data(), map.bytes(), present.data()), 0);
  return static_cast<size_t>(
      std::count_if(present.begin(), present.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST(PrefaulterTest, PopulatesEveryPageAndKeepsContent) {
  Prefaulter prefaulter(2);
  std::vector<std::shared_ptr<const SharedMemory>> segments;
  for (uint64_t bytes : {uint64_t{4096}, uint64_t{340 * 1024}, uint64_t{5 * 1024 * 1024 + 8192}}) {
    auto memory = CreateSharedMemory("segment", bytes, PeerAccess::kReadOnly);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory->map.data()[bytes - 1] = std::byte{7};
    memory->map.data()[bytes / 2] = std::byte{8};
    segments.push_back(std::make_shared<const SharedMemory>(*std::move(memory)));
    prefaulter.Add(segments.back());
  }
  prefaulter.WaitIdle();
  for (const auto& segment : segments) {
    const uint64_t bytes = segment->map.bytes();
    EXPECT_EQ(PresentPages(segment->map), bytes / 4096);
    EXPECT_EQ(segment->map.data()[bytes - 1], std::byte{7});
    EXPECT_EQ(segment->map.data()[bytes / 2], std::byte{8});
    EXPECT_EQ(segment->map.data()[1], std::byte{0});
  }
}

// Several threads write at once what they ensured before, behind and ahead of the prefaulter's own.
TEST(PrefaulterTest, EnsuredMemoryHasItsPages) {
  constexpr uint64_t kBytes = 64ull << 20;
  constexpr uint64_t kPiece = 3ull << 20;
  Prefaulter prefaulter(1);
  auto made = CreateSharedMemory("segment", kBytes, PeerAccess::kReadOnly);
  ASSERT_TRUE(made.ok()) << made.status();
  const auto segment = std::make_shared<const SharedMemory>(*std::move(made));
  prefaulter.Add(segment);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t at = (3 - t) * kPiece; at + kPiece <= kBytes; at += 4 * kPiece) {
        std::byte* const start = segment->map.data() + at;
        prefaulter.Ensure(start, kPiece);
        std::vector<unsigned char> present(kPiece / 4096);
        EXPECT_EQ(mincore(start, kPiece, present.data()), 0);
        EXPECT_EQ(std::count(present.begin(), present.end(), 1), static_cast<int64_t>(present.size()));
        std::fill_n(start, kPiece, static_cast<std::byte>(t + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  prefaulter.WaitIdle();
  EXPECT_EQ(PresentPages(segment->map), kBytes / 4096);
  EXPECT_EQ(segment->map.data()[0], std::byte{4});
  EXPECT_EQ(segment->map.data()[kPiece], std::byte{3});
}

TEST(PrefaulterTest, DroppedSegmentsStayMappedWhileInUse) {
  Prefaulter prefaulter(1);
  for (int i = 0; i < 20; ++i) {
    auto memory = CreateSharedMemory("segment", 2 * 1024 * 1024, PeerAccess::kReadOnly);
    ASSERT_TRUE(memory.ok()) << memory.status();
    prefaulter.Add(std::make_shared<const SharedMemory>(*std::move(memory)));
  }
  prefaulter.WaitIdle();
}

}  // namespace
}  // namespace sluice::weightd
