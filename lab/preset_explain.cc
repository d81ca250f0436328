// `sluice-lab --explain`: what bounds a run, from its counters (preset_report.h).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lab/preset_report.h"

namespace sluice::cli {
namespace {

// Below this share of a step, waiting is not what to look at.
constexpr double kLittle = 0.05;
// A link that is busy for more of a step than this has no room for better predictions.
constexpr double kBusyLink = 0.9;
// A CPU that computes more than this share of what is not resident has its part in how long a step takes.
constexpr double kSharingCpu = 0.25;
// Misses that put less than this share of a step on the link did not come over it.
constexpr double kIdleLink = 0.1;

// Milliseconds of a step, and shares.
struct Picture {
  double step = 0;
  double compute = 0;
  double stall = 0;
  std::optional<double> load;
  double hit_rate = 1;
  std::optional<double> recall;
  double ssd_share = 0;  // of the bytes that came over the link
  double wrong = 0;      // of the predictions
  double cpu_share = 0;  // of the bytes that came over the link or were read where they lie: the latter
};

Picture PictureOf(const PresetResult& result, const PresetMeasure& m) {
  const BenchSample& s = m.decode;
  const double per_step = 1e3 / static_cast<double>(std::max<uint64_t>(1, s.steps));
  Picture p;
  p.step = s.busy_seconds * per_step;
  p.stall = std::min(p.step, s.stall_seconds * per_step);
  p.compute = p.step - p.stall;
  if (result.link_bytes_per_second > 0) {
    p.load = static_cast<double>(s.bytes_link) / result.link_bytes_per_second * per_step;
  }
  if (s.expert_requests > 0) {
    p.hit_rate = static_cast<double>(s.expert_hits) / static_cast<double>(s.expert_requests);
  }
  if (s.predictions_wanted > 0) {
    p.recall = static_cast<double>(s.predictions_right) / static_cast<double>(s.predictions_wanted);
  }
  if (s.bytes_link > 0) {
    p.ssd_share = static_cast<double>(s.bytes_ssd) / static_cast<double>(s.bytes_link);
  }
  if (s.bytes_dram > 0) {
    p.cpu_share = static_cast<double>(s.bytes_dram) / static_cast<double>(s.bytes_dram + s.bytes_link);
  }
  if (s.predictions > 0) {
    p.wrong = 1 - static_cast<double>(s.predictions_right) / static_cast<double>(s.predictions);
  }
  return p;
}

std::string ExplainCompute(const Picture& p) {
  return absl::StrFormat(
      "Compute bounds it: %.0f %% of a step of %.2f ms is the device's work and %.0f %% waiting. Faster only "
      "with "
      "fewer weights per token: fewer bits (pack --bits q4), neuron sparsity (--sparsity gate), one expert "
      "where "
      "it is enough (--policy routing=sensitivity).",
      100 * p.compute / p.step, p.step, 100 * p.stall / p.step);
}

std::string ExplainSsd(const Picture& p) {
  return absl::StrFormat(
      "The SSD bounds it: %.0f %% of a step of %.2f ms is waiting, and %.0f %% of the bytes of the link were "
      "read "
      "from SSD first. A larger --dram-budget helps most, then fewer bits.",
      100 * p.stall / p.step, p.step, 100 * p.ssd_share);
}

std::string ExplainLink(const Picture& p) {
  std::string text = absl::StrFormat(
      "The link bounds it: it is busy for %.0f %% of a step of %.2f ms, of which the device computes %.2f "
      "ms. "
      "Better predictions cannot help; fewer bytes do: a larger --device-budget (%.0f %% of the experts were "
      "resident), fewer bits, neuron sparsity (--preset floe), experts at hand (--policy "
      "routing=cache_aware), or "
      "misses on the CPU (--policy expert_miss=balance).",
      100 * std::min(1.0, *p.load / p.step), p.step, p.compute, 100 * p.hit_rate);
  if (p.wrong > kIdleLink) {
    absl::StrAppendFormat(&text,
                          " %.0f %% of the predictions were wrong: fewer prefetches (--policy max_prefetch, "
                          "expert_predictor=none) would leave the link to demands.",
                          100 * p.wrong);
  }
  return text;
}

std::string ExplainShared(const Picture& p) {
  return absl::StrFormat(
      "Device, link and CPU share the experts: of a step of %.2f ms the device computes %.2f ms, the link is "
      "busy for %.0f %%, and of the bytes that were not resident %.0f %% are the CPU's. %.0f %% of the step "
      "waits for the last of them. A larger --device-budget (%.0f %% of the experts were resident), fewer "
      "bits or experts at hand (--policy routing=cache_aware) leave all three less to do.",
      p.step, p.compute, 100 * *p.load / p.step, 100 * p.cpu_share, 100 * p.stall / p.step, 100 * p.hit_rate);
}

std::string ExplainPolicy(const Picture& p) {
  std::string text = absl::StrFormat(
      "Router and policy bound it: a step of %.2f ms waits for %.0f %% of its time though the link is busy "
      "for "
      "%.0f %% only, so bytes are asked for too late. At best, with everything asked for in time, it would "
      "take "
      "%.2f ms.",
      p.step, 100 * p.stall / p.step, 100 * *p.load / p.step, std::max(p.compute, *p.load));
  if (!p.recall.has_value()) {
    absl::StrAppend(&text, " Nothing is predicted: --policy expert_predictor=gate_reuse would ask ahead.");
  } else {
    absl::StrAppendFormat(
        &text,
        " %.0f %% of the experts chosen had been predicted: --policy predictor_depth=3, "
        "expert_predictor=learned or lookahead and first_layer=on predict more, or earlier.",
        100 * *p.recall);
  }
  return text;
}

std::string ExplainCpu(const Picture& p) {
  return absl::StrFormat(
      "The CPU bounds it: %.0f %% of a step of %.2f ms is waiting, the link is nearly idle, and %.0f %% of "
      "the "
      "experts chosen were not resident: the CPU computes them. --policy expert_miss=balance shares them "
      "with the "
      "link; a larger --device-budget makes them fewer.",
      100 * p.stall / p.step, p.step, 100 * (1 - p.hit_rate));
}

}  // namespace

std::string ExplainRun(const PresetResult& result, size_t measure) {
  const Picture p = PictureOf(result, result.measures[measure]);
  if (p.step <= 0) {
    return "No step was measured.";
  }
  if (p.stall < kLittle * p.step) {
    return ExplainCompute(p);
  }
  if (p.ssd_share > 0.5) {
    return ExplainSsd(p);
  }
  if (!p.load.has_value()) {
    return absl::StrFormat(
        "%.0f %% of a step of %.2f ms is waiting; the link's rate is not known, so whether "
        "bytes are too many or asked for too late cannot be told: give --link-gbps.",
        100 * p.stall / p.step, p.step);
  }
  if (*p.load > kBusyLink * p.step) {
    return ExplainLink(p);
  }
  if (*p.load < kIdleLink * p.step && p.hit_rate < 1) {
    return ExplainCpu(p);
  }
  return p.cpu_share > kSharingCpu ? ExplainShared(p) : ExplainPolicy(p);
}

std::string ExplainTexts(const PresetPlan& plan, const std::vector<PresetResult>& results) {
  std::string text;
  for (size_t i = 0; i < results.size(); ++i) {
    for (size_t m = 0; m < results[i].measures.size(); ++m) {
      absl::StrAppend(&text, plan.rows[i].name, ", batch ", results[i].measures[m].batch, ": ",
                      ExplainRun(results[i], m), "\n");
    }
  }
  return text;
}

}  // namespace sluice::cli
