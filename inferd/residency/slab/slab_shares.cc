// A layer's experts shared out by tiles: what is missing of one travels in part, the CPU computes the rest.
#include <algorithm>
#include <cmath>

#include "inferd/residency/slab/slab_residency.h"

namespace sluice {
namespace {

constexpr double kLayerShare = 0.125;  // of a layer's time in the running mean
constexpr double kRounding = 1e-9;
constexpr double kMostLayers = 1e6;

}  // namespace

// What the link still has to bring into the slots that count.
double SlabResidency::LinkSeconds(absl::FunctionRef<bool(const Slot&)> counts) const {
  double seconds = 0;
  uint32_t left = table_.filling();
  for (uint32_t i = 0; i < table_.size() && left > 0; ++i) {
    const Slot& slot = table_.slot(i);
    left -= slot.state == SlotState::kFilling ? 1 : 0;
    if (slot.state != SlotState::kFilling || slot.request == 0 || !counts(slot)) {
      continue;
    }
    const uint32_t width = pack_.config().layers[slot.layer].moe.expert_width;
    const uint32_t landed = std::min(width, client_->LandedTiles(slot.request) * TileOf(width));
    seconds += LoadSeconds() * static_cast<double>(pack_.expert_bytes(slot.layer, slot.expert)) *
               (1 - static_cast<double>(landed) / width);
  }
  return seconds;
}

// A running mean of what layers take that follow each other in a step.
void SlabResidency::TimeLayer(uint32_t next) {
  const int64_t now = clock_ != nullptr ? clock_->NowNanos() : real_clock_.NowNanos();
  if (next > layer_ && layer_began_ > 0) {
    const double took = static_cast<double>(now - layer_began_) * 1e-9 / (next - layer_);
    double& mean = layer_seconds_[prefill_ ? 1 : 0];
    mean = mean == 0 ? took : mean + (took - mean) * kLayerShare;
  }
  layer_began_ = now;
}

uint32_t SlabResidency::LayersToFetch() {
  Poll();
  const double layer = layer_seconds_[prefill_ ? 1 : 0];
  if (!(layer > 0)) {
    return 1;
  }
  const double load = LoadSeconds() * static_cast<double>(pack_.largest_expert_bytes());
  const double seconds = LinkSeconds([](const Slot&) { return true; }) + (1.0 + waiting_) * load;
  return static_cast<uint32_t>(std::clamp(std::ceil(seconds / layer - kRounding), 1.0, kMostLayers));
}

// What the link may bring, in its order: late ones as they were asked for, then misses, those of most rows
// first. Each begins after what was asked for before it; misses that nothing is kept of overtake prefetches.
void SlabResidency::CollectMissing(absl::Span<const ExpertDemand> demands) {
  CollectDemands(demands, State::kLate, &late_);
  CollectDemands(demands, State::kWaiting, &misses_);
  std::sort(late_.begin(), late_.end(), [this](const ExpertDemand& a, const ExpertDemand& b) {
    return table_.slot(entries_[demand_of_[a.expert] - 1].slot).request <
           table_.slot(entries_[demand_of_[b.expert] - 1].slot).request;
  });
  missing_.clear();
  missing_demands_.clear();
  const uint32_t tile = TileOf(width_);
  const auto add = [&](const ExpertDemand& demand, uint32_t there, double wait) {
    const double share = static_cast<double>(tile) / width_;
    const double bytes = static_cast<double>(pack_.expert_bytes(layer_, demand.expert)) * share;
    missing_.push_back({(width_ - there + tile - 1) / tile, LoadSeconds() * bytes,
                        CpuSecondsOf(demand.expert, demand.tokens) * share, options_.device_seconds * bytes,
                        wait});
    missing_demands_.push_back(demand_of_[demand.expert] - 1);
  };
  const auto of_others = [this](const Slot& slot) {
    return slot.layer != layer_ || (demand_of_[slot.expert] == 0 && !options_.cancel_begun);
  };
  double before = 0;
  for (const ExpertDemand& late : late_) {
    const Entry& entry = entries_[demand_of_[late.expert] - 1];
    const uint64_t request = table_.slot(entry.slot).request;
    const double wait =
        LinkSeconds([&](const Slot& slot) { return slot.request < request && of_others(slot); });
    add(late, std::min(LandedNeurons(entry), width_ - 1), wait - before);
    before = wait;
  }
  double wait = TravelsOn() ? LinkSeconds(of_others) - before : BacklogSeconds();
  for (const ExpertDemand& miss : misses_) {
    add(miss, 0, wait);
    wait = 0;
  }
}

// Of an expert of which `tiles` more tiles come over the link: the CPU computes the neurons after them.
void SlabResidency::Share(uint32_t index, uint32_t tokens, uint32_t tiles) {
  Entry& entry = entries_[index];
  const bool late = entry.state == State::kLate;
  const uint32_t split = (late ? LandedNeurons(entry) : 0) + tiles * TileOf(width_);
  if (split == 0) {
    if (!late) {
      GiveToCpu(index, tokens);
    } else if (!GiveSlotToCpu(index, tokens)) {
      Join(&entry);
    }
    return;
  }
  if (split >= width_ || !LeaseForCpu(&entry)) {
    if (late) {
      Join(&entry);
    }
    return;
  }
  entry.shared = split;
  counters_.Add(layer_, &ResidencyCounters::cpu);
  QueueOnCpu(&entry, tokens, 1 - static_cast<double>(split) / width_);
  if (late) {
    entry.state = State::kInFlight;
    ++in_flight_;
  }
}

void SlabResidency::DecideShares(absl::Span<const ExpertDemand> demands) {
  CollectMissing(demands);
  CollectDemands(demands, State::kReady, &resident_);
  const uint32_t expert = demands.front().expert;
  const double device = options_.device_seconds * static_cast<double>(pack_.expert_bytes(layer_, expert));
  double landed = 0;
  for (uint32_t i = 0; i < late_.size(); ++i) {
    landed += device - missing_[i].tiles * missing_[i].device_seconds;
  }
  const double base = SharedSeconds() + std::max(landed, 0.0);
  const LayerShares shares = ShareLayer(missing_, resident_, cpu_queued_, base, device,
                                        cpu_tables_[table_.class_of(layer_, expert)]);
  for (uint32_t i = 0; i < missing_.size(); ++i) {
    const uint32_t index = missing_demands_[i];
    const uint32_t tokens = i < late_.size() ? late_[i].tokens : misses_[i - late_.size()].tokens;
    if (i >= shares.whole) {
      Share(index, tokens, i == shares.whole ? shares.tiles : 0);
    } else if (i < late_.size()) {
      Join(&entries_[index]);
    }
  }
  for (size_t i = resident_.size() - shares.resident_given; i < resident_.size(); ++i) {
    GiveSlotToCpu(demand_of_[resident_[i].expert] - 1, resident_[i].tokens);
  }
}

// Its first tiles have been computed. The others travel on for tokens to come, but not those that only pass
// through.
void SlabResidency::LeaveToCpu(Entry* entry) {
  Slot& slot = table_.slot(entry->slot);
  if (entry->state == State::kInFlight) {
    --in_flight_;
  }
  if (!TravelsOn() && slot.state == SlotState::kFilling && slot.request != 0) {
    client_->Cancel(slot.request);
  }
  slot.pinned = false;
  entry->slot = SlotTable::kNoSlot;
  entry->state = State::kCpu;
}

}  // namespace sluice
