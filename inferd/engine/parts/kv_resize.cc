#include "inferd/engine/parts/kv_resize.h"

#include <algorithm>

#include "inferd/model/delta_states.h"
#include "inferd/model/kv_cache.h"

namespace sluice::inferd {

uint64_t KvBytesOf(const EnginePlan& plan, const ModelConfig& config, uint32_t pages) {
  return pages * KvBytesPerPage(config, plan.options.kv) + plan.state_bytes +
         plan.kept_states * StateBytes(config);
}

absl::StatusOr<uint32_t> PagesWithin(const EnginePlan& plan, const ModelConfig& config, uint64_t kv_budget,
                                     uint32_t context) {
  const EngineOptions& o = plan.options;
  const uint64_t page_bytes = KvBytesPerPage(config, o.kv);
  const auto peak = [&](uint32_t positions) {
    return KvPages::PeakPages(positions, WidestWindow(config), std::min(o.max_prefill_chunk, positions));
  };
  const uint64_t most = uint64_t{peak(o.context)} * o.parallel;
  if (page_bytes == 0) return static_cast<uint32_t>(most);
  const uint64_t states = plan.state_bytes + plan.kept_states * StateBytes(config);
  const uint64_t pages = std::min((kv_budget - std::min(kv_budget, states)) / page_bytes, most);
  if (pages < peak(context)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a KV budget of ", kv_budget, " bytes has ", pages, " pages of ", page_bytes, " bytes beside ",
        states, " of recurrent states; one text of ", context, " tokens takes ", peak(context), " pages"));
  }
  return static_cast<uint32_t>(pages);
}

}  // namespace sluice::inferd
