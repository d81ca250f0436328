// GatingProfile: thresholds of AdapMoE's adaptive gating from `sluice calibrate`: PACK/profile/gating.json
// (FORMAT.md). A token uses fewer experts if (1 - alpha)^2 S_l <= T; T is one value for all layers, and its
// savings and losses depend on the definition of S_l.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/profile.h"

namespace sluice {

inline constexpr char kGatingName[] = "gating.json";

// Definition of S_l: one of the three of LayerSensitivity, or 1 for all layers (the score alone).
enum class GatingKind : uint8_t { kFisher = 0, kQuadratic = 1, kMeasured = 2, kScore = 3 };
inline constexpr int kGatingKinds = 4;

double GatingSensitivity(const LayerSensitivity& layer, GatingKind kind);

struct GatingTable {
  static constexpr size_t kPoints = 101;

  struct Rise {
    double share = 0;  // of (token, layer) pairs that used one expert
    double rise = 0;   // relative, of perplexity on held-out text
  };
  // Entry i: quantile of (1 - alpha)^2 S_l over the (token, layer) pairs at i %. Ascends.
  std::vector<double> thresholds;  // [kPoints]
  std::vector<Rise> rises;         // by ascending share

  // Returns T at which `share` of the pairs use one expert; below every value for a share of 0.
  double Threshold(double share) const;
  // Returns the largest share whose rise is within `bound`, interpolated between measured points; at most the
  // largest measured share.
  double ShareWithin(double bound) const;
};

struct GatingProfile {
  std::string source_digest;
  uint64_t tokens = 0;    // number of tokens behind the thresholds
  uint64_t held_out = 0;  // number of tokens behind the rises
  std::array<GatingTable, kGatingKinds> tables;
};

// Parsing, writing and reading, with the errors of the corresponding functions in profile.h.
absl::StatusOr<GatingProfile> ParseGating(std::string_view text, const std::string& subject,
                                          const std::string& source_digest);
std::string SerializeGating(const GatingProfile& gating);
absl::StatusOr<GatingProfile> ReadGating(const std::string& folder, const std::string& source_digest);

}  // namespace sluice
