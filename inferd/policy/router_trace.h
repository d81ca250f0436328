// Reader of router trace files (TRACE.md).
//
// Thread safety: plain values and pure functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/routing.h"

namespace sluice::inferd {

inline constexpr char kTraceMagic[] = "SLTRACE1";
inline constexpr uint16_t kTraceLeftOut = 0xffff;
inline constexpr uint32_t kTraceDecode = 1;
inline constexpr uint32_t kTraceLost = 2;

// One layer's tokens in the order in which they ran.
struct TraceLayer {
  uint32_t experts = 0;
  uint32_t top_k = 0;
  std::vector<uint64_t> steps;           // [tokens]
  std::vector<uint32_t> flags;           // [tokens]
  std::vector<uint32_t> begin;           // [tokens + 1]: indices in chosen
  std::vector<uint32_t> chosen;          // best first, without ranks that were left out
  std::vector<float> scores;             // [tokens, experts]; empty: unknown
  std::vector<uint64_t> sequences = {};  // [tokens]: sequence numbers; empty: unknown
  std::vector<uint32_t> positions = {};  // [tokens], in their sequences; empty: unknown

  uint64_t tokens() const { return flags.size(); }
  absl::Span<const uint32_t> Chosen(uint64_t token) const {
    return absl::MakeConstSpan(chosen.data() + begin[token], begin[token + 1] - begin[token]);
  }
  absl::Span<const float> Scores(uint64_t token) const {
    return scores.empty() ? absl::Span<const float>()
                          : absl::MakeConstSpan(scores.data() + token * experts, experts);
  }
  void Add(uint64_t step, uint32_t flag, absl::Span<const uint32_t> experts_of_token);
};

struct Trace {
  std::vector<TraceLayer> layers;
};

// Pure parser over untrusted bytes; lost rows are left out. DATA_LOSS naming the position: another kind of
// file, an invalid expert, scores outside of 0..1. A truncated last record is left out.
absl::StatusOr<Trace> ParseTrace(std::string_view bytes, const std::string& subject);
absl::StatusOr<Trace> ReadTrace(const std::string& path);

// Records the routers' choices into a file (TRACE.md).
//
// Thread safety: thread-compatible; belongs to the engine thread. Does not allocate after construction.

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
