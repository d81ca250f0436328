// Neurons per tile of a whole expert in flight, so that its first ones are computed while the others arrive.
//
// Thread safety: immutable.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace sluice::inferd {

class TileSize {
 public:
  static constexpr uint32_t kNeuronBlock = 64;  // tiles end at multiples of it (kernels/ops.h)
  static constexpr uint32_t kTilesOfAnExpert = 8;

  // `neurons`: tile size; 0: an eighth of the expert. INVALID_ARGUMENT unless it is a multiple of 64.
  static absl::StatusOr<TileSize> Create(uint32_t neurons) {
    if (neurons % kNeuronBlock != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tile_neurons is ", neurons, ", not a multiple of ", kNeuronBlock));
    }
    return TileSize(neurons);
  }

  // Tile size of an expert of `width` neurons; may be more than `width`.
  uint32_t Of(uint32_t width) const {
    if (neurons_ > 0) {
      return neurons_;
    }
    const uint32_t eighth = (width + kTilesOfAnExpert - 1) / kTilesOfAnExpert;
    return std::max(1u, (eighth + kNeuronBlock - 1) / kNeuronBlock) * kNeuronBlock;
  }

  // Landed neurons, from the number of landed tiles.
  uint32_t Landed(uint64_t tiles, uint32_t width) const {
    return static_cast<uint32_t>(std::min<uint64_t>(width, tiles * Of(width)));
  }

 private:
  explicit TileSize(uint32_t neurons) : neurons_(neurons) {}
  uint32_t neurons_;
};

}  // namespace sluice::inferd
