#include "inferd/guide/guide_metrics.h"

namespace sluice {

void WriteGuideMetrics(const GuideStats& stats, MetricText* text) {
  constexpr MetricType kCounter = MetricType::kCounter;
  constexpr MetricType kGauge = MetricType::kGauge;
  text->Family("inferd_guides_total", kCounter, "Guides of answers by what became of them.");
  text->Sample({{"outcome", "compiled"}}, stats.compiled);
  text->Sample({{"outcome", "refused"}}, stats.refused);
  text->Sample({{"outcome", "cached"}}, stats.cache_hits);
  text->One("inferd_guides_waiting", kGauge, "Guides that wait to be compiled or are.", stats.waiting);
  text->One("inferd_guide_cache_bytes", kGauge, "Memory of compiled guides kept for later.",
            stats.cache_bytes);
  text->One("inferd_guide_masks_total", kCounter, "Masks made for the next token of an answer.", stats.masks);
  text->One("inferd_guide_mask_seconds_total", kCounter, "Processor time of making them, beside the steps.",
            stats.mask_seconds);
}

}  // namespace sluice
