// A run of launches that goes to the device as one, as a CUDA graph: launches are kept in a list; lists that
// come again have a graph, which is launched in place of them.
//
// A list that comes for the first time is launched as it is, since making a graph costs more than that: steps
// that are all different have none. When it comes the second time its graph is made, or one of a list that
// has not come for long is changed into it; from then on it costs one launch. Values that change from step to
// step lie in tables (tables.h), not in arguments.
//
// Thread safety: thread-compatible; owned by one backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/device/launch.h"

namespace sluice::cuda {

class StepGraph {
 public:
  struct Counters {
    uint64_t launches = 0;
    uint64_t made = 0;     // instantiated
    uint64_t updated = 0;  // changed in place
  };

  explicit StepGraph(cudaStream_t stream) : stream_(stream) {}
  // REQUIRES: nothing enqueued uses them.
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Where launches are kept.
  LaunchList& kept() { return kept_; }
  bool empty() const { return kept_.empty(); }
  // Enqueues what is kept, which is forgotten whatever comes of it. Without memory for a graph everything is
  // launched as it is, from then on, and `launches` of the counters stays where it is; any other trouble with
  // a graph is an error.
  absl::Status HandOver();
  const Counters& counters() const { return counters_; }

 private:
  // Steps of as many kinds may take turns.
  static constexpr size_t kMaxRuns = 4;
  struct Run {
    LaunchList launches;
    cudaGraphExec_t exec = nullptr;
    bool made = false;  // `exec` is of these launches, else of others
  };

  absl::Status LaunchAsGraph(Run* run);
  absl::Status Make(Run* run);

  const cudaStream_t stream_;
  LaunchList kept_;
  std::vector<Run> runs_;  // that which came last first
  bool makes_ = true;      // until there was no memory for one
  Counters counters_;
};

}  // namespace sluice::cuda
