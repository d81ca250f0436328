// Which layers' predictions are acted on (policy predictor_recall): those that lately found at least a given
// share of what the layer then wanted, experts and, where they are predicted, neurons. CORM's recall is 0.8
// to 0.9; where it is less, fetching what is predicted takes the link from what is needed, and computing it
// instead (`proceed`) costs more quality than it saves time. A layer that is not trusted is predicted now and
// then to be counted, so that trust comes, and comes back.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after the constructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

class RecallFloor {
 public:
  // Counts that a share takes before it says anything, and those that it forgets by.
  static constexpr uint32_t kEnough = 24;
  static constexpr uint32_t kWindow = 64;
  // A layer without trust is predicted in its first kFirst steps, then in one of kEvery.
  static constexpr uint32_t kFirst = 32;
  static constexpr uint32_t kEvery = 32;

  // `floor` 0: every layer is trusted from the start. `neurons`: they are predicted too.
  RecallFloor(double floor, size_t layers, bool neurons)
      : floor_(floor), neurons_(neurons), layers_(layers) {}

  bool Trusts(uint32_t layer) const {
    const Layer& l = layers_[layer];
    return floor_ <= 0 || (Reaches(l.experts) && (!neurons_ || Reaches(l.neurons)));
  }
  // Of a layer that is not trusted: whether it is predicted this time.
  bool Measures(uint32_t layer) {
    const bool measures = WouldMeasure(layer);
    ++layers_[layer].looks;
    return measures;
  }
  // What Measures() will say.
  bool WouldMeasure(uint32_t layer) const {
    const uint32_t look = layers_[layer].looks;
    return look < kFirst || look % kEvery == 0;
  }

  // Of one step: what was wanted where something had been predicted, and how much of it was. Nothing wanted:
  // says nothing.
  void CountExperts(uint32_t layer, uint64_t right, uint64_t wanted) {
    Count(right, wanted, &layers_[layer].experts);
  }
  void CountNeurons(uint32_t layer, uint64_t right, uint64_t wanted) {
    Count(right, wanted, &layers_[layer].neurons);
  }

 private:
  struct Share {
    double mean = 0;  // the plain mean of the first kWindow, then a sliding one
    uint32_t counts = 0;
  };
  struct Layer {
    Share experts;
    Share neurons;
    uint32_t looks = 0;
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

}  // namespace sluice
