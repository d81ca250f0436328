#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/calls/attention_calls.h"
#include "kernels/host/attention/attention_plan.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/work/tiles.h"
#include "kernels/host/work/workspace.h"

namespace sluice::cpu {

class Attention {
 public:
  // All arguments but the limits must outlive it.
  Attention(const BackendLimits& limits, const KernelTable& kernels, Workspace& space, Tiles& tiles)
      : kernels_(kernels),
        space_(space),
        tiles_(tiles),
        plan_(limits, tiles.threads(), Workspace::kPartialFloats) {}
  // Errors: as Scratch.
  absl::Status Reserve(const BackendLimits& limits, Scratch* scratch);

  void Run(const AttentionCall& call);

 private:
  struct alignas(64) Worker {
    float* span = nullptr;  // scores, and m, l, o of kSpanQueries queries twice
  };

  void RunTask(const AttentionCall& call, const AttentionTask& task, uint32_t worker);
  void ComputeSpan(const AttentionCall& call, const AttentionTask& task, uint32_t span, uint32_t worker,
                   float* results, uint32_t* first_query, uint32_t* end_query);
  void FinishQueries(const AttentionCall& call, const AttentionTask& task);
  void WriteQuery(const AttentionCall& call, const AttentionTask& task, uint32_t i, float* m, float* l,
                  float* o);

  const KernelTable& kernels_;
  Workspace& space_;
  Tiles& tiles_;
  AttentionPlan plan_;
  std::vector<Worker> workers_;
};

}  // namespace sluice::cpu
