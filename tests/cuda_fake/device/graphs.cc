#include "tests/cuda_fake/device/graphs.h"

#include <algorithm>
#include <utility>

namespace sluice::cuda_fake {

cudaError_t Captures::Begin(uint32_t stream, cudaStreamCaptureMode mode) {
  if (stream == Operations::kLegacy) {
    return cudaErrorStreamCaptureUnsupported;
  }
  if (IsCaptured(stream)) {
    return cudaErrorIllegalState;
  }
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_id_;
  capture->origin = stream;
  capture->mode = mode;
  capture->graph = std::make_shared<Graph>();
  capture->fronts[stream] = {};
  captures_[stream] = std::move(capture);
  return cudaSuccess;
}

cudaError_t Captures::End(uint32_t stream, std::shared_ptr<Graph>* graph) {
  const auto it = captures_.find(stream);
  if (it == captures_.end() || it->second->origin != stream) {
    return cudaErrorStreamCaptureUnmatched;
  }
  const std::shared_ptr<Capture> capture = it->second;
  std::erase_if(captures_, [&](const auto& entry) { return entry.second == capture; });
  if (!capture->valid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  // Every node must come before the end of the stream that the capture began in.
  std::vector<bool> joined(capture->graph->nodes.size());
  std::vector<uint32_t> open = capture->fronts[stream];
  while (!open.empty()) {
    const uint32_t node = open.back();
    open.pop_back();
    if (!joined[node]) {
      joined[node] = true;
      const std::vector<uint32_t>& after = capture->graph->nodes[node].after;
      open.insert(open.end(), after.begin(), after.end());
    }
  }
  if (std::find(joined.begin(), joined.end(), false) != joined.end()) {
    return cudaErrorStreamCaptureUnjoined;
  }
  *graph = capture->graph;
  return cudaSuccess;
}

cudaStreamCaptureStatus Captures::StatusOf(uint32_t stream) const {
  const auto it = captures_.find(stream);
  return it == captures_.end() ? cudaStreamCaptureStatusNone
         : it->second->valid   ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
}

bool Captures::Forbids() const {
  return std::any_of(captures_.begin(), captures_.end(),
                     [](const auto& entry) { return entry.second->mode != cudaStreamCaptureModeRelaxed; });
}

cudaError_t Captures::Invalidate(uint32_t stream, cudaError_t error) {
  if (const auto it = captures_.find(stream); it != captures_.end()) {
    it->second->valid = false;
  }
  return error;
}

cudaError_t Captures::InvalidateAll(cudaError_t error) {
  for (const auto& [stream, capture] : captures_) {
    capture->valid = false;
  }
  return error;
}

cudaError_t Captures::Append(uint32_t stream, Work work) {
  Capture& capture = *captures_.at(stream);
  if (!capture.valid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  capture.graph->nodes.push_back({std::move(work), std::move(capture.fronts[stream])});
  capture.fronts[stream] = {static_cast<uint32_t>(capture.graph->nodes.size() - 1)};
  return cudaSuccess;
}

Captures::Point Captures::PointOf(uint32_t stream) const {
  const auto it = captures_.find(stream);
  return it == captures_.end() ? Point{} : Point{it->second->id, it->second->fronts.at(stream)};
}

cudaError_t Captures::Wait(uint32_t stream, const Point& point) {
  const auto own = captures_.find(stream);
  if (point.capture == 0) {
    return Invalidate(stream, cudaErrorStreamCaptureIsolation);
  }
  const auto other = std::find_if(captures_.begin(), captures_.end(),
                                  [&](const auto& entry) { return entry.second->id == point.capture; });
  if (other == captures_.end()) {  // its capture has ended
    return Invalidate(stream, cudaErrorStreamCaptureIsolation);
  }
  if (own != captures_.end() && own->second != other->second) {
    Invalidate(stream, cudaErrorStreamCaptureMerge);
    return Invalidate(other->first, cudaErrorStreamCaptureMerge);
  }
  const std::shared_ptr<Capture> capture = other->second;
  captures_[stream] = capture;
  std::vector<uint32_t>& front = capture->fronts[stream];
  for (const uint32_t node : point.nodes) {
    if (std::find(front.begin(), front.end(), node) == front.end()) {
      front.push_back(node);
    }
  }
  return cudaSuccess;
}

GraphExec::GraphExec(const Graph& graph, Operations* operations) : graph_(graph), operations_(operations) {
  MakeChains();
}

GraphExec::~GraphExec() {
  for (const uint32_t stream : streams_) {
    operations_->DropStream(stream);
  }
}

// A node goes on in the chain of the first of those before it that nothing has gone on from yet. Chains run
// in streams of their own, so that what the graph leaves open is open here.
void GraphExec::MakeChains() {
  std::vector<size_t> ends;  // the last node of each chain
  for (size_t node = 0; node < graph_.nodes.size(); ++node) {
    const std::vector<uint32_t>& after = graph_.nodes[node].after;
    const auto goes_on = [&](size_t end) {
      return std::find(after.begin(), after.end(), end) != after.end();
    };
    const auto chain = std::find_if(ends.begin(), ends.end(), goes_on);
    chains_.push_back(static_cast<uint32_t>(chain - ends.begin()));
    if (chain == ends.end()) {
      ends.push_back(node);
    } else {
      *chain = node;
    }
  }
  for (size_t chain = 1; chain < ends.size(); ++chain) {
    streams_.push_back(operations_->NewStream(false));
  }
}

// "Each launch is ordered behind both any previous work in hStream and any previous launches of hGraphExec"
// (Driver API, cuGraphLaunch).
void GraphExec::Launch(uint32_t stream) {
  operations_->WaitFor(stream, last_);
  const OperationId begin = operations_->Submit(stream, "graph launch", {});
  std::vector<OperationId> ids;
  std::vector<bool> begun(streams_.size() + 1);
  for (size_t node = 0; node < graph_.nodes.size(); ++node) {
    const uint32_t chain = chains_[node];
    const uint32_t in = chain == 0 ? stream : streams_[chain - 1];
    if (!begun[chain]) {
      begun[chain] = true;
      operations_->WaitFor(in, begin);
    }
    for (const uint32_t before : graph_.nodes[node].after) {
      operations_->WaitFor(in, ids[before]);
    }
    const Work& work = graph_.nodes[node].work;
    ids.push_back(operations_->Submit(in, work.name + " of a graph", work.steps(operations_->NextId())));
  }
  for (const uint32_t chain : streams_) {
    operations_->WaitFor(stream, operations_->Last(chain));
  }
  last_ = operations_->Submit(stream, "end of a graph", {});
}

bool GraphExec::Update(const Graph& graph, cudaGraphExecUpdateResult* result, size_t* node) {
  *node = 0;
  *result = cudaGraphExecUpdateErrorTopologyChanged;
  if (graph.nodes.size() != graph_.nodes.size()) {
    return false;
  }
  for (; *node < graph.nodes.size(); ++*node) {
    if (graph.nodes[*node].after != graph_.nodes[*node].after) {
      return false;
    }
    if (graph.nodes[*node].work.kind != graph_.nodes[*node].work.kind) {
      *result = cudaGraphExecUpdateErrorNodeTypeChanged;
      return false;
    }
  }
  graph_ = graph;
  *result = cudaGraphExecUpdateSuccess;
  return true;
}

}  // namespace sluice::cuda_fake
