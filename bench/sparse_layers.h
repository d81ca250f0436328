// Layers of experts over one large mapping, for benchmarks of masks: every layer takes its experts from
// another place of the mapping, and thresholds are found that keep a wanted share of the coefficients.
//
// Thread safety: for one thread; the backend runs its own workers.
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
  uint32_t experts = 0;  // of a layer
  uint32_t top_k = 0;
};

// Storage of an expert's parts: three streams, each of its own stride.
struct ExpertKind {
  std::string name;
  EncodingDescriptor up, gate, down;
};

// Assignment of tokens to a layer's experts.
struct Routing {
  std::vector<std::vector<uint32_t>> rows, slots;  // of each expert of the layer; empty: not used
  uint32_t tokens = 0;
  uint32_t slot_count = 0;
};

struct Masking {
  SparsityOrder order = SparsityOrder::kNone;
  float threshold = 0;
};

class SparseLayers {
 public:
  // Ends the process with a message if there is no memory or no such instruction set.
  SparseLayers(uint64_t bytes, uint32_t threads, CpuIsa isa, uint32_t max_tokens);
  ~SparseLayers();
  SparseLayers(const SparseLayers&) = delete;
  SparseLayers& operator=(const SparseLayers&) = delete;

  Backend& backend() { return *backend_; }
  // Best bytes per second of the mapping, by the backend's threads.
  double MeasureBandwidth() const;

  // Everything below is of this shape and kind. Scales the activations so that dots are about 1.5.
  // UNIMPLEMENTED where the backend has no kernels for the kind.
  absl::Status Use(const LayerShape& shape, const ExpertKind& kind);
  // Whole layers in the mapping: `used` experts each.
  uint32_t Layers(uint32_t used) const;
  // The threshold that keeps about this share of the coefficients.
  float ThresholdFor(SparsityOrder order, double kept);
  // One token to top_k experts; several tokens to top_k random experts each.
  Routing RouteOne() const;
  Routing RouteRandomly(uint32_t tokens, uint64_t seed) const;
  // Runs layer `layer`; returns the coefficients kept.
  uint64_t Run(uint32_t layer, const Routing& routing, const Masking& masking);

  // Cache lines, in bytes, of all rows of the lead part (kProduct: of two parts), and of one more kept row in
  // the parts that the mask spares. kNone: everything is in `always`.
  struct Bytes {
    double always = 0;    // one expert
    double per_kept = 0;  // one neuron
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
