// Layers of experts over one large mapping, for benchmarks of masks. Every layer takes its experts from
// another place of the mapping; thresholds are searched for a given share of kept coefficients.
//
// Thread safety: for one thread; the backend has its own workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace sluice {

struct LayerShape {
  std::string name;
  uint32_t hidden = 0;
  uint32_t width = 0;
  uint32_t experts = 0;  // per layer
  uint32_t top_k = 0;
};

// Encodings of an expert's parts: three streams, each with its own stride.
struct ExpertKind {
  std::string name;
  EncodingDescriptor up, gate, down;
};

// Assignment of tokens to a layer's experts.
struct Routing {
  std::vector<std::vector<uint32_t>> rows, slots;  // by expert of the layer; empty: not used
  uint32_t tokens = 0;
  uint32_t slot_count = 0;
};

struct Masking {
  SparsityOrder order = SparsityOrder::kNone;
  float threshold = 0;
};

class SparseLayers {
 public:
  // Ends the process with a message if memory or the instruction set is missing.
  SparseLayers(uint64_t bytes, uint32_t threads, CpuIsa isa, uint32_t max_tokens);
  ~SparseLayers();
  SparseLayers(const SparseLayers&) = delete;
  SparseLayers& operator=(const SparseLayers&) = delete;

  Backend& backend() { return *backend_; }
  // Returns the best read bandwidth of the backend's threads over the mapping, in bytes per second.
  double MeasureBandwidth() const;

  // Selects the shape and kind for all functions below, and scales the activations so that dot products are
  // about 1.5. UNIMPLEMENTED if the backend has no kernels for the kind.
  absl::Status Use(const LayerShape& shape, const ExpertKind& kind);
  // Returns the number of whole layers of `used` experts each that fit into the mapping.
  uint32_t Layers(uint32_t used) const;
  // Returns the threshold that keeps about this share of the coefficients.
  float ThresholdFor(SparsityOrder order, double kept);
  // Route one token to top_k experts, or several tokens to top_k random experts each.
  Routing RouteOne() const;
  Routing RouteRandomly(uint32_t tokens, uint64_t seed) const;
  // Runs layer `layer`; returns the number of kept coefficients.
  uint64_t Run(uint32_t layer, const Routing& routing, const Masking& masking);

  // Bytes of the cache lines of all rows of the lead part (kProduct: of two parts), and of each kept row in
  // the other parts. kNone: everything is in `always`.
  struct Bytes {
    double always = 0;    // per expert
    double per_kept = 0;  // per kept neuron
  };
  Bytes BytesOf(SparsityOrder order) const;

 private:
  WeightView View(const EncodingDescriptor& d, uint64_t offset) const;
  absl::Status ScaleActivations();

  const uint64_t bytes_;
  const uint32_t threads_;
  const CpuIsa isa_;
  const uint32_t max_tokens_;
  std::byte* mapping_ = nullptr;
  std::unique_ptr<Backend> backend_;
  BufferId imported_ = kNoBuffer;
  BufferRef x_, y_, active_;
  LayerShape shape_;
  ExpertKind kind_;
  uint64_t part_bytes_[3] = {};
  std::vector<ExpertWork> work_;
};

// Ends the process with the status's message unless it is OK.
void CheckOk(const absl::Status& status);

}  // namespace sluice
