// Definition of a scan: a step with so many prompt rows that they use nearly every expert of every layer.
// Past use then predicts nothing, and the order of the layers predicts everything.
//
// Thread safety: pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/model/model_config.h"

namespace sluice::inferd {

// A step that uses at least this share of a layer's experts is a scan.
inline constexpr double kScannedShare = 0.75;

// Minimum number of prompt rows of a scan, assuming evenly chosen experts: n rows of k experts each use a
// share of 1 - (1 - k / E)^n of E. 0: the model has no routed experts.
inline uint32_t ScanRows(const ModelConfig& config) {
  double rows = 0;
  for (const LayerConfig& layer : config.layers) {
    if (layer.moe.experts == 0) continue;
    const double unused = 1 - static_cast<double>(layer.moe.top_k) / layer.moe.experts;
    rows = std::max(rows, unused <= 0 ? 1 : std::ceil(std::log(1 - kScannedShare) / std::log(unused)));
  }
  return static_cast<uint32_t>(rows);
}

}  // namespace sluice::inferd
