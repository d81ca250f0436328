// Who computes a layer's experts: which of those that are missing travel, and which the CPU computes where
// they lie, whole or from some neuron on; where the device's own time counts, also which of those that are
// there or on their way. It decides by numbers alone, knows no slots and carries nothing out.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "inferd/experts/residency_view.h"
#include "inferd/policy/cache/layer_shares.h"
#include "inferd/policy/preset/policy_kinds.h"
#include "inferd/policy/routing/miss_balance.h"

namespace sluice {

// What things take now, in seconds.
struct MissTimes {
  double load_per_byte = 0;    // over the link
  double device_per_byte = 0;  // on the device
  double backlog = 0;          // of the link: the layer's demands that are on their way
  double cpu_queued = 0;       // of the CPU, to do before
  double device_queued = 0;    // of the device: what it computes beside routed experts
};

class MissPlan {
 public:
  enum class Action : uint8_t {
    kToCpu,          // missing: the CPU computes it
    kResidentToCpu,  // there: the CPU computes it all the same
    kAwait,          // on its way: it is waited for
    kSplit,          // the link brings `tiles` more tiles, the CPU computes what comes after them
  };
  struct Verdict {
    uint32_t expert = 0;
    uint32_t tokens = 0;
    Action action = Action::kAwait;
    uint32_t tiles = 0;
  };
  // What decides about experts that are on their way.
  struct Late {
    uint64_t request = 0;  // ascending in the order of the link
    uint32_t landed = 0;   // neurons
    double wait = 0;       // seconds of the link for others' bytes that were asked for before
  };
  // An expert's tiles.
  struct Tiles {
    uint32_t neurons = 0;  // of a tile
    uint32_t width = 0;    // of an expert
    // Seconds of the link for others' bytes before the first missing one's first tile; if `wait_from_begin`
    // those are among them that the late ones wait for.
    double wait = 0;
    bool wait_from_begin = false;
  };
  using Bytes = absl::FunctionRef<double(uint32_t expert)>;
  using CpuSeconds = absl::FunctionRef<double(const ExpertDemand& demand)>;

  // `most`: experts of a layer.
  explicit MissPlan(uint32_t most);

  // A layer's demands, in any order.
  void Clear();
  void AddMissing(const ExpertDemand& demand) { missing_.push_back(demand); }
  void AddResident(const ExpertDemand& demand) { resident_.push_back(demand); }
  void AddLate(const ExpertDemand& demand, const Late& late) { late_.push_back({demand, late}); }

  // Each of these returns what becomes of whom, in the order in which it is to be carried out. Who is not
  // named stays what it is. Valid until the next call.
  //
  // Missing ones to the CPU as long as it is the faster one for them (kCpu), or so that link and CPU end
  // together (kBalance). `bytes` of the one of most rows stands for all.
  absl::Span<const Verdict> SplitMisses(ExpertMiss miss, const MissTimes& times, Bytes bytes,
                                        absl::FunctionRef<const CpuCostTable&(uint32_t expert)> cpu);
  // The layer's experts shared out among device, link and CPU, missing ones by tiles. Names all late ones.
  // `device_bytes`: of an expert, for the device's own time.
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
  std::vector<MissingTiles> missing_tiles_;  // what the link may bring: late ones, then missing ones
  std::vector<ExpertDemand> tile_demands_;   // by place in it
  std::vector<Verdict> verdicts_;
};

}  // namespace sluice
