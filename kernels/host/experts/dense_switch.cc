#include "kernels/host/experts/dense_switch.h"

#include "absl/strings/str_cat.h"

namespace sluice::cpu {

absl::Status DenseSwitch::Set(absl::Span<const SparseSwitchEntry> entries) {
  if (entries.size() > kMaxSparseSwitches) {
    return absl::InvalidArgumentError(
        absl::StrCat(entries.size(), " sparse switches; the most are ", kMaxSparseSwitches));
  }
  entries_.assign(entries.begin(), entries.end());
  return absl::OkStatus();
}

float DenseSwitch::Above(const ExpertCall& expert) const {
  if (expert.sparsity == SparsityOrder::kNone) {
    return 1;
  }
  for (const SparseSwitchEntry& entry : entries_) {
    if (entry.order == expert.sparsity && entry.up == expert.up.encoding &&
        entry.gate == expert.gate.encoding && entry.down == expert.down.encoding) {
      return entry.at.DenseAbove(expert.rows.size());
    }
  }
  return SparseSwitch().DenseAbove(expert.rows.size());
}

}  // namespace sluice::cpu
