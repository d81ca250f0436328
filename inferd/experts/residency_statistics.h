// What a cache of experts has counted, and what it is like.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

// Monotonic counters, of a layer or of all.
struct ResidencyCounters {
  uint64_t requests = 0;  // (layer, expert) demands
  uint64_t hits = 0;      // of these: resident when the router named them
  uint64_t late = 0;      // of these: on their way then
  uint64_t cpu = 0;       // of these: computed by the CPU, where they lay
  uint64_t prefetch_issued = 0;
  uint64_t prefetch_useful = 0;  // hits that a prefetch of the same step had asked for
  uint64_t no_room = 0;          // fills that weightd had no room for
  uint64_t bytes_touched = 0;    // weights handed out
  uint64_t bytes_dram = 0;       // of these: where they lie in weightd's DRAM
  uint64_t bytes_link = 0;       // copied to the device
  uint64_t bytes_ssd = 0;        // read from SSD
};

// Counters by layer, and of all layers.
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

// Of one layer, where the cache knows single neurons. Monotonic.
struct NeuronCounters {
  uint64_t requests = 0;    // neurons that counted for any row of a demanded expert
  uint64_t hits = 0;        // of these: there when that was known
  uint64_t fetched = 0;     // neurons asked for then
  uint64_t left_out = 0;    // neurons that counted and were not computed
  uint64_t prefetched = 0;  // neurons that predictors asked for
  uint64_t copied_all = 0;  // experts whose missing neurons came in one copy
  uint64_t bytes = 0;       // over the link, leads not counted

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

// What a cache of single neurons is like.
struct NeuronCacheFacts {
  uint64_t slots = 0;
  bool leads_stay = false;         // of all experts, in device memory
  double copy_all_share = 0;       // of an expert's neurons: if more are missing, all travel in one copy
  bool copy_all_measured = false;  // at the start
};

class ResidencyStatistics {
 public:
  virtual ~ResidencyStatistics() = default;
  // Leases or slots held now; 0 between steps on `host`.
  virtual uint64_t held() const = 0;
  virtual ResidencyCounters counters() const = 0;
  // The same by layer; empty: not counted.
  virtual absl::Span<const ResidencyCounters> counters_by_layer() const { return {}; }
  // By layer; empty where the cache knows whole experts only.
  virtual absl::Span<const NeuronCounters> neuron_counters() const { return {}; }
  // None where whole experts are cached.
  virtual std::optional<NeuronCacheFacts> neuron_cache() const { return {}; }
  // For the line at the start; empty: nothing to say.
  virtual std::string Describe() const { return {}; }
};

}  // namespace sluice
