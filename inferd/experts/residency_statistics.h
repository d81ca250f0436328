// Counters and properties of an expert cache.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace sluice::inferd {

// Monotonic counters of one layer or of all.
struct ResidencyCounters {
  uint64_t requests = 0;  // (layer, expert) demands
  uint64_t hits = 0;      // of these: resident when the router chose them
  uint64_t late = 0;      // of these: in transfer then
  uint64_t cpu = 0;       // of these: computed by the CPU in place
  uint64_t prefetch_issued = 0;
  uint64_t prefetch_useful = 0;  // hits that a prefetch of the same step requested
  uint64_t no_room = 0;          // fills refused because weightd had no room
  uint64_t bytes_touched = 0;    // bytes of weights returned by Next()
  uint64_t bytes_dram = 0;       // of these: read in place from weightd's DRAM
  uint64_t bytes_link = 0;       // copied to the device
  uint64_t bytes_ssd = 0;        // read from SSD
};

// Counters by layer, and for all layers.
class LayerCounters {
 public:
  explicit LayerCounters(size_t layers) : layers_(layers) {}

  void Add(uint32_t layer, uint64_t ResidencyCounters::*field, uint64_t more = 1) {
    total_.*field += more;
    layers_[layer].*field += more;
  }
  const ResidencyCounters& total() const { return total_; }
  absl::Span<const ResidencyCounters> layers() const { return layers_; }

 private:
  ResidencyCounters total_;
  std::vector<ResidencyCounters> layers_;
};

// Monotonic counters of one layer of a neuron cache.
struct NeuronCounters {
  uint64_t requests = 0;    // neurons active in any row of a demanded expert
  uint64_t hits = 0;        // of these: resident when that was known
  uint64_t fetched = 0;     // neurons requested then
  uint64_t left_out = 0;    // active neurons that were not computed
  uint64_t prefetched = 0;  // neurons requested by predictors
  uint64_t copied_all = 0;  // experts whose missing neurons came in one copy
  uint64_t bytes = 0;       // bytes over the link, without leads

  void Add(const NeuronCounters& other) {
    requests += other.requests;
    hits += other.hits;
    fetched += other.fetched;
    left_out += other.left_out;
    prefetched += other.prefetched;
    copied_all += other.copied_all;
    bytes += other.bytes;
  }
};

// Properties of a neuron cache.
struct NeuronCacheFacts {
  uint64_t slots = 0;
  bool leads_stay = false;    // leads of all experts stay in device memory
  double copy_all_share = 0;  // share of an expert's neurons: if more are missing, all travel in one copy
  bool copy_all_measured = false;  // measured at the start
};

class ResidencyStatistics {
 public:
  virtual ~ResidencyStatistics() = default;
  // Number of leases or slots held now; 0 between steps on `host`.
  virtual uint64_t held() const = 0;
  virtual ResidencyCounters counters() const = 0;
  // The same counters by layer; empty: not counted.
  virtual absl::Span<const ResidencyCounters> counters_by_layer() const { return {}; }
  // Neuron counters by layer; empty in a cache of whole experts.
  virtual absl::Span<const NeuronCounters> neuron_counters() const { return {}; }
  // Properties of the neuron cache; empty in a cache of whole experts.
  virtual std::optional<NeuronCacheFacts> neuron_cache() const { return {}; }
  // Text for the start-up log; empty: none.
  virtual std::string Describe() const { return {}; }
};

}  // namespace sluice::inferd
