#include "inferd/policy/auto_preset.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/profile/profile.h"
#include "inferd/model/model_shapes.h"
#include "kernels/cpu/read_bandwidth.h"

namespace sluice::inferd {
namespace {

// If loading takes a smaller share of computing than this, prediction has nothing to gain.
constexpr double kNoticeable = 0.02;
constexpr uint32_t kMaxPrefetchDepth = 3;
// With more missing experts of a layer than this the link has no time for predictions.
constexpr double kMaxMissesForPrefetch = 1;
constexpr size_t kProbeBytes = size_t{64} << 20;

std::string Ms(double seconds) { return absl::StrFormat("%.3g ms", seconds * 1e3); }
std::string Percent(double share) { return absl::StrFormat("%.3g %%", share * 100); }

// The two times compared, in seconds of one layer of one generated token.
struct PresetLayerTimes {
  double compute = 0;
  double load = 0;
};

// Expected number of a token's experts in a layer that are not resident, with routing spread evenly.
double ExpectedMisses(const AutoFacts& facts) {
  const double held =
      static_cast<double>(facts.budget) / static_cast<double>(std::max<uint64_t>(facts.all_expert_bytes, 1));
  return facts.top_k * (1 - std::min(held, 1.0));
}

PresetLayerTimes TimesOf(const AutoFacts& facts) {
  return {facts.attention_seconds + facts.top_k * facts.compute_seconds,
          ExpectedMisses(facts) * facts.load_seconds};
}

void ChoosePredictor(const AutoFacts& facts, const PresetLayerTimes& times, AutoChoice* choice) {
  Policies& p = choice->policies;
  if (times.load < kNoticeable * times.compute) {
    p.predictor = ExpertPredictorKind::kNone;
    choice->reasons.push_back(absl::StrCat("no prediction: loading takes ", Ms(times.load),
                                           " a layer, computing ", Ms(times.compute)));
    return;
  }
  p.predictor = ExpertPredictorKind::kGateReuse;
  if (times.load > times.compute) {
    p.predictor_depth = 1;
    choice->reasons.push_back(absl::StrCat("prediction one layer ahead: the link is the bound (",
                                           Ms(times.load), " of loading a layer, ", Ms(times.compute),
                                           " of computing), and wrong guesses cost its time"));
    return;
  }
  const double layers = std::ceil(facts.load_seconds / std::max(times.compute, 1e-12));
  p.predictor_depth = static_cast<uint32_t>(std::clamp(layers, 1.0, double{kMaxPrefetchDepth}));
  choice->reasons.push_back(absl::StrCat("prediction to depth ", p.predictor_depth,
                                         ": an expert travels for ", Ms(facts.load_seconds),
                                         ", a layer computes for ", Ms(times.compute)));
}

// Chooses the predictor where experts are shared with the CPU: missing experts keep link and CPU busy
// together, and prefetches use the remaining time.
void ChoosePredictorWithCpu(const AutoFacts& facts, AutoChoice* choice) {
  Policies& p = choice->policies;
  if (p.predictor == ExpertPredictorKind::kNone) {
    return;
  }
  const double misses = ExpectedMisses(facts);
  if (misses > kMaxMissesForPrefetch) {
    p.predictor = ExpertPredictorKind::kNone;
    p.predictor_depth = 1;
    choice->reasons.push_back(absl::StrFormat(
        "no prediction after all: %.3g experts of a layer are missing, and the link brings parts of these",
        misses));
    return;
  }
  p.predictor = facts.look_ahead ? ExpertPredictorKind::kLookahead : ExpertPredictorKind::kGateReuse;
  p.predictor_depth = kMaxPrefetchDepth;
  p.max_prefetch = 1;
  choice->reasons.push_back("of the layers ahead the best expert is fetched, where it comes in time");
}

// A CPU in parallel with the device also helps behind a faster link, if it computes an expert before the
// device has computed a token's experts of a layer.
bool CpuHelps(const AutoFacts& facts) {
  const double parallel_seconds = facts.cpu_parallel ? facts.top_k * facts.compute_seconds : 0;
  return facts.cpu_seconds > 0 && facts.cpu_seconds < std::max(facts.load_seconds, parallel_seconds);
}

void ChooseMisses(const AutoFacts& facts, AutoChoice* choice) {
  const bool same_arithmetic = facts.device != DeviceKind::kCuda;
  if (CpuHelps(facts) && (same_arithmetic || facts.quality_bound > 0)) {
    choice->policies.miss = ExpertMiss::kBalance;
    choice->reasons.push_back(absl::StrCat("experts are shared with the CPU: one takes it ",
                                           Ms(facts.cpu_seconds), ", the link ", Ms(facts.load_seconds),
                                           ", the device ", Ms(facts.compute_seconds)));
    ChoosePredictorWithCpu(facts, choice);
    return;
  }
  choice->policies.miss = ExpertMiss::kLoad;
  choice->reasons.push_back(
      CpuHelps(facts) ? "misses are loaded: the CPU would help, but rounds in another way than the device"
                      : absl::StrCat("misses are loaded: an expert takes the link ", Ms(facts.load_seconds),
                                     ", the CPU ", Ms(facts.cpu_seconds)));
}

void ChooseCache(const AutoFacts& facts, AutoChoice* choice) {
  Policies& p = choice->policies;
  p.cache = CacheKind::kSlots;
  p.eviction = SlotEviction::kLfru;
  if (p.miss == ExpertMiss::kBalance) {
    choice->reasons.push_back(
        "slots are shared out evenly: a layer without any of its experts waits longest");
    return;
  }
  p.allocation = facts.cache_profile ? CacheAllocation::kDpTimed : CacheAllocation::kUniform;
  choice->reasons.push_back(
      facts.cache_profile ? "slots go to the layers that miss most by the profile"
                          : "slots are shared out evenly: the profile does not say what each layer misses "
                            "(sluice calibrate makes it)");
}

// Chooses losses within the quality bound: experts if the link bounds the run, neurons if computing does; the
// other way would cost quality and save no time.
void ChooseLosses(const AutoFacts& facts, const PresetLayerTimes& times, AutoChoice* choice) {
  Policies& p = choice->policies;
  if (!(facts.quality_bound > 0)) {
    choice->reasons.push_back("nothing is left out: the bound of quality is 0 (quality_bound)");
  } else if (times.load > times.compute && facts.single_share > 0) {
    p.routing = RoutingKind::kSensitivity;
    p.sensitivity = {facts.single_share, {}};
    choice->reasons.push_back(absl::StrCat(Percent(facts.single_share),
                                           " of the choices use one expert: the profile finds that within ",
                                           Percent(facts.quality_bound), " of perplexity"));
  } else if (times.load <= times.compute && facts.sparsity > 0) {
    p.sparsity = {SparsityOrder::kGate, facts.sparsity, ThresholdScope::kModel, {}};
    choice->reasons.push_back(absl::StrCat(
        Percent(facts.sparsity), " of the neurons are left out by their gate: the profile finds that within ",
        Percent(facts.quality_bound), " of perplexity"));
  } else {
    choice->reasons.push_back(
        absl::StrCat("nothing is left out: the profile knows nothing that saves time within ",
                     Percent(facts.quality_bound), " of perplexity"));
  }
}

}  // namespace

AutoChoice ChoosePolicies(const AutoFacts& facts) {
  AutoChoice choice;
  Policies& p = choice.policies;
  p.preset = "auto";
  p.quality_bound = facts.quality_bound;
  if (facts.device == DeviceKind::kHost) {
    choice.reasons.push_back("experts are used where they lie, in weightd's memory");
    ChooseLosses(facts, {1, 0}, &choice);
    return choice;
  }
  if (facts.budget == 0 || facts.budget >= facts.all_expert_bytes) {
    p.cache = CacheKind::kResident;
    p.predictor = ExpertPredictorKind::kNone;
    choice.reasons.push_back("every expert stays in device memory");
    ChooseLosses(facts, {1, 0}, &choice);
    return choice;
  }
  const PresetLayerTimes times = TimesOf(facts);
  ChoosePredictor(facts, times, &choice);
  ChooseMisses(facts, &choice);
  ChooseCache(facts, &choice);
  ChooseLosses(facts, times, &choice);
  return choice;
}

absl::StatusOr<MachineRates> MeasureMachine(uint32_t threads) {
  std::vector<std::byte> from(kProbeBytes, std::byte{1});
  std::vector<std::byte> to(kProbeBytes, std::byte{2});
  ReadBandwidthOptions options;
  options.threads = threads;
  options.min_bytes = 4 * kProbeBytes;
  options.rounds = 1;
  const absl::Span<const std::byte> region(from);
  ASSIGN_OR_RETURN(const ReadBandwidth read, MeasureReadBandwidth({region}, options));
  const auto start = std::chrono::steady_clock::now();
  std::memcpy(to.data(), from.data(), kProbeBytes);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return MachineRates{read.best, static_cast<double>(kProbeBytes) / std::max(took.count(), 1e-9)};
}

AutoFacts AutoFactsOf(const AutoSetup& setup, const Pack& pack, const MachineRates& machine) {
  const auto per_byte = [](double rate) { return rate > 0 ? 1 / rate : 0; };
  const double bytes = static_cast<double>(pack.largest_expert_bytes());
  AutoFacts facts;
  facts.device = setup.device;
  facts.budget = setup.budget;
  facts.all_expert_bytes = pack.total_expert_bytes();
  facts.top_k = LargestTopK(pack.config());
  facts.look_ahead = !AnyScalesInputs(pack.config());
  const double read = per_byte(machine.read_bytes_per_second);
  const double copy = per_byte(machine.copy_bytes_per_second);
  facts.load_seconds = bytes * (setup.link_seconds > 0 ? setup.link_seconds : copy);
  facts.compute_seconds = bytes * (setup.compute_seconds > 0 ? setup.compute_seconds : read);
  facts.cpu_seconds = bytes * (setup.cpu_seconds > 0 ? setup.cpu_seconds : read);
  facts.cpu_parallel = setup.cpu_parallel;
  facts.attention_seconds = setup.attention_seconds;
  facts.quality_bound = setup.quality_bound;
  const std::string folder = ProfileFolder(pack.dir());
  const std::string& source = pack.manifest().provenance.source_digest;
  facts.cache_profile = ReadCacheProfile(folder, pack.config(), source).ok();
  if (const auto gating = ReadGating(folder, source); gating.ok()) {
    facts.single_share = gating->table.ShareWithin(setup.quality_bound);
  }
  if (const auto cutoffs = ReadCutoffs(folder, pack.model_id()); cutoffs.ok() && !pack.by_outputs()) {
    for (const SparsityCutoff& cutoff : cutoffs->cutoffs) {
      if (cutoff.lead == Lead::kGate && cutoff.rise <= setup.quality_bound) {
        facts.sparsity = std::max(facts.sparsity, cutoff.sparsity);
      }
    }
  }
  return facts;
}

}  // namespace sluice::inferd
