#include "tests/fuzz/session_targets.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/protocol/rings.h"
#include "common/protocol/shared_memory.h"
#include "common/protocol/side_channel.h"
#include "common/protocol/transfer_engine.h"
#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/fakes/fake_clock.h"
#include "tests/support/fakes/fake_extent_source.h"
#include "tests/support/local_client.h"
#include "weightd/engine/store_core.h"

namespace sluice {
namespace {

using fuzz::InputReader;
using fuzz::Require;

constexpr uint32_t kLayers = 2;
constexpr uint32_t kExperts = 4;
constexpr uint64_t kPartBytes = 4096;
constexpr uint64_t kSlabBytes = 64 << 10;
constexpr uint32_t kSlab = 5;

// The lowest free number of a descriptor: it rises if one is never closed.
int LowestFreeFd() {
  const UniqueFd probe(eventfd(0, EFD_CLOEXEC));
  return probe.get();
}

// weightd's core with room for all extents, an honest client and one that lies.
class World {
 public:
  World() : poller_(*weightd::Poller::Create()) {
    weightd::StoreCore::Options options;
    options.boot_epoch = 77;
    options.arena.budget = 1 << 20;
    weightd::StoreCore::Environment environment;
    environment.reader = &reader_;
    environment.clock = &clock_;
    environment.poller = &poller_;
    environment.transfers = &engine_;
    reader_.SetSink([this](weightd::ReadResult result) { reads_.push_back(std::move(result)); });
    core_ = std::make_unique<weightd::StoreCore>(options, environment);
    auto source = std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{
        .dense = {8192}, .layers = kLayers, .experts = kExperts, .part_bytes = kPartBytes});
    source_ = source.get();
    Require(core_->AddPack(std::move(source), {0}).ok(), "a pack is added");
    honest_session_ = Open();
    liar_session_ = Open();
    honest_ = std::make_unique<LocalClient>(*core_->Local(honest_session_));
  }

  weightd::StoreCore& core() { return *core_; }
  FakeBlockReader& reader() { return reader_; }
  FakeClock& clock() { return clock_; }
  uint64_t liar_session() const { return liar_session_; }

  // Rounds until nothing moves.
  void Settle() {
    for (int round = 0;; ++round) {
      Require(round < 10'000, "weightd comes to rest");
      bool moved = core_->Pump(std::exchange(reads_, {}));
      while (engine_.Step()) moved = true;
      if (engine_.NextArrival() != 0) {
        clock_.Advance(std::max<int64_t>(1, engine_.NextArrival() - clock_.NowNanos()));
        moved = true;
      }
      if (!moved && reads_.empty() && !engine_.HasEvents()) break;
    }
    core_->TakeLog();
  }
  void HandleEvents() {
    for (const weightd::PollEvent& event : poller_.Wait(0)) core_->HandleEvent(event);
    Settle();
  }
  void ReadAll() {
    for (int round = 0; !reader_.waiting().empty(); ++round) {
      Require(round < 1000, "reads come to an end");
      reader_.CompleteAll();
      Settle();
    }
  }

  // The honest client asks for an expert and gets the right bytes.
  void CheckHonest(uint32_t layer, uint32_t expert) {
    Require(honest_->Submit(LocalClient::FillExpert(++id_, layer, expert)) == RingResult::kOk,
            "a ring has room");
    HandleEvents();
    ReadAll();
    CompletionEntry entry;
    Require(honest_->Peek(&entry), "an honest request is completed");
    Require(entry.id == id_ && entry.code == 0, "an honest request succeeds");
    for (uint32_t part = 0; part < kPartCount; ++part) {
      const uint32_t extent = source_->FirstExpertExtent(layer, expert) + part;
      uint64_t place = 0;
      Require(honest_->Lease(extent, &place), "a filled extent can be leased");
      const std::byte* bytes = core_->SegmentData(PlaceSegment(place)) + PlaceOffset(place);
      Require(source_->BytesAreRight(extent, {bytes, kPartBytes}), "an honest client gets the right bytes");
      honest_->Release(extent, StepStamp(id_, 0));
    }
    honest_->Reap();
  }

  // Ends the liar's process and checks what remains.
  void End() {
    core_->OnProcessExit(liar_session_);
    Settle();
    ReadAll();
    CheckHonest(1, 1);
    Require(core_->Stats().sessions.size() == 1, "a session ends with its process");
    Require(core_->in_flight_bytes() == 0, "no read outlives its requests");
  }

 private:
  uint64_t Open() {
    weightd::SessionParams params;
    params.packs = {0};
    params.layout.ring_entries = 64;
    params.layout.list_entries = 256;
    params.layout.progress_words = 64;
    auto handle = core_->OpenSession(params);
    Require(handle.ok(), "a session opens");
    return handle->session;
  }

  FakeClock clock_;
  weightd::Poller poller_;
  FakeBlockReader reader_{FakeBlockReader::Mode::kManual};
  std::vector<weightd::ReadResult> reads_;
  TransferEngine engine_{{.threads = 0}, &clock_, [] {}};
  const FakeExtentSource* source_ = nullptr;
  std::unique_ptr<weightd::StoreCore> core_;
  uint64_t honest_session_ = 0;
  uint64_t liar_session_ = 0;
  std::unique_ptr<LocalClient> honest_;
  uint64_t id_ = 0;
};

enum class Step : uint8_t {
  kSubmit,      // an entry of 128 bytes, with the right sequence
  kRound,       // rounds of weightd
  kRead,        // waiting reads end
  kWord,        // u8 cursor, u64: a cursor or an announcement
  kList,        // u8 index, u32: the index arena
  kReap,        // the next completion is taken
  kPin,         // u8 extent, u64 pins and uses, u64 step
  kRegion,      // u16 offset / 8, u64: anywhere in the region
  kTime,        // u32 microseconds pass
  kFailedRead,  // u8 outcome: the first waiting read fails
  kCount
};

// The liar's own cursors; it need not keep to them.
class Liar {
 public:
  Liar(World* world, const weightd::LocalSession& session)
      : world_(world), session_(session), submissions_(session.control), completions_(session.control) {
    memory_ = *CreateSharedMemory("slab", kSlabBytes, PeerAccess::kReadWrite);
    std::memset(memory_.map.data(), 0, memory_.map.bytes());
    auto slab = HostSlab::Map(memory_.fd.get(), memory_.map.bytes());
    Require(slab.ok(), "a slab is mapped");
    Require(world->core().AddSlab(world->liar_session(), kSlab, *std::move(slab), {}).ok(),
            "a slab is added");
  }

  // Returns true if weightd completed something for the liar.
  bool Run(InputReader input) {
    // Enough for every kind of step; more only take time.
    for (int steps = 0; steps < 64 && !input.done() && Lives(); ++steps) Do(&input);
    return completed_;
  }

 private:
  // Regions are unmapped at the session's end.
  bool Lives() { return world_->core().Local(world_->liar_session()).ok(); }

  void Do(InputReader* input) {
    switch (static_cast<Step>(input->Take<uint8_t>() % static_cast<int>(Step::kCount))) {
      case Step::kSubmit:
        submissions_.Push(input->Take<SubmissionEntry>());
        break;
      case Step::kRound:
        world_->HandleEvents();
        break;
      case Step::kRead:
        world_->ReadAll();
        break;
      case Step::kWord: {
        auto* words = reinterpret_cast<ControlWord*>(session_.control.cursors);
        const size_t word = input->Take<uint8_t>() % (sizeof(ControlCursors) / sizeof(ControlWord));
        words[word].value = input->Take<uint64_t>();
        break;
      }
      case Step::kList: {
        const size_t index = input->Take<uint8_t>() % session_.control.layout.list_entries;
        session_.control.list[index] = input->Take<uint32_t>();
        break;
      }
      case Step::kReap: {
        CompletionEntry entry;
        if (completions_.Peek(&entry) == RingResult::kOk) {
          Require(entry.code <= 16, "a completion has a code");
          completed_ = true;
          completions_.Advance();
        }
        break;
      }
      case Step::kPin: {
        const auto& pack = session_.packs[0];
        PinEntry& pin = pack.pins[input->Take<uint8_t>() % pack.extent_count];
        pin.pins = input->Take<uint32_t>();
        pin.uses = input->Take<uint32_t>();
        pin.last_step = input->Take<uint64_t>();
        break;
      }
      case Step::kRegion: {
        const uint64_t offset =
            uint64_t{input->Take<uint16_t>()} * 8 % session_.control.layout.region_bytes();
        const auto value = input->Take<uint64_t>();
        std::memcpy(reinterpret_cast<std::byte*>(session_.control.header) + offset, &value, sizeof(value));
        break;
      }
      case Step::kTime:
        world_->clock().Advance(int64_t{input->Take<uint32_t>()} * 1000);
        break;
      case Step::kFailedRead:
        FailRead(input->Take<uint8_t>());
        break;
      case Step::kCount:
        break;
    }
  }

  // Only what nobody but the liar asked for may fail: the honest client's requests wait for nothing here.
  void FailRead(uint8_t outcome) {
    const std::vector<uint64_t> waiting = world_->reader().waiting();
    if (waiting.empty()) return;
    const auto as = outcome % 2 == 0 ? weightd::ReadOutcome::kCancelled : weightd::ReadOutcome::kOk;
    if (as == weightd::ReadOutcome::kOk) {
      world_->reader().Complete(waiting.front());
    } else {
      world_->reader().Cancel(waiting.front());
    }
    world_->Settle();
  }

  World* const world_;
  const weightd::LocalSession session_;
  SharedMemory memory_;
  SubmissionWriter submissions_;
  CompletionReader completions_;
  bool completed_ = false;
};

// Descriptors beside a message, by the byte before it.
std::vector<UniqueFd> Descriptors(uint8_t kind, uint64_t bytes, int own_region) {
  std::vector<UniqueFd> fds;
  const auto sealed = [&](uint64_t size) {
    SharedMemory memory = *CreateSharedMemory("slab", size, PeerAccess::kReadWrite);
    std::memset(memory.map.data(), 0, memory.map.bytes());
    fds.push_back(std::move(memory.fd));
  };
  switch (kind % 8) {
    case 1:
      sealed(std::clamp<uint64_t>(bytes, 1, kSlabBytes));
      break;
    case 2:  // it could be shrunk
      fds.emplace_back(memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      Require(ftruncate(fds[0].get(), kSlabBytes) == 0, "a file grows");
      break;
    case 3:
      fds.emplace_back(eventfd(0, EFD_CLOEXEC));
      break;
    case 4:
      sealed(4096);
      sealed(4096);
      break;
    case 5:
      fds.emplace_back(open("/dev/null", O_RDWR | O_CLOEXEC));
      break;
    case 6:
      fds.emplace_back(fcntl(own_region, F_DUPFD_CLOEXEC, 0));
      break;
    default:
      break;
  }
  return fds;
}

// Sends bytes that need not be a message.
void SendRaw(int socket, const void* data, size_t size, const std::vector<UniqueFd>& fds) {
  iovec part{const_cast<void*>(data), size};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  // A session that has ended does not listen.
  [[maybe_unused]] const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool RunSideMessages(InputReader input) {
  World world;
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair");
  const UniqueFd client(ends[1]);
  Require(world.core().AttachSideSocket(world.liar_session(), UniqueFd(ends[0])).ok(),
          "a socket is attached");
  const auto welcome = ReceiveSideMessage(client.get());
  Require(welcome.ok() && welcome->message.type == SideType::kWelcome, "a session begins with WELCOME");
  const int own_region = welcome->fds[WelcomeFds::kControl].get();
  bool mapped = false;
  for (int messages = 0; messages < 16 && !input.done(); ++messages) {
    const auto kind = input.Take<uint8_t>();
    // One kind of byte in eight sends a message that is cut.
    const size_t length = kind / 8 % 8 == 7 ? input.Take<uint8_t>() : sizeof(SideMessage);
    SideMessage message;
    input.Copy(&message, sizeof(message));
    SendRaw(client.get(), &message, std::min(length, sizeof(message)),
            Descriptors(kind, message.bytes, own_region));
    world.HandleEvents();
    for (auto answer = ReceiveSideMessage(client.get()); answer.ok();
         answer = ReceiveSideMessage(client.get())) {
      Require(answer->message.session == world.liar_session(), "an answer is for this session");
      mapped = mapped || (answer->message.type == SideType::kSlabMapped && answer->message.code == 0);
    }
    world.CheckHonest(0, messages % kExperts);
  }
  world.End();
  return mapped;
}

// Seeds.

std::string StepBytes(Step step, std::initializer_list<std::string> operands = {}) {
  std::string bytes(1, static_cast<char>(step));
  for (const std::string& operand : operands) bytes += operand;
  return bytes;
}

template <typename T>
std::string BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

SubmissionEntry Transfer(uint64_t id, uint32_t layer, uint32_t expert) {
  SubmissionEntry entry = LocalClient::FillExpert(id, layer, expert);
  entry.opcode = Opcode::kTransfer;
  entry.slab = kSlab;
  for (uint64_t part = 0; part < kPartCount; ++part) {
    entry.base[part] = part * kPartBytes;
    entry.stride[part] = 256;
  }
  return entry;
}

std::vector<std::string> RingSeeds() {
  SubmissionEntry listed = Transfer(3, 1, 2);
  listed.list_count = 2;
  listed.tile_neurons = 1;
  listed.progress = 3;
  SubmissionEntry prefetch = LocalClient::FillExpert(4, 1, 3);
  prefetch.request_class = RequestClass::kPrefetch;
  SubmissionEntry cancel = LocalClient::Plain(5, Opcode::kCancel);
  cancel.target = 4;
  SubmissionEntry extent = LocalClient::FillExtent(6, 0);
  extent.opcode = Opcode::kTransferExtent;
  extent.slab = kSlab;
  const std::string rest =
      StepBytes(Step::kRound) + StepBytes(Step::kRead) + StepBytes(Step::kReap) + StepBytes(Step::kReap);
  const auto submit = [](const SubmissionEntry& entry) { return StepBytes(Step::kSubmit, {BytesOf(entry)}); };
  return {
      submit(LocalClient::FillExpert(1, 0, 0)) + submit(Transfer(2, 0, 1)) + rest,
      StepBytes(Step::kList, {BytesOf(uint8_t{0}), BytesOf(uint32_t{1})}) +
          StepBytes(Step::kList, {BytesOf(uint8_t{1}), BytesOf(uint32_t{7})}) + submit(listed) +
          submit(prefetch) + StepBytes(Step::kRound) + submit(cancel) + rest,
      submit(extent) + submit(LocalClient::FillExtent(7, 0)) + rest +
          StepBytes(Step::kPin,
                    {BytesOf(uint8_t{0}), BytesOf(uint32_t{1}), BytesOf(uint32_t{1}), BytesOf(uint64_t{9})}) +
          StepBytes(Step::kTime, {BytesOf(uint32_t{100})}) +
          submit(LocalClient::Plain(8, Opcode::kCancelPrefetches)) + rest,
  };
}

std::vector<std::string> SideSeeds() {
  SideMessage offer;
  offer.type = SideType::kSlabOffered;
  offer.session = 2;
  offer.bytes = 8192;
  offer.slab = 1;
  offer.handle_kind = static_cast<uint8_t>(HandleKind::kMemoryFile);
  offer.fd_count = 1;
  SideMessage unmapped;
  unmapped.type = SideType::kSegmentUnmapped;
  unmapped.segment = 0;
  std::string plain = BytesOf(uint8_t{1}) + BytesOf(offer) + BytesOf(uint8_t{0}) + BytesOf(unmapped);
  offer.slab = 2;
  offer.link_bytes_per_second = 1'000'000'000;
  offer.link_latency_nanos = 1000;
  SideMessage ipc = offer;
  ipc.handle_kind = static_cast<uint8_t>(HandleKind::kCudaIpc);
  ipc.fd_count = 0;
  return {plain, BytesOf(uint8_t{1}) + BytesOf(offer) + BytesOf(uint8_t{0}) + BytesOf(ipc) +
                     BytesOf(uint8_t{6}) + BytesOf(offer)};
}

constexpr ControlLayout kSmallLayout = {
    .ring_entries = kMinRingEntries, .list_entries = 16, .progress_words = 8};

std::vector<std::string> ControlSeeds() {
  std::vector<std::byte> region(kSmallLayout.region_bytes());
  const ControlView view = FormatControl(region.data(), kSmallLayout, 7, 1, 1);
  CompletionWriter writer(view);
  for (uint64_t id = 0; id < 3; ++id) writer.Push({.id = id});
  return {std::string(reinterpret_cast<const char*>(region.data()), region.size())};
}

}  // namespace

bool FuzzRings(const uint8_t* data, size_t size) {
  const int lowest = LowestFreeFd();
  bool completed = false;
  {
    World world;
    world.CheckHonest(0, 0);
    Liar liar(&world, *world.core().Local(world.liar_session()));
    completed = liar.Run(InputReader(data, size));
    world.ReadAll();
    world.CheckHonest(1, 0);
    world.End();
  }
  Require(LowestFreeFd() == lowest, "descriptors are closed");
  return completed;
}

bool FuzzSideMessages(const uint8_t* data, size_t size) {
  const int lowest = LowestFreeFd();
  const bool mapped = RunSideMessages(InputReader(data, size));
  Require(LowestFreeFd() == lowest, "descriptors that came are closed");
  return mapped;
}

bool FuzzControlRegion(const uint8_t* data, size_t size) {
  std::vector<std::byte> region(size + 64);
  void* aligned = region.data();
  size_t room = region.size();
  std::align(64, size, aligned, room);
  if (size > 0) std::memcpy(aligned, data, size);
  auto* const base = static_cast<std::byte*>(aligned);
  const auto view = OpenControl(base, size);
  if (!view.ok()) return false;
  Require(view->layout.region_bytes() <= size, "a region within its mapping");
  Require(reinterpret_cast<std::byte*>(view->progress + view->layout.progress_words) <= base + size,
          "progress within the mapping");
  CompletionReader completions(*view);
  CompletionEntry entry;
  uint32_t read = 0;
  while (completions.Peek(&entry) == RingResult::kOk) {
    Require(entry.sequence == read++ && read <= view->layout.ring_entries, "at most a ring of completions");
    completions.Advance();
  }
  SubmissionWriter submissions(*view);
  uint32_t pushed = 0;
  while (submissions.Push({}) == RingResult::kOk && pushed <= 2 * view->layout.ring_entries) ++pushed;
  submissions.ClaimServerWake();
  return read > 0;
}

std::vector<FuzzTarget> SessionTargets() {
  return {
      {"rings", FuzzRings, RingSeeds, 2000},
      {"side_messages", FuzzSideMessages, SideSeeds, 1000},
      {"control_region", FuzzControlRegion, ControlSeeds, 10'000},
  };
}

}  // namespace sluice
