#include "weightd/engine/transfer_requests.h"

#include <algorithm>
#include <array>

namespace sluice::weightd {
namespace {

constexpr std::array<Part, kPartCount> kParts = {Part::kUp, Part::kGate, Part::kDown};

// Prefetches pin at most one of this many bytes of the budget, or one request.
constexpr uint64_t kPrefetchShare = 4;

bool SameRows(const SubmissionEntry& a, const SubmissionEntry& b) {
  return a.opcode == b.opcode && a.pack == b.pack && a.layer == b.layer && a.expert == b.expert &&
         a.extent == b.extent && a.parts == b.parts && a.slab == b.slab &&
         std::equal(std::begin(a.base), std::end(a.base), std::begin(b.base)) &&
         std::equal(std::begin(a.stride), std::end(a.stride), std::begin(b.stride));
}

bool IsScan(const SubmissionEntry& entry) { return (entry.flags & kScanFlag) != 0; }
bool IsPrefetch(const SubmissionEntry& entry) { return entry.request_class == RequestClass::kPrefetch; }

}  // namespace

void TransferRequests::Accept(Session* session, const SubmissionEntry& entry, std::vector<uint32_t> neurons) {
  auto owned = std::make_unique<Request>();
  Request* request = owned.get();
  const SessionPackPlan& plan = session->options().packs[entry.pack];
  const Session::SlabRecord& slab = session->slabs.at(entry.slab);
  request->number = next_number_++;
  request->session = session->id();
  request->entry = entry;
  request->neurons = std::move(neurons);
  request->pack = plan.pack;
  request->source = plan.source;
  request->slab = slab.slab;
  request->link = slab.link;
  if (entry.progress != kNoProgress) {
    request->progress = session->ProgressWord(entry.progress);
  }
  request->completion.id = entry.id;
  request->completion.extent = kNoExtent;
  Request* same = FindSame(*request);
  requests_[request->number] = std::move(owned);
  by_id_[{request->session, entry.id}] = request->number;
  if (same == nullptr) {
    StartFill(*request);
    return;
  }
  const bool overtakes = IsPrefetch(same->entry) && !IsPrefetch(entry);
  if (same->copying || !overtakes) {
    Follow(request, same);
    return;
  }
  // The demand's own fill is coalesced with the prefetch's reads, so their queue need not be waited for.
  superseded_ = {same->session, same->entry.id};
  for (uint64_t follower : std::exchange(same->followers, {})) {
    Follow(Find(follower), request);
  }
  Follow(same, request);
  const std::pair<uint64_t, uint64_t> waited = *superseded_;
  StartFill(*request);
  fetcher_->Cancel(waited.first, waited.second);
  superseded_.reset();
}

TransferRequests::Request* TransferRequests::Find(uint64_t number) {
  auto found = requests_.find(number);
  return found == requests_.end() ? nullptr : found->second.get();
}

TransferRequests::Request* TransferRequests::FindById(uint64_t session, uint64_t id) {
  auto found = by_id_.find({session, id});
  return found == by_id_.end() ? nullptr : Find(found->second);
}

TransferRequests::Request* TransferRequests::FindSame(const Request& request) {
  const auto first = by_id_.lower_bound({request.session, 0});
  for (auto at = first; at != by_id_.end() && at->first.first == request.session; ++at) {
    Request* other = Find(at->second);
    if (other->leader == 0 && !other->stale && SameRows(other->entry, request.entry) &&
        other->neurons == request.neurons) {
      return other;
    }
  }
  return nullptr;
}

void TransferRequests::Follow(Request* request, Request* leader) {
  request->leader = leader->number;
  leader->followers.push_back(request->number);
  if (!IsPrefetch(request->entry)) {
    Promote(leader);
  }
}

void TransferRequests::Promote(Request* request) {
  request->entry.request_class = RequestClass::kDemand;
  if (request->copying) {
    engine_->Promote(request->number);
  }
}

void TransferRequests::StartFill(const Request& request) {
  FillRequest fill;
  fill.session = request.session;
  fill.id = request.entry.id;
  fill.request_class = request.entry.request_class;
  fill.step = request.entry.step;
  fill.layer = request.entry.layer;
  fill.pack = request.pack;
  fill.scan = IsScan(request.entry);
  if (request.entry.opcode == Opcode::kTransferExtent) {
    fill.extents.ids[0] = request.entry.extent;
    fill.extents.count = 1;
  } else {
    fill.extents =
        request.source->ExpertExtents(request.entry.layer, request.entry.expert, request.entry.parts);
  }
  fetcher_->Accept(fill);
}

bool TransferRequests::OnFilled(uint64_t session, const CompletionEntry& entry, std::vector<ExtentId>* held) {
  if (superseded_ == std::pair(session, entry.id)) {
    for (ExtentId extent_id : std::exchange(*held, {})) {
      tier_->store().Unpin(extent_id);
    }
    return true;  // it ends with its leader
  }
  Request* request = FindById(session, entry.id);
  if (request == nullptr) {
    return false;
  }
  request->completion = entry;
  request->held = std::exchange(*held, {});
  for (ExtentId extent_id : request->held) {
    pinned_bytes_ += tier_->store().length(extent_id);
  }
  auto code = static_cast<absl::StatusCode>(entry.code);
  const bool gone = std::any_of(request->held.begin(), request->held.end(), [this](ExtentId extent_id) {
    return tier_->store().state(extent_id) != ExtentState::kResident;
  });
  if (gone && code == absl::StatusCode::kOk && !request->stale) {
    // The scrub took an extent away while the others were read.
    Unpin(request);
    StartFill(*request);
    return true;
  }
  if (code == absl::StatusCode::kOk && IsPrefetch(request->entry) && PrefetchesPinTooMuch(*request)) {
    code = absl::StatusCode::kResourceExhausted;
  }
  if (code != absl::StatusCode::kOk || request->stale) {
    Finish(request, request->stale ? absl::StatusCode::kCancelled : code);
  } else {
    StartCopy(request);
  }
  return true;
}

// A link may be slower than its prefetches; their sources must not fill all of memory.
bool TransferRequests::PrefetchesPinTooMuch(const Request& request) const {
  uint64_t own = 0;
  for (ExtentId extent_id : request.held) {
    own += tier_->store().length(extent_id);
  }
  return pinned_bytes_ > own && pinned_bytes_ > tier_->arena().budget() / kPrefetchShare;
}

const std::byte* TransferRequests::DataOf(ExtentId extent_id) const {
  const ExtentStore& store = tier_->store();
  return tier_->arena().memory(store.segment(extent_id))->map.data() + store.offset(extent_id);
}

PartCopy TransferRequests::CopyOf(const Request& request, Part part) const {
  const SubmissionEntry& entry = request.entry;
  const PartRows place = request.source->ExpertPart(entry.layer, entry.expert, part);
  const auto p = static_cast<size_t>(part);
  PartCopy copy;
  copy.source = DataOf(tier_->store().FirstExtentId(request.pack) + place.extent) + place.base;
  copy.source_stride = place.stride;
  copy.dest = entry.base[p];
  copy.dest_stride = entry.stride[p];
  copy.row_bytes = place.row_bytes;
  return copy;
}

TransferPlan TransferRequests::PlanOf(const Request& request) const {
  const SubmissionEntry& entry = request.entry;
  if (entry.opcode == Opcode::kTransferExtent) {
    return MakeRangePlan(DataOf(tier_->store().FirstExtentId(request.pack) + entry.extent), entry.base[0],
                         static_cast<uint32_t>(request.source->extent(entry.extent).length), plan_);
  }
  std::vector<PartCopy> parts;
  uint32_t rows = 0;
  for (Part part : kParts) {
    if ((entry.parts & PartBit(part)) != 0) {
      parts.push_back(CopyOf(request, part));
      rows = request.source->ExpertPart(entry.layer, entry.expert, part).rows;
    }
  }
  return MakeTransferPlan(parts, rows, request.neurons, entry.tile_neurons, plan_);
}

void TransferRequests::StartCopy(Request* request) {
  const SubmissionEntry& entry = request->entry;
  TransferJob job;
  job.number = request->number;
  job.session = request->session;
  job.link = request->link;
  job.request_class = entry.request_class;
  job.plan = PlanOf(*request);
  job.slab = request->slab;
  job.progress = request->progress;
  job.request = entry.id;
  request->copying = true;
  engine_->Submit(std::move(job));
}

void TransferRequests::OnEnd(const TransferEnd& end) {
  Request* request = Find(end.number);
  if (request == nullptr) {
    return;
  }
  if (request->dropped) {
    Unpin(request);
    requests_.erase(end.number);
    return;
  }
  request->completion.copy_us = static_cast<uint32_t>(std::min<int64_t>(end.copy_nanos / 1000, UINT32_MAX));
  request->completion.link_bytes = end.link_bytes;
  for (ExtentId extent_id : request->held) {
    // The use has no lease, so the eviction learns of it here.
    if (!end.cancelled && IsScan(request->entry)) {
      tier_->NoteScanned(extent_id, request->entry.step);
    } else if (!end.cancelled) {
      tier_->NoteUse(extent_id);
    }
  }
  Finish(request, !end.error.ok() ? absl::StatusCode::kInternal
                  : end.cancelled ? absl::StatusCode::kCancelled
                                  : absl::StatusCode::kOk);
}

void TransferRequests::Finish(Request* request, absl::StatusCode code) {
  Unpin(request);
  const uint64_t session = request->session;
  std::vector<CompletionEntry> completions = {request->completion};
  for (uint64_t number : request->followers) {
    Request* follower = Find(number);
    CompletionEntry like = request->completion;
    like.id = follower->entry.id;
    like.bytes = 0;  // the leader is charged
    like.link_bytes = 0;
    completions.push_back(like);
    Forget(follower);
  }
  Forget(request);
  for (CompletionEntry& completion : completions) {
    completion.code = static_cast<uint16_t>(code);
    on_complete_(session, completion);
  }
}

void TransferRequests::Unpin(Request* request) {
  for (ExtentId extent_id : std::exchange(request->held, {})) {
    pinned_bytes_ -= tier_->store().length(extent_id);
    tier_->store().Unpin(extent_id);
  }
}

void TransferRequests::Forget(Request* request) {
  by_id_.erase({request->session, request->entry.id});
  requests_.erase(request->number);
}

void TransferRequests::Leave(Request* request) {
  std::vector<uint64_t>& followers = Find(request->leader)->followers;
  followers.erase(std::remove(followers.begin(), followers.end(), request->number), followers.end());
  request->leader = 0;
}

bool TransferRequests::Cancel(uint64_t session, uint64_t id) {
  Request* request = FindById(session, id);
  if (request == nullptr) {
    return false;
  }
  if (request->leader != 0) {
    Leave(request);
    Finish(request, absl::StatusCode::kCancelled);
  } else if (!request->followers.empty()) {
    return true;  // others wait for its rows: it ends OK
  } else if (request->copying) {
    engine_->Cancel(request->number);
  } else {
    fetcher_->Cancel(session, id);
  }
  return true;
}

uint64_t TransferRequests::CancelPrefetches(uint64_t session, uint32_t pack, uint64_t step, uint32_t layer) {
  std::vector<uint64_t> numbers;
  for (auto at = by_id_.lower_bound({session, 0}); at != by_id_.end() && at->first.first == session; ++at) {
    const Request& request = *Find(at->second);
    const SubmissionEntry& entry = request.entry;
    const bool late = entry.step > step || (entry.step == step && entry.layer > layer);
    if (request.pack == pack && IsPrefetch(entry) && !late && !request.stale && request.followers.empty()) {
      numbers.push_back(request.number);
    }
  }
  uint64_t cancelled = 0;
  for (uint64_t number : numbers) {
    Request* request = Find(number);
    if (request->leader != 0) {
      Leave(request);
      Finish(request, absl::StatusCode::kCancelled);
      ++cancelled;
    } else if (request->copying) {
      cancelled += engine_->CancelIfNotStarted(number) ? 1 : 0;
    } else {
      request->stale = true;  // its read goes on, its bytes are not copied
      ++cancelled;
    }
  }
  return cancelled;
}

void TransferRequests::DropSession(uint64_t session) {
  std::vector<uint64_t> numbers;
  for (auto at = by_id_.lower_bound({session, 0}); at != by_id_.end() && at->first.first == session;) {
    numbers.push_back(at->second);
    at = by_id_.erase(at);
  }
  for (uint64_t number : numbers) {
    Request* request = Find(number);
    if (request->copying) {
      request->dropped = true;
      engine_->Cancel(number);
    } else {
      requests_.erase(number);
    }
  }
}

}  // namespace sluice::weightd
