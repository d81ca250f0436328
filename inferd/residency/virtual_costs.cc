#include "inferd/residency/virtual_costs.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace sluice {
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

absl::Status SetField(const std::string& assignment, VirtualCosts* costs) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  for (const Field& field : kFields) {
    if (parts.first != field.name) {
      continue;
    }
    double value = 0;
    if (!absl::SimpleAtod(parts.second, &value) || !std::isfinite(value) || value < 0 || value > 1e6) {
      return absl::InvalidArgumentError(
          absl::StrCat(field.name, " is \"", parts.second, "\", not milliseconds in 0..1e6"));
    }
    costs->*field.member = value;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", assignment,
      "\" is neither 3x nor 30x and sets none of compute_ms, attention_ms, head_ms, link_ms, cpu_ms"));
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
  return text;
}

uint64_t Bf16ExpertBytes(const ModelConfig& config) {
  uint64_t width = 1;
  for (const LayerConfig& layer : config.layers) {
    width = std::max<uint64_t>(width, layer.moe.experts > 0 ? layer.moe.expert_width : 0);
  }
  return 3 * width * config.hidden * 2;
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

}  // namespace sluice
