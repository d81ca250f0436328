// What an expert takes the CPU by its rows: measured once, at the start, on an expert that lies in the slab,
// with the kernels that compute misses.
#include <algorithm>
#include <numeric>
#include <utility>

#include "common/clock.h"
#include "common/status.h"
#include "inferd/residency/slab/slab_residency.h"

namespace sluice {
namespace {

constexpr uint32_t kMostRows = 64;
constexpr int kRounds = 3;  // the best counts: others use the machine too

}  // namespace

// Slots of each class get the table of the one measured, in proportion to their bytes. Without a ready expert
// (the first fill found no room) the assumption of slab_misses.cc stays.
absl::Status SlabResidency::MeasureCpu() {
  if (options_.miss == ExpertMiss::kLoad) {
    return absl::OkStatus();
  }
  if (options_.cpu_seconds > 0 || clock_ != nullptr) {
    for (const SlotClass& size_class : plan_.classes) {
      cpu_tables_.push_back(CpuCostTable::PerToken(CpuSeconds() * static_cast<double>(size_class.bytes)));
    }
    return absl::OkStatus();
  }
  uint32_t slot = 0;
  while (slot < table_.size() && table_.slot(slot).state != SlotState::kReady) {
    ++slot;
  }
  if (slot == table_.size()) {
    return absl::OkStatus();
  }
  const uint32_t most = std::clamp(options_.max_rows, 1u, kMostRows);
  const uint64_t bytes = uint64_t{most} * pack_.config().hidden * sizeof(float);
  ASSIGN_OR_RETURN(const BufferId x, backend_->Allocate(bytes, BufferKind::kActivations));
  absl::StatusOr<BufferId> y = backend_->Allocate(bytes, BufferKind::kActivations);
  absl::StatusOr<std::vector<CpuCostTable::Point>> points =
      y.ok() ? MeasureRows(slot, most, x, *y) : absl::StatusOr<std::vector<CpuCostTable::Point>>(y.status());
  backend_->Free(x).IgnoreError();  // the ids are ours
  if (y.ok()) {
    backend_->Free(*y).IgnoreError();
  }
  RETURN_IF_ERROR(points.status());
  const Slot& measured = table_.slot(slot);
  const double expert_bytes = static_cast<double>(pack_.expert_bytes(measured.layer, measured.expert));
  for (const SlotClass& size_class : plan_.classes) {
    std::vector<CpuCostTable::Point> scaled = *points;
    for (CpuCostTable::Point& point : scaled) {
      point.seconds *= static_cast<double>(size_class.bytes) / expert_bytes;
    }
    ASSIGN_OR_RETURN(CpuCostTable table, CpuCostTable::Create(std::move(scaled)));
    cpu_tables_.push_back(std::move(table));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CpuCostTable::Point>> SlabResidency::MeasureRows(uint32_t slot, uint32_t most,
                                                                            BufferId x, BufferId y) {
  const uint32_t hidden = pack_.config().hidden;
  const MoeConfig& moe = pack_.config().layers[table_.slot(slot).layer].moe;
  const std::vector<float> ones(uint64_t{most} * hidden, 1.0f);
  RETURN_IF_ERROR(queue_->Upload(ones.data(), ones.size() * sizeof(float), {x, 0}));
  std::vector<uint32_t> rows(most);
  std::iota(rows.begin(), rows.end(), 0);
  const MonotonicClock machine;
  const Clock& clock = options_.cpu_clock == nullptr ? machine : *options_.cpu_clock;
  std::vector<CpuCostTable::Point> points;
  backend_->BeginStep();
  for (uint32_t count = 1; count <= most; count *= 2) {
    ExpertWork work;
    work.up = PartOf(table_.slot(slot).layer, table_.slot(slot).expert, slot, Part::kUp);
    work.gate = PartOf(table_.slot(slot).layer, table_.slot(slot).expert, slot, Part::kGate);
    work.down = PartOf(table_.slot(slot).layer, table_.slot(slot).expert, slot, Part::kDown);
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
      RETURN_IF_ERROR(queue_->MoeExperts(args));
      RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
      best = std::min(best, clock.NowNanos() - start);
    }
    const double floor = points.empty() ? 0 : points.back().seconds;
    points.push_back({count, std::max(floor, static_cast<double>(best) * 1e-9)});
  }
  backend_->EndStep();
  return points;
}

}  // namespace sluice
