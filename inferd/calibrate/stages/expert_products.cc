#include "inferd/calibrate/stages/expert_products.h"

#include "common/status.h"
#include "kernels/reference/scalar.h"

namespace sluice::inferd {
namespace {

// Returns a part's rows [begin, end): the neurons of a tile.
WeightView NeuronRange(WeightView view, uint32_t begin, uint32_t end) {
  view.base = view.base + begin * view.stride;
  view.rows = end - begin;
  return view;
}

}  // namespace

absl::Status VisitFactors(const WindowRunner& runner, const ActivationSpec& activation,
                          const ExpertWork& work, const Rows& x, absl::Span<const uint32_t> rows,
                          const FactorVisitor& visit) {
  const uint32_t end = work.neuron_end == 0 ? work.up.rows : work.neuron_end;
  const uint32_t neurons = end - work.neuron_begin;
  const Rows up = runner.scratch(0);
  const Rows gate = runner.scratch(1);
  const uint64_t bias_offset = work.neuron_begin * sizeof(float);
  const bool gated = bool{work.gate.base};
  const BufferRef gate_bias = gated ? work.gate_bias : work.up_bias;
  const MatMulPart parts[] = {{NeuronRange(work.up, work.neuron_begin, end), up,
                               work.up_bias ? work.up_bias + bias_offset : BufferRef{}},
                              {NeuronRange(gated ? work.gate : work.up, work.neuron_begin, end), gate,
                               gate_bias ? gate_bias + bias_offset : BufferRef{}}};
  Queue& queue = runner.parts().backend->queue();
  MatMulArgs matmul;
  matmul.x = x;
  matmul.tokens = static_cast<uint32_t>(rows.size());
  matmul.cols = work.up.cols;
  matmul.row_ids = rows;
  matmul.parts = parts;
  RETURN_IF_ERROR(queue.MatMul(matmul));
  RETURN_IF_ERROR(queue.Wait(queue.Record()));
  for (uint32_t row = 0; row < rows.size(); ++row) {
    const float* u = runner.HostRow(up, row, neurons);
    const float* g = runner.HostRow(gate, row, neurons);
    if (u == nullptr || g == nullptr) return absl::InternalError("calibration scratch cannot be read");
    for (uint32_t j = 0; j < neurons; ++j) {
      visit(reference::UpFactor(activation, u[j]), reference::GateFactor(activation, g[j]));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
