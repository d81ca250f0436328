// Work captured from streams, and graphs made of it: what a captured call would have submitted is kept, with
// what it comes behind, and submitted anew by every launch.
//
// Thread safety: thread-compatible.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_fake/device/operations.h"

namespace sluice::cuda_fake {

using Steps = std::vector<std::function<void()>>;

// Work that a call submits to a stream.
struct Work {
  enum class Kind : uint8_t { kKernel, kCopy, kSet, kEvent };
  Kind kind = Kind::kKernel;
  std::string name;
  // The steps of the operation that it becomes.
  std::function<Steps(OperationId)> steps;
};

struct Graph {
  struct Node {
    Work work;
    std::vector<uint32_t> after;  // nodes
  };
  std::vector<Node> nodes;
};

// Streams whose calls are captured.
class Captures {
 public:
  // "Capture must have been initiated on stream", "it may only be initiated if the stream is not already in
  // capture mode" (Runtime API, cudaStreamBeginCapture, cudaStreamEndCapture).
  cudaError_t Begin(uint32_t stream, cudaStreamCaptureMode mode);
  cudaError_t End(uint32_t stream, std::shared_ptr<Graph>* graph);
  bool IsCaptured(uint32_t stream) const { return captures_.contains(stream); }
  cudaStreamCaptureStatus StatusOf(uint32_t stream) const;
  // True if "potentially unsafe API calls" are prohibited, as they are unless every capture's mode is relaxed
  // (Runtime API, cudaThreadExchangeStreamCaptureMode).
  bool Forbids() const;
  // A call that is not permitted: the capture of the stream is void, or all are.
  cudaError_t Invalidate(uint32_t stream, cudaError_t error);
  cudaError_t InvalidateAll(cudaError_t error);

  cudaError_t Append(uint32_t stream, Work work);
  // The point in the capture that a record of an event in `stream` captures.
  struct Point {
    uint64_t capture = 0;  // 0: none
    std::vector<uint32_t> nodes;
  };
  Point PointOf(uint32_t stream) const;
  // Makes later work in `stream` wait for the point: a stream that is not captured joins the capture. A
  // capture may not wait for what lies outside of it, and not for another capture.
  cudaError_t Wait(uint32_t stream, const Point& point);

 private:
  struct Capture {
    uint64_t id = 0;
    uint32_t origin = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    bool valid = true;
    std::shared_ptr<Graph> graph;
    std::map<uint32_t, std::vector<uint32_t>> fronts;  // by stream: what its next node comes behind
  };
  std::map<uint32_t, std::shared_ptr<Capture>> captures_;  // by stream
  uint64_t last_id_ = 0;
};

// A graph made ready to launch.
class GraphExec {
 public:
  GraphExec(const Graph& graph, Operations* operations);
  ~GraphExec();
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  // Behind what the stream has, and behind the launch before; what comes behind waits for all of it.
  void Launch(uint32_t stream);
  // Takes the other graph's parameters; false, with the reason and the first node that differs, if it has
  // another shape.
  bool Update(const Graph& graph, cudaGraphExecUpdateResult* result, size_t* node);

 private:
  void MakeChains();

  Graph graph_;
  Operations* operations_;
  std::vector<uint32_t> chains_;   // of each node: 0 runs in the stream of the launch
  std::vector<uint32_t> streams_;  // of the chains from 1 on
  OperationId last_ = 0;
};

}  // namespace sluice::cuda_fake
