// Synthetic packs: any size, random weights, routing spread as asked, written at disk speed. For benchmarks.
//
// Thread safety: free functions.
#ifndef SLUICE_COMMON_PACK_SYNTH_H_
#define SLUICE_COMMON_PACK_SYNTH_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/pack/pack_writer.h"

namespace sluice {

struct SynthOptions {
  std::string shape;          // one of SynthShapeNames()
  uint32_t layers = 0;        // 0: the shape's
  uint32_t vocab = 0;         // 0: the shape's
  std::string bits = "bf16";  // bf16|f16|q8 (others as packs learn them)
  uint16_t group = 64;
  std::string routing = "uniform";  // "uniform" or "zipf:S", S > 0
  double reuse = 0;                 // chance that a token takes an expert of the token before, [0, 1)
  double similarity = 0;            // of the routing of neighbouring layers, [0, 1)
  uint64_t seed = 1;
  bool force = false;
};

std::vector<std::string> SynthShapeNames();

// Writes the pack `out_dir`. The summary's `bytes` counts all files. InvalidArgument naming the option;
// Unimplemented naming what the shape needs and the forward pass lacks; ResourceExhausted without space.
absl::StatusOr<PackSummary> SynthesizePack(const SynthOptions& options, const std::string& out_dir,
                                           const PackProgressFn& progress, const std::atomic<bool>* cancel);

}  // namespace sluice

#endif  // SLUICE_COMMON_PACK_SYNTH_H_
