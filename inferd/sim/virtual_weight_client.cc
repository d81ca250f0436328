#include "inferd/sim/virtual_weight_client.h"

#include <algorithm>
#include <cstring>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "pack/row_layout.h"

namespace sluice::inferd {
namespace {

// Number of link chunks per expert; a demand waits for one chunk when a prefetch is on the link.
constexpr uint64_t kChunksOfAnExpert = 32;
constexpr uint64_t kSmallestChunk = 4096;
constexpr uint64_t kLargestChunk = 1 << 20;

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
  link_ = std::make_unique<VirtualLink>(
      options, [this](uint64_t number, int64_t nanos, uint64_t bytes, bool cancelled) {
        OnTile(number, nanos, bytes, cancelled);
      });
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
  Transfer transfer;
  transfer.completion.id = request.id;
  transfer.request_class = request.request_class;
  transfer.step = request.step;
  transfer.layer = request.layer;
  transfer.expert = request.expert;
  transfer.parts = request.parts;
  transfer.target = *request.transfer;
  transfer.neurons.assign(request.transfer->neurons.begin(), request.transfer->neurons.end());
  transfer.target.neurons = {};
  transfer.submitted = Now();
  if (request.dense_extent != FetchRequest::kNoExtent) {
    // This runs once at the start, when no token waits for it, so the link is not modelled.
    RETURN_IF_ERROR(CopyNow(request, &transfer.completion));
    transfer.complete = true;
    transfers_.push_back(std::move(transfer));
    return absl::OkStatus();
  }
  link_->AdvanceTo(Now());  // so that a coalesced transfer does not end meanwhile
  if (Transfer* same = SameBytes(request); same != nullptr) {
    same->followed = true;
    transfer.leader = same->completion.id;
    transfer.tiles = same->tiles;
    for (uint32_t tile = 0; request.request_class == RequestClass::kDemand && tile < same->tiles; ++tile) {
      link_->Promote(same->first_number + tile, Now());
    }
    transfers_.push_back(std::move(transfer));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CopyNow(request, &transfer.completion));
  if (transfer.completion.code != absl::StatusCode::kOk) {
    transfer.complete = true;
    transfers_.push_back(std::move(transfer));
    return absl::OkStatus();
  }
  transfers_.push_back(std::move(transfer));
  SendTiles(request, &transfers_.back());
  return absl::OkStatus();
}

VirtualWeightClient::Transfer* VirtualWeightClient::SameBytes(const FetchRequest& request) {
  const TransferTarget& target = *request.transfer;
  for (Transfer& other : transfers_) {
    if (other.leader == 0 && !other.complete && !other.cancelled && other.layer == request.layer &&
        other.expert == request.expert && other.parts == request.parts && other.target.slab == target.slab &&
        other.target.base == target.base && other.target.stride == target.stride &&
        absl::MakeConstSpan(other.neurons) == target.neurons) {
      return &other;
    }
  }
  return nullptr;
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

void VirtualWeightClient::SendTiles(const FetchRequest& request, Transfer* transfer) {
  const uint32_t rows = request.transfer->neurons.empty()
                            ? pack().part(request.layer, request.expert, Part::kUp).rows
                            : static_cast<uint32_t>(request.transfer->neurons.size());
  const uint32_t tile = request.transfer->tile_neurons == 0 ? rows : request.transfer->tile_neurons;
  const uint64_t row_bytes = RowBytesOf(request);
  transfer->tiles = (rows + tile - 1) / tile;
  transfer->first_number = next_number_;
  next_number_ += transfer->tiles;
  const uint64_t first = transfer->first_number;
  const uint32_t tiles = transfer->tiles;
  const uint64_t id = request.id;
  for (uint32_t i = 0; i < tiles; ++i) {
    owner_[first + i] = id;
  }
  for (uint32_t i = 0; i < tiles; ++i) {
    const uint64_t in_tile = std::min(tile, rows - i * tile);
    link_->Submit(first + i, request.request_class, in_tile * row_bytes, Now());
  }
}

// Also called while transfers_ is iterated, so it must not change transfers_.
void VirtualWeightClient::OnTile(uint64_t number, int64_t nanos, uint64_t bytes, bool cancelled) {
  const auto owner = owner_.find(number);
  if (owner == owner_.end()) {
    return;  // belongs to an ended session
  }
  Transfer* transfer = Find(owner->second);
  owner_.erase(owner);
  if (transfer == nullptr) {
    return;
  }
  ++transfer->ended;
  transfer->landed += cancelled ? 0 : 1;
  transfer->completion.link_bytes += bytes;
  if (transfer->ended < transfer->tiles) {
    return;
  }
  transfer->complete = true;
  const bool whole = transfer->landed == transfer->tiles;
  transfer->completion.code = whole ? absl::StatusCode::kOk : absl::StatusCode::kCancelled;
  transfer->completion.copy_us = static_cast<uint32_t>((nanos - transfer->submitted) / 1000);
  for (Transfer& other : transfers_) {
    if (other.leader == transfer->completion.id) {
      other.complete = true;
      other.completion.code = transfer->completion.code;
    }
  }
}

VirtualWeightClient::Transfer* VirtualWeightClient::Find(uint64_t id) {
  for (Transfer& transfer : transfers_) {
    if (transfer.completion.id == id) {
      return &transfer;
    }
  }
  return nullptr;
}

const VirtualWeightClient::Transfer* VirtualWeightClient::Find(uint64_t id) const {
  return const_cast<VirtualWeightClient*>(this)->Find(id);
}

uint32_t VirtualWeightClient::LandedTiles(uint64_t id) const {
  if (link_ != nullptr) {
    link_->AdvanceTo(Now());
  }
  const Transfer* transfer = Find(id);
  if (transfer != nullptr && transfer->leader != 0) {
    transfer = Find(transfer->leader);
  }
  return transfer == nullptr ? 0 : transfer->landed;
}

void VirtualWeightClient::CancelTiles(Transfer* transfer) {
  if (transfer->complete || transfer->cancelled || transfer->followed || transfer->leader != 0) {
    return;
  }
  transfer->cancelled = true;
  const uint64_t first = transfer->first_number;
  const uint32_t tiles = transfer->tiles;
  for (uint32_t i = tiles; i > 0; --i) {  // from the end, as a cancelled tile lets the next one start
    if (owner_.contains(first + i - 1)) {
      link_->Cancel(first + i - 1, Now());
    }
  }
}

void VirtualWeightClient::Cancel(uint64_t id) {
  Transfer* transfer = Find(id);
  if (transfer == nullptr) {
    behind_->Cancel(id);
  } else {
    CancelTiles(transfer);
  }
}

void VirtualWeightClient::CancelPrefetches(uint64_t step, uint32_t layer) {
  if (link_ != nullptr) {
    link_->AdvanceTo(Now());
  }
  for (Transfer& transfer : transfers_) {
    const bool stale = transfer.step < step || (transfer.step == step && transfer.layer <= layer);
    if (transfer.request_class == RequestClass::kPrefetch && stale && transfer.landed == 0 &&
        transfer.tiles > 0 && !link_->Started(transfer.first_number)) {
      CancelTiles(&transfer);
    }
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
    link_->AdvanceTo(Now());
  }
  for (size_t i = 0; i < transfers_.size();) {
    if (!transfers_[i].complete) {
      ++i;
      continue;
    }
    const FetchCompletion completion = transfers_[i].completion;
    transfers_.erase(transfers_.begin() + static_cast<ptrdiff_t>(i));
    handle(completion);
    ++handled;
  }
  return handled;
}

// Waits: advances the clock for transfers on the link; other completions need real time.
absl::Status VirtualWeightClient::Wait(absl::Time deadline) {
  if (!behind_->connected()) {
    return behind_->Wait(deadline);
  }
  const bool done =
      std::any_of(transfers_.begin(), transfers_.end(), [](const Transfer& t) { return t.complete; });
  if (done || !held_.empty()) {
    return absl::OkStatus();
  }
  const int64_t next = link_ == nullptr ? -1 : link_->NextEvent();
  if (next < 0) {
    return behind_->Wait(deadline);
  }
  // An earlier result of the CPU is handled first.
  const int64_t until = std::min(next, std::max(clock_->cpu().next_result(), Now()));
  clock_->AdvanceTo(until);
  link_->AdvanceTo(until);
  return absl::OkStatus();
}

absl::Status VirtualWeightClient::Reconnect(absl::Time deadline) {
  transfers_.clear();
  owner_.clear();
  held_.clear();
  slabs_.clear();
  link_.reset();
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
  const absl::Time limit = absl::Now() + fill_limit_;
  while (!LeaseAll(range, &leases)) {
    RETURN_IF_ERROR(FillNow(request, completion));
    if (completion->code != absl::StatusCode::kOk) {
      return absl::OkStatus();
    }
    if (absl::Now() > limit) {
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
      RETURN_IF_ERROR(behind_->Wait(absl::Now() + fill_limit_));
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
