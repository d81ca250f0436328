#include "inferd/sim/virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "pack/pack_format.h"
#include "pack/row_layout.h"

namespace sluice::inferd {
namespace {

struct Field {
  const char* name;
  double VirtualCosts::*member;
};
constexpr Field kFields[] = {{"compute_ms", &VirtualCosts::compute_ms},
                             {"attention_ms", &VirtualCosts::attention_ms},
                             {"head_ms", &VirtualCosts::head_ms},
                             {"link_ms", &VirtualCosts::link_ms},
                             {"cpu_ms", &VirtualCosts::cpu_ms}};
struct RowField {
  const char* suffix;
  double RowCost::*member;
};
constexpr RowField kRowFields[] = {{"_all_ns", &RowCost::all_ns}, {"_kept_ns", &RowCost::kept_ns}};
constexpr uint64_t kMaxCostFileBytes = 1 << 16;

struct Regime {
  const char* name;
  VirtualCosts costs;
};
constexpr Regime kRegimes[] = {
    {"3x", {.compute_ms = 5, .attention_ms = 0.3, .head_ms = 0, .link_ms = 15, .cpu_ms = 5}},
    {"30x", {.compute_ms = 0.5, .attention_ms = 0.3, .head_ms = 0, .link_ms = 15, .cpu_ms = 5}}};

const Regime* FindRegime(const std::string& name) {
  for (const Regime& regime : kRegimes) {
    if (name == regime.name) {
      return &regime;
    }
  }
  return nullptr;
}

// Returns the field of a key; null for an unknown key.
double* FieldOf(const std::string& key, VirtualCosts* costs) {
  for (const Field& field : kFields) {
    if (key == field.name) {
      return &(costs->*field.member);
    }
  }
  for (const RowField& field : kRowFields) {
    const absl::StatusOr<Encoding> encoding =
        absl::EndsWith(key, field.suffix)
            ? EncodingFromName(key.substr(0, key.size() - std::strlen(field.suffix)))
            : absl::NotFoundError("");
    if (encoding.ok()) {
      return &(costs->rows[static_cast<size_t>(*encoding)].*field.member);
    }
  }
  return nullptr;
}

absl::Status SetField(const std::string& assignment, VirtualCosts* costs) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  double* const member = FieldOf(parts.first, costs);
  if (member == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("\"", assignment,
                                                   "\" is neither 3x, 30x nor @FILE and sets none of "
                                                   "compute_ms, attention_ms, head_ms, link_ms, cpu_ms, "
                                                   "ENCODING_all_ns and ENCODING_kept_ns"));
  }
  double value = 0;
  if (!absl::SimpleAtod(parts.second, &value) || !std::isfinite(value) || value < 0 || value > 1e6) {
    return absl::InvalidArgumentError(
        absl::StrCat(parts.first, " is \"", parts.second, "\", not a number in 0..1e6"));
  }
  *member = value;
  return absl::OkStatus();
}

absl::Status SetFromFile(const std::string& path, VirtualCosts* costs) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxCostFileBytes));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::string assignment(absl::StripAsciiWhitespace(line.substr(0, line.find('#'))));
    if (const absl::Status set = assignment.empty() ? absl::OkStatus() : SetField(assignment, costs);
        !set.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", set.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<VirtualCosts> ParseVirtualCosts(const std::string& text) {
  VirtualCosts costs;
  if (text.empty()) {
    return costs;
  }
  for (const std::string& assignment : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const Regime* regime = FindRegime(assignment);
    if (regime != nullptr) {
      costs = regime->costs;
    } else if (absl::StartsWith(assignment, "@")) {
      RETURN_IF_ERROR(SetFromFile(assignment.substr(1), &costs));
    } else {
      RETURN_IF_ERROR(SetField(assignment, &costs));
    }
  }
  return costs;
}

std::string ShowVirtualCosts(const VirtualCosts& costs) {
  std::string text;
  for (const Field& field : kFields) {
    absl::StrAppend(&text, text.empty() ? "" : ",", field.name, "=", costs.*field.member);
  }
  for (size_t value = 0; value < costs.rows.size(); ++value) {
    for (const RowField& field : kRowFields) {
      if (costs.rows[value].*field.member > 0) {
        absl::StrAppend(&text, ",", EncodingName(static_cast<Encoding>(value)), field.suffix, "=",
                        costs.rows[value].*field.member);
      }
    }
  }
  return text;
}

double VirtualRowSeconds(const VirtualCosts& costs, const EncodingDescriptor& encoding, uint64_t cols,
                         double rows, bool kept, uint64_t expert_bytes) {
  const RowCost& cost = costs.rows[static_cast<size_t>(encoding.encoding)];
  const double ns = kept && cost.kept_ns > 0 ? cost.kept_ns : cost.all_ns;
  return ns > 0 ? rows * ns * 1e-9
                : rows * static_cast<double>(RowBytes(encoding, cols)) / static_cast<double>(expert_bytes) *
                      costs.compute_ms * 1e-3;
}

uint64_t Bf16ExpertBytes(const ModelConfig& config) {
  uint64_t width = 1;
  for (const LayerConfig& layer : config.layers) {
    width = std::max<uint64_t>(width, layer.moe.experts > 0 ? layer.moe.expert_width : 0);
  }
  return 3 * width * ExpertHidden(config) * 2;
}

double VirtualLinkGbps(const VirtualCosts& costs, double link_gbps, const ModelConfig& config) {
  return costs.link_ms > 0 ? static_cast<double>(Bf16ExpertBytes(config)) / (costs.link_ms * 1e-3) / 1e9
                           : link_gbps;
}

double VirtualCpuSeconds(const VirtualCosts& costs, double link_gbps, const ModelConfig& config,
                         uint64_t bytes) {
  const double share = static_cast<double>(bytes) / static_cast<double>(Bf16ExpertBytes(config));
  if (costs.cpu_ms > 0) {
    return costs.cpu_ms * 1e-3 * share;
  }
  const double gbps = VirtualLinkGbps(costs, link_gbps, config);
  return gbps > 0 ? static_cast<double>(bytes) / (gbps * 1e9) / 3 : 0;
}

}  // namespace sluice::inferd
