// Records what routers chose into a file (TRACE.md).
//
// Thread safety: thread-compatible; belongs to the engine thread. Does not allocate once made.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/policy/predict/predictor.h"
#include "inferd/policy/routing/router_scores.h"

namespace sluice {

class TraceRecorder final : public LayerTap {
 public:
  // Replaces `path`. Errors: those of the file, naming it.
  static absl::StatusOr<std::unique_ptr<TraceRecorder>> Create(const std::string& path,
                                                               const ModelConfig& config, Queue* queue,
                                                               uint32_t max_tokens);
  ~TraceRecorder() override;
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // Adds the layer's record. The first error of the file sticks: nothing more is written, and this and Flush
  // return it.
  absl::Status AfterRouter(const RouterTap& tap) override;
  // Brings everything so far to the file; called at the end of each step, before its tokens are known, so
  // that no token is made whose routes are not in the file.
  absl::Status Flush();

 private:
  TraceRecorder(std::FILE* file, std::string path, const ModelConfig& config, Queue* queue,
                uint32_t max_tokens);
  absl::Status Write(const void* data, size_t bytes);

  std::FILE* const file_;
  const std::string path_;
  const ModelConfig& config_;
  Queue* const queue_;
  RouterScores scores_;
  std::vector<uint32_t> rows_;  // 0, 1, 2, ...
  std::string record_;
  absl::Status error_;  // the file's first
};

}  // namespace sluice
