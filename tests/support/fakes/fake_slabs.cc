// FakeWeightClient's slabs: targets, tiles, and the bytes of a range before its tile has landed.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "pack/row_layout.h"
#include "tests/support/fakes/fake_weight_client.h"

namespace sluice {
namespace {

constexpr Part kParts[] = {Part::kUp, Part::kGate, Part::kDown};

bool IsDense(const inferd::FetchRequest& request) {
  return request.dense_extent != inferd::FetchRequest::kNoExtent;
}

bool Asks(const inferd::FetchRequest& request, Part part) {
  return !IsDense(request) && (request.parts & PartBit(part)) != 0;
}

bool SameRows(const inferd::TransferTarget& a, const inferd::TransferTarget& b) {
  return a.slab == b.slab && a.base == b.base && a.stride == b.stride && a.neurons == b.neurons;
}

}  // namespace

absl::StatusOr<uint32_t> FakeWeightClient::OfferSlab(const inferd::SlabOffer& offer) {
  if (!connected()) {
    return absl::UnavailableError("the fake weightd is dead");
  }
  ASSIGN_OR_RETURN(Mapping map,
                   MapSharedMemory(offer.fd, offer.bytes, /*writable=*/true, /*populate=*/false));
  slabs_.push_back(std::move(map));
  uint32_t width = 0;
  for (uint32_t layer = 0; layer < pack_->config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack_->expert_count(layer); ++expert) {
      width = std::max(width, pack_->part(layer, expert, Part::kUp).rows);
    }
  }
  if (lists_.empty()) {
    lists_.resize(options_.ring_entries);
    for (uint32_t i = 0; i < options_.ring_entries; ++i) {
      lists_[i].reserve(width);
      free_lists_.push_back(i);
    }
  }
  return static_cast<uint32_t>(slabs_.size() - 1);
}

uint64_t FakeWeightClient::RowBytesOf(const inferd::FetchRequest& request, Part part) const {
  const PartView view = pack_->part(request.layer, request.expert, part);
  return RowBytes(view.encoding, view.cols);
}

uint32_t FakeWeightClient::RowsOf(const inferd::FetchRequest& request, Part part, uint32_t rows) const {
  return part == Part::kDown && pack_->by_outputs() ? pack_->part(request.layer, request.expert, part).rows
                                                    : rows;
}

absl::Status FakeWeightClient::CheckTarget(const inferd::FetchRequest& request) const {
  const inferd::TransferTarget& target = *request.transfer;
  if (target.slab >= slabs_.size()) {
    return absl::InvalidArgumentError("a transfer without a slab");
  }
  if (IsDense(request)) {
    const uint64_t length = pack_->extents()[request.dense_extent].length;
    return target.base[0] + length <= slabs_[target.slab].bytes() && target.neurons.empty() &&
                   target.tile_neurons == 0 && target.stride == decltype(target.stride){}
               ? absl::OkStatus()
               : absl::InvalidArgumentError("a target that makes no sense for an extent");
  }
  const uint32_t width = pack_->part(request.layer, request.expert, Part::kUp).rows;
  for (size_t i = 0; i < target.neurons.size(); ++i) {
    if (target.neurons[i] >= width || (i != 0 && target.neurons[i] <= target.neurons[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat("neuron ", target.neurons[i], " at ", i, " of the list"));
    }
  }
  if (!target.neurons.empty() && pack_->by_outputs()) {
    return absl::InvalidArgumentError("single neurons of a pack with down by outputs");
  }
  const uint64_t rows = target.neurons.empty() ? width : target.neurons.size();
  for (Part part : kParts) {
    const auto p = static_cast<size_t>(part);
    if (!Asks(request, part)) {
      if (target.base[p] != 0 || target.stride[p] != 0) {
        return absl::InvalidArgumentError("a place for a part that is not asked for");
      }
      continue;
    }
    const uint64_t row_bytes = RowBytesOf(request, part);
    const uint64_t part_rows = RowsOf(request, part, static_cast<uint32_t>(rows));
    if (target.stride[p] < row_bytes ||
        target.base[p] + (part_rows - 1) * target.stride[p] + row_bytes > slabs_[target.slab].bytes()) {
      return absl::InvalidArgumentError(absl::StrCat("part ", p, " does not fit into the slab"));
    }
  }
  return absl::OkStatus();
}

// True: the very same rows are on their way. A violation: other rows that share bytes with these.
bool FakeWeightClient::IsDuplicateTransfer(const inferd::FetchRequest& request) {
  bool lent = false;
  const inferd::TransferTarget& target = *request.transfer;
  if (IsDense(request)) {
    return false;  // each of them belongs in a slab of its own
  }
  const auto end = [this](const inferd::FetchRequest& r, const inferd::TransferTarget& t, uint32_t rows,
                          Part part) {
    const auto p = static_cast<size_t>(part);
    return t.base[p] + (RowsOf(r, part, rows) - 1) * t.stride[p] + RowBytesOf(r, part);
  };
  const uint32_t width = pack_->part(request.layer, request.expert, Part::kUp).rows;
  const auto rows = static_cast<uint32_t>(target.neurons.empty() ? width : target.neurons.size());
  for (const Pending& other : pending_) {
    if (other.request.transfer == nullptr || other.target.slab != target.slab) {
      continue;
    }
    const bool same = other.request.layer == request.layer && other.request.expert == request.expert &&
                      other.request.parts == request.parts && SameRows(other.target, target);
    lent = lent || same;
    for (Part part : kParts) {
      const auto p = static_cast<size_t>(part);
      if (!same && Asks(request, part) && Asks(other.request, part) &&
          target.base[p] < end(other.request, other.target, RowsOf(other), part) &&
          other.target.base[p] < end(request, target, rows, part)) {
        Breach(absl::StrCat("requests ", other.request.id, " and ", request.id, " lend the same range"));
      }
    }
  }
  return lent;
}

void FakeWeightClient::KeepTarget(const inferd::FetchRequest& request, bool poison, Pending* pending) {
  pending->list = free_lists_.back();
  free_lists_.pop_back();
  std::vector<uint32_t>& list = lists_[pending->list];
  list.assign(request.transfer->neurons.begin(), request.transfer->neurons.end());
  pending->target = *request.transfer;
  pending->target.neurons = list;
  pending->request.transfer = request.transfer;  // from here on only its presence is looked at
  if (poison) {
    Poison(*pending);
  }
}

uint32_t FakeWeightClient::RowsOf(const Pending& pending) const {
  if (IsDense(pending.request)) {
    return 1;
  }
  const auto listed = static_cast<uint32_t>(pending.target.neurons.size());
  return listed != 0 ? listed : pack_->part(pending.request.layer, pending.request.expert, Part::kUp).rows;
}

uint32_t FakeWeightClient::TilesOf(const Pending& pending) const {
  const uint32_t tile = pending.target.tile_neurons == 0 ? RowsOf(pending) : pending.target.tile_neurons;
  return (RowsOf(pending) + tile - 1) / tile;
}

std::byte* FakeWeightClient::SlabRow(const Pending& pending, Part part, uint32_t row) {
  const auto p = static_cast<size_t>(part);
  return slabs_[pending.target.slab].data() + pending.target.base[p] + row * pending.target.stride[p];
}

void FakeWeightClient::Poison(const Pending& pending) {
  if (IsDense(pending.request)) {
    std::memset(slabs_[pending.target.slab].data() + pending.target.base[0], 0xff,
                pack_->extents()[pending.request.dense_extent].length);
  }
  for (Part part : kParts) {
    const uint32_t rows = Asks(pending.request, part) ? RowsOf(pending.request, part, RowsOf(pending)) : 0;
    for (uint32_t row = 0; row < rows; ++row) {
      std::memset(SlabRow(pending, part, row), 0xff, RowBytesOf(pending.request, part));
    }
  }
}

void FakeWeightClient::LandTile(Pending* pending) {
  const inferd::FetchRequest& request = pending->request;
  if (IsDense(request)) {
    const Extent& extent = extents_[request.dense_extent];
    const uint64_t length = pack_->extents()[request.dense_extent].length;
    std::memcpy(slabs_[pending->target.slab].data() + pending->target.base[0],
                segments_[extent.segment_index].bytes.data() + extent.offset, length);
    pending->completion.link_bytes += length;
  }
  const uint32_t rows = RowsOf(*pending);
  const uint32_t tile = pending->target.tile_neurons == 0 ? rows : pending->target.tile_neurons;
  const uint32_t begin = pending->tiles_landed * tile;
  const uint32_t end = std::min(rows, begin + tile);
  for (Part part : kParts) {
    if (!Asks(request, part)) {
      continue;
    }
    const PartView view = pack_->part(request.layer, request.expert, part);
    const Extent& extent = extents_[view.extent];
    const std::byte* source = segments_[extent.segment_index].bytes.data() + extent.offset + view.base;
    const uint64_t row_bytes = RowBytesOf(request, part);
    // Outputs land with the last tile.
    const bool whole = view.rows != rows && pending->target.neurons.empty();
    const uint32_t part_end = !whole ? end : end == rows ? view.rows : 0;
    for (uint32_t row = whole ? 0 : begin; row < part_end; ++row) {
      const uint32_t neuron = pending->target.neurons.empty() ? row : pending->target.neurons[row];
      std::memcpy(SlabRow(*pending, part, row), source + uint64_t{neuron} * view.stride, row_bytes);
      pending->completion.link_bytes += row_bytes;
    }
  }
  ++pending->tiles_landed;
}

uint32_t FakeWeightClient::LandedTiles(uint64_t id) const {
  for (const Pending& pending : pending_) {
    if (pending.request.id == id) {
      return pending.tiles_landed;
    }
  }
  return 0;
}

void FakeWeightClient::Cancel(uint64_t id) {
  for (Pending& pending : pending_) {
    pending.cancelled = pending.cancelled || pending.request.id == id;
  }
}

}  // namespace sluice
