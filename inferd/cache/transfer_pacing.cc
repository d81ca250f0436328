#include "inferd/cache/transfer_pacing.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

// A quarter of the experts that travel at once, with two portions queued: the link continues meanwhile if an
// expert travels as long as it is computed.
uint32_t PortionOf(const SlabPlan& plan) {
  uint32_t passing = 0;
  for (const SlotClass& c : plan.classes) {
    passing += c.passing;
  }
  return std::max(1u, passing / 4);
}

}  // namespace

StreamOrder::StreamOrder(const SlabPlan& plan, Queue* queue) : queue_(queue), portion_(PortionOf(plan)) {}

void StreamOrder::HandOut(uint32_t demands, bool gaps, absl::FunctionRef<bool(uint32_t)> stays,
                          absl::FunctionRef<bool(uint32_t)> hand_out) {
  bool came = false;
  for (uint32_t i = 0; i < demands; ++i) {
    if (!gaps || !stays(i)) {
      came = hand_out(i) || came;
    }
  }
  in_gap_ = gaps && !came && !HoldsBack();
  uint32_t left = in_gap_ ? portion_ : 0;
  for (uint32_t i = 0; i < demands && left > 0; ++i) {
    if (stays(i)) {
      hand_out(i);
      --left;
    }
  }
}

void StreamOrder::Queued(Event used) {
  if (std::exchange(in_gap_, false)) {
    before_ = std::exchange(last_, used);
  }
}

SlotFill::SlotFill(absl::Duration stall_limit, FetchQueue* fetches, Cache cache)
    : stall_limit_(stall_limit), fetches_(fetches), cache_(std::move(cache)), stall_(stall_limit) {}

void SlotFill::Restart() { stall_.Restart(SteadyNow()); }

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
      stall_.Restart(SteadyNow());
      before = cache_.in_flight();
      continue;
    }
    if (stall_.Exceeded(SteadyNow())) {
      return absl::ResourceExhaustedError(absl::StrCat("filling the device's memory: ", cache_.in_flight(),
                                                       " transfers did not end for ",
                                                       absl::FormatDuration(stall_limit_)));
    }
    RETURN_IF_ERROR(fetches_->Wait(stall_.EndOfWait(SteadyNow())));
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
