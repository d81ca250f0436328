// In how many neurons at a time a whole expert travels, so that its first ones are computed while the others
// come.
//
// Thread safety: immutable.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace sluice {

class TileSize {
 public:
  static constexpr uint32_t kNeuronBlock = 64;  // tiles end at its multiples (kernels/ops.h)
  static constexpr uint32_t kTilesOfAnExpert = 8;

  // `neurons`: of a tile; 0: an eighth of the expert. INVALID_ARGUMENT unless it is a multiple of 64.
  static absl::StatusOr<TileSize> Create(uint32_t neurons) {
    if (neurons % kNeuronBlock != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tile_neurons is ", neurons, ", not a multiple of ", kNeuronBlock));
    }
    return TileSize(neurons);
  }

  // Of an expert of `width` neurons; may be more than these.
  uint32_t Of(uint32_t width) const {
    if (neurons_ > 0) {
      return neurons_;
    }
    const uint32_t eighth = (width + kTilesOfAnExpert - 1) / kTilesOfAnExpert;
    return std::max(1u, (eighth + kNeuronBlock - 1) / kNeuronBlock) * kNeuronBlock;
  }

  // Neurons of which so many tiles have landed.
  uint32_t Landed(uint64_t tiles, uint32_t width) const {
    return static_cast<uint32_t>(std::min<uint64_t>(width, tiles * Of(width)));
  }

 private:
  explicit TileSize(uint32_t neurons) : neurons_(neurons) {}
  uint32_t neurons_;
};

}  // namespace sluice
