// Router traces as files (TRACE.md): reading them back.
//
// Thread safety: plain values and pure functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sluice {

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
  std::vector<uint32_t> begin;           // [tokens + 1]: places in chosen
  std::vector<uint32_t> chosen;          // best first, what was left out is left out
  std::vector<float> scores;             // [tokens, experts]; empty: not known
  std::vector<uint64_t> texts = {};      // [tokens]; empty: not known
  std::vector<uint32_t> positions = {};  // [tokens], in their texts; empty: not known

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

// Pure parser over untrusted bytes; lost rows are left out. DATA_LOSS naming the place: another kind of file,
// an expert beyond its layer's, scores that are no numbers of 0..1. A last record that was cut off is left
// out.
absl::StatusOr<Trace> ParseTrace(std::string_view bytes, const std::string& subject);
absl::StatusOr<Trace> ReadTrace(const std::string& path);

}  // namespace sluice
