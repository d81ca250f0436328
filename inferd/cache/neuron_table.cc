#include "inferd/cache/neuron_table.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

namespace sluice::inferd {
namespace {

// Sets the bits of ascending neurons, a word at a time, since bits of one word are adjacent.
void SetBits(absl::Span<const uint32_t> neurons, uint64_t* mask) {
  for (size_t i = 0; i < neurons.size();) {
    const uint32_t word = neurons[i] / 64;
    uint64_t bits = 0;
    for (; i < neurons.size() && neurons[i] / 64 == word; ++i) {
      bits |= uint64_t{1} << neurons[i] % 64;
    }
    mask[word] |= bits;
  }
}

}  // namespace

NeuronTable::NeuronTable(uint32_t slots, uint32_t most_neurons)
    : most_((most_neurons + 63) / 64 * 64),
      words_(most_ / 64),
      positions_(uint64_t{slots} * most_, kAbsent),
      slots_(slots),
      neurons_(uint64_t{slots} * most_),
      present_(uint64_t{slots} * words_),
      asked_(uint64_t{slots} * words_) {}

void NeuronTable::Reset(uint32_t slot, uint32_t width) {
  std::fill_n(&positions_[uint64_t{slot} * most_], most_, kAbsent);
  std::fill_n(present_.begin() + static_cast<ptrdiff_t>(At(slot)), words_, uint64_t{0});
  std::fill_n(asked_.begin() + static_cast<ptrdiff_t>(At(slot)), words_, uint64_t{0});
  slots_[slot] = {};
  slots_[slot].width = width;
}

uint32_t NeuronTable::Reserve(uint32_t slot, absl::Span<const uint32_t> neurons) {
  Slot& s = slots_[slot];
  if (neurons.size() > s.width - s.used) {
    return kNoRecord;
  }
  const uint32_t first = s.used;
  const auto count = static_cast<uint32_t>(neurons.size());
  std::copy(neurons.begin(), neurons.end(), &neurons_[uint64_t{slot} * most_ + first]);
  SetBits(neurons, &asked_[At(slot)]);
  // Ascending: if the first and the last record are in order, all between are.
  s.in_order =
      s.in_order && (count == 0 || (neurons.front() == first && neurons.back() == first + count - 1));
  s.used += count;
  s.asked += count;
  return first;
}

void NeuronTable::Land(uint32_t slot, uint32_t first, uint32_t count) {
  int32_t* positions = &positions_[uint64_t{slot} * most_];
  const absl::Span<const uint32_t> landed = Neurons(slot, first, count);
  for (uint32_t i = 0; i < count; ++i) {
    positions[landed[i]] = static_cast<int32_t>(first + i);
  }
  SetBits(landed, &present_[At(slot)]);
  slots_[slot].present += count;
}

void NeuronTable::Drop(uint32_t slot, uint32_t first, uint32_t count) {
  Slot& s = slots_[slot];
  for (const uint32_t neuron : Neurons(slot, first, count)) {
    asked_[At(slot) + neuron / 64] &= ~(uint64_t{1} << neuron % 64);
  }
  s.asked -= count;
  if (s.asked == 0) {
    s.used = 0;
    s.in_order = true;
  } else if (first + count == s.used) {
    s.used = first;
  }
}

uint32_t CountNeurons(absl::Span<const uint64_t> mask) {
  uint32_t count = 0;
  for (const uint64_t word : mask) {
    count += static_cast<uint32_t>(std::popcount(word));
  }
  return count;
}

uint32_t CountBoth(absl::Span<const uint64_t> mask, absl::Span<const uint64_t> other) {
  uint32_t count = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    count += static_cast<uint32_t>(std::popcount(mask[i] & other[i]));
  }
  return count;
}

uint32_t ListNeurons(absl::Span<const uint64_t> mask, absl::Span<const uint64_t> except, uint32_t* list) {
  uint32_t count = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    for (uint64_t left = mask[i] & ~except[i]; left != 0; left &= left - 1) {
      list[count++] = static_cast<uint32_t>(i * 64) + static_cast<uint32_t>(std::countr_zero(left));
    }
  }
  return count;
}

size_t ChooseLargest(absl::Span<NeuronWant> wants, absl::Span<uint8_t> begun, NeuronBudget* budget) {
  std::sort(wants.begin(), wants.end(), [](const NeuronWant& a, const NeuronWant& b) {
    return std::tie(b.size, a.demand, a.neuron) < std::tie(a.size, b.demand, b.neuron);
  });
  size_t chosen = 0;
  for (size_t i = 0; i < wants.size(); ++i) {
    uint8_t& paid = begun[wants[i].demand];
    const double cost = wants[i].bytes * budget->seconds_per_byte + (paid != 0 ? 0 : budget->latency_seconds);
    if (cost > budget->seconds) {
      continue;  // a smaller one of a begun expert may still fit
    }
    budget->seconds -= cost;
    paid = 1;
    std::swap(wants[chosen++], wants[i]);
  }
  return chosen;
}

}  // namespace sluice::inferd
