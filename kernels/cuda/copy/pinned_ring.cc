#include "kernels/cuda/copy/pinned_ring.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/cuda/status.h"

namespace sluice::cuda {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedRing>> PinnedRing::Create(uint64_t bytes) {
  void* memory = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable),
                           absl::StrCat("pinned memory of ", bytes, " bytes for gathering rows")));
  return std::unique_ptr<PinnedRing>(new PinnedRing(static_cast<std::byte*>(memory), bytes));
}

PinnedRing::~PinnedRing() { cudaFreeHost(data_); }

std::optional<PinnedRing::Piece> PinnedRing::Take(uint64_t bytes) {
  const uint64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const uint64_t place = end_ % bytes_;
  // A piece lies in one part: what is left before the ring's end is passed over.
  const uint64_t start = place + size <= bytes_ ? end_ : end_ - place + bytes_;
  if (start + size - begin_ > bytes_) {
    return std::nullopt;
  }
  end_ = start + size;
  taken_.push_back({end_, false});
  return Piece{data_ + start % bytes_, first_ + taken_.size() - 1};
}

void PinnedRing::GiveBack(uint64_t number) {
  taken_[number - first_].back = true;
  while (!taken_.empty() && taken_.front().back) {
    begin_ = taken_.front().end;
    taken_.pop_front();
    ++first_;
  }
}

}  // namespace sluice::cuda
