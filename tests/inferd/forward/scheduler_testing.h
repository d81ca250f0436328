// SchedulerTest: the common fixture of the scheduler's tests.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "inferd/forward/scheduler.h"

namespace sluice::inferd {

// A scheduler with pages, and short words for its steps.
class SchedulerTest : public testing::Test {
 protected:
  void Make(uint32_t parallel, uint32_t chunk, uint32_t pages, uint32_t context = 1024, uint32_t window = 0) {
    pages_ = std::make_unique<KvPages>(pages, parallel, context, window);
    scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{parallel, chunk}, pages_.get());
  }

  void Add(SequenceId id, uint32_t length, const std::string& client = "a", int priority = 0) {
    ScheduleRequest request;
    request.id = id;
    request.length = length;
    request.client = client;
    request.priority = priority;
    scheduler_->Add(request);
  }

  // Plans and commits a step; a sequence that reached its end gets a token.
  const StepPlan& Step() {
    const StepPlan& plan = scheduler_->Plan();
    for (const ScheduledRows& rows : plan.sequences) {
      scheduler_->Commit(rows.id, rows.rows);
      if (rows.reaches_end) {
        scheduler_->Append(rows.id);
      }
    }
    return plan;
  }

  static std::map<SequenceId, uint32_t> Rows(const StepPlan& plan) {
    std::map<SequenceId, uint32_t> rows;
    for (const ScheduledRows& sequence : plan.sequences) {
      rows[sequence.id] = sequence.rows;
    }
    return rows;
  }
  using RowMap = std::map<SequenceId, uint32_t>;

  std::unique_ptr<KvPages> pages_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace sluice::inferd
