#include "inferd/residency/neuron/neuron_choice.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace sluice::inferd {

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
