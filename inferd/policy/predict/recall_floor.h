// Selects the layers whose predictions are used (policy predictor_recall): those that recently found at least
// a given share of the experts, and of the neurons if they are predicted, that the layer then used. CORM's
// recall is 0.8 to 0.9. Below that, fetching predicted experts takes the link from needed ones, and computing
// them instead (`proceed`) costs more quality than it saves time. An untrusted layer is still predicted now
// and then for counting, so that trust can come and return.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after the constructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::inferd {

class RecallFloor {
 public:
  // Counts needed before a share is valid, and the window over which old counts fade.
  static constexpr uint32_t kEnough = 24;
  static constexpr uint32_t kWindow = 64;
  // An untrusted layer is predicted in its first kFirst steps, then in one of kEvery.
  static constexpr uint32_t kFirst = 32;
  static constexpr uint32_t kEvery = 32;

  // `floor` 0: every layer is trusted from the start. `neurons`: neurons are predicted too.
  RecallFloor(double floor, size_t layers, bool neurons)
      : floor_(floor), neurons_(neurons), layers_(layers) {}

  bool Trusts(uint32_t layer) const {
    const Layer& l = layers_[layer];
    return floor_ <= 0 || (Reaches(l.experts) && (!neurons_ || Reaches(l.neurons)));
  }
  // True if an untrusted layer is predicted this time.
  bool Measures(uint32_t layer) {
    const bool measures = WouldMeasure(layer);
    ++layers_[layer].steps;
    return measures;
  }
  // Result of the next Measures(), without a change of state.
  bool WouldMeasure(uint32_t layer) const {
    const uint32_t step = layers_[layer].steps;
    return step < kFirst || step % kEvery == 0;
  }

  // Counts of one step: targets of the predictions, and correct ones among them. Without targets nothing
  // changes.
  void CountExperts(uint32_t layer, uint64_t right, uint64_t wanted) {
    Count(right, wanted, &layers_[layer].experts);
  }
  void CountNeurons(uint32_t layer, uint64_t right, uint64_t wanted) {
    Count(right, wanted, &layers_[layer].neurons);
  }

 private:
  struct Share {
    double mean = 0;  // plain mean of the first kWindow counts, then an exponential one
    uint32_t counts = 0;
  };
  struct Layer {
    Share experts;
    Share neurons;
    uint32_t steps = 0;
  };

  bool Reaches(const Share& share) const { return share.counts >= kEnough && share.mean >= floor_; }
  static void Count(uint64_t right, uint64_t wanted, Share* share) {
    if (wanted == 0) return;
    share->counts += share->counts < kWindow ? 1 : 0;
    share->mean += (static_cast<double>(right) / static_cast<double>(wanted) - share->mean) / share->counts;
  }

  const double floor_;
  const bool neurons_;
  std::vector<Layer> layers_;
};

}  // namespace sluice::inferd
