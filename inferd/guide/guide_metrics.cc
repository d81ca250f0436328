#include "inferd/guide/guide_metrics.h"

namespace sluice::inferd {

void WriteGrammarMetrics(const GrammarStats& stats, MetricText* text) {
  constexpr MetricType kCounter = MetricType::kCounter;
  constexpr MetricType kGauge = MetricType::kGauge;
  text->Family("inferd_grammars_total", kCounter, "Grammars of answers, by outcome.");
  text->Sample({{"outcome", "compiled"}}, stats.compiled);
  text->Sample({{"outcome", "refused"}}, stats.refused);
  text->Sample({{"outcome", "cached"}}, stats.cache_hits);
  text->One("inferd_grammars_waiting", kGauge, "Grammars queued or being compiled.", stats.waiting);
  text->One("inferd_grammar_cache_bytes", kGauge, "Memory of cached compiled grammars.", stats.cache_bytes);
  text->One("inferd_grammar_masks_total", kCounter, "Token masks computed.", stats.masks);
  text->One("inferd_grammar_mask_seconds_total", kCounter, "Processor time of computing masks.",
            stats.mask_seconds);
}

}  // namespace sluice::inferd
