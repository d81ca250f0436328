#include "kernels/rope_table.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"

namespace sluice {
namespace {

constexpr double kPi = 3.14159265358979323846;

absl::Status CheckPositive(double value, const char* name) {
  if (!(value > 0) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat("rope ", name, " is ", value, ", not positive"));
  }
  return absl::OkStatus();
}

// The (fractional) index of the pair that turns `turns` times over the original context.
double PairOfTurns(const RopeConfig& rope, double turns) {
  return rope.dimensions * std::log(rope.original_max_position / (turns * 2 * kPi)) /
         (2 * std::log(rope.theta));
}

// Keeps the frequency of fast pairs and divides that of slow pairs by the factor, with a ramp between.
absl::Status ScaleYarn(const RopeConfig& rope, std::vector<double>& frequencies) {
  RETURN_IF_ERROR(CheckPositive(rope.factor, "factor"));
  RETURN_IF_ERROR(CheckPositive(rope.original_max_position, "original_max_position"));
  RETURN_IF_ERROR(CheckPositive(rope.beta_fast, "beta_fast"));
  RETURN_IF_ERROR(CheckPositive(rope.beta_slow, "beta_slow"));
  if (rope.theta == 1.0) {
    return absl::InvalidArgumentError("rope theta is 1, which yarn cannot scale");
  }
  double low = PairOfTurns(rope, rope.beta_fast);
  double high = PairOfTurns(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.dimensions - 1.0);
  if (low == high) {
    high += 0.001;
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * slow + frequencies[i] * (1 - slow);
  }
  return absl::OkStatus();
}

// Divides the frequency of long waves by the factor, keeps that of short ones, and interpolates between.
absl::Status ScaleLlama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  RETURN_IF_ERROR(CheckPositive(rope.factor, "factor"));
  RETURN_IF_ERROR(CheckPositive(rope.original_max_position, "original_max_position"));
  RETURN_IF_ERROR(CheckPositive(rope.low_freq_factor, "low_freq_factor"));
  RETURN_IF_ERROR(
      CheckPositive(rope.high_freq_factor - rope.low_freq_factor, "high_freq_factor less low_freq_factor"));
  const double context = rope.original_max_position;
  for (double& frequency : frequencies) {
    const double wave = 2 * kPi / frequency;
    if (wave > context / rope.low_freq_factor) {
      frequency = frequency / rope.factor;
    } else if (wave >= context / rope.high_freq_factor) {
      const double smooth =
          (context / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      frequency = (1 - smooth) * frequency / rope.factor + smooth * frequency;
    }
  }
  return absl::OkStatus();
}

absl::Status ScaleLongRope(const RopeConfig& rope, bool long_sequence, std::vector<double>& frequencies) {
  const std::vector<double>& factors = long_sequence ? rope.long_factors : rope.short_factors;
  const char* name = long_sequence ? "long_factors" : "short_factors";
  if (factors.size() != frequencies.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope ", name, " are ", factors.size(), " numbers for ", frequencies.size(), " pairs"));
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    RETURN_IF_ERROR(CheckPositive(factors[i], name));
    frequencies[i] = frequencies[i] / factors[i];
  }
  return absl::OkStatus();
}

double AttentionFactor(const RopeConfig& rope, bool long_sequence) {
  return rope.kind == RopeKind::kLongRope && long_sequence ? rope.long_attention_factor
                                                           : rope.attention_factor;
}

}  // namespace

absl::StatusOr<std::vector<double>> RopeFrequencies(const RopeConfig& rope, bool long_sequence) {
  if (rope.kind == RopeKind::kNone) {
    return std::vector<double>();
  }
  if (rope.dimensions == 0 || rope.dimensions % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope dimensions are ", rope.dimensions, ", not even and positive"));
  }
  RETURN_IF_ERROR(CheckPositive(rope.theta, "theta"));
  std::vector<double> frequencies(rope.dimensions / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.dimensions);
  }
  switch (rope.kind) {
    case RopeKind::kNone:
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
      RETURN_IF_ERROR(CheckPositive(rope.factor, "factor"));
      for (double& frequency : frequencies) {
        frequency = frequency / rope.factor;
      }
      break;
    case RopeKind::kYarn:
      RETURN_IF_ERROR(ScaleYarn(rope, frequencies));
      break;
    case RopeKind::kLongRope:
      RETURN_IF_ERROR(ScaleLongRope(rope, long_sequence, frequencies));
      break;
    case RopeKind::kLlama3:
      RETURN_IF_ERROR(ScaleLlama3(rope, frequencies));
      break;
    case RopeKind::kProportional:
      for (size_t i = rope.turned / 2; i < frequencies.size(); ++i) {
        frequencies[i] = 0;
      }
      break;
    case RopeKind::kDynamic:
      return absl::UnimplementedError("rope kind dynamic is not implemented");
    default:
      return absl::UnimplementedError(
          absl::StrCat("rope kind ", static_cast<int>(rope.kind), " is not implemented"));
  }
  return frequencies;
}

absl::StatusOr<double> RopeFactor(const RopeConfig& rope, bool long_sequence) {
  const double factor = AttentionFactor(rope, long_sequence);
  RETURN_IF_ERROR(CheckPositive(factor, "attention factor"));
  return factor;
}

void FillRopeRows(absl::Span<const double> frequencies, double factor, uint32_t first,
                  absl::Span<float> rows) {
  const size_t half = frequencies.size();
  for (size_t r = 0; r < rows.size() / (2 * half); ++r) {
    const auto p = static_cast<double>(first + r);
    float* row = rows.data() + r * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      row[i] = static_cast<float>(factor * std::cos(p * frequencies[i]));
      row[half + i] = static_cast<float>(factor * std::sin(p * frequencies[i]));
    }
  }
}

absl::StatusOr<std::vector<float>> ComputeRopeTable(const RopeConfig& rope, uint32_t positions,
                                                    bool long_sequence) {
  ASSIGN_OR_RETURN(const std::vector<double> frequencies, RopeFrequencies(rope, long_sequence));
  if (frequencies.empty()) {
    return std::vector<float>();
  }
  ASSIGN_OR_RETURN(const double factor, RopeFactor(rope, long_sequence));
  std::vector<float> table(size_t{positions} * 2 * frequencies.size());
  FillRopeRows(frequencies, factor, 0, absl::MakeSpan(table));
  return table;
}

}  // namespace sluice
