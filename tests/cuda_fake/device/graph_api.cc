// The Runtime API's calls on captures and graphs.
#include "tests/cuda_fake/device/machine.h"

using sluice::cuda_fake::Graph;
using sluice::cuda_fake::GraphExec;
using sluice::cuda_fake::Machine;
using sluice::cuda_fake::MachineLock;

namespace {

uint64_t HandleOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

Graph* GraphOf(Machine& machine, cudaGraph_t graph) {
  const auto it = machine.graphs.find(HandleOf(graph));
  return it == machine.graphs.end() ? nullptr : it->second.get();
}

cudaError_t BadGraph(Machine& machine) {
  return machine.Misuse(cudaErrorInvalidValue, "a graph that does not live");
}
cudaError_t BadStream(Machine& machine) {
  return machine.Misuse(cudaErrorInvalidResourceHandle, "a stream that does not live");
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  return machine.StreamOf(stream, &number) ? machine.Leave(machine.captures.Begin(number, mode))
                                           : BadStream(machine);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (!machine.StreamOf(stream, &number)) {
    return BadStream(machine);
  }
  *graph = nullptr;
  std::shared_ptr<Graph> captured;
  const cudaError_t error = machine.captures.End(number, &captured);
  if (error == cudaSuccess) {
    const uint64_t handle = machine.next_handle++ << 8;
    machine.graphs[handle] = std::move(captured);
    *graph = reinterpret_cast<cudaGraph_t>(handle);
  }
  return machine.Leave(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (!machine.StreamOf(stream, &number)) {
    return BadStream(machine);
  }
  *status = machine.captures.StatusOf(number);
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const Graph* const known = GraphOf(machine, graph);
  if (known == nullptr) {
    return BadGraph(machine);
  }
  if (machine.graph_execs.size() >= machine.options.most_graphs) {
    return machine.Leave(cudaErrorMemoryAllocation);
  }
  const uint64_t handle = machine.next_handle++ << 8;
  machine.graph_execs[handle] = std::make_unique<GraphExec>(*known, &machine.operations);
  *exec = reinterpret_cast<cudaGraphExec_t>(handle);
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const auto it = machine.graph_execs.find(HandleOf(exec));
  if (it == machine.graph_execs.end()) {
    return BadGraph(machine);
  }
  if (!machine.StreamOf(stream, &number)) {
    return BadStream(machine);
  }
  if (machine.captures.IsCaptured(number)) {
    return machine.Misuse(machine.captures.Invalidate(number, cudaErrorStreamCaptureUnsupported),
                          "a graph's launch in a captured stream: the fake knows no graphs in graphs");
  }
  it->second->Launch(number);
  ++machine.counters.graph_launches;
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const auto it = machine.graph_execs.find(HandleOf(exec));
  const Graph* const known = GraphOf(machine, graph);
  if (it == machine.graph_execs.end() || known == nullptr) {
    return BadGraph(machine);
  }
  size_t node = 0;
  *info = {};
  const bool updated = it->second->Update(*known, &info->result, &node);
  return machine.Leave(updated ? cudaSuccess : cudaErrorGraphExecUpdateFailure);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const Graph* const known = GraphOf(machine, graph);
  if (known == nullptr) {
    return BadGraph(machine);
  }
  for (size_t node = 0; nodes != nullptr && node < std::min(*count, known->nodes.size()); ++node) {
    nodes[node] = reinterpret_cast<cudaGraphNode_t>(node + 1);
  }
  *count = nodes == nullptr ? known->nodes.size() : std::min(*count, known->nodes.size());
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  return machine.graphs.erase(HandleOf(graph)) == 1 ? machine.Leave(cudaSuccess) : BadGraph(machine);
}

// "If the graph is running, it is destroyed when it has run" (work that is submitted does not need it here).
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  return machine.graph_execs.erase(HandleOf(exec)) == 1 ? machine.Leave(cudaSuccess) : BadGraph(machine);
}

}  // extern "C"
