// The clients notified of a segment, and the end of a retired one: a tier, sessions on socket pairs, no core.
#include "weightd/engine/segment_notices.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/fakes/fake_clock.h"
#include "tests/support/fakes/fake_extent_source.h"

namespace sluice::weightd {
namespace {

constexpr uint64_t kSmall = 64 * 1024;
constexpr uint64_t kLarge = 4 * kSmall;  // the whole budget: no segment of small ones can become one
constexpr ExtentId kLargeId = 2;

class SegmentNoticesTest : public ::testing::Test {
 protected:
  SegmentNoticesTest()
      : poller_(*Poller::Create()),
        small_(2),
        large_(1),
        tier_({.budget = kLarge, .max_segment_bytes = kLarge, .min_segments = 1},
              {[this](uint32_t segment, const auto& memory) { notices_.OnAdded(segment, memory); },
               [this](uint32_t segment) { notices_.OnRetired(segment); }}),
        fetcher_({}, &tier_, &reader_, &clock_,
                 {[](uint64_t, const CompletionEntry&, std::vector<ExtentId>) {}}),
        side_(/*boot_epoch=*/77, &poller_, &tier_.store(), &sessions_) {
    tier_.AddPack({kSmall, kSmall}, small_.data());
    tier_.AddPack({kLarge}, large_.data());
  }

  struct Client {
    Session* session = nullptr;
    UniqueFd socket;

    // The type of the next message and its segment; none if there is none.
    std::optional<std::pair<SideType, uint32_t>> Next() {
      const auto packet = ReceiveSideMessage(socket.get());
      if (!packet.ok()) return std::nullopt;
      return std::pair(packet->message.type, packet->message.segment);
    }
  };
  Client Join() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    Session::Options options;
    options.id = sessions_.NewId();
    options.packs = {SessionPackPlan{0, &source_, ends[0]}};  // any descriptor does for a table
    Client client{sessions_.Add(*Session::Create(std::move(options))), UniqueFd(ends[0])};
    EXPECT_TRUE(side_.Join(client.session, UniqueFd(ends[1])).ok());
    EXPECT_EQ(client.Next()->first, SideType::kWelcome);
    return client;
  }
  DramTier::AllocResult Fill(ExtentId extent_id) {
    tier_.Tick();
    std::byte* dest = nullptr;
    const DramTier::AllocResult room = tier_.BeginFill(extent_id, &dest);
    if (room == DramTier::AllocResult::kAllocated) tier_.Publish(extent_id);
    return room;
  }

  FakeClock clock_;
  FakeBlockReader reader_{FakeBlockReader::Mode::kManual};
  FakeExtentSource source_{{}};
  StoreLog log_;
  SessionTable sessions_{&log_};
  Poller poller_;
  std::vector<ResidencyEntry> small_;
  std::vector<ResidencyEntry> large_;
  DramTier tier_;
  Fetcher fetcher_;
  SideSockets side_;
  SegmentNotices notices_{
      {.slow_nanos = 10, .lost_nanos = 100}, &tier_, &fetcher_, &sessions_, &side_, &clock_};
};

using Messages = std::pair<SideType, uint32_t>;

TEST_F(SegmentNoticesTest, NewClientGetsEverySegmentThenReady) {
  ASSERT_EQ(Fill(0), DramTier::AllocResult::kAllocated);
  const uint32_t segment = tier_.arena().Mapped().front().first;
  Client client = Join();
  notices_.Welcome(client.session);
  EXPECT_EQ(client.Next(), Messages(SideType::kSegmentAdded, segment));
  EXPECT_EQ(client.Next()->first, SideType::kReady);
  EXPECT_FALSE(client.Next().has_value());
}

TEST_F(SegmentNoticesTest, ANewSegmentIsAnnouncedToAllBeforeItIsUsed) {
  Client one = Join();
  Client other = Join();
  ASSERT_EQ(Fill(0), DramTier::AllocResult::kAllocated);
  const Messages added(SideType::kSegmentAdded, tier_.arena().Mapped().front().first);
  EXPECT_EQ(one.Next(), added);
  EXPECT_EQ(other.Next(), added);
}

TEST_F(SegmentNoticesTest, RetiredSegmentIsDroppedWithItsLastMapping) {
  Client one = Join();
  Client other = Join();
  ASSERT_EQ(Fill(0), DramTier::AllocResult::kAllocated);
  const uint32_t segment = one.Next()->second;
  other.Next();
  // The large extent has no room beside the small ones' segment.
  EXPECT_EQ(Fill(kLargeId), DramTier::AllocResult::kRetiring);
  EXPECT_EQ(one.Next(), Messages(SideType::kSegmentRetired, segment));
  EXPECT_EQ(other.Next(), Messages(SideType::kSegmentRetired, segment));
  notices_.OnUnmapped(one.session->id(), segment);
  EXPECT_NE(tier_.arena().memory(segment), nullptr) << "the other one still reads it";
  notices_.OnSessionEnd(other.session->id());
  EXPECT_EQ(tier_.arena().memory(segment), nullptr);
  EXPECT_EQ(Fill(kLargeId), DramTier::AllocResult::kAllocated);
}

TEST_F(SegmentNoticesTest, WithoutClientsSegmentIsDroppedAtOnce) {
  ASSERT_EQ(Fill(0), DramTier::AllocResult::kAllocated);
  EXPECT_EQ(Fill(kLargeId), DramTier::AllocResult::kAllocated);
  EXPECT_EQ(tier_.arena().retired_bytes(), 0u);
}

TEST_F(SegmentNoticesTest, UnsentNoticesAreWithdrawn) {
  Client client = Join();
  const auto filler = side_.Message(SideType::kReady, *client.session);
  for (int i = 0; i < 100'000 && client.session->out.empty(); ++i)
    side_.Send(client.session, filler, nullptr);
  ASSERT_FALSE(client.session->out.empty()) << "no socket takes everything";
  ASSERT_EQ(Fill(0), DramTier::AllocResult::kAllocated);
  EXPECT_EQ(Fill(kLargeId), DramTier::AllocResult::kAllocated) << "nobody has the first segment mapped";
  std::vector<uint32_t> heard;
  while (true) {
    const auto next = client.Next();
    if (next.has_value() && next->first == SideType::kSegmentAdded) heard.push_back(next->second);
    if (next.has_value()) continue;
    if (client.session->out.empty()) break;
    side_.Flush(client.session);
  }
  EXPECT_EQ(heard, std::vector<uint32_t>{tier_.arena().Mapped().front().first});
}

TEST_F(SegmentNoticesTest, ClientThatUnmapsLateIsSlowFromItsTimeout) {
  Client client = Join();
  ASSERT_EQ(Fill(0), DramTier::AllocResult::kAllocated);
  const uint32_t segment = client.Next()->second;
  const int64_t retired = clock_.NowNanos();
  EXPECT_EQ(Fill(kLargeId), DramTier::AllocResult::kRetiring);
  EXPECT_EQ(notices_.NextSlow(retired), retired + 10);
  EXPECT_EQ(notices_.NextSlow(retired + 10), 0) << "it is slow already";
  notices_.OnUnmapped(client.session->id(), segment);
  EXPECT_EQ(notices_.NextSlow(retired), 0);
}

}  // namespace
}  // namespace sluice::weightd
