// Transfers from the ring to the completion: fills, pins, joining, cancelling, lies, deaths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "common/ring/side_channel.h"
#include "common/transfer/slab.h"
#include "common/transfer/transfer_engine.h"
#include "tests/weightd/core/core_fixture.h"

namespace sluice {
namespace {

using ::testing::SizeIs;

constexpr uint64_t kRowBytes = 256;
constexpr uint32_t kWidth = kPart / kRowBytes;
constexpr uint32_t kSlabNumber = 5;

class TransferSessionTest : public CoreTest {
 protected:
  TransferSessionTest() { transfers_ = &engine_; }

  struct Peer {
    uint64_t session = 0;
    std::unique_ptr<LocalClient> client;
    SharedMemory memory;
  };
  Peer Join(const LinkRate& rate = {}) {
    Peer peer;
    peer.session = OpenSession();
    peer.client = std::make_unique<LocalClient>(Client(peer.session));
    peer.memory = *CreateSharedMemory("slab", 8 * kExpert, PeerAccess::kReadWrite);
    std::memset(peer.memory.map.data(), 0, peer.memory.map.bytes());
    auto slab = HostSlab::Map(peer.memory.fd.get(), peer.memory.map.bytes());
    EXPECT_TRUE(slab.ok()) << slab.status();
    slabs_.push_back(*slab);
    EXPECT_TRUE(core_->AddSlab(peer.session, kSlabNumber, *std::move(slab), rate).ok());
    return peer;
  }
  static SubmissionEntry Transfer(uint64_t id, uint32_t layer, uint32_t expert, uint64_t at = 0,
                                  RequestClass request_class = RequestClass::kDemand) {
    SubmissionEntry entry = LocalClient::FillExpert(id, layer, expert);
    entry.opcode = Opcode::kTransfer;
    entry.request_class = request_class;
    entry.slab = kSlabNumber;
    for (uint64_t part = 0; part < kPartCount; ++part) {
      entry.base[part] = at + part * kPart;
      entry.stride[part] = kRowBytes;
    }
    return entry;
  }
  static SubmissionEntry Prefetch(uint64_t id, uint64_t step, uint32_t layer, uint32_t expert, uint64_t at) {
    SubmissionEntry entry = Transfer(id, layer, expert, at, RequestClass::kPrefetch);
    entry.step = step;
    return entry;
  }
  static SubmissionEntry Cancel(uint64_t id, uint64_t target) {
    SubmissionEntry entry = LocalClient::Plain(id, Opcode::kCancel);
    entry.target = target;
    return entry;
  }
  // Rounds of the core and the engine until neither moves; the modelled links stand still with the clock.
  void Settle() {
    do {
      Pump();
      while (engine_.Step()) {
      }
    } while (engine_.HasEvents());
    Pump();
  }
  void Arrivals() {
    Settle();
    while (engine_.NextArrival() != 0) {
      clock_.Advance(std::max<int64_t>(0, engine_.NextArrival() - clock_.NowNanos()));
      Settle();
    }
  }
  void Read() {
    reader_.CompleteAll();
    Settle();
  }
  bool Holds(const Peer& peer, uint32_t layer, uint32_t expert, uint64_t at = 0) const {
    bool right = true;
    for (uint32_t part = 0; part < kPartCount; ++part) {
      right = right && source_->BytesAreRight(source_->FirstExpertExtent(layer, expert) + part,
                                              {peer.memory.map.data() + at + part * kPart, kPart});
    }
    return right;
  }

  TransferEngine engine_{{.threads = 0}, &clock_, [] {}};
  std::vector<std::weak_ptr<Slab>> slabs_;
};

TEST_F(TransferSessionTest, ATransferIsAFillAndACopyAndHoldsNothingAfterwards) {
  Start(8 * kExpert);
  Peer peer = Join();
  peer.client->Submit(Transfer(1, 2, 3));
  Settle();
  EXPECT_THAT(reader_.waiting(), SizeIs(3));
  EXPECT_FALSE(Next(peer.client.get()));
  Read();
  const auto done = Next(peer.client.get());
  EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
  EXPECT_EQ(done->bytes, kExpert);
  EXPECT_EQ(done->link_bytes, kExpert);
  EXPECT_TRUE(Holds(peer, 2, 3));
  // Once more: from memory, and everything may be evicted for other experts.
  peer.client->Submit(Transfer(2, 2, 3, kExpert));
  Settle();
  EXPECT_EQ(Next(peer.client.get())->bytes, 0u);
  EXPECT_TRUE(Holds(peer, 2, 3, kExpert));
  for (uint32_t expert = 0; expert < 8; ++expert) {
    peer.client->Submit(Transfer(10 + expert, 0, expert));
    Settle();
    Read();
    EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk) << expert;
    EXPECT_TRUE(Holds(peer, 0, expert));
  }
  EXPECT_EQ(core_->Stats().transfers, 10u);
  EXPECT_EQ(core_->Stats().link_bytes, 10 * kExpert);
}

TEST_F(TransferSessionTest, AnExtentIsCopiedWholeAndHeldByNobodyAfterwards) {
  Start(8 * kExpert);
  Peer peer = Join();
  const uint32_t extent = ExpertGid(1, 2) + 1;
  const auto whole = [&](uint64_t id, uint64_t at) {
    SubmissionEntry entry = LocalClient::FillExtent(id, extent);
    entry.opcode = Opcode::kTransferExtent;
    entry.slab = kSlabNumber;
    entry.base[0] = at;
    return entry;
  };
  peer.client->Submit(whole(1, 4096));
  peer.client->Submit(whole(2, 4096));  // the very same: it joins
  Settle();
  EXPECT_THAT(reader_.waiting(), SizeIs(1));
  Read();
  uint64_t link_bytes = 0;
  for (int i = 0; i < 2; ++i) {
    const auto done = Next(peer.client.get());
    EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
    link_bytes += done->link_bytes;
  }
  EXPECT_EQ(link_bytes, kPart);
  EXPECT_TRUE(source_->BytesAreRight(extent, {peer.memory.map.data() + 4096, kPart}));
  peer.client->Submit(whole(3, 8 * kExpert - kPart + 1));
  Settle();
  const auto beyond = Next(peer.client.get());
  EXPECT_EQ(CodeOf(beyond), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(beyond->field, EntryField::kBase);
  for (uint32_t expert = 0; expert < 8; ++expert) {
    peer.client->Submit(LocalClient::FillExpert(10 + expert, 0, expert));
    Settle();
    Read();
    EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk) << expert;
  }
  EXPECT_FALSE(peer.client->Resident(extent)) << "nothing holds it";
}

// What a hostile client may offer on the side socket, and what it is told. The session lives on each time.
TEST_F(TransferSessionTest, OffersThatLieAreRefusedByName) {
  Start(8 * kExpert);
  Peer stranger = Join();
  stranger.client->Submit(Transfer(1, 0, 0));  // so that there is a segment
  Settle();
  Read();
  const uint64_t session = OpenSession();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd client(ends[1]);
  ASSERT_TRUE(core_->AttachSideSocket(session, UniqueFd(ends[0])).ok());
  const SidePacket welcome = *ReceiveSideMessage(client.get());
  std::vector<SidePacket> segments;
  for (auto packet = ReceiveSideMessage(client.get()); packet.ok();
       packet = ReceiveSideMessage(client.get())) {
    if (packet->message.type == SideType::kSegmentAdded) {
      segments.push_back(*std::move(packet));
    }
  }
  ASSERT_FALSE(segments.empty());
  const auto memory = [](uint64_t bytes) {
    SharedMemory made = *CreateSharedMemory("slab", bytes, PeerAccess::kReadWrite);
    std::memset(made.map.data(), 1, made.map.bytes());
    return made;
  };
  const auto offer = [&](uint32_t number, int fd, uint64_t bytes, uint8_t kind, DeviceUuid device = {}) {
    SideMessage message;
    message.type = SideType::kSlabOffered;
    message.session = session;
    message.slab = number;
    message.bytes = bytes;
    message.handle_kind = kind;
    message.device = device;
    EXPECT_TRUE(SendSideMessage(client.get(), message, {&fd, 1}).ok());
    HandleEvents();
    Settle();
    const auto answer = ReceiveSideMessage(client.get());
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->message.type, SideType::kSlabMapped);
    EXPECT_EQ(answer->message.slab, number);
    return static_cast<absl::StatusCode>(answer->message.code);
  };
  const auto file = static_cast<uint8_t>(HandleKind::kMemoryFile);
  const auto cuda = static_cast<uint8_t>(HandleKind::kCudaFd);
  const SharedMemory good = memory(64 * 1024);
  const SharedMemory other = memory(64 * 1024);
  const int fd = good.fd.get();
  for (const int kind : {0, 3, 255}) {
    EXPECT_EQ(offer(1, fd, 64 * 1024, static_cast<uint8_t>(kind)), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(offer(1, fd, 64 * 1024, cuda), absl::StatusCode::kUnimplemented) << "no copier of that kind";
  EXPECT_EQ(offer(1, fd, 64 * 1024, file, {1}), absl::StatusCode::kInvalidArgument) << "a file on a device";
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4096}, uint64_t{68 * 1024}, ~uint64_t{0}}) {
    EXPECT_EQ(offer(1, fd, bytes, file), absl::StatusCode::kInvalidArgument) << bytes;
  }
  EXPECT_EQ(offer(kNoSlab, fd, 64 * 1024, file), absl::StatusCode::kAlreadyExists);
  // Weightd's own files: what it holds, and what it gave this session.
  EXPECT_EQ(offer(1, segments[0].fds[0].get(), segments[0].message.bytes, file),
            absl::StatusCode::kInvalidArgument);
  for (const size_t region : {WelcomeFds::kControl, WelcomeFds::Residency(0), WelcomeFds::Pins(0)}) {
    struct stat info;
    ASSERT_EQ(fstat(welcome.fds[region].get(), &info), 0);
    // Its pages must be there for the offer to come so far.
    const auto map = MapSharedMemory(welcome.fds[region].get(), static_cast<uint64_t>(info.st_size),
                                     /*writable=*/false, /*populate=*/true);
    ASSERT_TRUE(map.ok()) << map.status();
    const absl::StatusCode code =
        offer(1, welcome.fds[region].get(), static_cast<uint64_t>(info.st_size), file);
    EXPECT_TRUE(code == absl::StatusCode::kPermissionDenied || code == absl::StatusCode::kInvalidArgument)
        << region << ": " << static_cast<int>(code);
    if (region == WelcomeFds::Pins(0)) {
      EXPECT_EQ(code, absl::StatusCode::kPermissionDenied);
    }
  }
  // Pipes, sockets and bells are no memory.
  EXPECT_EQ(offer(1, welcome.fds[WelcomeFds::kServerBell].get(), 4096, file),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(offer(1, fd, 64 * 1024, file), absl::StatusCode::kOk) << "the session lives on";
  EXPECT_EQ(offer(1, other.fd.get(), 64 * 1024, file), absl::StatusCode::kAlreadyExists) << "its number";
  EXPECT_EQ(offer(2, fd, 64 * 1024, file), absl::StatusCode::kPermissionDenied) << "its file";
  EXPECT_EQ(offer(2, stranger.memory.fd.get(), stranger.memory.map.bytes(), file),
            absl::StatusCode::kPermissionDenied)
      << "somebody else's file";
  EXPECT_EQ(offer(2, other.fd.get(), 64 * 1024, file), absl::StatusCode::kOk);
  EXPECT_EQ(core_->Stats().sessions_lost, 0u);
}

TEST_F(TransferSessionTest, AnOfferWithoutItsDescriptorEndsThatSessionAlone) {
  Start(8 * kExpert);
  Peer other = Join();
  uint64_t lost = 0;
  for (const HandleKind kind : {HandleKind::kMemoryFile, HandleKind::kCudaFd}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd client(ends[1]);
    SideMessage message;
    message.type = SideType::kSlabOffered;
    message.session = OpenSession();
    message.slab = 1;
    message.bytes = 64 * 1024;
    message.handle_kind = static_cast<uint8_t>(kind);
    ASSERT_TRUE(core_->AttachSideSocket(message.session, UniqueFd(ends[0])).ok());
    ASSERT_TRUE(SendSideMessage(client.get(), message, {}).ok());
    HandleEvents();
    Settle();
    EXPECT_EQ(core_->Stats().sessions_lost, ++lost);
  }
  other.client->Submit(Transfer(1, 2, 3));
  Settle();
  Read();
  EXPECT_EQ(CodeOf(Next(other.client.get())), absl::StatusCode::kOk);
  EXPECT_TRUE(Holds(other, 2, 3));
}

TEST_F(TransferSessionTest, TwoSessionsShareOneReadAndGetEachTheirOwnCopy) {
  Start(8 * kExpert);
  Peer a = Join();
  Peer b = Join(MakeLinkRate(1, 10));
  a.client->Submit(Transfer(1, 1, 1));
  b.client->Submit(Transfer(1, 1, 1, 4096));
  Settle();
  EXPECT_THAT(reader_.waiting(), SizeIs(3));
  Read();
  EXPECT_EQ(CodeOf(Next(a.client.get())), absl::StatusCode::kOk);
  EXPECT_FALSE(Next(b.client.get())) << "its link has not delivered yet";
  Arrivals();
  EXPECT_EQ(CodeOf(Next(b.client.get())), absl::StatusCode::kOk);
  EXPECT_TRUE(Holds(a, 1, 1));
  EXPECT_TRUE(Holds(b, 1, 1, 4096));
}

TEST_F(TransferSessionTest, SourcesStayWhileTheyAreCopied) {
  Start(3 * kExpert);
  Peer peer = Join(MakeLinkRate(0.001, 0));
  peer.client->Submit(Transfer(1, 0, 0));
  peer.client->Submit(Transfer(2, 0, 1, kExpert));
  Settle();
  Read();
  peer.client->Submit(LocalClient::FillExpert(3, 0, 2));
  Settle();
  Read();
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk);
  peer.client->Submit(LocalClient::FillExpert(4, 0, 3));
  peer.client->Submit(LocalClient::FillExpert(5, 0, 4));
  Settle();
  Read();
  Settle();
  EXPECT_TRUE(peer.client->Resident(ExpertGid(0, 0)));
  EXPECT_TRUE(peer.client->Resident(ExpertGid(0, 1)));
  Arrivals();
  EXPECT_TRUE(Holds(peer, 0, 0));
  EXPECT_TRUE(Holds(peer, 0, 1, kExpert));
}

TEST_F(TransferSessionTest, ADemandJoinsThePrefetchOfTheSameRowsAndMovesItUp) {
  Start(20 * kExpert);
  Peer peer = Join(MakeLinkRate(1, 0));
  // While it waits for the disk, and while it is copied.
  for (uint64_t round = 0; round < 2; ++round) {
    const uint64_t id = 10 * round;
    const auto expert = static_cast<uint32_t>(round);
    peer.client->Submit(Prefetch(id + 1, 1, 0, expert, 0));
    peer.client->Submit(Prefetch(id + 2, 1, 1, expert, kExpert));
    Settle();
    if (round == 1) {
      Read();
    }
    peer.client->Submit(Transfer(id + 3, 1, expert, kExpert));
    Settle();
    Read();
    Arrivals();
    std::vector<uint64_t> ids;
    uint64_t link_bytes = 0;
    while (const auto done = Next(peer.client.get())) {
      EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
      ids.push_back(done->id);
      link_bytes += done->link_bytes;
    }
    ASSERT_THAT(ids, SizeIs(3)) << "each completes once";
    if (round == 0) {
      EXPECT_EQ(ids.back(), id + 1) << "the prefetch that nobody waits for comes last";
    }
    EXPECT_EQ(link_bytes, 2 * kExpert) << "one copy serves both";
    EXPECT_TRUE(Holds(peer, 1, expert, kExpert));
  }
}

TEST_F(TransferSessionTest, StalePrefetchesEndUncopiedWhereverTheyAre) {
  Start(40 * kExpert);
  Peer peer = Join(MakeLinkRate(1, 0));
  peer.client->Submit(Prefetch(1, 1, 0, 0, 0));
  Settle();
  Read();  // its first chunk travels
  peer.client->Submit(Prefetch(2, 1, 0, 1, kExpert));
  Settle();
  Read();  // waits for the link
  peer.client->Submit(Prefetch(3, 1, 0, 2, 2 * kExpert));
  Settle();  // is being read
  peer.client->Submit(Prefetch(4, 1, 2, 3, 3 * kExpert));
  Settle();  // of a later layer
  SubmissionEntry stale = LocalClient::Plain(5, Opcode::kCancelPrefetches);
  stale.step = 1;
  stale.layer = 1;
  peer.client->Submit(stale);
  Settle();
  Read();
  Arrivals();
  std::map<uint64_t, CompletionEntry> done;
  while (const auto next = Next(peer.client.get())) {
    done[next->id] = *next;
  }
  ASSERT_EQ(done.size(), 5u);
  EXPECT_EQ(done[5].bytes, 2u) << "as many as were cancelled";
  EXPECT_EQ(done[1].code, static_cast<uint16_t>(absl::StatusCode::kOk)) << "it had begun";
  EXPECT_EQ(done[2].code, static_cast<uint16_t>(absl::StatusCode::kCancelled));
  EXPECT_EQ(done[3].code, static_cast<uint16_t>(absl::StatusCode::kCancelled));
  EXPECT_EQ(done[3].link_bytes, 0u);
  EXPECT_EQ(done[4].code, static_cast<uint16_t>(absl::StatusCode::kOk));
}

TEST_F(TransferSessionTest, CancelEndsOneRequestInEveryState) {
  Start(40 * kExpert);
  Peer peer = Join(MakeLinkRate(1, 0));
  peer.client->Submit(Transfer(1, 0, 0));
  Settle();
  peer.client->Submit(Cancel(2, 1));  // being read
  Settle();
  EXPECT_EQ(Next(peer.client.get())->id, 1u);
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk);
  peer.client->Submit(Transfer(3, 0, 1));
  peer.client->Submit(Transfer(4, 0, 2, kExpert));
  Settle();
  Read();
  peer.client->Submit(Cancel(5, 4));
  peer.client->Submit(Cancel(6, 77));
  Settle();
  Arrivals();
  std::map<uint64_t, absl::StatusCode> codes;
  while (const auto next = Next(peer.client.get())) {
    codes[next->id] = CodeOf(next);
  }
  EXPECT_EQ(codes[3], absl::StatusCode::kOk);
  EXPECT_EQ(codes[6], absl::StatusCode::kNotFound);
  EXPECT_TRUE(codes.contains(4));
  EXPECT_EQ(core_->Stats().transfers_waiting, 0u);
}

TEST_F(TransferSessionTest, AListIsReadOnceAndLiesAreAnsweredByName) {
  Start(8 * kExpert);
  Peer peer = Join();
  auto* list = peer.client->session().control.list;
  const std::vector<uint32_t> neurons = {0, 3, 4, 5, kWidth - 1};
  for (size_t i = 0; i < neurons.size(); ++i) {
    list[100 + i] = neurons[i];
  }
  SubmissionEntry entry = Transfer(1, 0, 0);
  entry.list_offset = 100;
  entry.list_count = static_cast<uint32_t>(neurons.size());
  peer.client->Submit(entry);
  Settle();
  for (size_t i = 0; i < neurons.size(); ++i) {
    list[100 + i] = 0xffffffff;  // too late to matter
  }
  Read();
  const auto done = Next(peer.client.get());
  EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
  EXPECT_EQ(done->link_bytes, neurons.size() * kRowBytes * 3);
  for (uint64_t part = 0; part < kPartCount; ++part) {
    for (size_t i = 0; i < neurons.size(); ++i) {
      EXPECT_TRUE(source_->BytesAreRight(ExpertGid(0, 0) + static_cast<uint32_t>(part),
                                         {peer.memory.map.data() + part * kPart + i * kRowBytes, kRowBytes},
                                         neurons[i] * kRowBytes));
    }
  }
  entry.id = 2;
  peer.client->Submit(entry);  // the list is nonsense by now
  entry.id = 3;
  entry.list_offset = peer.client->session().control.layout.list_entries - 1;
  peer.client->Submit(entry);  // and this one ends behind the arena
  SubmissionEntry beyond = Transfer(4, 0, 0, 8 * kExpert - kExpert + 1);
  peer.client->Submit(beyond);
  Settle();
  for (EntryField field : {EntryField::kList, EntryField::kList, EntryField::kStride}) {
    const auto refused = Next(peer.client.get());
    EXPECT_EQ(CodeOf(refused), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused->field, field);
  }
}

TEST_F(TransferSessionTest, ADeathInTheMiddleOfACopyStopsItAndFreesEverything) {
  Start(4 * kExpert);
  Peer victim = Join(MakeLinkRate(0.0001, 0));
  Peer other = Join();
  victim.client->Submit(Transfer(1, 0, 0));
  victim.client->Submit(Prefetch(2, 1, 0, 1, kExpert));
  Settle();
  Read();
  EXPECT_NE(engine_.NextArrival(), 0) << "chunks are on their way";
  core_->OnConnectionLost(victim.session);
  core_->OnProcessExit(victim.session);
  Settle();
  EXPECT_FALSE(slabs_[0].expired()) << "while something may still be written";
  Arrivals();
  EXPECT_TRUE(slabs_[0].expired());
  EXPECT_EQ(core_->Stats().transfers_waiting, 0u);
  for (uint32_t expert = 2; expert < 6; ++expert) {
    other.client->Submit(Transfer(expert, 0, expert));
    Settle();
    Read();
    EXPECT_EQ(CodeOf(Next(other.client.get())), absl::StatusCode::kOk) << "its sources are free again";
  }
}

TEST_F(TransferSessionTest, PrefetchesPinAtMostAQuarterOfTheMemory) {
  Start(8 * kExpert);
  Peer peer = Join(MakeLinkRate(0.0001, 0));
  for (uint32_t expert = 0; expert < 4; ++expert) {
    peer.client->Submit(Prefetch(1 + expert, 1, 0, expert, expert * kExpert));
    Settle();
    Read();
  }
  for (uint64_t id : {3, 4}) {
    const auto refused = Next(peer.client.get());
    EXPECT_EQ(CodeOf(refused), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(refused->id, id);
  }
  peer.client->Submit(Transfer(9, 1, 0, 5 * kExpert));
  Settle();
  Read();
  Arrivals();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk) << "a demand is not bounded by it";
  }
}

TEST_F(TransferSessionTest, AFailedFillIsTheTransfersFailure) {
  Start(8 * kExpert);
  Peer peer = Join();
  peer.client->Submit(Transfer(1, 0, 0));
  Settle();
  for (int attempt = 0; attempt < 2; ++attempt) {
    reader_.CompleteAs(ExpertGid(0, 0) + 1, ReadOutcome::kCorrupt, absl::DataLossError("flipped"));
    Settle();
  }
  Read();
  const auto done = Next(peer.client.get());
  EXPECT_EQ(CodeOf(done), absl::StatusCode::kDataLoss);
  EXPECT_EQ(done->extent, ExpertGid(0, 0) + 1);
  EXPECT_EQ(done->link_bytes, 0u);
}

TEST_F(TransferSessionTest, SlabNumbersAreUsedOnceAndBounded) {
  Start(8 * kExpert);
  Peer peer = Join();
  auto slab = HostSlab::Map(peer.memory.fd.get(), peer.memory.map.bytes());
  ASSERT_TRUE(slab.ok());
  EXPECT_EQ(core_->AddSlab(peer.session, kSlabNumber, *slab, {}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(core_->AddSlab(peer.session, kNoSlab, *slab, {}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(core_->AddSlab(999, 1, *slab, {}).code(), absl::StatusCode::kNotFound);
  for (uint32_t number = 100; number < 100 + kMaxSessionSlabs - 1; ++number) {
    EXPECT_TRUE(core_->AddSlab(peer.session, number, *slab, {}).ok());
  }
  EXPECT_EQ(core_->AddSlab(peer.session, 7, *slab, {}).code(), absl::StatusCode::kResourceExhausted);
}

// Two clients, everything at random, many seeds: each request completes once, what a completion calls OK is
// right, and nothing is left pinned.
TEST_F(TransferSessionTest, EveryRequestEndsOnceUnderRandomTraffic) {
  Start(12 * kExpert);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Peer> peers;
    peers.push_back(Join());
    peers.push_back(Join(MakeLinkRate(2, 10)));
    std::map<uint64_t, SubmissionEntry> open[2];
    uint64_t id = 0;
    const auto reap = [&](size_t p) {
      while (const auto done = Next(peers[p].client.get())) {
        auto found = open[p].find(done->id);
        ASSERT_NE(found, open[p].end()) << "seed " << seed;
        const SubmissionEntry entry = found->second;
        open[p].erase(found);
        if (entry.opcode == Opcode::kTransfer && CodeOf(done) == absl::StatusCode::kOk) {
          ASSERT_TRUE(Holds(peers[p], entry.layer, entry.expert, entry.base[0])) << "seed " << seed;
        }
      }
    };
    for (int event = 0; event < 300; ++event) {
      const size_t p = random() % 2;
      const uint64_t dice = random() % 10;
      SubmissionEntry entry;
      if (dice < 5 && open[p].size() < 30) {
        // Each place belongs to one expert, so that equal targets are equal rows.
        const auto expert = static_cast<uint32_t>(random() % 8);
        entry = Prefetch(++id, random() % 4, 1, expert, expert * kExpert);
        entry.request_class = random() % 2 == 0 ? RequestClass::kDemand : RequestClass::kPrefetch;
      } else if (dice == 5) {
        ++id;
        entry = Cancel(id, 1 + random() % id);
      } else if (dice == 6) {
        entry = LocalClient::Plain(++id, Opcode::kCancelPrefetches);
        entry.step = random() % 4;
        entry.layer = 1;
      } else if (dice == 7) {
        reader_.CompleteAll();
        continue;
      } else {
        clock_.Advance(static_cast<int64_t>(random() % 100'000));
        Settle();
        reap(p);
        continue;
      }
      open[p][entry.id] = entry;
      peers[p].client->Submit(entry);
      if (random() % 2 == 0) {
        Pump();
      }
    }
    for (int i = 0; i < 50; ++i) {
      Read();
      Arrivals();
      reap(0);
      reap(1);
    }
    EXPECT_TRUE(open[0].empty() && open[1].empty()) << "seed " << seed;
    EXPECT_EQ(core_->Stats().transfers_waiting, 0u);
    core_->OnProcessExit(peers[0].session);
    core_->OnProcessExit(peers[1].session);
    Settle();
  }
}

}  // namespace
}  // namespace sluice
