#include "inferd/residency/slab/cpu_costs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/status.h"

namespace sluice {
namespace {

// The CPU's time for an expert and one row, where nobody says or measured: this share of a load (the paper's
// S3).
constexpr double kCpuShareOfLoad = 1.0 / 3;
constexpr uint32_t kMostRows = 64;
constexpr int kRounds = 3;  // the best counts: others use the machine too

}  // namespace

double CpuCosts::SecondsPerByte() const {
  return said_ > 0 ? said_ : pace_->SecondsPerByte() * kCpuShareOfLoad;
}

double CpuCosts::Seconds(uint32_t layer, uint32_t expert, uint32_t tokens) const {
  return known() ? TableOf(layer, expert).Seconds(tokens)
                 : SecondsPerByte() * static_cast<double>(pack_->expert_bytes(layer, expert)) * tokens;
}

void CpuCosts::Assume() {
  for (const SlotClass& size_class : slots_->plan().classes) {
    tables_.push_back(CpuCostTable::PerToken(SecondsPerByte() * static_cast<double>(size_class.bytes)));
  }
}

absl::Status CpuCosts::Measure(uint32_t max_rows, const Clock& clock, Backend* backend) {
  const SlotTable& table = slots_->table();
  uint32_t slot = 0;
  while (slot < table.size() && table.slot(slot).state != SlotState::kReady) {
    ++slot;
  }
  if (slot == table.size()) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<CpuCostTable::Point> points,
                   MeasureRows(slot, std::clamp(max_rows, 1u, kMostRows), clock, backend));
  const Slot& measured = table.slot(slot);
  const double expert_bytes = static_cast<double>(pack_->expert_bytes(measured.layer, measured.expert));
  for (const SlotClass& size_class : slots_->plan().classes) {
    std::vector<CpuCostTable::Point> scaled = points;
    for (CpuCostTable::Point& point : scaled) {
      point.seconds *= static_cast<double>(size_class.bytes) / expert_bytes;
    }
    ASSIGN_OR_RETURN(CpuCostTable costs, CpuCostTable::Create(std::move(scaled)));
    tables_.push_back(std::move(costs));
  }
  return absl::OkStatus();
}

// The memory of the rows is gone again whatever comes of it.
absl::StatusOr<std::vector<CpuCostTable::Point>> CpuCosts::MeasureRows(uint32_t slot, uint32_t most,
                                                                       const Clock& clock,
                                                                       Backend* backend) const {
  const uint64_t bytes = uint64_t{most} * pack_->config().hidden * sizeof(float);
  ASSIGN_OR_RETURN(const BufferId x, backend->Allocate(bytes, BufferKind::kActivations));
  const absl::StatusOr<BufferId> y = backend->Allocate(bytes, BufferKind::kActivations);
  if (!y.ok()) {
    backend->Free(x).IgnoreError();  // the ids are ours
    return y.status();
  }
  ExpertWork expert;
  expert.up = slots_->PartOf(slot, Part::kUp);
  expert.gate = slots_->PartOf(slot, Part::kGate);
  expert.down = slots_->PartOf(slot, Part::kDown);
  absl::StatusOr<std::vector<CpuCostTable::Point>> points =
      TimeRows(expert, slots_->table().slot(slot).layer, most, x, *y, clock, backend);
  backend->Free(*y).IgnoreError();
  backend->Free(x).IgnoreError();
  return points;
}

absl::StatusOr<std::vector<CpuCostTable::Point>> CpuCosts::TimeRows(const ExpertWork& expert, uint32_t layer,
                                                                    uint32_t most, BufferId x, BufferId y,
                                                                    const Clock& clock,
                                                                    Backend* backend) const {
  const uint32_t hidden = pack_->config().hidden;
  const MoeConfig& moe = pack_->config().layers[layer].moe;
  Queue& queue = backend->queue();
  const std::vector<float> ones(uint64_t{most} * hidden, 1.0f);
  RETURN_IF_ERROR(queue.Upload(ones.data(), ones.size() * sizeof(float), {x, 0}));
  std::vector<uint32_t> rows(most);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<CpuCostTable::Point> points;
  backend->BeginStep();
  for (uint32_t count = 1; count <= most; count *= 2) {
    ExpertWork work = expert;
    work.rows = work.slots = absl::MakeConstSpan(rows.data(), count);
    MoeExpertsArgs args;
    args.x = {{x, 0}, hidden};
    args.tokens = count;
    args.hidden = hidden;
    args.activation = {moe.activation, moe.activation_alpha, moe.activation_limit};
    args.experts = absl::MakeConstSpan(&work, 1);
    args.y = {{y, 0}, hidden};
    args.slots = count;
    int64_t best = INT64_MAX;
    for (int round = 0; round < kRounds; ++round) {
      const int64_t start = clock.NowNanos();
      RETURN_IF_ERROR(queue.MoeExperts(args));
      RETURN_IF_ERROR(queue.Wait(queue.Record()));
      best = std::min(best, clock.NowNanos() - start);
    }
    const double floor = points.empty() ? 0 : points.back().seconds;
    points.push_back({count, std::max(floor, static_cast<double>(best) * 1e-9)});
  }
  backend->EndStep();
  return points;
}

}  // namespace sluice
