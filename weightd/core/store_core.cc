#include "weightd/core/store_core.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/ring/process_fd.h"
#include "common/status.h"
#include "weightd/dram/prefaulter.h"

namespace sluice {
namespace {

uint64_t ModelHash(const std::string& model_id) {
  uint64_t hash = 0;
  for (size_t i = 0; i < 16 && i < model_id.size(); ++i) {
    const char c = model_id[i];
    hash = hash << 4 | static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return hash;
}

}  // namespace

StoreCore::StoreCore(const Options& options, const Environment& environment)
    : options_(options),
      environment_(environment),
      tier_(options.arena,
            Arena::Listener{[this](uint32_t segment, const std::shared_ptr<const SharedMemory>& memory) {
                              OnSegmentAdded(segment, memory);
                            },
                            [this](uint32_t segment) { OnSegmentRetired(segment); }},
            options.policy),
      fetcher_(options.fetcher, &tier_, environment.reader, environment.clock,
               Fetcher::Hooks{[this](uint64_t session, const CompletionEntry& entry, std::vector<Gid> held) {
                                if (!transfers_.OnFilled(session, entry, &held)) {
                                  OnComplete(session, entry, std::move(held));
                                }
                              },
                              [this](uint64_t session, uint32_t word, uint64_t value) {
                                if (Session* found = Find(session)) found->SetProgress(word, value);
                              },
                              [this](const std::string& message) { Log(LogSeverity::kError, message); },
                              [this] { return PrefetchRoom(); },
                              [this](uint64_t session, int64_t since) {
                                starving_.try_emplace(session, Starving{since, 0}).first->second.last =
                                    environment_.clock->NowNanos();
                              },
                              environment.metrics}),
      scrubber_(options.scrub_rate, &tier_, [this](uint32_t pack) { return source(pack); }),
      transfers_(options.transfers, &fetcher_, &tier_, environment.transfers,
                 [this](uint64_t session, const CompletionEntry& entry) {
                   if (environment_.metrics != nullptr && entry.code == 0) {
                     environment_.metrics->copy_seconds.Observe(entry.copy_us * 1e-6);
                   }
                   if (Session* found = Find(session)) found->bytes_read += entry.bytes;
                   Deliver(session, entry, {});
                 }),
      session_quota_(options.session_quota) {}

void StoreCore::Tune(const StoreTuning& tuning) {
  fetcher_.SetSlowRead(int64_t{tuning.read_deadline_ms} * 1'000'000);
  scrubber_.SetRate(tuning.scrub_rate);
  session_quota_ = tuning.session_quota;
}

absl::StatusOr<uint32_t> StoreCore::AddPack(std::unique_ptr<ExtentSource> source, std::vector<int> files) {
  const uint64_t least = source->dense_bytes() + 2 * source->largest_expert_bytes();
  if (least > options_.arena.budget) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pack ", source->model_id(), ": --dram-budget of ", options_.arena.budget,
                     " bytes is below its working minimum of ", least, " (dense ", source->dense_bytes(),
                     ", twice the largest expert of ", source->largest_expert_bytes(), ")"));
  }
  const uint32_t extents = source->extent_count();
  if (extents == 0 || tier_.store().extent_count() + extents >= kCondemnedOwner) {
    return absl::InvalidArgumentError(
        absl::StrCat("pack ", source->model_id(), ": ", extents, " extents cannot be served"));
  }
  std::vector<uint64_t> lengths;
  for (uint32_t i = 0; i < extents; ++i) {
    lengths.push_back(source->extent(i).length);
  }
  ASSIGN_OR_RETURN(SharedMemory residency,
                   CreateSharedMemory("sluice-residency", ResidencyBytes(extents), PeerAccess::kReadOnly));
  Populate(residency.map.data(), residency.map.bytes());
  const auto number = static_cast<uint32_t>(packs_.size());
  ResidencyHeader header{};
  header.magic = kResidencyMagic;
  header.abi_version = kAbiVersion;
  header.entry_bytes = sizeof(ResidencyEntry);
  header.boot_epoch = options_.boot_epoch;
  header.pack = number;
  header.extent_count = extents;
  header.model_id_hash = ModelHash(source->model_id());
  std::memcpy(residency.map.data(), &header, sizeof(header));
  tier_.AddPack(lengths, reinterpret_cast<ResidencyEntry*>(residency.map.data() + sizeof(ResidencyHeader)));
  fetcher_.AddPack(number, source.get(), std::move(files));
  packs_.push_back(PackRecord{std::move(source), std::move(residency)});
  return number;
}

int StoreCore::FindPack(const std::string& model_id) const {
  for (size_t i = 0; i < packs_.size(); ++i) {
    if (packs_[i].source->model_id() == model_id) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

const ExtentSource* StoreCore::source(uint32_t pack) const {
  return pack < packs_.size() ? packs_[pack].source.get() : nullptr;
}

uint64_t StoreCore::DenseBytes(const std::set<uint32_t>& packs) const {
  uint64_t bytes = 0;
  for (uint32_t pack : packs) {
    bytes += packs_[pack].source->dense_bytes();
  }
  return bytes;
}

absl::Status StoreCore::CheckReserve(const SessionParams& params, uint64_t minimum) const {
  std::set<uint32_t> packs(params.packs.begin(), params.packs.end());
  uint64_t minima = minimum;
  for (const auto& [id, session] : sessions_) {
    minima += session->options().reserved_bytes;
    for (const SessionPackPlan& plan : session->options().packs) {
      packs.insert(plan.pack);
    }
  }
  const uint64_t dense = DenseBytes(packs);
  if (dense + minima <= options_.arena.budget) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("--dram-budget of ", options_.arena.budget, " bytes cannot hold ", dense + minima,
                   ": dense weights ", dense, ", this session's minimum ", minimum,
                   " (twice its largest expert for each of ", params.compute_threads,
                   " compute threads), that of ", sessions_.size(), " other sessions ", minima - minimum));
}

absl::StatusOr<uint64_t> StoreCore::QuotaOf(const SessionParams& params, uint64_t reserved) const {
  const uint64_t asked = params.quota_bytes == 0 ? options_.arena.budget : params.quota_bytes;
  const uint64_t allowed = session_quota_ == 0 ? options_.arena.budget : session_quota_;
  const uint64_t quota = std::min(asked, allowed);
  const uint64_t dense = DenseBytes(std::set<uint32_t>(params.packs.begin(), params.packs.end()));
  if (quota >= options_.arena.budget) {
    return 0;
  }
  if (quota >= dense + reserved) {
    return quota;
  }
  const std::string why =
      absl::StrCat(asked <= allowed ? "the session's quota of " : "--session-quota of ", quota,
                   " bytes cannot hold its dense weights of ", dense, " and its minimum of ", reserved);
  return asked <= allowed ? absl::InvalidArgumentError(why) : absl::ResourceExhaustedError(why);
}

absl::Status StoreCore::CheckParams(const SessionParams& params) const {
  if (draining_) {
    return absl::UnavailableError("weightd is draining");
  }
  if (const char* field = AbiMismatch(params.abi)) {
    return absl::FailedPreconditionError(absl::StrCat("session ABI differs in ", field));
  }
  if (!params.layout.valid()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "impossible ring layout: ", params.layout.ring_entries, " ring entries, ", params.layout.list_entries,
        " list entries, ", params.layout.progress_words, " progress words"));
  }
  if (params.packs.empty() || params.packs.size() > kMaxSessionPacks || params.compute_threads == 0 ||
      params.compute_threads > 4096) {
    return absl::InvalidArgumentError(absl::StrCat("a session of ", params.packs.size(), " packs and ",
                                                   params.compute_threads, " compute threads"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SessionHandle> StoreCore::OpenSession(const SessionParams& params) {
  RETURN_IF_ERROR(CheckParams(params));
  Session::Options options;
  uint64_t largest_expert = 0;
  for (uint32_t pack : params.packs) {
    const bool twice = std::count(params.packs.begin(), params.packs.end(), pack) > 1;
    if (pack >= packs_.size() || twice) {
      return absl::InvalidArgumentError(
          absl::StrCat("pack ", pack, twice ? " is named twice" : " does not exist"));
    }
    const PackRecord& record = packs_[pack];
    options.packs.push_back(SessionPackPlan{pack, record.source.get(), record.residency.fd.get()});
    largest_expert = std::max(largest_expert, record.source->largest_expert_bytes());
  }
  options.reserved_bytes = 2 * largest_expert * params.compute_threads;
  RETURN_IF_ERROR(CheckReserve(params, options.reserved_bytes));
  ASSIGN_OR_RETURN(options.quota_bytes, QuotaOf(params, options.reserved_bytes));
  options.id = next_session_++;
  options.boot_epoch = options_.boot_epoch;
  options.layout = params.layout;
  options.client_name = params.client_name;
  options.opened_nanos = environment_.clock->NowNanos();
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(std::move(options)));
  RETURN_IF_ERROR(
      environment_.poller->WatchBell(session->server_bell(), {session->id(), PollKind::kServerBell}));
  SessionHandle handle;
  handle.session = session->id();
  handle.boot_epoch = options_.boot_epoch;
  handle.fds = session->fds();
  handle.control_bytes = params.layout.region_bytes();
  handle.reserved_bytes = session->options().reserved_bytes;
  for (size_t i = 0; i < params.packs.size(); ++i) {
    const uint32_t pack = params.packs[i];
    handle.packs.push_back(SessionPack{pack, packs_[pack].source->extent_count()});
    tier_.AddPins(pack, session->id(), session->pins(i), &session->timeline());
  }
  if (session->options().quota_bytes != 0) {
    tier_.SetQuota(session->id(), session->options().quota_bytes);
  }
  sessions_[session->id()] = std::move(session);
  fetcher_.SetSole(sessions_.size() == 1);
  return handle;
}

absl::Status StoreCore::AttachSideSocket(uint64_t id, UniqueFd socket) {
  Session* session = Find(id);
  if (session == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", id, " does not exist"));
  }
  if (session->state != SessionState::kOpened || session->side_socket.valid()) {
    return absl::FailedPreconditionError(absl::StrCat("session ", id, " is joined already"));
  }
  RETURN_IF_ERROR(SendSideMessage(socket.get(), Message(SideType::kWelcome, *session), session->fds()));
  session->pidfd = ProcessFdOfClient(socket.get());
  session->side_socket = std::move(socket);
  session->state = SessionState::kActive;
  absl::Status watched =
      environment_.poller->WatchReadable(session->side_socket.get(), {id, PollKind::kSideSocket}, false);
  if (watched.ok() && session->pidfd.valid()) {
    watched = environment_.poller->WatchReadable(session->pidfd.get(), {id, PollKind::kProcess}, false);
  }
  if (!watched.ok()) {
    End(id);
    return watched;
  }
  for (const auto& [segment, memory] : tier_.arena().Mapped()) {
    SideMessage message = Message(SideType::kSegmentAdded, *session);
    message.segment = segment;
    message.bytes = memory->map.bytes();
    Send(session, message, memory);
  }
  Send(session, Message(SideType::kReady, *session), nullptr);
  return absl::OkStatus();
}

absl::Status StoreCore::CloseSession(uint64_t session) {
  if (Find(session) == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", session, " does not exist"));
  }
  End(session);
  return absl::OkStatus();
}

void StoreCore::OnConnectionLost(uint64_t session) {
  if (Session* found = Find(session)) {
    Lose(found);
  }
}

const ResidencyEntry* StoreCore::residency(uint32_t pack) const {
  return reinterpret_cast<const ResidencyEntry*>(packs_[pack].residency.map.data() + sizeof(ResidencyHeader));
}

absl::StatusOr<LocalSession> StoreCore::Local(uint64_t id) const {
  auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    return absl::NotFoundError(absl::StrCat("session ", id, " does not exist"));
  }
  Session& session = *found->second;
  LocalSession local;
  local.control = session.view();
  const std::vector<int> fds = session.fds();
  local.server_bell = fds[WelcomeFds::kServerBell];
  local.client_bell = fds[WelcomeFds::kClientBell];
  for (size_t i = 0; i < session.options().packs.size(); ++i) {
    const SessionPackPlan& plan = session.options().packs[i];
    const std::byte* table = packs_[plan.pack].residency.map.data() + sizeof(ResidencyHeader);
    local.packs.push_back({reinterpret_cast<const ResidencyEntry*>(table), session.mutable_pins(i),
                           plan.source->extent_count()});
  }
  return local;
}

void StoreCore::OnProcessExit(uint64_t session) { End(session); }

Session* StoreCore::Find(uint64_t session) {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void StoreCore::Doom(uint64_t session, bool misbehaved, const std::string& why) {
  for (const Doomed& doomed : doomed_) {
    if (doomed.session == session) {
      return;
    }
  }
  doomed_.push_back(Doomed{session, misbehaved});
  Log(misbehaved ? LogSeverity::kWarning : LogSeverity::kInfo,
      absl::StrCat("session ", session, misbehaved ? " misbehaved and is ended: " : ": ", why));
}

void StoreCore::EndDoomed() {
  for (const Doomed& doomed : std::exchange(doomed_, {})) {
    if (doomed.misbehaved) {
      ++sessions_lost_;
      End(doomed.session);
    } else if (Session* session = Find(doomed.session)) {
      Lose(session);
    }
  }
}

void StoreCore::Lose(Session* session) {
  if (session->state == SessionState::kLost) {
    return;
  }
  session->state = SessionState::kLost;
  fetcher_.DropSession(session->id());
  transfers_.DropSession(session->id());
  DropSlabs(session);
  session->ReleaseAll(&tier_.store());
  session->out.clear();
  environment_.poller->Unwatch(session->server_bell());
  if (!session->side_socket.valid()) {
    return;  // a client in this process: OnProcessExit or CloseSession ends it
  }
  environment_.poller->Unwatch(session->side_socket.get());
  session->side_socket.reset();
  if (!session->pidfd.valid()) {
    End(session->id());  // the socket's end is all that can be known of the process
  }
}

void StoreCore::End(uint64_t id) {
  Session* session = Find(id);
  if (session == nullptr) {
    return;
  }
  fetcher_.DropSession(id);
  transfers_.DropSession(id);
  DropSlabs(session);
  session->ReleaseAll(&tier_.store());
  // epoll knows files, not descriptors: the client's copies would keep them watched.
  environment_.poller->Unwatch(session->server_bell());
  if (session->side_socket.valid()) {
    environment_.poller->Unwatch(session->side_socket.get());
  }
  if (session->pidfd.valid()) {
    environment_.poller->Unwatch(session->pidfd.get());
  }
  BeginDecision();
  fetcher_.SettlePrefetches(SIZE_MAX);
  for (const SessionPackPlan& plan : session->options().packs) {
    tier_.RemovePins(plan.pack, id);
  }
  fetcher_.RebasePrefetches();
  tier_.RemoveSession(id);
  starving_.erase(id);
  std::vector<uint32_t> segments;
  for (const auto& [segment, retiring] : retiring_) {
    if (retiring.sessions.contains(id)) {
      segments.push_back(segment);
    }
  }
  for (uint32_t segment : segments) {
    OnUnmapped(id, segment);
  }
  sessions_.erase(id);
  fetcher_.SetSole(sessions_.size() == 1);
}

}  // namespace sluice
