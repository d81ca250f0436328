// Neurons of a mask as a list, for tests of fetched neurons and their positions.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "inferd/cache/neuron_table.h"

namespace sluice::inferd {

using Neurons = std::vector<uint32_t>;

// The numbers of the bits of `mask` that are set, ascending.
inline Neurons Listed(absl::Span<const uint64_t> mask) {
  Neurons list(mask.size() * 64);
  const std::vector<uint64_t> none(mask.size());
  list.resize(ListNeurons(mask, none, list.data()));
  return list;
}

}  // namespace sluice::inferd
