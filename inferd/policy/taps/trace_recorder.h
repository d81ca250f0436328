// Records the routers' choices into a file (TRACE.md).
//
// Thread safety: thread-compatible; belongs to the engine thread. Does not allocate after construction.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/policy/predict/predictor.h"
#include "inferd/policy/routing/router_scores.h"

namespace sluice::inferd {

class TraceRecorder final : public LayerObserver {
 public:
  // Replaces `path`. Errors: those of the file, naming it.
  static absl::StatusOr<std::unique_ptr<TraceRecorder>> Create(const std::string& path,
                                                               const ModelConfig& config, Queue* queue,
                                                               uint32_t max_tokens);
  ~TraceRecorder() override;
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // Adds the layer's record. The first error of the file is sticky: nothing more is written, and this and
  // Flush return it.
  absl::Status AfterRouter(const RouterState& state) override;
  // Writes everything so far to the file. Called at the end of each step, before its tokens are released, so
  // that no token exists whose routes are not in the file.
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
  absl::Status error_;  // first error of the file
};

}  // namespace sluice::inferd
