#include "kernels/cuda/step_graph.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace sluice::cuda {

StepGraph::~StepGraph() {
  for (const Run& run : runs_) {
    if (run.exec != nullptr) {
      cudaGraphExecDestroy(run.exec);
    }
  }
}

absl::Status StepGraph::HandOver() {
  auto run = std::find_if(runs_.begin(), runs_.end(), [this](const Run& r) { return r.launches == kept_; });
  const bool known = run != runs_.end();
  if (!known && runs_.size() < kMaxRuns) {
    runs_.emplace_back();
  }
  run = known ? run : runs_.end() - 1;
  std::rotate(runs_.begin(), run, run + 1);
  Run& first = runs_.front();
  if (!known) {
    std::swap(first.launches, kept_);
    first.made = false;
  }
  kept_.Clear();
  return known && makes_ ? LaunchAsGraph(&first) : StatusOf(first.launches.Issue(stream_), "kept launches");
}

absl::Status StepGraph::LaunchAsGraph(Run* run) {
  if (!run->made) {
    const absl::Status made = Make(run);
    if (absl::IsResourceExhausted(made)) {
      makes_ = false;
      return StatusOf(run->launches.Issue(stream_), "kept launches");
    }
    RETURN_IF_ERROR(made);
    run->made = true;
  }
  ++counters_.launches;
  return StatusOf(cudaGraphLaunch(run->exec, stream_), "launching a graph");
}

// The launches once more, into a capture: nothing of it runs. Only its own calls come between, so that a
// relaxed capture forbids nothing to other threads that needs forbidding.
absl::Status StepGraph::Make(Run* run) {
  RETURN_IF_ERROR(StatusOf(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "a capture"));
  const cudaError_t issued = run->launches.Issue(stream_);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  if (issued != cudaSuccess || ended != cudaSuccess) {
    cudaGetLastError();  // said here
    return StatusOf(issued != cudaSuccess ? issued : ended, "capturing launches");
  }
  cudaGraphExecUpdateResultInfo difference;
  if (run->exec != nullptr && cudaGraphExecUpdate(run->exec, graph, &difference) == cudaSuccess) {
    ++counters_.updated;
    return StatusOf(cudaGraphDestroy(graph), "a graph's end");
  }
  if (run->exec != nullptr) {
    cudaGetLastError();  // it is of another shape: no news
    cudaGraphExecDestroy(std::exchange(run->exec, nullptr));
  }
  const cudaError_t made = cudaGraphInstantiate(&run->exec, graph, 0);
  cudaGraphDestroy(graph);
  if (made != cudaSuccess) {
    run->exec = nullptr;
    cudaGetLastError();  // said here
    return StatusOf(made, "making a graph");
  }
  ++counters_.made;
  return absl::OkStatus();
}

}  // namespace sluice::cuda
