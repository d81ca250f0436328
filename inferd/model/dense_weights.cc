#include "inferd/model/dense_weights.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/error_detail.h"
#include "common/status.h"
#include "inferd/weights/stall_limit.h"

namespace sluice::inferd {
namespace {

// Pause before a retry after weightd had no room: other sessions release some meanwhile.
constexpr absl::Duration kRetryPace = absl::Milliseconds(10);

}  // namespace

DenseWeights::DenseWeights(WeightClient* client, FetchQueue* fetches, const SegmentBuffers* segments)
    : client_(client),
      fetches_(fetches),
      segments_(segments),
      pack_(client->pack()),
      extents_(pack_.dense_extent_count(), Extent::kAbsent),
      leases_(pack_.dense_extent_count()) {}

uint64_t DenseWeights::DeviceBytes(const Pack& pack) {
  uint64_t bytes = 0;
  for (uint32_t extent = 0; extent < pack.dense_extent_count(); ++extent) {
    bytes += pack.extents()[extent].length;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<DenseWeights>> DenseWeights::Create(WeightClient* client, FetchQueue* fetches,
                                                                   const SegmentBuffers* segments,
                                                                   Backend* device) {
  std::unique_ptr<DenseWeights> weights(new DenseWeights(client, fetches, segments));
  RETURN_IF_ERROR(Annotate(FindDenseTensors(client->pack(), &weights->tensors_),
                           absl::StrCat("pack ", client->pack().dir())));
  if (device != nullptr) {
    // Extents are placed back to back: their lengths are multiples of every view's alignment.
    uint64_t bytes = 0;
    for (uint32_t extent = 0; extent < weights->extents_.size(); ++extent) {
      weights->offsets_.push_back(bytes);
      bytes += weights->pack_.extents()[extent].length;
    }
    ASSIGN_OR_RETURN(weights->slab_, DeviceSlab::Create(bytes, device));
  }
  return weights;
}

absl::Status DenseWeights::Acquire(absl::Duration stall_limit) {
  absl::Status status = HoldAll(stall_limit);
  if (status.ok()) {
    status = Resolve();
  }
  if (!status.ok()) {
    Release();
    return status;
  }
  acquired_ = true;
  return absl::OkStatus();
}

void DenseWeights::Hold(uint32_t extent) {
  extents_[extent] = Extent::kHeld;
  ++held_;
}

bool DenseWeights::TryLease(uint32_t extent) {
  if (slab_ != nullptr || extents_[extent] == Extent::kHeld || !client_->TryLease(extent, &leases_[extent])) {
    return false;
  }
  Hold(extent);
  return true;
}

bool DenseWeights::OnFetched(uint32_t extent) {
  if (slab_ == nullptr) {
    return TryLease(extent);
  }
  Hold(extent);
  return true;
}

absl::Status DenseWeights::Fetch(uint32_t extent) {
  if (slab_ == nullptr) {
    return fetches_->FetchDense(extent);
  }
  TransferTarget target;
  target.slab = slab_->number();
  target.base[0] = offsets_[extent];
  return fetches_->FetchDense(extent, &target);
}

absl::Status DenseWeights::HoldAll(absl::Duration stall_limit) {
  if (slab_ != nullptr && held_ < extents_.size()) {
    // No modelled link: it models only the cost of experts that are fetched while tokens wait.
    RETURN_IF_ERROR(slab_->Offer(/*link_gbps=*/0, /*link_latency_us=*/0, client_));
  }
  StallLimit stall(stall_limit);
  stall.Restart(absl::Now());
  absl::Time retry_at = absl::InfinitePast();
  uint64_t refusals = 0;
  absl::Status trouble;
  // A completion is a hint that the extent is resident; only a lease guarantees that it stays. An extent
  // evicted in between is requested again.
  const auto handle = [&](const FetchKey& key, const FetchCompletion& completion) {
    if (key.kind != FetchKind::kDense || extents_[key.extent] != Extent::kRequested) {
      return;
    }
    extents_[key.extent] = Extent::kAbsent;
    if (completion.code == absl::StatusCode::kDataLoss) {
      trouble = ReasonError(absl::StatusCode::kDataLoss, "WEIGHT_CORRUPT",
                            absl::StrCat(pack_.ExtentName(key.extent), " is damaged"));
    } else if (completion.code == absl::StatusCode::kOk && OnFetched(key.extent)) {
      stall.Restart(absl::Now());
    } else if (completion.code == absl::StatusCode::kResourceExhausted) {
      ++refusals;
      retry_at = absl::Now() + kRetryPace;
    }
  };
  for (;;) {
    for (uint32_t extent = 0; extent < extents_.size() && absl::Now() >= retry_at; ++extent) {
      if (extents_[extent] != Extent::kAbsent || TryLease(extent)) {
        continue;
      }
      const absl::Status status = Fetch(extent);
      if (absl::IsResourceExhausted(status)) {
        break;  // the ring is full: completions make room
      }
      RETURN_IF_ERROR(status);
      extents_[extent] = Extent::kRequested;
    }
    if (held_ == extents_.size()) {
      return absl::OkStatus();
    }
    if (stall.Exceeded(absl::Now())) {
      // The two causes have different remedies: a budget that is too small, or a disk or weightd that does
      // not respond.
      return refusals > 0 ? NoRoomError() : StallError(stall_limit);
    }
    RETURN_IF_ERROR(client_->Wait(
        stall.EndOfWait(absl::Now(), absl::Now() < retry_at ? retry_at : absl::InfiniteFuture())));
    fetches_->Poll(handle);
    RETURN_IF_ERROR(trouble);
  }
}

absl::Status DenseWeights::NoRoomError() const {
  return ReasonError(
      absl::StatusCode::kResourceExhausted, "DRAM_TOO_SMALL",
      absl::StrCat("weightd gave ", held_, " of ", extents_.size(), " dense extents; all ",
                   pack_.dense_bytes(), " bytes of them must fit its DRAM budget beside the experts"));
}

absl::Status DenseWeights::StallError(absl::Duration stall_limit) const {
  return absl::ResourceExhaustedError(absl::StrCat("weightd gave ", held_, " of ", extents_.size(),
                                                   " dense extents; the others did not come for ",
                                                   absl::FormatDuration(stall_limit)));
}

absl::Status DenseWeights::Resolve() {
  for (const DenseTensors::Placed& placed : tensors_.placed) {
    const uint32_t extent = placed.tensor->extent;
    if (slab_ != nullptr) {
      *placed.place = BufferRef{slab_->buffer(), offsets_[extent] + placed.tensor->offset};
      continue;
    }
    const ExtentLease& lease = leases_[extent];
    const BufferRef place = segments_->Place(lease);
    if (!place) {
      return absl::InternalError(absl::StrCat(pack_.ExtentName(placed.tensor->extent),
                                              " is leased in segment ", lease.segment,
                                              ", which was never announced"));
    }
    *placed.place = place + placed.tensor->offset;
  }
  return absl::OkStatus();
}

void DenseWeights::Release() {
  for (uint32_t extent = 0; extent < extents_.size(); ++extent) {
    if (extents_[extent] == Extent::kHeld && slab_ != nullptr) {
      continue;
    }
    if (extents_[extent] == Extent::kHeld) {
      client_->Release(extent, 0);
      --held_;
    }
    extents_[extent] = Extent::kAbsent;
  }
  acquired_ = false;
}

}  // namespace sluice::inferd
