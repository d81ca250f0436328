// A client of weightd whose owner does not wait for transfers into slabs: each has landed, or is complete, at
// once. Tests use it to show that these waits are needed.
//
// Thread safety: as WeightClient.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "inferd/model/weight_client.h"

namespace sluice {

class HastyClient final : public inferd::WeightClient {
 public:
  struct Haste {
    bool landed = false;     // tiles land at once, except the last one
    bool completed = false;  // transfers complete at once
  };
  HastyClient(std::unique_ptr<inferd::WeightClient> behind, const Haste& haste)
      : behind_(std::move(behind)), haste_(haste) {}

  const Pack& pack() const override { return behind_->pack(); }
  absl::Status SetSegmentObserver(inferd::SegmentObserver* observer) override {
    return behind_->SetSegmentObserver(observer);
  }
  bool TryLease(uint32_t extent, inferd::ExtentLease* lease) override {
    return behind_->TryLease(extent, lease);
  }
  void Release(uint32_t extent, uint64_t step) override { behind_->Release(extent, step); }
  void SetScan(bool scan) override { behind_->SetScan(scan); }
  bool IsResident(uint32_t extent) const override { return behind_->IsResident(extent); }
  absl::Status Submit(const inferd::FetchRequest& request) override {
    const absl::Status status = behind_->Submit(request);
    if (status.ok() && request.transfer != nullptr && haste_.completed) {
      told_.push_back(request.id);
      early_.push_back(request.id);
    }
    if (status.ok() && request.transfer != nullptr && request.transfer->tile_neurons > 0) {
      const uint32_t tile = request.transfer->tile_neurons;
      tiles_[request.id] = (pack().part(request.layer, request.expert, Part::kUp).rows + tile - 1) / tile;
    }
    return status;
  }
  void BeginSubmitBatch() override { behind_->BeginSubmitBatch(); }
  void EndSubmitBatch() override { behind_->EndSubmitBatch(); }
  absl::StatusOr<uint32_t> OfferSlab(const inferd::SlabOffer& offer) override {
    return behind_->OfferSlab(offer);
  }
  uint32_t LandedTiles(uint64_t id) const override {
    const uint32_t landed = behind_->LandedTiles(id);
    const auto found = tiles_.find(id);
    return haste_.landed && found != tiles_.end() ? std::max(landed, found->second - 1) : landed;
  }
  void Cancel(uint64_t id) override { behind_->Cancel(id); }
  void CancelPrefetches(uint64_t step, uint32_t layer) override { behind_->CancelPrefetches(step, layer); }
  size_t Poll(absl::FunctionRef<void(const inferd::FetchCompletion&)> handle) override {
    const std::vector<uint64_t> early = std::exchange(early_, {});
    for (const uint64_t id : early) {
      inferd::FetchCompletion completion;
      completion.id = id;
      handle(completion);
    }
    return early.size() + behind_->Poll([&](const inferd::FetchCompletion& completion) {
      if (std::erase(told_, completion.id) == 0) {
        handle(completion);
      }
    });
  }
  absl::Status Wait(absl::Time deadline) override {
    return early_.empty() ? behind_->Wait(deadline) : absl::OkStatus();
  }
  void Wake() override { behind_->Wake(); }
  bool connected() const override { return behind_->connected(); }
  absl::Status RevokeSlabs(absl::Time deadline) override { return behind_->RevokeSlabs(deadline); }
  absl::Status Reconnect(absl::Time deadline) override { return behind_->Reconnect(deadline); }
  inferd::WeightClientCounters counters() const override { return behind_->counters(); }
  std::string Describe() const override { return behind_->Describe(); }

 private:
  const std::unique_ptr<inferd::WeightClient> behind_;
  const Haste haste_;
  std::map<uint64_t, uint32_t> tiles_;  // by request, number of its tiles
  std::vector<uint64_t> told_;          // completed too early; their end is not reported again
  std::vector<uint64_t> early_;         // to be reported
};

}  // namespace sluice
