#include "tests/kernels/expert_testing.h"

#include <algorithm>

namespace sluice {

Expert MakeExpert(Random& random, const Parts& parts, uint32_t width, uint32_t hidden, bool biases) {
  Expert e{random.Matrix(parts[0], width, hidden, 2 * random.Below(9)),
           random.Matrix(parts[1], width, hidden),
           random.Matrix(DownEncoding(parts[2]), width, hidden, 2 * random.Below(9)),
           {},
           {},
           {},
           {}};
  if (biases) {
    e.up_bias = random.Normals(width, 0.5f);
    e.gate_bias = random.Normals(width, 0.5f);
    e.down_bias = random.Normals(hidden);
  }
  return e;
}

Expert MakeOutputExpert(Random& random, const Parts& parts, uint32_t width, uint32_t hidden, bool biases) {
  Expert e = MakeExpert(random, parts, width, hidden, biases);
  e.down = random.Matrix(parts[2], hidden, width, 2 * random.Below(9));
  return e;
}

ExpertWork PutExpert(OpBench& bench, const Expert& e) {
  ExpertWork w;
  w.up = bench.PutMatrix(e.up);
  w.gate = bench.PutMatrix(e.gate);
  w.down = bench.PutMatrix(e.down);
  if (!e.up_bias.empty()) {
    w.up_bias = bench.PutFloats(e.up_bias);
    w.gate_bias = bench.PutFloats(e.gate_bias);
    w.down_bias = bench.PutFloats(e.down_bias);
  }
  if (!e.positions.empty()) {
    w.up.positions = w.gate.positions = w.down.positions = bench.PutInts(e.positions);
  }
  return w;
}

Result RunCase(OpBench& bench, const Case& c) {
  MoeExpertsArgs args;
  args.x = bench.PutRows(c.x, c.hidden);
  args.tokens = c.tokens;
  args.hidden = c.hidden;
  args.activation = c.activation;
  args.y = bench.NewRows(c.slot_count, c.hidden);
  args.slots = c.slot_count;
  args.active = bench.NewWords(c.slot_count);
  args.down_by_outputs = c.down_by_outputs;
  std::vector<ExpertWork> all;
  uint32_t widest = 0;
  for (size_t e = 0; e < c.experts.size(); ++e) {
    all.push_back(PutExpert(bench, c.experts[e]));
    all.back().rows = c.rows[e];
    all.back().slots = c.slots[e];
    all.back().sparsity = c.order;
    all.back().threshold = c.threshold;
    widest = std::max(widest, all.back().up.rows);
  }
  for (uint32_t begin = 0; begin < widest; begin += c.tile == 0 ? widest : c.tile) {
    std::vector<ExpertWork> work;
    for (const ExpertWork& w : all) {
      if (!w.rows.empty() && begin < w.up.rows) {
        work.push_back(w);
        work.back().neuron_begin = begin;
        work.back().neuron_end = c.tile == 0 ? 0 : std::min(w.up.rows, begin + c.tile);
      }
    }
    args.experts = work;
    const absl::Status status = bench.queue().MoeExperts(args);
    EXPECT_TRUE(status.ok()) << status;
  }
  return {bench.GetRows(args.y, c.slot_count, c.hidden), bench.Ints(args.active, c.slot_count)};
}

void AssignAll(Case* c) {
  const uint32_t experts = static_cast<uint32_t>(c->experts.size());
  c->rows.assign(experts, std::vector<uint32_t>(c->tokens));
  c->slots.assign(experts, std::vector<uint32_t>(c->tokens));
  c->slot_count = c->tokens * experts;
  for (uint32_t e = 0; e < experts; ++e) {
    for (uint32_t t = 0; t < c->tokens; ++t) {
      c->rows[e][t] = t;
      c->slots[e][t] = t * experts + e;
    }
  }
}

}  // namespace sluice
