#include "inferd/forward/moe_work.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/model/model_shapes.h"

namespace sluice::inferd {
namespace {

// Unique among all lists of the process.
uint64_t NextNumber() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

ExpertWork WorkOfDense(const DenseExpert& expert) {
  return {.up = expert.up,
          .gate = expert.gate,
          .down = expert.down,
          .up_bias = expert.up_bias,
          .gate_bias = expert.gate_bias,
          .down_bias = expert.down_bias};
}

LayerWork::LayerWork(const ModelConfig& config, const std::vector<LayerWeights>& weights,
                     const SparsityPolicy& sparsity, const WorkPlan& plan)
    : config_(config),
      weights_(weights),
      sparsity_(sparsity),
      plan_(plan),
      known_(config.layers.size()),
      whole_(MaxExperts(config)) {
  ready_.reserve(whole_.size() + 1);
  on_cpu_.reserve(whole_.size());
  leads_.reserve(whole_.size());
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    known_[layer].experts.reserve(config.layers[layer].moe.experts + 1);
  }
}

void LayerWork::Begin(uint32_t layer) {
  layer_ = layer;
  ready_.clear();
  std::fill(whole_.begin(), whole_.end(), 0);
  if (HasCommonExpert(config_.layers[layer].moe)) {
    ready_.push_back(CommonWork());
  }
}

void LayerWork::Add(absl::Span<const ReadyTile> tiles) {
  const uint32_t width = config_.layers[layer_].moe.expert_width;
  for (const ReadyTile& tile : tiles) {
    if (tile.on_cpu) {
      continue;
    }
    ready_.push_back(RoutedWork(tile));
    if (tile.neuron_end == 0 || tile.neuron_end >= width) {
      whole_[tile.demand] = 1;
    }
  }
}

absl::Span<const ExpertWork> LayerWork::OnCpu(absl::Span<const ReadyTile> tiles) {
  on_cpu_.clear();
  for (const ReadyTile& tile : tiles) {
    if (tile.on_cpu) {
      on_cpu_.push_back(RoutedWork(tile));
    }
  }
  return on_cpu_;
}

absl::Span<const LeadWork> LayerWork::LeadsOf(absl::Span<const ReadyTile> tiles) {
  leads_.clear();
  for (const ReadyTile& tile : tiles) {
    const ExpertWork work = RoutedWork(tile);
    const bool up = work.sparsity == SparsityOrder::kUp;
    leads_.push_back({.lead = up ? work.up : work.gate,
                      .rows = work.rows,
                      .bias = up ? work.up_bias : work.gate_bias,
                      .threshold = work.threshold,
                      .values = tile.lead_values,
                      .active = tile.lead_active});
  }
  return leads_;
}

// True if what a list has of the dense weights lies where they are now: they are leased anew after weightd
// was lost.
bool LayerWork::HasDenseParts(uint32_t layer, absl::Span<const ExpertWork> experts) const {
  const auto same = [](const ExpertWork& a, const ExpertWork& b) {
    return a.up_bias == b.up_bias && a.gate_bias == b.gate_bias && a.down_bias == b.down_bias;
  };
  const MoeConfig& moe = config_.layers[layer].moe;
  if (experts.empty() || !same(experts.front(), WorkOf(layer, 0, {}))) {
    return false;
  }
  const ExpertWork common = WorkOfDense(weights_[layer].common);
  const ExpertWork& last = experts.back();
  return !HasCommonExpert(moe) || (same(last, common) && last.up.base == common.up.base &&
                                   last.gate.base == common.gate.base && last.down.base == common.down.base);
}

LayerWork::WholeLayer LayerWork::ByExpert(uint32_t layer, const ExpertSource& experts) {
  const MoeConfig& moe = config_.layers[layer].moe;
  KnownLayer& known = known_[layer];
  const uint64_t source = experts.WholeNumber(layer);
  if (source == 0 || source != known.source || !HasDenseParts(layer, known.experts)) {
    known.experts.clear();
    for (uint32_t expert = 0; expert < moe.experts; ++expert) {
      known.experts.push_back(WorkOf(layer, expert, experts.Whole(layer, expert)));
    }
    if (HasCommonExpert(moe)) {
      known.experts.push_back(WorkOfDense(weights_[layer].common));
    }
    known.source = source;
    known.number = source == 0 ? 0 : NextNumber();
  }
  return {known.experts, known.number};
}

absl::Span<const LeadWork> LayerWork::LeadsByExpert(uint32_t layer, absl::Span<const WeightView> leads) {
  leads_.clear();
  for (uint32_t expert = 0; expert < leads.size(); ++expert) {
    const ExpertWork work = WorkOf(layer, expert, {});
    const bool up = work.sparsity == SparsityOrder::kUp;
    leads_.push_back(
        {.lead = leads[expert], .bias = up ? work.up_bias : work.gate_bias, .threshold = work.threshold});
  }
  return leads_;
}

uint32_t LayerWork::missing() const {
  const auto end = whole_.begin() + static_cast<std::ptrdiff_t>(plan_.demands().size());
  return static_cast<uint32_t>(std::count(whole_.begin(), end, 0));
}

ExpertWork LayerWork::CommonWork() const {
  ExpertWork work = WorkOfDense(weights_[layer_].common);
  work.rows = ScalesInputs(config_.layers[layer_].moe) ? plan_.common_slots() : plan_.common_rows();
  work.slots = plan_.common_slots();
  return work;
}

ExpertWork LayerWork::RoutedWork(const ReadyTile& tile) const {
  ExpertWork work = WorkOf(layer_, plan_.demands()[tile.demand].expert, tile);
  work.slots = plan_.slots(tile.demand);
  work.rows = ScalesInputs(config_.layers[layer_].moe) ? work.slots : plan_.rows(tile.demand);
  return work;
}

// Returns a work without rows.
ExpertWork LayerWork::WorkOf(uint32_t layer, uint32_t expert, const ReadyTile& tile) const {
  const MoeConfig& moe = config_.layers[layer].moe;
  const LayerWeights& w = weights_[layer];
  const auto bias = [&](const WeightView& biases) {
    return moe.expert_bias ? biases.base + uint64_t{expert} * biases.stride : BufferRef{};
  };
  return {.up = tile.up,
          .gate = HasGates(moe.activation) ? tile.gate : WeightView{},
          .down = tile.down,
          .neuron_begin = tile.neuron_begin,
          .neuron_end = tile.neuron_end,
          .up_bias = bias(w.up_biases),
          .gate_bias = bias(w.gate_biases),
          .down_bias = bias(w.down_biases),
          .sparsity = sparsity_.order(),
          .threshold = sparsity_.threshold(layer, expert),
          .lead_values = tile.lead_values};
}

CpuWork::CpuWork(const ModelConfig& config, uint32_t tokens, const Places& places)
    : config_(config),
      tokens_(tokens),
      device_(places.device),
      cpu_(places.cpu),
      weights_(*places.weights),
      biases_(config.layers.size()) {
  works_.reserve(MaxExperts(config));
  slots_.reserve(uint64_t{tokens} * MaxRanks(config));
}

absl::StatusOr<std::unique_ptr<CpuWork>> CpuWork::Create(const ModelConfig& config, uint32_t tokens,
                                                         bool counts, const Places& places) {
  std::unique_ptr<CpuWork> work(new CpuWork(config, tokens, places));
  RETURN_IF_ERROR(work->Allocate(counts));
  return work;
}

absl::StatusOr<BufferRef> CpuWork::Memory(uint64_t values, float** host) {
  ASSIGN_OR_RETURN(const BufferId buffer, cpu_->Allocate(values * sizeof(float), BufferKind::kActivations));
  *host = reinterpret_cast<float*>(cpu_->HostWrite({buffer, 0}, values * sizeof(float)));
  return *host != nullptr ? absl::StatusOr<BufferRef>(BufferRef{buffer, 0})
                          : absl::InternalError("the CPU's memory cannot be written");
}

absl::Status CpuWork::Allocate(bool counts) {
  const uint64_t pairs = uint64_t{tokens_} * MaxRanks(config_);
  const uint64_t hidden = ExpertHidden(config_);
  x_.stride = y_.stride = scaled_.stride = hidden;
  ASSIGN_OR_RETURN(x_.base, Memory(tokens_ * hidden, &x_host_));
  ASSIGN_OR_RETURN(y_.base, Memory(pairs * hidden, &y_host_));
  if (AnyScalesInputs(config_)) {
    float* unused = nullptr;
    ASSIGN_OR_RETURN(scaled_.base, Memory(pairs * hidden, &unused));
    ASSIGN_OR_RETURN(ranks_, Memory(pairs, &ranks_host_));
  }
  if (counts) {
    ASSIGN_OR_RETURN(active_, Memory(pairs, &active_host_));
  }
  return absl::OkStatus();
}

absl::Status CpuWork::Ask(uint32_t layer, const Rows& normed, uint32_t tokens) {
  layer_ = layer;
  rows_ = tokens;
  scaled_ready_ = false;
  if (tokens == 0) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CopyBiases(layer));
  return device_->queue().Download(normed.base, uint64_t{tokens} * ExpertHidden(config_) * sizeof(float),
                                   x_host_);
}

// The biases are dense weights on the device and never change, so they are copied once.
absl::Status CpuWork::CopyBiases(uint32_t layer) {
  if (!config_.layers[layer].moe.expert_bias || biases_[layer].down) {
    return absl::OkStatus();
  }
  const auto ask = [this](const WeightView& of, BufferRef* copy) -> absl::Status {
    if (!of.base) {
      return absl::OkStatus();
    }
    float* host = nullptr;
    const uint64_t bytes = uint64_t{of.rows} * of.stride;
    ASSIGN_OR_RETURN(*copy, Memory((bytes + sizeof(float) - 1) / sizeof(float), &host));
    return device_->queue().Download(of.base, bytes, host);
  };
  const LayerWeights& w = weights_[layer];
  RETURN_IF_ERROR(ask(w.up_biases, &biases_[layer].up));
  RETURN_IF_ERROR(ask(w.gate_biases, &biases_[layer].gate));
  return ask(w.down_biases, &biases_[layer].down);
}

absl::Status CpuWork::Begin(const MoeExpertsArgs& args, const float* weights) {
  if (args.tokens != rows_ * (weights == nullptr ? 1 : RanksOf(config_.layers[layer_].moe))) {
    return absl::InternalError(
        absl::StrCat("layer ", layer_, ": the CPU has ", rows_, " rows of ", args.tokens));
  }
  MoeExpertsArgs own = args;
  own.x = x_;
  if (weights != nullptr) {
    RETURN_IF_ERROR(Scale(args, weights));
    own.x = scaled_;
  }
  own.y = y_;
  own.active = active_;
  const LayerWeights& w = weights_[layer_];
  const Biases& biases = biases_[layer_];
  const auto moved = [](BufferRef bias, const WeightView& from, BufferRef to) {
    return bias ? to + (bias.offset - from.base.offset) : BufferRef{};
  };
  works_.clear();
  for (const ExpertWork& work : args.experts) {
    if (work.neuron_begin > 0) {
      RETURN_IF_ERROR(GoOn(args, work));
    }
    works_.push_back(work);
    works_.back().up_bias = moved(work.up_bias, w.up_biases, biases.up);
    works_.back().gate_bias = moved(work.gate_bias, w.gate_biases, biases.gate);
    works_.back().down_bias = moved(work.down_bias, w.down_biases, biases.down);
    slots_.insert(slots_.end(), work.slots.begin(), work.slots.end());
  }
  own.experts = works_;
  return cpu_->queue().MoeExperts(own);
}

// Scales the inputs by the same products as the device does.
absl::Status CpuWork::Scale(const MoeExpertsArgs& args, const float* weights) {
  if (scaled_ready_) {
    return absl::OkStatus();
  }
  scaled_ready_ = true;
  const uint32_t ranks = RanksOf(config_.layers[layer_].moe);
  std::memcpy(ranks_host_, weights, uint64_t{args.tokens} * sizeof(float));
  return cpu_->queue().ScaleRows({x_, ranks_, args.tokens / ranks, ranks, ExpertHidden(config_), scaled_});
}

// Copies the partial sums of a work's slots from the device; no other CPU work uses these slots.
absl::Status CpuWork::GoOn(const MoeExpertsArgs& args, const ExpertWork& work) {
  Queue& queue = device_->queue();
  const uint64_t hidden = ExpertHidden(config_);
  for (const uint32_t slot : work.slots) {
    RETURN_IF_ERROR(queue.Download(args.y.base + slot * args.y.stride * sizeof(float), hidden * sizeof(float),
                                   y_host_ + slot * hidden));
    if (active_) {
      RETURN_IF_ERROR(queue.Download(args.active + slot * sizeof(float), sizeof(float), active_host_ + slot));
    }
  }
  return queue.Wait(queue.Record());
}

absl::Status CpuWork::Finish(const Rows& y, BufferRef active) {
  RETURN_IF_ERROR(cpu_->queue().Wait(cpu_->queue().Record()));
  Queue& queue = device_->queue();
  const uint64_t hidden = ExpertHidden(config_);
  std::sort(slots_.begin(), slots_.end());
  for (size_t begin = 0, end = 0; begin < slots_.size(); begin = end) {
    do {
      ++end;
    } while (end < slots_.size() && slots_[end] == slots_[end - 1] + 1);
    const uint64_t first = slots_[begin];
    const uint64_t count = end - begin;  // adjacent slots, moved by one copy
    RETURN_IF_ERROR(queue.Upload(y_host_ + first * hidden, count * hidden * sizeof(float),
                                 y.base + first * hidden * sizeof(float)));
    if (active_) {
      RETURN_IF_ERROR(
          queue.Upload(active_host_ + first, count * sizeof(float), active + first * sizeof(float)));
    }
  }
  slots_.clear();
  return absl::OkStatus();
}

void CpuWork::Abandon() {
  if (busy()) {
    cpu_->queue().Wait(cpu_->queue().Record()).IgnoreError();  // the step has its error
    slots_.clear();
  }
}

}  // namespace sluice::inferd
