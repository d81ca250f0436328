#include "weightd/daemon/weightd_server.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/machine_facts.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/base/unix_listener.h"
#include "common/base/version.h"
#include "common/protocol/cuda_module.h"
#include "daemon/grpc_server.h"
#include "daemon/http/metrics_server.h"
#include "pack/pack.h"
#include "weightd/daemon/warm_set.h"
#include "weightd/daemon/weights_service.h"
#include "weightd/engine/side_listener.h"
#include "weightd/store/memory_budget.h"

namespace sluice::weightd {
namespace {

constexpr absl::Duration kSelfTestTimeout = absl::Seconds(60);   // timeout for a hung disk, too
constexpr absl::Duration kRpcTimeout = absl::Milliseconds(500);  // for calls that run when the server ends

PeerPolicy PeersOf(const WeightdOptions& options) {
  PeerPolicy peers;
  for (const UserId user : options.allowed_uids) {
    peers.allowed_uids.push_back(user.id);
  }
  for (const GroupId group : options.allowed_gids) {
    peers.allowed_gids.push_back(group.id);
  }
  return peers;
}

int ReadTimeoutMs(const WeightdOptions& options) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(options.read_timeout), 0, INT32_MAX));
}

// Packs in place convert what they read, on the threads that read it.
absl::StatusOr<bool> AnyInPlace(const WeightdOptions& options) {
  for (const std::string& dir : options.packs) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(dir));
    if (pack->in_place()) return true;
  }
  return false;
}

absl::StatusOr<uint64_t> BudgetOf(const WeightdOptions& options) {
  if (options.dram_budget.bytes != 0) {
    return options.dram_budget.bytes;
  }
  std::vector<std::unique_ptr<Pack>> packs;
  std::vector<const Pack*> borrowed;
  for (const std::string& dir : options.packs) {
    ASSIGN_OR_RETURN(std::unique_ptr<Pack> pack, Pack::Open(dir));
    packs.push_back(std::move(pack));
    borrowed.push_back(packs.back().get());
  }
  ASSIGN_OR_RETURN(const MemoryFacts facts, ReadMemoryFacts());
  return DefaultDramBudget(borrowed, std::max(1u, std::thread::hardware_concurrency()), UsableMemory(facts));
}

}  // namespace

// In the order of construction; destruction runs the other way: calls end first, then attaching, then the
// store.
struct WeightdServer::Impl {
  WeightdOptions options;
  LogFn log;
  PeerPolicy peers;
  Extras extras;  // of the start
  std::unique_ptr<SocketLock> side_lock;
  std::unique_ptr<UnixListener> side_socket;
  std::unique_ptr<WeightStore> store;
  std::unique_ptr<SessionNonces> nonces;
  std::unique_ptr<WarmSets> warm_sets;
  std::unique_ptr<SideListener> side;
  std::unique_ptr<WeightsService> service;
  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<MetricsServer> metrics;  // null: off

  void Say(const std::string& what) const {
    if (extras.on_phase) {
      extras.on_phase(what);
    }
  }
  absl::Status TakeSideSocket();
  absl::Status OpenStore();
  void SayServedOnce(const std::string& dir, const std::string& first);
  absl::Status StartSide();
  absl::Status TestFetches();
  absl::Status StartRpc();
  absl::Status StartMetrics(const std::string& address);
};

absl::Status WeightdServer::Impl::TakeSideSocket() {
  const std::string path = absl::StrCat(options.socket, ".side");
  if (extras.inherited != nullptr) {
    ASSIGN_OR_RETURN(std::optional<UnixListener> listener,
                     extras.inherited->Claim(path, UnixSocketType::kSeqPacket));
    if (listener.has_value()) {
      side_socket = std::make_unique<UnixListener>(*std::move(listener));
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(SocketLock lock, SocketLock::Acquire(path));
  side_lock = std::make_unique<SocketLock>(std::move(lock));
  ASSIGN_OR_RETURN(UnixListener socket,
                   UnixListener::Bind(path, UnixSocketType::kSeqPacket, options.socket_mode.bits));
  side_socket = std::make_unique<UnixListener>(std::move(socket));
  return absl::OkStatus();
}

absl::Status WeightdServer::Impl::OpenStore() {
  WeightStoreOptions store_options;
  ASSIGN_OR_RETURN(store_options.dram_budget, BudgetOf(options));
  store_options.direct = options.direct;
  ASSIGN_OR_RETURN(const bool in_place, AnyInPlace(options));
  store_options.uring = options.io == "uring" && !in_place;
  store_options.reader_threads = options.reader_threads;
  store_options.read_timeout_ms = ReadTimeoutMs(options);
  store_options.eviction = ParseEviction(options.eviction).value_or(EvictionKind::kLru);
  store_options.admission = options.admission;
  store_options.placement = ParseNodePlacement(options.numa).value_or(NodePlacement::kInterleave);
  ASSIGN_OR_RETURN(const CpuTopology topology, ReadCpuTopology(AllowedCpus()));
  store_options.nodes = topology.MemoryNodes();
  store_options.session_quota = options.session_quota.bytes;
  store_options.scrub_rate = options.scrub_rate.bytes;
  store_options.copy_threads = options.copy_threads;
  store_options.gather_neurons = static_cast<uint32_t>(options.gather_neurons);
  store_options.budget_wait_ms = static_cast<int>(absl::ToInt64Milliseconds(options.budget_wait));
  store_options.copiers.push_back(std::make_shared<LoadedCopier>());
  store_options.log = log;
  nonces = std::make_unique<SessionNonces>();
  store_options.attach_timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(nonces->lifetime()));
  Say(absl::StrCat("checking that ", FormatSize(store_options.dram_budget), " of memory are free"));
  ASSIGN_OR_RETURN(store, WeightStore::Create(std::move(store_options)));
  for (const std::string& dir : options.packs) {
    Say(absl::StrCat("opening ", dir));
    const uint32_t before = store->Look(&StoreCore::pack_count);
    ASSIGN_OR_RETURN(const uint32_t number, store->AddPack(dir));
    if (number < before) SayServedOnce(dir, store->Look(&StoreCore::pack, number)->dir());
  }
  ASSIGN_OR_RETURN(warm_sets, WarmSets::Create(store.get(), log));
  return absl::OkStatus();
}

void WeightdServer::Impl::SayServedOnce(const std::string& dir, const std::string& first) {
  std::error_code error;
  const bool same = std::filesystem::equivalent(dir, first, error);
  log(same ? LogSeverity::kInfo : LogSeverity::kWarning,
      same ? absl::StrCat("--pack ", dir, " is given twice and served once")
           : absl::StrCat("--pack ", dir, " holds the same model as ", first,
                          ": it is served once, from there, and who asks for ", dir, " is refused"));
}

absl::Status WeightdServer::Impl::StartSide() {
  SideListenerOptions side_options;
  side_options.policy = peers;
  side_options.attach = [raw = store.get()](uint64_t session, UniqueFd socket) {
    return raw->Control(&StoreCore::AttachSideSocket, session, std::move(socket));
  };
  side_options.on_refused = [report = log](const std::string& why) { report(LogSeverity::kWarning, why); };
  ASSIGN_OR_RETURN(side, SideListener::Start(side_socket->fd(), nonces.get(), std::move(side_options)));
  return absl::OkStatus();
}

absl::Status WeightdServer::Impl::TestFetches() {
  for (uint32_t pack = 0; extras.self_test && pack < store->Look(&StoreCore::pack_count); ++pack) {
    Say(absl::StrCat("fetching an extent of ", store->Look(&StoreCore::pack, pack)->dir()));
    RETURN_IF_ERROR(FetchForTest(store.get(), pack, kSelfTestTimeout));
  }
  return absl::OkStatus();
}

absl::Status WeightdServer::Impl::StartRpc() {
  WeightsService::Options service_options;
  service_options.side_socket = side_socket->path();
  service_options.started = SteadyNow();
  service_options.on_drain = [this] { server->SetServing(false); };
  service = std::make_unique<WeightsService>(store.get(), nonces.get(), warm_sets.get(),
                                             std::move(service_options));
  GrpcServerOptions server_options;
  server_options.addresses = {ListenAddress{ListenAddress::Kind::kUnix, options.socket}};
  server_options.peers = peers;
  server_options.socket_mode = options.socket_mode.bits;
  server_options.inherited = extras.inherited;
  server_options.max_receive_bytes = 1 << 20;
  server_options.on_refused = [report = log](const std::string& why) { report(LogSeverity::kWarning, why); };
  ASSIGN_OR_RETURN(server,
                   GrpcServer::Start(std::move(server_options), {{service.get(), kWeightServiceName}}));
  server->SetServing(true);
  return absl::OkStatus();
}

// An empty address turns the metrics off.
absl::Status WeightdServer::Impl::StartMetrics(const std::string& address) {
  if (address.empty()) {
    metrics.reset();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      metrics, MetricsServer::Open(address, [raw = store.get()] { return WeightdMetrics(*raw, Version()); }));
  log(LogSeverity::kInfo, absl::StrCat("metrics on http://", metrics->address(), "/metrics"));
  return absl::OkStatus();
}

WeightdServer::WeightdServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<WeightdServer>> WeightdServer::Start(const WeightdOptions& options, LogFn log,
                                                                    Extras extras) {
  std::unique_ptr<WeightdServer> server(new WeightdServer(std::make_unique<Impl>()));
  Impl& impl = *server->impl_;
  impl.options = options;
  impl.extras = std::move(extras);
  impl.peers = PeersOf(options);
  impl.log = log ? std::move(log) : [](LogSeverity, const std::string&) {};
  RETURN_IF_ERROR(impl.TakeSideSocket());
  RETURN_IF_ERROR(impl.OpenStore());
  RETURN_IF_ERROR(impl.StartSide());
  RETURN_IF_ERROR(impl.StartMetrics(options.metrics));
  RETURN_IF_ERROR(impl.TestFetches());
  RETURN_IF_ERROR(impl.StartRpc());
  if (options.preload) impl.warm_sets->Preload();
  impl.extras = Extras();
  return server;
}

WeightdServer::~WeightdServer() {
  if (impl_->server != nullptr) {
    impl_->store->Control(&StoreCore::Drain);
    impl_->server->Shutdown(kRpcTimeout);
  }
  // Destroyed before the store, whose reads may last long: no client finds a socket that is not served.
  impl_->side.reset();
  impl_->side_socket.reset();
}

absl::Status WeightdServer::Reload(const WeightdOptions& options) {
  impl_->store->Tune({options.scrub_rate.bytes, ReadTimeoutMs(options), options.session_quota.bytes});
  impl_->peers = PeersOf(options);
  impl_->server->SetPeers(impl_->peers);
  impl_->side->SetPolicy(impl_->peers);
  if (options.metrics != impl_->options.metrics) {
    RETURN_IF_ERROR(impl_->StartMetrics(options.metrics));
  }
  impl_->options = options;
  return absl::OkStatus();
}

void WeightdServer::Drain() {
  impl_->store->Control(&StoreCore::Drain);
  impl_->server->SetServing(false);
}

size_t WeightdServer::open_sessions() const { return impl_->store->Look(&StoreCore::Stats).sessions.size(); }

std::string WeightdServer::Describe() const {
  const StoreStats stats = impl_->store->Look(&StoreCore::Stats);
  std::vector<std::string> packs;
  for (uint32_t i = 0; i < impl_->store->Look(&StoreCore::pack_count); ++i) {
    const Pack& pack = *impl_->store->Look(&StoreCore::pack, i);
    packs.push_back(absl::StrCat(pack.dir(), " (", pack.model_id(), ", ",
                                 FormatSize(pack.dense_bytes() + pack.total_expert_bytes()), ")"));
  }
  return absl::StrFormat(
      "weightd serves %s on %s: --dram-budget %s, --io %s (%s), --direct %s, --threads %d, --eviction %s, "
      "--admission %s, boot epoch %016x",
      absl::StrJoin(packs, ", "), impl_->options.socket, FormatSize(stats.dram_budget), impl_->options.io,
      stats.io_engine, impl_->options.direct ? "on" : "off", impl_->options.reader_threads, stats.eviction,
      stats.admission ? "on" : "off", impl_->store->Look(&StoreCore::boot_epoch));
}

WeightStore& WeightdServer::store() { return *impl_->store; }

}  // namespace sluice::weightd
