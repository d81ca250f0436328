#include "inferd/sim/virtual_weight_client.h"

#include <algorithm>
#include <cstring>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "pack/row_layout.h"

namespace sluice::inferd {
namespace {

// Number of link chunks per expert; a demand waits for one chunk when a prefetch is on the link.
constexpr uint64_t kChunksOfAnExpert = 32;
constexpr uint64_t kSmallestChunk = 4096;
constexpr uint64_t kLargestChunk = 1 << 20;

TransferKey KeyOf(const FetchRequest& request) {
  const TransferTarget& target = *request.transfer;
  return {.layer = request.layer,
          .expert = request.expert,
          .parts = request.parts,
          .slab = target.slab,
          .base = target.base,
          .stride = target.stride,
          .neurons = {target.neurons.begin(), target.neurons.end()}};
}

}  // namespace

VirtualWeightClient::VirtualWeightClient(std::unique_ptr<WeightClient> behind, VirtualClock* clock)
    : behind_(std::move(behind)), clock_(clock) {}

std::string VirtualWeightClient::Describe() const {
  return absl::StrCat(behind_->Describe(), ", link and device in virtual time");
}

absl::StatusOr<uint32_t> VirtualWeightClient::OfferSlab(const SlabOffer& offer) {
  ASSIGN_OR_RETURN(Mapping map,
                   MapSharedMemory(offer.fd, offer.bytes, /*writable=*/true, /*populate=*/false));
  slabs_.push_back(std::move(map));
  VirtualLink::Options options;
  options.rate = MakeLinkRate(offer.link_gbps, offer.link_latency_us);
  options.chunk_bytes =
      std::clamp(pack().largest_expert_bytes() / kChunksOfAnExpert, kSmallestChunk, kLargestChunk);
  options.schedule.window_bytes = 2 * options.chunk_bytes;
  link_ = std::make_unique<VirtualLink>(options, clock_);
  // No transfer is cancelled while it is filled, as FillNow() waits.
  const auto left = [this](uint64_t, uint64_t id) {
    over_[id].completion = {.id = id, .code = absl::StatusCode::kCancelled};
  };
  shared_.emplace(link_.get(), Shared::Hooks{.left = left, .cancel_fill = [](const Shared::Transfer&) {}});
  return static_cast<uint32_t>(slabs_.size() - 1);
}

absl::Status VirtualWeightClient::Submit(const FetchRequest& request) {
  if (request.transfer == nullptr) {
    return behind_->Submit(request);
  }
  if (link_ == nullptr || request.transfer->slab >= slabs_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("no slab ", request.transfer->slab, " was offered"));
  }
  if (!behind_->connected()) {
    return absl::UnavailableError("the connection to weightd is lost");
  }
  FetchCompletion completion;
  completion.id = request.id;
  if (request.dense_extent != FetchRequest::kNoExtent) {
    // This runs once at the start, when no token waits for it, so the link is not modelled.
    RETURN_IF_ERROR(CopyNow(request, &completion));
    over_[request.id].completion = completion;
    return absl::OkStatus();
  }
  TakeEnds();  // so that no request is coalesced with a transfer that has ended
  Shared::Transfer* const transfer = shared_->Join(
      KeyOf(request), {request.id, request.request_class, request.step, request.layer, nullptr});
  if (transfer == nullptr) {
    return absl::OkStatus();
  }
  const absl::Status copied = CopyNow(request, &completion);
  if (!copied.ok() || completion.code != absl::StatusCode::kOk) {
    shared_->End(transfer->number);
    if (copied.ok()) {
      over_[request.id].completion = completion;
    }
    return copied;
  }
  transfer->work = completion;
  SendTiles(request, transfer);
  return absl::OkStatus();
}

// Bytes of one neuron in the requested parts; of down by outputs its share.
uint64_t VirtualWeightClient::RowBytesOf(const FetchRequest& request) const {
  uint64_t bytes = 0;
  for (int part = 0; part < kPartCount; ++part) {
    if ((request.parts & PartBit(static_cast<Part>(part))) != 0) {
      const PartView view = pack().part(request.layer, request.expert, static_cast<Part>(part));
      const uint32_t neurons = pack().part(request.layer, request.expert, Part::kUp).rows;
      bytes += RowBytes(view.encoding, view.cols) * view.rows / neurons;
    }
  }
  return bytes;
}

void VirtualWeightClient::SendTiles(const FetchRequest& request, Shared::Transfer* transfer) {
  const uint32_t rows = request.transfer->neurons.empty()
                            ? pack().part(request.layer, request.expert, Part::kUp).rows
                            : static_cast<uint32_t>(request.transfer->neurons.size());
  const uint32_t tile = request.transfer->tile_neurons == 0 ? rows : request.transfer->tile_neurons;
  const uint64_t row_bytes = RowBytesOf(request);
  std::vector<uint64_t> tile_bytes;
  for (uint32_t row = 0; row < rows; row += tile) {
    tile_bytes.push_back(std::min(tile, rows - row) * row_bytes);
  }
  transfer->copying = true;
  link_->Submit(transfer->number, request.request_class, tile_bytes);
}

void VirtualWeightClient::TakeEnds() {
  link_->Advance();
  for (const VirtualLink::End& end : link_->TakeEnds()) {
    const Shared::Transfer transfer = shared_->End(end.number);
    FetchCompletion completion = transfer.work;
    completion.code = end.cancelled ? absl::StatusCode::kCancelled : absl::StatusCode::kOk;
    completion.link_bytes = end.bytes;
    completion.copy_us = static_cast<uint32_t>(end.took_nanos / 1000);
    for (const TransferWaiter& waiter : transfer.waiters) {
      completion.id = waiter.id;
      over_[waiter.id] = {completion, end.landed};
      completion = {.code = completion.code};  // the first one is charged
    }
  }
}

uint32_t VirtualWeightClient::LandedTiles(uint64_t id) const {
  if (const auto over = over_.find(id); over != over_.end()) {
    return over->second.landed;
  }
  if (link_ == nullptr) {
    return 0;
  }
  link_->Advance();
  const Shared::Transfer* const transfer = shared_->FindByRequest(0, id);
  return transfer == nullptr ? 0 : link_->landed(transfer->number);
}

void VirtualWeightClient::Cancel(uint64_t id) {
  if (!shared_.has_value() || !shared_->Cancel(0, id)) {
    behind_->Cancel(id);
  }
}

void VirtualWeightClient::CancelPrefetches(uint64_t step, uint32_t layer) {
  if (link_ != nullptr) {
    link_->Advance();
    shared_->CancelPrefetches(0, 0, step, layer);
  }
  behind_->CancelPrefetches(step, layer);
}

size_t VirtualWeightClient::Poll(absl::FunctionRef<void(const FetchCompletion&)> handle) {
  if (!behind_->connected()) {
    return 0;
  }
  size_t handled = held_.size();
  for (const FetchCompletion& completion : held_) {
    handle(completion);
  }
  held_.clear();
  handled += behind_->Poll(handle);
  if (link_ != nullptr) {
    TakeEnds();
  }
  // Handlers may submit more.
  while (!over_.empty()) {
    const Over over = over_.extract(over_.begin()).mapped();
    handle(over.completion);
    ++handled;
  }
  return handled;
}

// Waits: advances the clock for transfers on the link; other completions need real time.
absl::Status VirtualWeightClient::Wait(absl::Time deadline) {
  if (!behind_->connected()) {
    return behind_->Wait(deadline);
  }
  if (!over_.empty() || !held_.empty() || (link_ != nullptr && link_->HasEnds())) {
    return absl::OkStatus();
  }
  const int64_t next = link_ == nullptr ? -1 : link_->NextEvent();
  if (next < 0) {
    return behind_->Wait(deadline);
  }
  // An earlier result of the CPU is handled first.
  const int64_t until = std::min(next, std::max(clock_->cpu().next_result(), Now()));
  clock_->AdvanceTo(until);
  link_->Advance();
  return absl::OkStatus();
}

absl::Status VirtualWeightClient::Reconnect(absl::Time deadline) {
  shared_.reset();
  link_.reset();
  over_.clear();
  held_.clear();
  slabs_.clear();
  return behind_->Reconnect(deadline);
}

// Copies of a VirtualWeightClient: bytes come from leases of the wrapped client, which are filled first if
// needed.

ExtentRange VirtualWeightClient::ExtentsOf(const FetchRequest& request) const {
  return request.dense_extent != FetchRequest::kNoExtent
             ? ExtentRange{request.dense_extent, 1}
             : pack().expert_extents(request.layer, request.expert);
}

bool VirtualWeightClient::LeaseAll(const ExtentRange& range, std::vector<ExtentLease>* leases) {
  leases->assign(range.count, {});
  for (uint32_t i = 0; i < range.count; ++i) {
    if (!behind_->TryLease(range.first + i, &(*leases)[i])) {
      while (i > 0) {
        behind_->Release(range.first + --i, 0);
      }
      return false;
    }
  }
  return true;
}

// Copies the bytes. A returned error concerns the connection; the completion reports errors of the bytes.
absl::Status VirtualWeightClient::CopyNow(const FetchRequest& request, FetchCompletion* completion) {
  const ExtentRange range = ExtentsOf(request);
  std::vector<ExtentLease> leases;
  const absl::Time limit = SteadyNow() + fill_limit_;
  while (!LeaseAll(range, &leases)) {
    RETURN_IF_ERROR(FillNow(request, completion));
    if (completion->code != absl::StatusCode::kOk) {
      return absl::OkStatus();
    }
    if (SteadyNow() > limit) {
      completion->code = absl::StatusCode::kResourceExhausted;  // others keep evicting it
      return absl::OkStatus();
    }
  }
  const absl::Status copied = CopyRows(request, leases);
  for (uint32_t i = 0; i < range.count; ++i) {
    behind_->Release(range.first + i, request.step);
  }
  return copied;
}

// Makes the expert resident in weightd's DRAM; completions of other requests are kept for Poll().
absl::Status VirtualWeightClient::FillNow(const FetchRequest& request, FetchCompletion* completion) {
  constexpr uint64_t kOwnIds = uint64_t{1} << 63;  // the engine's serial numbers stay below
  FetchRequest fill;
  fill.id = kOwnIds | ++fills_;
  fill.step = request.step;
  fill.layer = request.layer;
  fill.expert = request.expert;
  fill.dense_extent = request.dense_extent;
  bool done = false;
  const uint64_t id = completion->id;
  RETURN_IF_ERROR(behind_->Submit(fill));
  while (!done) {
    behind_->Poll([&](const FetchCompletion& ended) {
      if (ended.id != fill.id) {
        held_.push_back(ended);
        return;
      }
      *completion = ended;
      completion->id = id;
      done = true;
    });
    if (!done) {
      RETURN_IF_ERROR(behind_->Wait(SteadyNow() + fill_limit_));
    }
    if (!done && !behind_->connected()) {
      return absl::UnavailableError("the connection to weightd is lost");
    }
  }
  return absl::OkStatus();
}

absl::Status VirtualWeightClient::CopyRows(const FetchRequest& request,
                                           const std::vector<ExtentLease>& leases) {
  const TransferTarget& target = *request.transfer;
  if (request.dense_extent != FetchRequest::kNoExtent) {
    const uint64_t room = slabs_[target.slab].bytes();
    if (leases[0].bytes > room || target.base[0] > room - leases[0].bytes) {
      return absl::InvalidArgumentError(absl::StrCat("an extent of ", leases[0].bytes, " bytes at ",
                                                     target.base[0], " does not fit the slab of ", room,
                                                     " bytes"));
    }
    std::memcpy(slabs_[target.slab].data() + target.base[0], leases[0].data, leases[0].bytes);
    return absl::OkStatus();
  }
  const uint32_t first = pack().expert_extents(request.layer, request.expert).first;
  const Mapping& slab = slabs_[target.slab];
  for (int p = 0; p < kPartCount; ++p) {
    if ((request.parts & PartBit(static_cast<Part>(p))) == 0) {
      continue;
    }
    const PartView view = pack().part(request.layer, request.expert, static_cast<Part>(p));
    const uint64_t row_bytes = RowBytes(view.encoding, view.cols);
    const uint32_t rows = target.neurons.empty() ? view.rows : static_cast<uint32_t>(target.neurons.size());
    if (rows == 0 || target.base[p] + (rows - 1) * target.stride[p] + row_bytes > slab.bytes()) {
      return absl::InvalidArgumentError(absl::StrCat("part ", p, " of ", rows, " rows at ", target.base[p],
                                                     " does not fit the slab of ", slab.bytes(), " bytes"));
    }
    const std::byte* source = leases[view.extent - first].data + view.base;
    std::byte* place = slab.data() + target.base[p];
    for (uint32_t row = 0; row < rows; ++row) {
      const uint64_t neuron = target.neurons.empty() ? row : target.neurons[row];
      std::memcpy(place + row * target.stride[p], source + neuron * view.stride, row_bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
