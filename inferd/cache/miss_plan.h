// Assigns a layer's experts to devices: missing experts travel, or the CPU computes them in place, whole or
// from some neuron on; if the device's own time counts, resident experts and those in flight are assigned
// too. It decides by numbers alone, does not depend on slots and executes nothing.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "inferd/model/expert_source.h"
#include "inferd/policy/miss_balance.h"
#include "inferd/policy/policies.h"

namespace sluice::inferd {

// Current times, in seconds.
struct MissTimes {
  double load_per_byte = 0;    // over the link
  double device_per_byte = 0;  // on the device
  double backlog = 0;          // link: demands of the layer in flight
  double cpu_queued = 0;       // CPU: earlier work
  double device_queued = 0;    // device: work other than routed experts
};

class MissPlan {
 public:
  enum class Action : uint8_t {
    kToCpu,          // missing: computed by the CPU
    kResidentToCpu,  // resident, yet computed by the CPU
    kAwait,          // in flight: the layer waits for it
    kSplit,          // the link brings `tiles` more tiles, the CPU computes those after them
  };
  struct Verdict {
    uint32_t expert = 0;
    uint32_t tokens = 0;
    Action action = Action::kAwait;
    uint32_t tiles = 0;
  };
  // State of experts in flight that the decision uses.
  struct Late {
    uint64_t request = 0;  // ascending in the link's order
    uint32_t landed = 0;   // neurons
    double wait = 0;       // link time for other bytes that were requested earlier
  };
  // Tile sizes of an expert.
  struct Tiles {
    uint32_t neurons = 0;  // of a tile
    uint32_t width = 0;    // of an expert
    // Link time in seconds for other bytes before the first missing expert's first tile; with
    // `wait_from_begin` it includes the bytes that late experts wait for.
    double wait = 0;
    bool wait_from_begin = false;
  };
  using Bytes = absl::FunctionRef<double(uint32_t expert)>;
  using CpuSeconds = absl::FunctionRef<double(const ExpertDemand& demand)>;

  // `most`: maximum experts of a layer.
  explicit MissPlan(uint32_t most);

  // Adds a layer's demands, in any order.
  void Clear();
  void AddMissing(const ExpertDemand& demand) { missing_.push_back(demand); }
  void AddResident(const ExpertDemand& demand) { resident_.push_back(demand); }
  void AddLate(const ExpertDemand& demand, const Late& late) { late_.push_back({demand, late}); }

  // Each function returns verdicts in the order of execution; an expert without a verdict keeps its state.
  // Valid until the next call.
  //
  // SplitMisses() sends missing experts to the CPU while it is the faster one for them (kCpu), or so that
  // link and CPU end together (kBalance). All experts count with the bytes of the one with most rows.
  absl::Span<const Verdict> SplitMisses(ExpertMiss miss, const MissTimes& times, Bytes bytes,
                                        absl::FunctionRef<const CpuCostTable&(uint32_t expert)> cpu);
  // SplitTiles() splits the layer's experts among device, link and CPU, missing ones by tiles. Names all late
  // experts. `device_bytes`: bytes of an expert, for the device's own time.
  absl::Span<const Verdict> SplitTiles(const MissTimes& times, const Tiles& tiles, Bytes bytes,
                                       CpuSeconds cpu_seconds, double device_bytes, const CpuCostTable& cpu);

 private:
  struct LateExpert {
    ExpertDemand demand;
    Late late;
  };
  void Add(const ExpertDemand& demand, Action action, uint32_t tiles = 0) {
    verdicts_.push_back({demand.expert, demand.tokens, action, tiles});
  }
  void CollectTiles(const MissTimes& times, const Tiles& tiles, Bytes bytes, CpuSeconds cpu_seconds);

  std::vector<ExpertDemand> missing_;
  std::vector<ExpertDemand> resident_;
  std::vector<LateExpert> late_;
  std::vector<MissingTiles> missing_tiles_;  // candidates for the link: late experts, then missing ones
  std::vector<ExpertDemand> tile_demands_;   // demands by index in missing_tiles_
  std::vector<Verdict> verdicts_;
};

}  // namespace sluice::inferd
