// Misses that the CPU computes where they lie, in weightd's DRAM under leases, while others travel
// (importance-driven 5.4; Fiddler).
#include <algorithm>
#include <optional>

#include "absl/time/clock.h"
#include "common/status.h"
#include "inferd/policy/routing/miss_balance.h"
#include "inferd/residency/slab/slab_residency.h"

namespace sluice {
namespace {

// The CPU's time for an expert and one row, where nobody says or measured: this share of a load (the paper's
// S3).
constexpr double kCpuShareOfLoad = 1.0 / 3;

}  // namespace

// Of a byte over the link.
double SlabResidency::LoadSeconds() const {
  if (options_.load_seconds > 0) {
    return options_.load_seconds;
  }
  const uint64_t bytes = fetches_->bytes_link();
  return bytes == 0 ? 0 : fetches_->copy_seconds() / static_cast<double>(bytes);
}

double SlabResidency::CpuSeconds() const {
  return options_.cpu_seconds > 0 ? options_.cpu_seconds : LoadSeconds() * kCpuShareOfLoad;
}

// Of an expert that is on its way.
double SlabResidency::SecondsToCome(const Entry& entry) const {
  return LoadSeconds() * static_cast<double>(pack_.expert_bytes(layer_, entry.expert)) *
         (1 - static_cast<double>(LandedNeurons(entry)) / width_);
}

// What is still to come of the demands that are on their way.
double SlabResidency::BacklogSeconds() const {
  double seconds = 0;
  for (uint32_t i = 0; in_flight_ > 0 && i < demands_; ++i) {
    seconds += entries_[i].state == State::kInFlight ? SecondsToCome(entries_[i]) : 0;
  }
  return seconds;
}

// How many of the misses, sorted by rows descending, go over the link; the others are the CPU's.
uint32_t SlabResidency::LoadedOf(absl::Span<const ExpertDemand> sorted) const {
  const double bytes = static_cast<double>(pack_.expert_bytes(layer_, sorted.front().expert));
  const MissCosts costs = {LoadSeconds() * bytes, BacklogSeconds(), cpu_queued_};
  std::optional<CpuCostTable> assumed;
  if (cpu_tables_.empty()) {
    assumed = CpuCostTable::PerToken(CpuSeconds() * bytes);
  }
  const CpuCostTable& table =
      assumed.has_value() ? *assumed : cpu_tables_[table_.class_of(layer_, sorted.front().expert)];
  if (options_.miss == ExpertMiss::kCpu) {  // as long as the CPU is the faster one for it
    return static_cast<uint32_t>(std::count_if(sorted.begin(), sorted.end(), [&](const ExpertDemand& miss) {
      return table.Seconds(miss.tokens) >= costs.load_seconds;
    }));
  }
  return BalanceMisses(sorted, costs, table).loaded;
}

// Those in a state, as the balance wants them sorted.
void SlabResidency::CollectDemands(absl::Span<const ExpertDemand> demands, State state,
                                   std::vector<ExpertDemand>* to) {
  to->clear();
  for (uint32_t i = 0; i < demands.size(); ++i) {
    if (entries_[i].state == state) {
      to->push_back(demands[i]);
    }
  }
  SortMisses(absl::MakeSpan(*to));
}

// The slot keeps its expert, or goes on being filled with it, for tokens to come.
bool SlabResidency::GiveSlotToCpu(uint32_t index, uint32_t tokens) {
  Entry& entry = entries_[index];
  ++waiting_;
  GiveToCpu(index, tokens);
  if (entry.state != State::kCpu) {
    --waiting_;
    return false;
  }
  table_.slot(entry.slot).pinned = false;
  entry.slot = SlotTable::kNoSlot;
  return true;
}

void SlabResidency::DecideMisses(absl::Span<const ExpertDemand> demands) {
  if (BalancesLayers()) {
    DecideShares(demands);
    return;
  }
  if (options_.miss == ExpertMiss::kLoad || waiting_ == 0) {
    return;
  }
  CollectDemands(demands, State::kWaiting, &misses_);
  if (misses_.empty()) {
    return;
  }
  for (size_t i = LoadedOf(misses_); i < misses_.size(); ++i) {
    GiveToCpu(demand_of_[misses_[i].expert] - 1, misses_[i].tokens);
  }
}

double SlabResidency::CpuSecondsOf(uint32_t expert, uint32_t tokens) const {
  return cpu_tables_.empty() ? CpuSeconds() * static_cast<double>(pack_.expert_bytes(layer_, expert)) * tokens
                             : cpu_tables_[table_.class_of(layer_, expert)].Seconds(tokens);
}

// An expert that is on its way is the CPU's where that ends sooner than the link; it travels on, for tokens
// to come.
bool SlabResidency::LateToCpu(uint32_t index, uint32_t tokens) {
  Entry& entry = entries_[index];
  Slot& slot = table_.slot(entry.slot);
  if (options_.miss == ExpertMiss::kLoad || options_.fixed || slot.request == 0) {
    return false;
  }
  return cpu_queued_ + CpuSecondsOf(entry.expert, tokens) < SecondsToCome(entry) &&
         GiveSlotToCpu(index, tokens);
}

// Whether weightd has it in DRAM.
bool SlabResidency::LeaseForCpu(Entry* entry) {
  const ExtentRange range = pack_.expert_extents(layer_, entry->expert);
  for (uint32_t i = 0; i < range.count; ++i) {
    if (!client_->TryLease(range.first + i, &entry->leases[i])) {
      while (i > 0) {
        client_->Release(range.first + --i, step_);
      }
      return false;
    }
  }
  held_ += range.count;
  return entry->leased = true;
}

// `share` of the expert's neurons.
void SlabResidency::QueueOnCpu(Entry* entry, uint32_t tokens, double share) {
  cpu_queued_ += share * CpuSecondsOf(entry->expert, tokens);
  if (CpuBeside()) {
    const double seconds =
        share * CpuSeconds() * static_cast<double>(pack_.expert_bytes(layer_, entry->expert)) * tokens;
    entry->cpu_ends = clock_->cpu().Run(clock_->NowNanos(), static_cast<int64_t>(seconds * 1e9 + 0.5));
  }
}

// If weightd has it in DRAM; else it travels like the others.
void SlabResidency::GiveToCpu(uint32_t index, uint32_t tokens) {
  Entry& entry = entries_[index];
  if (!LeaseForCpu(&entry)) {
    return;
  }
  entry.state = State::kCpu;
  --waiting_;
  counters_.Add(layer_, &ResidencyCounters::cpu);
  QueueOnCpu(&entry, tokens, 1);
}

void SlabResidency::HandOutCpu(uint32_t index) {
  Entry& entry = entries_[index];
  const uint32_t first = pack_.expert_extents(layer_, entry.expert).first;
  const auto part = [&](Part p) {
    const PartView view = pack_.part(layer_, entry.expert, p);
    const BufferRef place = segments_->Place(entry.leases[view.extent - first]);
    return WeightView{view.encoding, place + view.base, view.stride, view.rows, view.cols, {}};
  };
  ReadyTile tile;
  tile.demand = index;
  tile.up = part(Part::kUp);
  tile.gate = part(Part::kGate);
  tile.down = part(Part::kDown);
  if (CpuBeside()) {
    clock_->cpu().Mark(tile.up.base);
  }
  if (entry.handed > 0) {  // the tiles before have come over the link
    tile.neuron_begin = entry.handed;
    tile.neuron_end = width_;
  }
  const uint64_t bytes = pack_.expert_bytes(layer_, entry.expert) * (width_ - entry.handed) / width_;
  counters_.Add(layer_, &ResidencyCounters::bytes_touched, bytes);
  counters_.Add(layer_, &ResidencyCounters::bytes_dram, bytes);
  entry.state = State::kCpuHandedOut;
  ready_.push_back(tile);
}

void SlabResidency::ReleaseCpu(Entry* entry) {
  if (!entry->leased) {
    return;
  }
  entry->leased = false;
  const ExtentRange range = pack_.expert_extents(layer_, entry->expert);
  for (uint32_t i = 0; i < range.count; ++i) {
    client_->Release(range.first + i, step_);
  }
  held_ -= range.count;
}

// In virtual time, when only the CPU is being waited for: moves the clock to its next result.
bool SlabResidency::AwaitCpu() {
  if (!CpuBeside()) {
    return false;
  }
  int64_t next = INT64_MAX;
  for (uint32_t i = 0; i < demands_; ++i) {
    if (entries_[i].state == State::kCpu) {
      next = std::min(next, entries_[i].cpu_ends);
    }
  }
  if (next == INT64_MAX || in_flight_ > 0) {
    clock_->cpu().SetNextResult(next);
    return false;
  }
  fetches_->CountStall(std::max<int64_t>(0, next - clock_->NowNanos()));
  clock_->AdvanceTo(next);
  return true;
}

}  // namespace sluice
