// Writes the counters of GrammarManager in Prometheus' text format.
//
// Thread safety: a pure function over its arguments, safe to call from any thread.
#pragma once

#include "common/metrics/metric_text.h"
#include "inferd/guide/guides.h"

namespace sluice::inferd {

void WriteGrammarMetrics(const GrammarStats& stats, MetricText* text);

}  // namespace sluice::inferd
