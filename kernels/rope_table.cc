#include "kernels/rope_table.h"

#include <cmath>

#include "common/status.h"

namespace sluice {
namespace {

const char* RopeKindName(RopeKind kind) {
  switch (kind) {
    case RopeKind::kNone:
      return "none";
    case RopeKind::kDefault:
      return "default";
    case RopeKind::kLinear:
      return "linear";
    case RopeKind::kDynamic:
      return "dynamic";
    case RopeKind::kYarn:
      return "yarn";
    case RopeKind::kLongRope:
      return "longrope";
    case RopeKind::kLlama3:
      return "llama3";
  }
  return "unknown";
}

}  // namespace

absl::StatusOr<std::vector<float>> ComputeRopeTable(const RopeConfig& rope, uint32_t positions, bool) {
  if (rope.kind == RopeKind::kNone) {
    return std::vector<float>();
  }
  if (rope.kind != RopeKind::kDefault && rope.kind != RopeKind::kLinear) {
    return absl::UnimplementedError(absl::StrCat("rope kind ", RopeKindName(rope.kind), " (",
                                                 static_cast<int>(rope.kind), ") is not implemented"));
  }
  if (rope.dimensions == 0 || rope.dimensions % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope dimensions are ", rope.dimensions, ", not even and positive"));
  }
  if (!(rope.theta > 0) || !std::isfinite(rope.theta)) {
    return absl::InvalidArgumentError(absl::StrCat("rope theta is ", rope.theta, ", not positive"));
  }
  const double factor = rope.kind == RopeKind::kLinear ? rope.factor : 1.0;
  if (!(factor > 0) || !std::isfinite(factor)) {
    return absl::InvalidArgumentError(absl::StrCat("rope factor is ", factor, ", not positive"));
  }
  const uint32_t half = rope.dimensions / 2;
  std::vector<double> frequencies(half);
  for (uint32_t i = 0; i < half; ++i) {
    frequencies[i] = std::pow(rope.theta, -2.0 * i / rope.dimensions) / factor;
  }
  std::vector<float> table(size_t{positions} * rope.dimensions);
  for (uint32_t p = 0; p < positions; ++p) {
    float* row = table.data() + size_t{p} * rope.dimensions;
    for (uint32_t i = 0; i < half; ++i) {
      row[i] = static_cast<float>(std::cos(p * frequencies[i]));
      row[half + i] = static_cast<float>(std::sin(p * frequencies[i]));
    }
  }
  return table;
}

}  // namespace sluice
