// What a modelled device takes for its work (--clock virtual), in times of one expert stored as bf16: other
// encodings and left-out neurons count in proportion to the bytes that are read, unless the costs of their
// rows are given, as --measure-costs (measured_device.h) finds them on a machine.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/encoding.h"
#include "common/model/model_config.h"
#include "common/row_traits.h"

namespace sluice {

inline constexpr size_t kEncodingValues = kEncodingNumbers;  // Encoding's values are below

// Of one row of a part, `hidden` values long, times a token's row: in nanoseconds; 0: by its bytes.
struct RowCost {
  double all_ns = 0;   // where a part is computed from its first neuron to its last
  double kept_ns = 0;  // of a neuron that counts among others that do not; 0: as all_ns
};

struct VirtualCosts {
  double compute_ms = 5;      // of a bf16 expert on the device, whatever its rows
  double attention_ms = 0.3;  // of a layer's attention
  double head_ms = 0;         // of logits
  double link_ms = 0;         // of a bf16 expert on the link; 0: as --link-gbps says
  double cpu_ms = 0;          // of a bf16 expert and one row on the CPU; 0: a third of the link's time
  std::array<RowCost, kEncodingValues> rows = {};  // by Encoding's value
};

// The name of a regime: "3x" (FloE 3.1: the link takes three times the compute), "30x" (its Table 1). Or
// "compute_ms=5,attention_ms=0.3,head_ms=0,link_ms=15,cpu_ms=5,q4_all_ns=300,q4_kept_ns=350",
// any of them, or both as "3x,cpu_ms=2"; others keep their defaults. "@FILE" stands for what a file says, one
// assignment a line; what comes later counts. INVALID_ARGUMENT naming the key; errors of the file.
absl::StatusOr<VirtualCosts> ParseVirtualCosts(const std::string& text);
std::string ShowVirtualCosts(const VirtualCosts& costs);

// Seconds for `rows` rows of `view` and one token's row. `kept`: they are those that count, else all of them.
// `expert_bytes`: of an expert in bf16.
double VirtualRowSeconds(const VirtualCosts& costs, const EncodingDescriptor& encoding, uint64_t cols,
                         double rows, bool kept, uint64_t expert_bytes);

// Bytes of the model's widest routed expert in bf16.
uint64_t Bf16ExpertBytes(const ModelConfig& config);

// The link's rate in 1e9 bytes a second; `link_gbps` where the costs do not say.
double VirtualLinkGbps(const VirtualCosts& costs, double link_gbps, const ModelConfig& config);

// The CPU's time for `bytes` of an expert and one row.
double VirtualCpuSeconds(const VirtualCosts& costs, double link_gbps, const ModelConfig& config,
                         uint64_t bytes);

}  // namespace sluice
