#include "inferd/cache/slab_plan.h"

#include <algorithm>

#include "common/base/status.h"

namespace sluice::inferd {
namespace {

constexpr uint64_t kSlotAlignment = 64;
constexpr uint32_t kLeastSlots = 2;
// Number of passing slots: as many as a token's experts, but at most this share of the slots; or the
// requested number, and at most half of them.
constexpr uint32_t kPassingShare = 4;
constexpr uint32_t kAskedPassingShare = 2;

uint64_t BytesOf(const Pack& pack, const SlotBytes& slot_bytes, uint32_t layer, uint32_t expert) {
  const uint64_t bytes = slot_bytes ? slot_bytes(layer, expert) : pack.expert_bytes(layer, expert);
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

// Size classes, largest first, with the number of experts of each.
std::vector<SlotClass> ClassesOf(const Pack& pack, const SlotBytes& slot_bytes) {
  std::vector<SlotClass> classes;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      const uint64_t bytes = BytesOf(pack, slot_bytes, layer, expert);
      const auto known = std::find_if(classes.begin(), classes.end(),
                                      [&](const SlotClass& other) { return other.bytes == bytes; });
      if (known != classes.end()) {
        known->experts++;
      } else {
        classes.push_back({.bytes = bytes, .experts = 1});
      }
    }
  }
  std::sort(classes.begin(), classes.end(),
            [](const SlotClass& a, const SlotClass& b) { return a.bytes > b.bytes; });
  return classes;
}

uint64_t LeastBytes(absl::Span<const SlotClass> classes) {
  uint64_t bytes = 0;
  for (const SlotClass& c : classes) {
    bytes += c.bytes * std::min(kLeastSlots, c.experts);
  }
  return bytes;
}

// Gives every class its minimum, then the same share of the rest, then the remainder one slot at a time.
void DivideBudget(uint64_t budget, std::vector<SlotClass>* classes) {
  uint64_t rest = budget;
  uint64_t wanted = 0;
  for (SlotClass& c : *classes) {
    c.slots = std::min(kLeastSlots, c.experts);
    rest -= c.bytes * c.slots;
    wanted += c.bytes * (c.experts - c.slots);
  }
  const double share = wanted == 0 ? 0 : std::min(1.0, static_cast<double>(rest) / wanted);
  for (SlotClass& c : *classes) {
    const uint32_t more = std::min<uint32_t>(static_cast<uint32_t>(share * (c.experts - c.slots)),
                                             static_cast<uint32_t>(rest / c.bytes));
    c.slots += more;
    rest -= more * c.bytes;
  }
  for (SlotClass& c : *classes) {
    const uint64_t more = std::min<uint64_t>(c.experts - c.slots, rest / c.bytes);
    c.slots += static_cast<uint32_t>(more);
    rest -= more * c.bytes;
  }
}

void IndexClasses(const Pack& pack, const SlotBytes& slot_bytes, SlabPlan* plan) {
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    plan->first_expert.push_back(plan->class_of.size());
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      const uint64_t bytes = BytesOf(pack, slot_bytes, layer, expert);
      const auto found = std::find_if(plan->classes.begin(), plan->classes.end(),
                                      [&](const SlotClass& c) { return c.bytes == bytes; });
      plan->class_of.push_back(static_cast<uint16_t>(found - plan->classes.begin()));
    }
  }
}

// Number of experts of each layer in class `index`.
std::vector<uint32_t> ExpertsByLayer(const Pack& pack, const SlabPlan& plan, uint32_t index) {
  std::vector<uint32_t> experts;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    const auto begin = plan.class_of.begin() + static_cast<ptrdiff_t>(plan.first_expert[layer]);
    experts.push_back(
        static_cast<uint32_t>(std::count(begin, begin + pack.expert_count(layer), uint16_t(index))));
  }
  return experts;
}

// Number of a class's passing slots. `all_experts`: experts of all classes.
uint32_t PassingSlots(const SlotClass& c, uint32_t wanted, uint32_t share, uint32_t all_experts) {
  if (c.slots >= c.experts) {
    return 0;
  }
  const uint64_t of_class = (uint64_t{wanted} * c.experts + all_experts - 1) / all_experts;
  return std::min(static_cast<uint32_t>(of_class), std::max(1u, c.slots / share));
}

}  // namespace

uint32_t LargestTopKOf(const Pack& pack) {
  uint32_t most = 1;
  for (const LayerConfig& layer : pack.config().layers) {
    most = std::max(most, layer.moe.top_k);
  }
  return most;
}

uint64_t SmallestDeviceBudget(const Pack& pack, const SlotBytes& slot_bytes) {
  return LeastBytes(ClassesOf(pack, slot_bytes));
}

uint32_t SmallestSlotCount(const Pack& pack, const SlotBytes& slot_bytes) {
  uint32_t slots = 0;
  for (const SlotClass& c : ClassesOf(pack, slot_bytes)) {
    slots += std::min(kLeastSlots, c.experts);
  }
  return slots;
}

absl::Status CheckDeviceBudget(const Pack& pack, uint64_t budget, const SlotBytes& slot_bytes) {
  const std::vector<SlotClass> classes = ClassesOf(pack, slot_bytes);
  if (classes.empty()) {
    return absl::InvalidArgumentError("the model has no routed experts to hold in a device's memory");
  }
  if (classes.size() > 0xffff) {
    return absl::UnimplementedError(absl::StrCat(classes.size(), " different sizes of experts"));
  }
  const uint64_t least = LeastBytes(classes);
  if (budget != 0 && budget < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_budget of ", budget, " bytes cannot hold the least working set of ", least,
                     " bytes: two experts of each size, the largest of ", classes.front().bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<SlabPlan> PlanSlab(const Pack& pack, uint64_t budget, const SlotAllocation& allocate,
                                  const SlotBytes& slot_bytes, uint32_t passing) {
  RETURN_IF_ERROR(CheckDeviceBudget(pack, budget, slot_bytes));
  SlabPlan plan;
  plan.classes = ClassesOf(pack, slot_bytes);
  DivideBudget(budget == 0 ? ~uint64_t{0} : budget, &plan.classes);
  IndexClasses(pack, slot_bytes, &plan);
  for (uint32_t i = 0; i < plan.classes.size(); ++i) {
    SlotClass& c = plan.classes[i];
    c.offset = plan.bytes;
    c.first = plan.slots;
    plan.bytes += c.bytes * c.slots;
    plan.slots += c.slots;
    c.passing = PassingSlots(c, passing > 0 ? passing : std::max(kLeastSlots, LargestTopKOf(pack)),
                             passing > 0 ? kAskedPassingShare : kPassingShare,
                             static_cast<uint32_t>(plan.class_of.size()));
    c.quota = allocate(ExpertsByLayer(pack, plan, i), c.slots - c.passing);
  }
  return plan;
}

}  // namespace sluice::inferd
