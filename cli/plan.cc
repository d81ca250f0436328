#include "cli/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "weightd/store/memory_budget.h"

namespace sluice::cli {
namespace {

// Returns the requests per token for each expert.
std::vector<double> Rates(const ModelConfig& config, const std::vector<std::vector<uint64_t>>& usage) {
  std::vector<double> rates;
  for (size_t layer = 0; layer < ModelLayers(config); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    double sum = 0;
    if (layer < usage.size()) sum = std::accumulate(usage[layer].begin(), usage[layer].end(), 0.0);
    for (uint32_t e = 0; e < moe.experts; ++e) {
      rates.push_back(moe.top_k * (sum > 0 ? static_cast<double>(usage[layer][e]) / sum : 1.0 / moe.experts));
    }
  }
  return rates;
}

// Returns the expected number of experts requested within the last `tokens` tokens.
double Held(const std::vector<double>& rates, double tokens) {
  double held = 0;
  for (const double rate : rates) held += -std::expm1(-rate * tokens);
  return held;
}

}  // namespace

double HitRate(const ModelConfig& config, const std::vector<std::vector<uint64_t>>& usage, double share) {
  if (share >= 1) return 1;
  const std::vector<double> rates = Rates(config, usage);
  const double room = share * static_cast<double>(rates.size());
  const double asked = std::accumulate(rates.begin(), rates.end(), 0.0);
  if (share <= 0 || asked <= 0) return 0;
  // Finds the age at which an expert is evicted: the experts requested since then fill the cache.
  double low = 0;
  double high = 1;
  while (Held(rates, high) < room && high < 1e12) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (Held(rates, middle) < room ? low : high) = middle;
  }
  // When a layer makes a request, its previous requests are one whole token old, those of all layers half a
  // token on average.
  const double layers =
      static_cast<double>(std::count_if(config.layers.begin(), config.layers.begin() + ModelLayers(config),
                                        [](const auto& l) { return l.moe.experts > 0; }));
  const double age = std::max(0.0, high - (layers - 1) / (2 * layers));
  double hits = 0;
  for (const double rate : rates) hits += rate * -std::expm1(-rate * age);
  return std::clamp(hits / asked, 0.0, 1.0);
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const StoredSizes& sizes,
                                      const MemoryRequest& request) {
  MemoryPlan plan;
  plan.dram_budget = request.dram_budget.value_or(
      weightd::DefaultDramBudget(sizes.weights, request.threads, request.memory));
  plan.whole = plan.dram_budget >= sizes.weights.all;
  inferd::EngineOptions options = request.engine;
  if (options.max_prefill_chunk == 0) {
    options.max_prefill_chunk = inferd::GrowingChunk(options, plan.whole);
  }
  ASSIGN_OR_RETURN(const inferd::EnginePlan engine, inferd::PlanEngine(options, config));
  plan.kv = engine.kv_bytes;
  plan.activations = engine.activation_bytes;
  plan.context = engine.options.context;
  plan.processes = weightd::kProcessReserve;
  if (request.engine.device == inferd::DeviceKind::kSim) {
    plan.device_dense = sizes.weights.dense;
    const uint64_t beside = plan.device_dense + plan.kv + plan.activations;
    plan.slab = request.device_budget == 0 ? sizes.experts()
                                           : request.device_budget - std::min(request.device_budget, beside);
    if (plan.slab == 0) {
      plan.refusal = absl::StrCat("a device budget of ", FormatSize(request.device_budget),
                                  " leaves nothing for experts beside ", FormatSize(beside),
                                  " of dense weights, KV cache and activations");
    }
  }
  plan.least_budget = weightd::MinDramBudget(sizes.weights, request.threads);
  if (!plan.refusal.empty()) {
    return plan;
  }
  if (plan.dram_budget < plan.least_budget) {
    plan.refusal =
        absl::StrCat("weights need at least ", FormatSize(plan.least_budget), " in memory (",
                     FormatSize(sizes.weights.dense), " dense, and two experts a thread), they have ",
                     FormatSize(plan.dram_budget));
  } else if (plan.total() > request.memory) {
    plan.refusal = absl::StrCat(
        "takes ", FormatSize(plan.total()), " (weights ", FormatSize(plan.dram_budget), ", KV cache ",
        FormatSize(plan.kv), ", activations ", FormatSize(plan.activations),
        plan.slab > 0 ? absl::StrCat(", device ", FormatSize(plan.slab + plan.device_dense)) : "", "), ",
        FormatSize(request.memory), " are there; a smaller --context or --parallel helps");
  }
  return plan;
}

namespace {

// Share of the shorter of a layer's computing and reading that the longer one does not hide: a missing expert
// is known only after the layer's router has run (lab/docs/measured.md: 1.02 to 1.10 of the longer one's
// time).
constexpr double kNotHidden = 0.1;

// Returns the share of whole experts held, one less than fit since one is being read.
double ShareHeld(uint64_t room, const StoredSizes& sizes) {
  if (room >= sizes.experts()) return 1;
  const uint64_t experts = room / std::max<uint64_t>(1, sizes.weights.largest_expert);
  if (experts == 0) return 0;
  return static_cast<double>((experts - 1) * sizes.weights.largest_expert) /
         static_cast<double>(sizes.experts());
}

}  // namespace

SpeedPlan PlanSpeed(const ModelFacts& facts, const StoredSizes& sizes, const MemoryPlan& memory,
                    const SpeedInput& input) {
  SpeedPlan plan;
  const double routed = static_cast<double>(sizes.routed_read);
  const uint64_t room = memory.dram_budget - std::min(memory.dram_budget, sizes.weights.dense);
  plan.hit_rate = HitRate(facts.config, facts.usage, ShareHeld(room, sizes));
  double missed = routed * (1 - plan.hit_rate);
  if (memory.slab > 0) {
    const double at_hand = HitRate(facts.config, facts.usage, ShareHeld(memory.slab, sizes));
    plan.link_bytes = static_cast<uint64_t>(routed * (1 - at_hand));
    // Experts in the slab are never requested from weightd.
    missed = std::min(missed, static_cast<double>(plan.link_bytes));
    if (input.link > 0) plan.link_seconds = static_cast<double>(plan.link_bytes) / input.link;
  }
  plan.disk_bytes = static_cast<uint64_t>(missed);
  plan.disk_seconds = plan.disk_bytes > 0 && input.disk > 0 ? missed / input.disk : 0;
  const double computed = routed * input.computed_share;
  plan.read_bytes = sizes.dense_read + static_cast<uint64_t>(computed);
  plan.compute_seconds = static_cast<double>(sizes.dense_read) / input.kernels.dense +
                         computed / input.kernels.experts +
                         static_cast<double>(ModelLayers(facts.config)) * input.kernels.layer_seconds;
  const double transfer = std::max(plan.disk_seconds, plan.link_seconds);
  // Nothing is transferred while the head is computed, since the next token's experts are not known yet.
  const double head = static_cast<double>(sizes.head_read) / input.kernels.dense;
  const double layers = plan.compute_seconds - head;
  const double seconds = head + std::max(layers, transfer) + kNotHidden * std::min(layers, transfer);
  plan.tokens_per_second = seconds > 0 ? 1 / seconds : 0;
  return plan;
}

namespace {

constexpr char kExact[] = "exact";

const PlanRow* FindRow(const std::vector<PlanRow>& rows, const std::string& bits) {
  const auto found = std::find_if(
      rows.begin(), rows.end(), [&](const PlanRow& row) { return row.bits == bits && row.preset == kExact; });
  return found == rows.end() ? nullptr : &*found;
}

std::string WhyStreamed(const PlanRow& row) {
  return absl::StrCat("the narrowest without a loss that shows; ", FormatSize(row.memory.dram_budget),
                      " of its ", FormatSize(row.sizes.weights.all),
                      " are in memory, the rest comes from the disk");
}

}  // namespace

KnownQuality QualityOf(const std::string& bits, const std::string& preset) {
  struct Loss {
    const char* name;
    double rise;
  };
  // docs/guide.md shows the same tables.
  static constexpr Loss kBitsLoss[] = {{"bf16", 0},
                                       {"f16", 0},
                                       {"q8", 0.0001},
                                       {"q4", 0.006},
                                       {"mxfp4", 0.006},
                                       {"q3", 0.029},
                                       {"q2", 0.206},
                                       // The largest loss of the file types in lab/docs/measured.md.
                                       {kAsInFile, 0.0006},
                                       {kAsInFileSmaller, 0.006}};
  static constexpr Loss kPresetLoss[] = {{"exact", 0}, {"intra", 0.006}, {"floe", 0.10}};
  KnownQuality quality;
  const auto add = [&quality](const auto& table, const std::string& name) {
    for (const Loss& loss : table) {
      if (name != loss.name) continue;
      quality.perplexity_rise = (1 + quality.perplexity_rise) * (1 + loss.rise) - 1;
      return;
    }
    quality.is_known = false;
  };
  add(kBitsLoss, bits);
  add(kPresetLoss, preset);
  return quality;
}

double ComputedShare(const std::string& preset) {
  // The lead part is read whole, the others only in the neurons that count. Scattered rows reach this share
  // of the rate of whole experts (lab/docs/measured.md, "Masked experts").
  constexpr double kMaskedRate = 0.78;
  const auto masked = [](double kept) { return std::min(1.0, (1 + 2 * kept) / 3 / kMaskedRate); };
  if (preset == "intra") return masked(0.5);
  if (preset == "floe") return masked(0.2);
  return 1;
}

const std::vector<std::string>& ChosenBits(bool is_gguf) {
  static const std::vector<std::string> of_folder = {"q8", "q4"};
  static const std::vector<std::string> of_file = {kAsInFile, kAsInFileSmaller};
  return is_gguf ? of_file : of_folder;
}

PlanChoice Choose(const std::vector<PlanRow>& rows) {
  const PlanRow* narrowest = nullptr;
  const PlanRow* wider = nullptr;  // the previous choice, which did not fit
  for (const std::string& bits : ChosenBits(FindRow(rows, kAsInFile) != nullptr)) {
    const PlanRow* row = FindRow(rows, bits);
    if (row == nullptr) continue;
    if (row->memory.whole && row->memory.refusal.empty()) {
      if (wider == nullptr) return {row->bits, row->preset, "the widest that memory holds whole"};
      return {row->bits, row->preset,
              absl::StrCat("memory holds it whole, ", wider->bits, " would take ",
                           FormatSize(wider->sizes.weights.all), " for weights, and ",
                           FormatSize(wider->memory.dram_budget), " are there for them")};
    }
    wider = narrowest = row;
  }
  if (narrowest == nullptr) narrowest = &rows.front();
  PlanChoice choice{narrowest->bits, narrowest->preset, ""};
  choice.why = !narrowest->memory.refusal.empty() ? absl::StrCat("does not run: ", narrowest->memory.refusal)
               : narrowest->memory.whole          ? "memory holds it whole"
                                                  : WhyStreamed(*narrowest);
  return choice;
}

}  // namespace sluice::cli
