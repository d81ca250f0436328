#include "inferd/cache/cpu_experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/base/status.h"
#include "inferd/model/weight_client.h"

namespace sluice::inferd {

bool CpuExperts::Lease(uint32_t demand, uint32_t layer, uint32_t expert, uint64_t step) {
  Expert& entry = experts_[demand];
  const ExtentRange range = pack_.expert_extents(layer, expert);
  if (!LeaseExtents(range, step, client_, entry.leases.data())) {
    return false;
  }
  entry.layer = layer;
  entry.expert = expert;
  entry.leased = true;
  held_ += range.count;
  return true;
}

void CpuExperts::Release(uint32_t demand, uint64_t step) {
  Expert& entry = experts_[demand];
  if (!entry.leased) {
    return;
  }
  entry.leased = false;
  const ExtentRange range = pack_.expert_extents(entry.layer, entry.expert);
  ReleaseExtents(range, step, client_);
  held_ -= range.count;
}

void CpuExperts::Queue(uint32_t demand, double seconds) {
  if (clock_ != nullptr) {
    experts_[demand].ends = clock_->cpu().Run(clock_->NowNanos(), static_cast<int64_t>(seconds * 1e9 + 0.5));
  }
}

WeightView CpuExperts::PartOf(uint32_t demand, Part part) const {
  const Expert& entry = experts_[demand];
  const PartView view = pack_.part(entry.layer, entry.expert, part);
  const uint32_t first = pack_.expert_extents(entry.layer, entry.expert).first;
  const BufferRef place = segments_->Place(entry.leases[view.extent - first]);
  return WeightView{view.encoding, place + view.base, view.stride, view.rows, view.cols, {}};
}

namespace {

// CPU time of an expert and one row as a share of a load, if no value is given or measured (the paper's S3).
constexpr double kCpuShareOfLoad = 1.0 / 3;
constexpr uint32_t kMaxRows = 64;
constexpr uint32_t kTimedRounds = 3;  // the best counts: other processes use the machine too
// Each round uses an expert of its own, up to this size, so that none lies in a CPU cache.
constexpr uint64_t kMaxCopiedBytes = 128ull << 20;
// Bounds of one observation against the measurement at the start, and the weight of observations.
constexpr double kMaxScale = 8;
constexpr double kWindow = 16;

uint32_t FirstMixture(const Pack& pack) {
  uint32_t layer = 0;
  while (pack.expert_count(layer) == 0) {
    ++layer;
  }
  return layer;
}

// Memory of a backend, released in the destructor.
class Buffers {
 public:
  static absl::StatusOr<Buffers> Allocate(uint64_t bytes, Backend* backend) {
    ASSIGN_OR_RETURN(const BufferId buffer, backend->Allocate(bytes, BufferKind::kActivations));
    return Buffers(buffer, backend);
  }
  Buffers(Buffers&& other) noexcept
      : buffer_(std::exchange(other.buffer_, kNoBuffer)), backend_(other.backend_) {}
  Buffers& operator=(Buffers&&) = delete;
  ~Buffers() {
    if (buffer_ != kNoBuffer) {
      backend_->Free(buffer_).IgnoreError();  // the id is valid
    }
  }
  BufferRef ref() const { return {buffer_, 0}; }

 private:
  Buffers(BufferId buffer, Backend* backend) : buffer_(buffer), backend_(backend) {}
  BufferId buffer_;
  Backend* backend_;
};

// Times experts of a layer on a device, by the device's own clock.
class ExpertTimer {
 public:
  static absl::StatusOr<ExpertTimer> Create(const Pack& pack, uint32_t layer, uint32_t most,
                                            Backend* backend) {
    const ModelConfig& config = pack.config();
    const uint64_t bytes = uint64_t{most} * ExpertHidden(config) * sizeof(float);
    ASSIGN_OR_RETURN(Buffers x, Buffers::Allocate(bytes, backend));
    ASSIGN_OR_RETURN(Buffers y, Buffers::Allocate(bytes, backend));
    const std::vector<float> ones(uint64_t{most} * ExpertHidden(config), 1.0f);
    RETURN_IF_ERROR(backend->queue().Upload(ones.data(), bytes, x.ref()));
    return ExpertTimer(pack, config.layers[layer].moe, most, backend, std::move(x), std::move(y));
  }

  absl::StatusOr<double> Time(ExpertWork work, uint32_t rows) {
    work.rows = work.slots = absl::MakeConstSpan(rows_).first(rows);
    MoeExpertsArgs args;
    const uint32_t hidden = ExpertHidden(pack_.config());
    args.x = {x_.ref(), hidden};
    args.tokens = args.slots = rows;
    args.hidden = hidden;
    args.activation = {moe_.activation, moe_.activation_alpha, moe_.activation_limit};
    args.experts = absl::MakeConstSpan(&work, 1);
    args.y = {y_.ref(), hidden};
    args.down_by_outputs = pack_.by_outputs();
    Queue& queue = backend_->queue();
    backend_->BeginStep();
    RETURN_IF_ERROR(queue.Wait(queue.Record()));
    const Event before = queue.Record();
    RETURN_IF_ERROR(queue.MoeExperts(args));
    const Event after = queue.Record();
    RETURN_IF_ERROR(queue.Wait(after));
    backend_->EndStep();
    return queue.Seconds(before, after);
  }

 private:
  ExpertTimer(const Pack& pack, const MoeConfig& moe, uint32_t most, Backend* backend, Buffers x, Buffers y)
      : pack_(pack), moe_(moe), backend_(backend), x_(std::move(x)), y_(std::move(y)), rows_(most) {
    std::iota(rows_.begin(), rows_.end(), 0);
  }
  const Pack& pack_;
  const MoeConfig& moe_;
  Backend* const backend_;
  Buffers x_;
  Buffers y_;
  std::vector<uint32_t> rows_;
};

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

void CpuCosts::ReportTime(double seconds, double predicted) {
  if (!(predicted > 0)) {
    return;
  }
  const double now = std::clamp(scale_ * seconds / predicted, 1 / kMaxScale, kMaxScale);
  scale_ += (now - scale_) / kWindow;
  for (CpuCostTable& table : tables_) {
    table.SetScale(scale_);
  }
}

// Work for an expert as the pack stores it, in one piece.
ExpertWork CpuCosts::WorkAt(uint32_t layer, uint32_t expert, BufferRef place) const {
  const uint64_t start = pack_->extents()[pack_->expert_extents(layer, expert).first].offset;
  const auto part_of = [&](Part part) {
    const PartView view = pack_->part(layer, expert, part);
    const uint64_t offset = pack_->extents()[view.extent].offset - start + view.base;
    return WeightView{view.encoding, place + offset, view.stride, view.rows, view.cols, {}};
  };
  ExpertWork work;
  work.up = part_of(Part::kUp);
  work.gate = part_of(Part::kGate);
  work.down = part_of(Part::kDown);
  return work;
}

// Measured experts are zeros: the time is the same, and no expert has to be resident.
absl::Status CpuCosts::Measure(uint32_t max_rows, Backend* cpu) {
  const uint32_t layer = FirstMixture(*pack_);
  const uint64_t bytes = (pack_->expert_bytes(layer, 0) + 63) / 64 * 64;
  const uint64_t copies = std::clamp<uint64_t>(kMaxCopiedBytes / bytes, 1, kTimedRounds);
  ASSIGN_OR_RETURN(const Buffers weights, Buffers::Allocate(copies * bytes, cpu));
  const uint32_t most = std::clamp(max_rows, 1u, kMaxRows);
  ASSIGN_OR_RETURN(ExpertTimer timer, ExpertTimer::Create(*pack_, layer, most, cpu));
  std::vector<CpuCostTable::Point> points;
  for (uint32_t rows = 1; rows <= most; rows *= 2) {
    double best = HUGE_VAL;
    for (uint32_t round = 0; round < kTimedRounds; ++round) {
      const ExpertWork work = WorkAt(layer, 0, weights.ref() + round % copies * bytes);
      ASSIGN_OR_RETURN(const double seconds, timer.Time(work, rows));
      best = std::min(best, seconds);
    }
    points.push_back({rows, std::max(points.empty() ? 0 : points.back().seconds, best)});
  }
  for (const SlotClass& size_class : slots_->plan().classes) {
    std::vector<CpuCostTable::Point> scaled = points;
    for (CpuCostTable::Point& point : scaled) {
      point.seconds *=
          static_cast<double>(size_class.bytes) / static_cast<double>(pack_->expert_bytes(layer, 0));
    }
    ASSIGN_OR_RETURN(CpuCostTable costs, CpuCostTable::Create(std::move(scaled)));
    tables_.push_back(std::move(costs));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> CpuCosts::MeasureDevice(Backend* device) const {
  const SlotTable& table = slots_->table();
  uint32_t slot = 0;
  while (slot < table.size() && table.slot(slot).state != SlotState::kReady) {
    ++slot;
  }
  if (slot == table.size()) {
    return 0;
  }
  const Slot& measured = table.slot(slot);
  ExpertWork work;
  work.up = slots_->PartOf(slot, Part::kUp);
  work.gate = slots_->PartOf(slot, Part::kGate);
  work.down = slots_->PartOf(slot, Part::kDown);
  ASSIGN_OR_RETURN(ExpertTimer timer, ExpertTimer::Create(*pack_, measured.layer, 1, device));
  double best = HUGE_VAL;
  for (uint32_t round = 0; round < kTimedRounds; ++round) {
    ASSIGN_OR_RETURN(const double seconds, timer.Time(work, 1));
    best = std::min(best, seconds);
  }
  return best / static_cast<double>(pack_->expert_bytes(measured.layer, measured.expert));
}

}  // namespace sluice::inferd
