#include "inferd/residency/slots/slot_fill.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice::inferd {

SlotFill::SlotFill(absl::Duration stall_limit, FetchQueue* fetches, Cache cache)
    : stall_limit_(stall_limit), fetches_(fetches), cache_(std::move(cache)), stall_(stall_limit) {}

void SlotFill::Restart() { stall_.Restart(absl::Now()); }

absl::Status SlotFill::Fill(const Pack& pack, const SlotTable& table,
                            const std::vector<std::vector<uint32_t>>& order,
                            absl::FunctionRef<absl::Status(uint32_t layer, uint32_t expert)> fill) {
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    std::vector<uint32_t> experts;
    if (layer < order.size()) {
      experts = order[layer];
    }
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      experts.push_back(expert);  // experts without a profile entry; the profiled ones are filled already
    }
    for (const uint32_t expert : experts) {
      const uint16_t size_class = table.class_of(layer, expert);
      if (table.Find(layer, expert) != SlotTable::kNoSlot ||
          table.held(layer, size_class) >= table.quota(layer, size_class)) {
        continue;
      }
      RETURN_IF_ERROR(Drain(kWindow - 1));
      RETURN_IF_ERROR(fill(layer, expert));
    }
  }
  return absl::OkStatus();
}

absl::Status SlotFill::Send(absl::FunctionRef<absl::Status()> send) {
  absl::Status sent = send();
  while (absl::IsResourceExhausted(sent) && cache_.in_flight() > 0) {
    RETURN_IF_ERROR(Drain(cache_.in_flight() - 1));
    sent = send();
  }
  return sent;
}

absl::Status SlotFill::Drain(uint32_t most) {
  uint32_t before = cache_.in_flight();
  while (cache_.in_flight() > most) {
    cache_.poll();
    if (cache_.in_flight() < before) {
      stall_.Restart(absl::Now());
      before = cache_.in_flight();
      continue;
    }
    if (stall_.Exceeded(absl::Now())) {
      return absl::ResourceExhaustedError(absl::StrCat("filling the device's memory: ", cache_.in_flight(),
                                                       " transfers did not end for ",
                                                       absl::FormatDuration(stall_limit_)));
    }
    RETURN_IF_ERROR(fetches_->Wait(stall_.EndOfWait(absl::Now())));
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
