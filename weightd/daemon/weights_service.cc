#include "weightd/daemon/weights_service.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/base/status.h"
#include "common/protocol/lease.h"
#include "daemon/grpc_status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "pack/pack.h"
#include "weightd/engine/store_stats.h"
#include "weightd/store/store_metrics.h"

namespace sluice::weightd {
namespace v1 = ::sluice::weights::v1;

namespace {

constexpr size_t kMaxClientName = 128;
constexpr uint32_t kMaxComputeThreads = 4096;  // above any machine; keeps the reserve's product small

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// Adds the reason that the store's status code has in this call.
absl::Status WithReason(const absl::Status& status, absl::StatusCode code, const char* reason) {
  if (status.code() != code || !ReasonOf(status).empty()) {
    return status;
  }
  return ReasonError(code, reason, std::string(status.message()));
}

absl::Status ReasonOfOpening(absl::Status status) {
  status = WithReason(status, absl::StatusCode::kFailedPrecondition, "ABI_MISMATCH");
  status = WithReason(status, absl::StatusCode::kInvalidArgument, "INVALID_FIELD");
  status = WithReason(status, absl::StatusCode::kResourceExhausted, "BUDGET_TOO_SMALL");
  return WithReason(status, absl::StatusCode::kUnavailable, "DRAINING");
}

std::string Canonical(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(path, error);
  return error ? path : canonical.string();
}

google::protobuf::Duration DurationOf(absl::Duration duration) {
  google::protobuf::Duration result;
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  result.set_seconds(seconds);
  result.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return result;
}

AbiSignature SignatureOf(const v1::AbiSignature& abi) {
  AbiSignature signature;
  signature.version = abi.version();
  signature.residency_header = abi.residency_header();
  signature.residency_entry = abi.residency_entry();
  signature.pins_header = abi.pins_header();
  signature.pin_entry = abi.pin_entry();
  signature.control_header = abi.control_header();
  signature.control_cursors = abi.control_cursors();
  signature.submission_entry = abi.submission_entry();
  signature.completion_entry = abi.completion_entry();
  signature.side_message = abi.side_message();
  return signature;
}

ControlLayout LayoutOf(const v1::RingSizes& rings) {
  ControlLayout layout;
  layout.ring_entries = rings.ring_entries() != 0 ? rings.ring_entries() : layout.ring_entries;
  layout.list_entries = rings.list_entries() != 0 ? rings.list_entries() : layout.list_entries;
  layout.progress_words = rings.progress_words() != 0 ? rings.progress_words() : layout.progress_words;
  return layout;
}

// Names go to logs: characters that could break a line there are replaced by question marks.
std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; },
      '?');
  return text;
}

void FillCounters(const StoreStats& stats, v1::GetStatsResponse* response) {
  const google::protobuf::Descriptor* fields = response->GetDescriptor();
  for (const StoreCounter& counter : kStoreCounters) {
    response->GetReflection()->SetUInt64(response, fields->FindFieldByName(counter.field),
                                         stats.*counter.value);
  }
  response->set_eviction(stats.eviction);
  response->set_admission(stats.admission);
}

void FillHistogram(const HistogramData& data, v1::LatencyHistogram* out) {
  out->mutable_bounds_seconds()->Assign(data.bounds.begin(), data.bounds.end());
  out->mutable_counts()->Assign(data.counts.begin(), data.counts.end());
  out->set_sum_seconds(data.sum);
}

void FillClasses(const StoreStats& stats, const StoreMetrics& metrics, v1::GetStatsResponse* response) {
  for (size_t i = 0; i < kRequestClasses; ++i) {
    const StoreMetrics::Class& from = metrics.classes[i];
    v1::ClassStats* out = response->add_classes();
    out->set_request_class(kRequestClassNames[i]);
    out->set_resident_requests(from.requests[0].value());
    out->set_joined_requests(from.requests[1].value());
    out->set_ssd_requests(from.requests[2].value());
    out->set_resident_bytes(from.bytes[0].value());
    out->set_joined_bytes(from.bytes[1].value());
    out->set_ssd_bytes(from.bytes[2].value());
    out->set_queued(i == 0 ? stats.queued_demand : stats.queued_prefetch);
    FillHistogram(from.queue_seconds.Read(), out->mutable_queue());
    FillHistogram(from.io_seconds.Read(), out->mutable_io());
  }
  response->set_prefetch_late(metrics.prefetch_late.value());
  FillHistogram(metrics.copy_seconds.Read(), response->mutable_copy());
}

void FillSessions(const StoreStats& stats, v1::GetStatsResponse* response) {
  for (const SessionStats& session : stats.sessions) {
    v1::SessionStats* out = response->add_sessions();
    out->set_session(session.session);
    out->set_client_name(session.client_name);
    out->set_state(session.state);
    out->set_held_extents(session.held_extents);
    out->set_held_bytes(session.held_bytes);
    out->set_outstanding(session.outstanding);
    out->set_requests(session.requests);
    out->set_bytes_read(session.bytes_read);
    out->set_dram_quota_bytes(session.quota_bytes);
    out->set_charged_bytes(session.charged_bytes);
  }
}

}  // namespace

absl::StatusOr<uint32_t> WeightsService::Find(const v1::PackRef& ref) const {
  if (ref.path().empty() && ref.model_id().empty()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "pack", "names neither path nor model_id");
  }
  std::vector<std::string> served;
  for (uint32_t number = 0; number < store_->Look(&StoreCore::pack_count); ++number) {
    const Pack* pack = store_->Look(&StoreCore::pack, number);
    if ((ref.path().empty() || Canonical(ref.path()) == Canonical(pack->dir())) &&
        (ref.model_id().empty() || ref.model_id() == pack->model_id())) {
      return number;
    }
    served.push_back(absl::StrCat(pack->dir(), " (", pack->model_id(), ")"));
  }
  return ReasonError(
      absl::StatusCode::kNotFound, "PACK_UNKNOWN",
      absl::StrCat("no pack ", Printable(ref.path()), ref.path().empty() ? "" : " ",
                   Printable(ref.model_id()), " is served here; there is ", absl::StrJoin(served, ", ")));
}

absl::StatusOr<SessionParams> WeightsService::ParamsOf(const v1::OpenSessionRequest& request) const {
  SessionParams params;
  params.abi = SignatureOf(request.abi());
  if (request.packs().empty() || static_cast<uint32_t>(request.packs_size()) > kMaxSessionPacks) {
    return FieldError(
        absl::StatusCode::kInvalidArgument, "packs",
        absl::StrCat("names ", request.packs_size(), " packs, 1 to ", kMaxSessionPacks, " are possible"));
  }
  for (const v1::PackRef& ref : request.packs()) {
    ASSIGN_OR_RETURN(const uint32_t number, Find(ref));
    params.packs.push_back(number);
  }
  if (request.compute_threads() == 0 || request.compute_threads() > kMaxComputeThreads) {
    return FieldError(
        absl::StatusCode::kInvalidArgument, "compute_threads",
        absl::StrCat("is ", request.compute_threads(), ", 1 to ", kMaxComputeThreads, " are possible"));
  }
  params.compute_threads = request.compute_threads();
  params.quota_bytes = request.dram_quota_bytes();
  params.layout = LayoutOf(request.rings());
  if (!params.layout.valid()) {
    return FieldError(
        absl::StatusCode::kInvalidArgument, "rings",
        absl::StrCat(params.layout.ring_entries, " ring entries, ", params.layout.list_entries,
                     " list entries and ", params.layout.progress_words, " progress words are not possible"));
  }
  if (request.client_name().size() > kMaxClientName) {
    return FieldError(absl::StatusCode::kInvalidArgument, "client_name",
                      absl::StrCat("has ", request.client_name().size(), " bytes, at most ", kMaxClientName));
  }
  params.client_name = Printable(request.client_name());
  return params;
}

absl::Status WeightsService::Open(const v1::OpenSessionRequest& request, v1::OpenSessionResponse* response) {
  const AbiSignature abi = SignatureOf(request.abi());
  if (const char* field = AbiMismatch(abi); field != nullptr) {
    return ReasonError(absl::StatusCode::kFailedPrecondition, "ABI_MISMATCH",
                       absl::StrCat("the client was built against another session ABI: ", field,
                                    " differs (its version ", abi.version, ", weightd's ", kAbiVersion, ")"));
  }
  if (request.expected_boot_epoch() != 0 &&
      request.expected_boot_epoch() != store_->Look(&StoreCore::boot_epoch)) {
    return ReasonError(
        absl::StatusCode::kFailedPrecondition, "BOOT_EPOCH_MISMATCH",
        absl::StrCat("weightd was started anew: boot epoch ", store_->Look(&StoreCore::boot_epoch),
                     ", expected ", request.expected_boot_epoch()));
  }
  ASSIGN_OR_RETURN(const SessionParams params, ParamsOf(request));
  const auto handle = store_->Control(&StoreCore::OpenSession, params);
  RETURN_IF_ERROR(ReasonOfOpening(handle.status()));
  const auto nonce = nonces_->Issue(handle->session);
  if (!nonce.ok()) {
    store_->Control(&StoreCore::CloseSession, handle->session).IgnoreError();  // opened a moment ago
    return nonce.status();
  }
  response->set_session(handle->session);
  response->set_boot_epoch(handle->boot_epoch);
  response->set_nonce(nonce->data(), nonce->size());
  response->set_side_socket(options_.side_socket);
  *response->mutable_join_timeout() = DurationOf(nonces_->lifetime());
  for (const SessionPack& session_pack : handle->packs) {
    const Pack* pack = store_->Look(&StoreCore::pack, session_pack.pack);
    v1::SessionPack* out = response->add_packs();
    out->set_path(pack->dir());
    out->set_model_id(pack->model_id());
    out->set_extent_count(session_pack.extent_count);
  }
  const StoreStats stats = store_->Look(&StoreCore::Stats);
  response->set_reserved_bytes(handle->reserved_bytes);
  response->set_dram_budget_bytes(stats.dram_budget);
  response->set_control_bytes(handle->control_bytes);
  response->set_io_engine(stats.io_engine);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* WeightsService::OpenSession(grpc::CallbackServerContext* context,
                                                      const v1::OpenSessionRequest* request,
                                                      v1::OpenSessionResponse* response) {
  return Finish(context, Open(*request, response));
}

grpc::ServerUnaryReactor* WeightsService::CloseSession(grpc::CallbackServerContext* context,
                                                       const v1::CloseSessionRequest* request,
                                                       v1::CloseSessionResponse*) {
  // The same number with another boot epoch is another client's session.
  const bool ours =
      request->boot_epoch() == 0 || request->boot_epoch() == store_->Look(&StoreCore::boot_epoch);
  absl::Status status = absl::NotFoundError(
      absl::StrCat("session ", request->session(), " belongs to another life of weightd"));
  if (ours) {
    nonces_->Revoke(request->session());
    status = store_->Control(&StoreCore::CloseSession, request->session());
  }
  return Finish(context, WithReason(status, absl::StatusCode::kNotFound, "SESSION_UNKNOWN"));
}

grpc::ServerUnaryReactor* WeightsService::DescribePack(grpc::CallbackServerContext* context,
                                                       const v1::DescribePackRequest* request,
                                                       v1::DescribePackResponse* response) {
  const auto number = Find(request->pack());
  if (!number.ok()) {
    return Finish(context, number.status());
  }
  const Pack& pack = *store_->Look(&StoreCore::pack, *number);
  response->set_path(pack.dir());
  response->set_model_id(pack.model_id());
  response->set_family(pack.config().family);
  response->set_layers(static_cast<uint32_t>(pack.config().layers.size()));
  response->set_experts(pack.expert_total());
  response->set_extents(pack.extent_count());
  response->set_dense_extents(pack.dense_extent_count());
  response->set_dense_bytes(pack.dense_bytes());
  response->set_expert_bytes(pack.total_expert_bytes());
  response->set_largest_expert_bytes(pack.largest_expert_bytes());
  const ResidencyEntry* residency = store_->Look(&StoreCore::residency, *number);
  uint32_t resident = 0;
  uint64_t resident_bytes = 0;
  for (uint32_t extent = 0; extent < pack.extent_count(); ++extent) {
    if (IsResident(residency[extent])) {
      ++resident;
      resident_bytes += pack.extents()[extent].length;
    }
  }
  response->set_resident_extents(resident);
  response->set_resident_bytes(resident_bytes);
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* WeightsService::SetWarmSet(grpc::CallbackServerContext* context,
                                                     const v1::SetWarmSetRequest* request,
                                                     v1::SetWarmSetResponse* response) {
  const auto number = Find(request->pack());
  if (!number.ok()) {
    return Finish(context, number.status());
  }
  WarmSet set;
  set.dense = request->dense();
  for (const v1::ExpertRef& expert : request->experts()) {
    set.experts.push_back({expert.layer(), expert.expert()});
  }
  const auto extents = warm_sets_->Set(*number, std::move(set));
  if (extents.ok()) {
    response->set_extents(*extents);
  }
  return Finish(context, ReasonOfOpening(extents.status()));
}

grpc::ServerUnaryReactor* WeightsService::GetWarmSet(grpc::CallbackServerContext* context,
                                                     const v1::GetWarmSetRequest* request,
                                                     v1::GetWarmSetResponse* response) {
  const auto number = Find(request->pack());
  if (!number.ok()) {
    return Finish(context, number.status());
  }
  const WarmSet set = warm_sets_->Get(*number);
  const std::vector<uint32_t> extents = ExtentsOf(*store_->Look(&StoreCore::pack, *number), set);
  const ResidencyEntry* residency = store_->Look(&StoreCore::residency, *number);
  response->set_dense(set.dense);
  for (const WarmExpert& expert : set.experts) {
    v1::ExpertRef* out = response->add_experts();
    out->set_layer(expert.layer);
    out->set_expert(expert.expert);
  }
  response->set_extents(static_cast<uint32_t>(extents.size()));
  response->set_resident_extents(static_cast<uint32_t>(
      std::count_if(extents.begin(), extents.end(), [&](uint32_t e) { return IsResident(residency[e]); })));
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* WeightsService::GetStats(grpc::CallbackServerContext* context,
                                                   const v1::GetStatsRequest*,
                                                   v1::GetStatsResponse* response) {
  const StoreStats stats = store_->Look(&StoreCore::Stats);
  response->set_boot_epoch(store_->Look(&StoreCore::boot_epoch));
  *response->mutable_uptime() = DurationOf(SteadyNow() - options_.started);
  response->set_io_engine(stats.io_engine);
  response->set_draining(store_->Look(&StoreCore::draining));
  FillCounters(stats, response);
  FillClasses(stats, store_->metrics(), response);
  FillSessions(stats, response);
  for (const WarmProgress& progress : warm_sets_->Progress()) {
    v1::WarmSetProgress* out = response->add_warm_sets();
    out->set_model_id(store_->Look(&StoreCore::pack, progress.pack)->model_id());
    out->set_extents(progress.extents);
    out->set_done(progress.done);
    out->set_reading(progress.reading);
  }
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* WeightsService::SetDramBudget(grpc::CallbackServerContext* context,
                                                        const v1::SetDramBudgetRequest* request,
                                                        v1::SetDramBudgetResponse* response) {
  if (store_->Look(&StoreCore::draining)) {
    return Finish(context, ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "weightd is draining"));
  }
  response->set_previous_bytes(store_->Look(&StoreCore::Stats).dram_budget);
  absl::Status status = store_->SetBudget(request->dram_budget_bytes());
  status = WithReason(status, absl::StatusCode::kFailedPrecondition, "BUDGET_TOO_SMALL");
  status = WithReason(status, absl::StatusCode::kResourceExhausted, "NO_MEMORY");
  response->set_segment_bytes(store_->Look(&StoreCore::Stats).segment_bytes);
  return Finish(context, status);
}

grpc::ServerUnaryReactor* WeightsService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                                v1::DrainResponse* response) {
  store_->Control(&StoreCore::Drain);
  options_.on_drain();
  response->set_open_sessions(static_cast<uint32_t>(store_->Look(&StoreCore::Stats).sessions.size()));
  return Finish(context, absl::OkStatus());
}

namespace {

constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kHistogram = MetricType::kHistogram;

void Requests(const StoreMetrics& metrics, MetricText* text) {
  const auto by_tier = [&](auto member) {
    for (size_t i = 0; i < kRequestClasses; ++i) {
      for (size_t tier = 0; tier < kFetchTiers; ++tier) {
        text->Sample({{"class", kRequestClassNames[i]}, {"tier", kFetchTierNames[tier]}},
                     (metrics.classes[i].*member)[tier].value());
      }
    }
  };
  text->Family("weightd_requests_total", kCounter,
               "Requests that ended OK, by the slowest tier that they needed.");
  by_tier(&StoreMetrics::Class::requests);
  text->Family("weightd_request_bytes_total", kCounter,
               "Bytes of requests: resident, coalesced with another request's read, or read from SSD.");
  by_tier(&StoreMetrics::Class::bytes);
  const auto by_class = [&](auto member) {
    for (size_t i = 0; i < kRequestClasses; ++i) {
      text->Buckets({{"class", kRequestClassNames[i]}}, (metrics.classes[i].*member).Read());
    }
  };
  text->Family("weightd_queue_seconds", kHistogram, "Time until the first read of requests that read began.");
  by_class(&StoreMetrics::Class::queue_seconds);
  text->Family("weightd_io_seconds", kHistogram,
               "Time from the first read of a request until its last byte was verified.");
  by_class(&StoreMetrics::Class::io_seconds);
}

void Queues(const StoreStats& stats, const StoreMetrics& metrics, MetricText* text) {
  text->Family("weightd_queued_requests", kGauge, "Requests that wait for their turn or for memory.");
  text->Sample({{"class", "demand"}}, stats.queued_demand);
  text->Sample({{"class", "prefetch"}}, stats.queued_prefetch);
  text->Family("weightd_copy_seconds", kHistogram, "Copy time of transfers.");
  text->Buckets({}, metrics.copy_seconds.Read());
  text->One("weightd_prefetch_late_total", kCounter,
            "Demands that arrived while the prefetch was being read.", metrics.prefetch_late.value());
}

void Counters(const StoreStats& stats, MetricText* text) {
  for (const StoreCounter& counter : kStoreCounters) {
    if (counter.metric != nullptr) {
      text->One(counter.metric, counter.type, counter.help, stats.*counter.value);
    }
  }
}

void Sessions(const StoreStats& stats, MetricText* text) {
  uint64_t held = 0;
  uint64_t outstanding = 0;
  for (const SessionStats& session : stats.sessions) {
    held += session.held_bytes;
    outstanding += session.outstanding;
  }
  text->One("weightd_sessions", kGauge, "Open sessions.", stats.sessions.size());
  text->One("weightd_session_held_bytes", kGauge, "Bytes held by sessions' leases, summed over sessions.",
            held);
  text->One("weightd_outstanding_requests", kGauge, "Requests of all sessions without completion.",
            outstanding);
  text->Family("weightd_slab_bytes", kGauge, "Bytes of clients' mapped slabs, by handle kind.");
  for (size_t i = 0; i < kHandleKinds.size(); ++i) {
    text->Sample({{"handle", NameOf(kHandleKinds[i])}}, stats.slab_bytes[i]);
  }
}

}  // namespace

std::string WeightdMetrics(const WeightStore& store, const std::string& version) {
  const StoreStats stats = store.Look(&StoreCore::Stats);
  MetricText text;
  text.Family("weightd_build_info", kGauge, "The running build.");
  text.Sample({{"version", version}}, 1);
  text.Family("weightd_io_engine_info", kGauge, "The I/O engine that reads packs.");
  text.Sample({{"engine", stats.io_engine}}, 1);
  Requests(store.metrics(), &text);
  Queues(stats, store.metrics(), &text);
  Counters(stats, &text);
  Sessions(stats, &text);
  return text.Take();
}

}  // namespace sluice::weightd
