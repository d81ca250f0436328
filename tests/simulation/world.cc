#include "tests/simulation/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/lease.h"
#include "tests/support/fd_count.h"

namespace sluice {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kClientKillOneIn = 2500;
constexpr uint64_t kServerKillOneIn = 25'000;
constexpr uint64_t kRotOneIn = 8000;
constexpr uint64_t kDrainOneIn = 100'000;
constexpr uint64_t kDrainedEndOneIn = 1500;
constexpr uint64_t kTemptingEvents = 100;
constexpr uint64_t kQuietEvery = 30'000;
// Closing everything may last as long as the slowest read, its repetition and waits for retired segments.
constexpr int64_t kQuietNanos = 60'000'000'000;

std::vector<SimPack::Shape> Packs() {
  return {{.number = 0,
           .dense = {kPage, 3 * kPage},
           .layers = 2,
           .experts = 6,
           .part_bytes = {kPage, kPage, kPage}},
          {.number = 1, .dense = {}, .layers = 2, .experts = 5, .part_bytes = {2 * kPage, 4 * kPage}}};
}

}  // namespace

World::World(const WorldOptions& options) : options_(options), scheduler_(options.seed) {
  shared_.scheduler = &scheduler_;
  shared_.packs = Packs();
  shared_.forget_events = options.bug == PlantedBug::kForgottenEvent;
  shared_.count_lost_pulls = options.bug == PlantedBug::kLostPull;
  shared_.tempting.resize(shared_.packs.size());
  base_fds_ = OpenFdCount();
  scheduler_.on_idle = [this] { return OnIdle(); };
  scheduler_.on_step = [this](ProtocolPoint point, const volatile void* word, bool before) {
    if (options_.bug == PlantedBug::kEvictWithoutLook) {
      PlantStep(point, word, before);
    }
    if (before && point == ProtocolPoint::kEvictMark) {
      PointOut(word);
    }
  };
}

World::~World() {
  clients_.clear();
  shared_.server.reset();
}

WorldResult World::Run() {
  StartServer();
  clients_.resize(static_cast<size_t>(options_.clients));
  respawn_at_.resize(clients_.size());
  next_quiet_ = kQuietEvery;
  for (size_t i = 0; i < clients_.size(); ++i) {
    StartClient(i);
  }
  scheduler_.Run(options_.events, [this] { Each(); });
  return {scheduler_.failure(), scheduler_.events(), scheduler_.digest(), scheduler_.NowNanos(),
          shared_.counters};
}

// ---------------------------------------------------------------- lives

void World::StartServer() {
  SimServer::Options server;
  server.epoch = ++epochs_;
  // From the minima of four clients to three quarters of the packs.
  budget_ = (44 + scheduler_.Below(40)) * kPage;
  server.budget = budget_;
  server.policy.eviction = static_cast<weightd::EvictionKind>(scheduler_.Below(3));
  server.policy.admission = scheduler_.Chance(2);
  server.packs = shared_.packs;
  server.scrub_rate = options_.bug == PlantedBug::kNone && scheduler_.Chance(2) ? 20'000'000 : 0;
  server.forget_wakes = options_.bug == PlantedBug::kForgottenWake;
  server.write_late = options_.bug == PlantedBug::kLateWrite;
  SimReader::Hooks hooks;
  hooks.check_write = [this](const std::byte* dest, uint64_t bytes) { CheckWrite(dest, bytes); };
  hooks.fail = [this](const std::string& why) { scheduler_.Fail(why); };
  shared_.server = std::make_unique<SimServer>(&scheduler_, std::move(server), &next_fill_, std::move(hooks));
}

void World::KillServer() {
  ++shared_.counters.server_kills;
  shared_.server.reset();
  evicting_ = false;
  hidden_ = nullptr;
  dead_.clear();
  restart_at_ = scheduler_.events() + 1 + scheduler_.Below(300);
}

void World::StartClient(size_t index) {
  clients_[index] = std::make_unique<SimClient>(&shared_, static_cast<int>(index),
                                                static_cast<uint32_t>(index % shared_.packs.size()));
}

void World::KillClient(size_t index) {
  ++shared_.counters.client_kills;
  const uint64_t at = scheduler_.events() + scheduler_.Below(200);
  for (uint64_t session : clients_[index]->joined()) {
    dead_.push_back({clients_[index]->epoch(), session, at});
  }
  clients_[index].reset();
  respawn_at_[index] = scheduler_.events() + 1 + scheduler_.Below(400);
}

// The kernel reports a process's exit once weightd holds the process's pidfd, so a session that is attached
// only now is reported again.
void World::TellExits() {
  SimServer* const server = shared_.server.get();
  std::erase_if(dead_, [&](const DeadProcess& dead) {
    if (dead.epoch != server->epoch()) {
      return true;
    }
    if (dead.at_event > scheduler_.events()) {
      return false;
    }
    if (server->core().Local(dead.session).ok()) {
      server->ProcessExited(dead.session);
      return false;
    }
    return server->calls_waiting() == 0;
  });
}

bool World::OnIdle() {
  bool changed = false;
  for (DeadProcess& dead : dead_) {
    changed = changed || dead.at_event > scheduler_.events();
    dead.at_event = 0;
  }
  for (uint64_t& at : respawn_at_) {
    changed = changed || at > scheduler_.events();
    at = 0;
  }
  changed = changed || shared_.server == nullptr;
  restart_at_ = 0;
  if (changed) {
    BringBack();
    return true;
  }
  const uint64_t quiet_points = shared_.counters.quiet_points;
  if (shared_.stopping) {
    CheckQuiet();
  }
  return quiet_points != shared_.counters.quiet_points;
}

// Restarts processes that are due, and reports deaths.
void World::BringBack() {
  const uint64_t event = scheduler_.events();
  if (shared_.server == nullptr && event >= restart_at_) {
    StartServer();
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (clients_[i] == nullptr && event >= respawn_at_[i]) {
      StartClient(i);
    }
  }
  if (shared_.server != nullptr && !dead_.empty()) {
    TellExits();
  }
}

void World::Chaos() {
  if (scheduler_.Chance(kClientKillOneIn)) {
    const size_t victim = scheduler_.Below(clients_.size());
    if (clients_[victim] != nullptr) {
      KillClient(victim);
    }
  }
  const bool draining = shared_.server != nullptr && shared_.server->core().draining();
  if (shared_.server != nullptr && scheduler_.Chance(draining ? kDrainedEndOneIn : kServerKillOneIn)) {
    KillServer();
  }
  if (shared_.server != nullptr && scheduler_.Chance(kRotOneIn)) {
    Rot();
  }
  if (shared_.server != nullptr && !shared_.server->locked() && scheduler_.Chance(kDrainOneIn)) {
    shared_.server->core().Drain();  // its end is the next kill
  }
}

void World::Each() {
  const uint64_t event = scheduler_.events();
  if (!shared_.stopping) {
    Chaos();
  }
  BringBack();
  if (shared_.server != nullptr) {
    if (event % 4 == 0) {
      CheckWakes();
    }
    if (event % 256 == 0 && !shared_.server->locked()) {
      CheckAccounts();
    }
  }
  if (event % 64 == 0) {
    CheckDeadlines();
  }
  if (!shared_.stopping && event >= next_quiet_) {
    shared_.stopping = true;
    quiet_since_nanos_ = scheduler_.NowNanos();
  } else if (shared_.stopping && event % 16 == 0) {
    CheckQuiet();
  }
}

// ---------------------------------------------------------------- invariants

void World::Rot() {
  const weightd::DramTier& tier = shared_.server->core().tier();
  const auto extent_id = static_cast<weightd::ExtentId>(scheduler_.Below(tier.store().extent_count()));
  if (tier.store().state(extent_id) == ExtentState::kResident) {
    std::byte* extent =
        tier.arena().memory(tier.store().segment(extent_id))->map.data() + tier.store().offset(extent_id);
    shared_.rotten.insert(SimPack::Cell({extent, kSimCellBytes}, 0).fill);
    extent[scheduler_.Below(tier.store().length(extent_id) / kSimCellBytes) * kSimCellBytes] ^= std::byte{4};
    const weightd::ExtentRef ref = tier.store().RefOf(extent_id);
    shared_.rotten_extents.insert({ref.pack, ref.extent});
    ++shared_.counters.rotten;
  }
}

void World::CheckWrite(const std::byte* dest, uint64_t bytes) {
  SimServer* const server = shared_.server.get();
  for (const auto& client : clients_) {
    if (client == nullptr || client->epoch() != server->epoch() || client->ended_as_stalled()) {
      continue;
    }
    for (const SimClient::Held& held : client->held()) {
      const SharedMemory* memory = server->core().tier().arena().memory(held.lease.segment);
      if (memory == nullptr) {
        scheduler_.Fail(
            absl::StrCat("segment ", held.lease.segment, " is gone under a lease of extent ", held.extent));
        return;
      }
      const std::byte* leased = memory->map.data() + held.lease.offset;
      if (dest < leased + held.lease.bytes && leased < dest + bytes) {
        scheduler_.Fail(absl::StrCat("a read writes into extent ", held.extent, " of pack ", client->pack(),
                                     ", which a client has leased"));
      }
    }
  }
}

void World::CheckWakes() {
  if (shared_.server->locked() || !shared_.server->SleepsSoundly()) {
    return;
  }
  for (const auto& client : clients_) {
    const std::string lost = client == nullptr ? "" : client->LostWake();
    if (!lost.empty()) {
      scheduler_.Fail(absl::StrCat("lost wake-up: ", lost));
    }
  }
}

void World::CheckDeadlines() {
  for (const auto& client : clients_) {
    if (client != nullptr && client->Overdue() < scheduler_.NowNanos()) {
      scheduler_.Fail(absl::StrCat("a request of pack ", client->pack(), "'s client does not end"));
    }
  }
}

void World::CheckAccounts() {
  SimServer* const server = shared_.server.get();
  const weightd::StoreStats stats = server->core().Stats();
  uint64_t resident = 0;
  for (uint32_t pack = 0; pack < shared_.packs.size(); ++pack) {
    const weightd::ExtentSource* source = server->core().source(pack);
    const ResidencyEntry* table = server->core().residency(pack);
    for (uint32_t extent = 0; extent < source->extent_count(); ++extent) {
      resident += IsResident(table[extent]) ? source->extent(extent).length : 0;
    }
  }
  if (resident != stats.resident_bytes || stats.resident_bytes > stats.segment_bytes) {
    scheduler_.Fail(absl::StrCat(stats.resident_bytes, " bytes are counted as resident, the tables say ",
                                 resident, ", segments have ", stats.segment_bytes));
  }
  for (const auto& client : clients_) {
    if (client == nullptr || client->epoch() != server->epoch() || !client->connected()) {
      continue;
    }
    for (uint32_t segment : client->mapped()) {
      if (server->core().tier().arena().memory(segment) == nullptr) {
        scheduler_.Fail(absl::StrCat("segment ", segment, " no longer counts, but a client has it mapped"));
      }
    }
  }
  for (const weightd::SessionStats& session : stats.sessions) {
    if (session.quota_bytes != 0 && session.charged_bytes > session.quota_bytes) {
      scheduler_.Fail(absl::StrCat("session ", session.session, " fills ", session.charged_bytes,
                                   " bytes with a quota of ", session.quota_bytes));
    }
  }
  if (stats.segment_bytes > budget_ || stats.retired_bytes > stats.segment_bytes) {
    scheduler_.Fail(absl::StrCat("segments of ", stats.segment_bytes, " bytes, ", stats.retired_bytes,
                                 " of them retired, in a budget of ", budget_));
  }
}

void World::CheckQuiet() {
  if (scheduler_.NowNanos() > quiet_since_nanos_ + kQuietNanos) {
    scheduler_.Fail(absl::StrCat("does not come to rest: ", dead_.size(), " dead processes known,",
                                 scheduler_.TaskNames()));
  }
  SimServer* const server = shared_.server.get();
  const bool all_finished = std::all_of(clients_.begin(), clients_.end(), [](const auto& client) {
    return client != nullptr && client->finished();
  });
  if (server == nullptr || !all_finished || !dead_.empty() || server->calls_waiting() != 0 ||
      !server->idle() || server->locked() || !server->SleepsSoundly()) {
    return;
  }
  CheckAccounts();
  const weightd::StoreStats stats = server->core().Stats();
  // A session whose client died before it learned of it: weightd waits for its side socket until the timeout.
  if (std::any_of(stats.sessions.begin(), stats.sessions.end(),
                  [](const weightd::SessionStats& session) { return session.state == "opened"; })) {
    return;
  }
  if (!stats.sessions.empty() || stats.in_flight_bytes != 0 || stats.retired_bytes != 0) {
    scheduler_.Fail(absl::StrCat("at rest, ", stats.sessions.size(), " sessions, ", stats.in_flight_bytes,
                                 " bytes in flight and ", stats.retired_bytes, " retired bytes are left"));
  }
  const weightd::ExtentStore& store = server->core().tier().store();
  for (weightd::ExtentId extent_id = 0; extent_id < store.extent_count(); ++extent_id) {
    if (store.Held(extent_id) || store.state(extent_id) == ExtentState::kFilling) {
      scheduler_.Fail(absl::StrCat("at rest, extent ", extent_id, " is held or being filled"));
    }
  }
  // weightd: epoll, bell, one table per pack, the segments; each client: a wake, and dense weights if it has
  // some.
  size_t fds = base_fds_ + 2 + shared_.packs.size() + stats.segments + clients_.size();
  for (const auto& client : clients_) {
    fds += client->has_dense() ? 1 : 0;
  }
  if (OpenFdCount() != fds) {
    scheduler_.Fail(absl::StrCat("at rest, ", OpenFdCount(), " descriptors are open, ", fds, " are needed"));
  }
  ++shared_.counters.quiet_points;
  next_quiet_ = scheduler_.events() + kQuietEvery;
  shared_.stopping = false;
}

// Tells clients which extent is about to be evicted: they try to lease it at that moment.
void World::PointOut(const volatile void* word) {
  for (uint32_t pack = 0; pack < shared_.packs.size(); ++pack) {
    const ResidencyEntry* table = shared_.server->core().residency(pack);
    const auto* entry = static_cast<const volatile ResidencyEntry*>(word);
    if (entry >= table && entry < table + shared_.server->core().source(pack)->extent_count()) {
      shared_.tempting[pack] = {static_cast<uint32_t>(entry - table), scheduler_.events() + kTemptingEvents};
      if (scheduler_.Chance(2)) {
        scheduler_.StallCurrent(kTemptingEvents);
      }
    }
  }
}

// Makes an eviction miss the clients' pins: the word is hidden for just that operation.
void World::PlantStep(ProtocolPoint point, const volatile void* word, bool before_switch) {
  if (before_switch) {
    if (hidden_ != nullptr) {
      hidden_->store(hidden_pins_);
      hidden_ = nullptr;
    }
    return;
  }
  if (point == ProtocolPoint::kEvictMark || point == ProtocolPoint::kEvictDecide) {
    evicting_ = point == ProtocolPoint::kEvictMark;
  } else if (point == ProtocolPoint::kEvictCheck && evicting_) {
    auto* pin = reinterpret_cast<PinEntry*>(const_cast<void*>(static_cast<const volatile void*>(word)));
    hidden_ = &pin->pins;
    hidden_pins_ = hidden_->exchange(0);
  }
}

WorldResult RunWorld(const WorldOptions& options) {
  World world(options);
  return world.Run();
}

}  // namespace sluice
