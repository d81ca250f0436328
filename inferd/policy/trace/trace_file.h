// Reader of router trace files (TRACE.md).
//
// Thread safety: plain values and pure functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

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

}  // namespace sluice::inferd
