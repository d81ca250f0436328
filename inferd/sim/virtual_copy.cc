// Copies of a VirtualWeightClient: bytes come from leases of the wrapped client, which are filled first if
// needed.
#include <cstring>

#include "absl/time/clock.h"
#include "common/status.h"
#include "inferd/sim/virtual_weight_client.h"
#include "pack/row_layout.h"

namespace sluice::inferd {

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
