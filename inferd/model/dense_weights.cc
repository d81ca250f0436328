#include "inferd/model/dense_weights.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/error_detail.h"
#include "common/status.h"
#include "inferd/weights/stall_limit.h"

namespace sluice {
namespace {

// The pause before weightd is asked again after it had no room: other sessions give some back meanwhile.
constexpr absl::Duration kRetryPace = absl::Milliseconds(10);

}  // namespace

DenseWeights::DenseWeights(WeightClient* client, FetchQueue* fetches, const SegmentBuffers* segments)
    : client_(client),
      fetches_(fetches),
      segments_(segments),
      pack_(client->pack()),
      extents_(pack_.dense_extent_count(), Extent::kAbsent),
      leases_(pack_.dense_extent_count()) {}

absl::StatusOr<std::unique_ptr<DenseWeights>> DenseWeights::Create(WeightClient* client, FetchQueue* fetches,
                                                                   const SegmentBuffers* segments) {
  std::unique_ptr<DenseWeights> weights(new DenseWeights(client, fetches, segments));
  RETURN_IF_ERROR(Annotate(FindDenseTensors(client->pack(), &weights->tensors_),
                           absl::StrCat("pack ", client->pack().dir())));
  return weights;
}

absl::Status DenseWeights::Acquire(absl::Duration stall_limit) {
  absl::Status status = LeaseAll(stall_limit);
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

bool DenseWeights::TryLease(uint32_t extent) {
  if (extents_[extent] == Extent::kLeased || !client_->TryLease(extent, &leases_[extent])) {
    return false;
  }
  extents_[extent] = Extent::kLeased;
  ++held_;
  return true;
}

absl::Status DenseWeights::LeaseAll(absl::Duration stall_limit) {
  StallLimit stall(stall_limit);
  stall.Restart(absl::Now());
  absl::Time retry_at = absl::InfinitePast();
  uint64_t refusals = 0;
  absl::Status trouble;
  // A completion is a hint that the extent is resident; only a lease says that it stays. One that was evicted
  // in between is asked for again.
  const auto handle = [&](const FetchKey& key, const FetchCompletion& completion) {
    if (key.kind != FetchKind::kDense || extents_[key.extent] != Extent::kRequested) {
      return;
    }
    extents_[key.extent] = Extent::kAbsent;
    if (completion.code == absl::StatusCode::kDataLoss) {
      trouble = ReasonError(absl::StatusCode::kDataLoss, "WEIGHT_CORRUPT",
                            absl::StrCat(pack_.ExtentName(key.extent), " is damaged"));
    } else if (completion.code == absl::StatusCode::kOk && TryLease(key.extent)) {
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
      const absl::Status status = fetches_->FetchDense(extent);
      if (absl::IsResourceExhausted(status)) {
        break;  // the ring is full: completions will make room
      }
      RETURN_IF_ERROR(status);
      extents_[extent] = Extent::kRequested;
    }
    if (held_ == extents_.size()) {
      return absl::OkStatus();
    }
    if (stall.Exceeded(absl::Now())) {
      // Two causes, two remedies: a budget that is too small, and a disk or weightd that does not answer.
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
    const ExtentLease& lease = leases_[placed.tensor->extent];
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
    if (extents_[extent] == Extent::kLeased) {
      client_->Release(extent, 0);
    }
    extents_[extent] = Extent::kAbsent;
  }
  held_ = 0;
  acquired_ = false;
}

}  // namespace sluice
