// Data that arrives in a simulated client's slabs: by transfers, or copied by the client from leases.
#include <algorithm>

#include "absl/time/time.h"
#include "tests/simulation/sim_client.h"
#include "tests/support/fakes/late_copier.h"

namespace sluice {

// Offers a slab for slots, and the slab of dense weights, which holds the data of earlier sessions. Slots
// lent to these sessions are free: weightd has closed them, or is dead.
void SimClient::OfferSlabs() {
  const bool forget = shared_->forget_events;
  slab_ = std::make_unique<SimSlab>(SimSlab::Kind::kSlots, &scheduler(), &source_, pack_, &shared_->rotten,
                                    forget);
  if (dense_ == nullptr) {
    dense_ = std::make_unique<SimSlab>(SimSlab::Kind::kDense, &scheduler(), &source_, pack_, &shared_->rotten,
                                       forget);
  }
  dense_->FreeLent();
  const bool device = Chance(2);
  const double gbps = Chance(2) ? 0 : 0.05;
  uint32_t number = 0;
  for (const SimSlab* slab : {slab_.get(), dense_.get()}) {
    inferd::SlabOffer offer;
    offer.fd = slab->fd();
    offer.bytes = SimSlab::kBytes;
    offer.link_gbps = gbps;
    offer.link_latency_us = 20;
    if (device) {  // copies end later and in any order
      offer.kind = HandleKind::kCudaFd;
      offer.device = LateCopier::kDevice;
    }
    if (!session_->OfferSlab(number++, offer, absl::InfiniteFuture()).ok()) {
      slab_.reset();
      return;
    }
  }
}

bool SimClient::SubmitTransfer(RequestClass request_class) {
  if (slab_ == nullptr || pending_.size() >= kMinRingEntries || !session_->lost().ok()) {
    return false;
  }
  const bool whole = Chance(4);
  SubmissionEntry entry = Entry(whole ? Opcode::kTransferExtent : Opcode::kTransfer, request_class);
  if (whole) {
    entry.extent = static_cast<uint32_t>(Below(source_.extent_count()));
  } else {
    entry.layer = static_cast<uint32_t>(Below(source_.layer_count()));
    entry.expert = static_cast<uint32_t>(Below(source_.expert_count(entry.layer)));
    entry.parts = static_cast<PartSet>(1 + Below(kAllParts));
  }
  entry.slab = 0;
  entry.progress = static_cast<uint32_t>(entry.id % 16);
  session_->ClearProgress(entry.progress);
  std::vector<uint32_t> neurons;
  if (!slab_->Lend(&entry, &neurons)) {
    return false;
  }
  ++shared_->counters.transfers;
  if (!Submit(entry, {}, neurons)) {
    Expect(slab_->TakeBack(entry.id, /*ok=*/false));
    return false;
  }
  return true;
}

// Submits one more of the extents that stay, if there is one.
bool SimClient::SubmitDense() {
  if (slab_ == nullptr || pending_.size() >= kMinRingEntries || !session_->lost().ok()) {
    return false;
  }
  uint32_t extent = 0;
  while (extent < SimSlab::kSlots && dense_->HasExtent(extent)) {
    ++extent;
  }
  if (extent == SimSlab::kSlots) {
    return false;
  }
  SubmissionEntry entry = Entry(Opcode::kTransferExtent, RequestClass::kDemand);
  entry.extent = extent;
  entry.slab = 1;
  std::vector<uint32_t> all;
  if (!dense_->Lend(&entry, &all)) {
    return false;
  }
  ++shared_->counters.transfers;
  ++shared_->counters.dense;
  if (!Submit(entry, {})) {
    Expect(dense_->TakeBack(entry.id, /*ok=*/false));
    return false;
  }
  return true;
}

// Leases all of an expert in place; missing extents are fetched first, once.
bool SimClient::LeaseExpert(uint32_t layer, uint32_t expert) {
  const weightd::ExtentList list = source_.ExpertExtents(layer, expert, kAllParts);
  const std::vector<uint32_t> extents(list.ids.begin(), list.ids.begin() + list.count);
  for (const bool again : {false, true}) {
    ReleaseAll();
    if (std::all_of(extents.begin(), extents.end(), [this](uint32_t extent) { return TakeLease(extent); })) {
      return true;
    }
    ReleaseAll();
    SubmissionEntry entry = Entry(Opcode::kFillExpert, RequestClass::kDemand);
    entry.layer = layer;
    entry.expert = expert;
    entry.parts = kAllParts;
    if (again || Lost() || !Submit(entry, extents)) {
      break;
    }
    AwaitAll();
  }
  return false;
}

// Exercises the other transport: leases an expert and copies it row by row, while anything may happen to the
// session. The copy counts only if the session still lasts after the last byte was read.
void SimClient::Pull() {
  SubmissionEntry entry = Entry(Opcode::kTransfer, RequestClass::kDemand);
  entry.layer = static_cast<uint32_t>(Below(source_.layer_count()));
  entry.expert = static_cast<uint32_t>(Below(source_.expert_count(entry.layer)));
  entry.parts = kAllParts;
  std::vector<uint32_t> all;
  if (slab_ == nullptr || !LeaseExpert(entry.layer, entry.expert) ||
      !slab_->Lend(&entry, &all, /*whole=*/true)) {
    return;
  }
  ++shared_->counters.pulls;
  const bool ends = shared_->faults && Chance(4);  // weightd ends the session meanwhile
  bool ended = false;
  const std::vector<Held> leased = held_;
  for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
    const weightd::PartRows rows = source_.ExpertPart(entry.layer, entry.expert, part);
    const auto from = std::find_if(leased.begin(), leased.end(),
                                   [&](const Held& held) { return held.extent == rows.extent; });
    for (uint32_t row = 0; row < rows.rows; ++row) {
      slab_->Put(entry.id, part, row, from->lease.data + rows.base + uint64_t{row} * rows.stride);
      scheduler().MaybeYield();
      if (ends && !ended && Chance(8)) {
        ended = Misbehave();
      } else if (Chance(300)) {
        Nap(static_cast<int64_t>(Below(9'000'000'000)));
      }
    }
  }
  const bool lasts = !Lost();
  shared_->counters.pulls_in_vain += lasts ? 0 : 1;
  Expect(slab_->TakeBack(entry.id, /*ok=*/lasts || shared_->count_lost_pulls));
  ReleaseAll();
  if (ended) {
    AwaitLoss();
  }
}

}  // namespace sluice
