#include "kernels/host/experts/block_order.h"

#include <cstring>

namespace sluice::cpu {

BlockOrder::BlockOrder(const BackendLimits& limits, const KernelTable& kernels, const Workspace& space)
    : kernels_(kernels),
      space_(space),
      turns_(std::make_unique<Turn[]>(limits.experts + 8)),
      kept_(std::make_unique<std::atomic<bool>[]>(MaxBlocks(limits))) {}

void BlockOrder::Begin(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs) {
  call_ = &call;
  jobs_ = jobs;
  for (size_t e = 0; e < jobs.size(); ++e) {
    turns_[e].next_block = 0;
    turns_[e].taken.store(false, std::memory_order_relaxed);
    for (uint32_t block = 0; block < jobs[e].blocks; ++block) {
      kept_[jobs[e].first_tile + block].store(false, std::memory_order_relaxed);
    }
  }
}

float* BlockOrder::Kept(const ExpertJob& job, uint32_t block, uint32_t row) const {
  return space_.partials + job.memory + (block * job.call->rows.size() + row) * call_->hidden;
}

// Adds a block's sum to y of one of an expert's rows; the first block starts it.
void BlockOrder::Add(const ExpertJob& job, uint32_t block, uint32_t row, const float* sum) {
  float* y = call_->y.Row(job.call->slots[row]);
  if (block > 0 || job.call->neuron_begin > 0) {
    kernels_.accumulate(sum, call_->hidden, y);
  } else if (job.call->down_bias != nullptr) {
    kernels_.add(sum, job.call->down_bias, 1.0f, nullptr, call_->hidden, y);
  } else {
    std::memcpy(y, sum, call_->hidden * sizeof(float));  // 0 + a closed sum is the sum
  }
}

bool BlockOrder::TakeTurn(uint32_t expert, uint32_t block) {
  Turn& turn = turns_[expert];
  if (turn.taken.exchange(true)) {
    return false;
  }
  if (turn.next_block == block) {
    return true;
  }
  turn.taken.store(false);
  return false;
}

bool BlockOrder::StartToken(uint32_t expert, uint32_t block, float* y) const {
  const ExpertCall& call = *jobs_[expert].call;
  if (block > 0 || call.neuron_begin > 0) {
    return true;
  }
  for (uint32_t h = 0; call.down_bias != nullptr && h < call_->hidden; ++h) {
    y[h] = call.down_bias[h] + 0.0f;  // a bias of -0 is +0 after the first block
  }
  return call.down_bias != nullptr;
}

void BlockOrder::EndTurn(uint32_t expert) {
  turns_[expert].next_block += 1;
  AddKeptAndRelease(expert);
}

void BlockOrder::Finish(uint32_t expert, uint32_t block, const float* sums, uint64_t sums_stride) {
  const ExpertJob& job = jobs_[expert];
  const uint32_t rows = static_cast<uint32_t>(job.call->rows.size());
  if (TakeTurn(expert, block)) {
    for (uint32_t row = 0; row < rows; ++row) {
      Add(job, block, row, sums + row * sums_stride);
    }
    return EndTurn(expert);
  }
  for (uint32_t row = 0; row < rows; ++row) {
    std::memcpy(Kept(job, block, row), sums + row * sums_stride, call_->hidden * sizeof(float));
  }
  kept_[job.first_tile + block].store(true);
  // One worker at a time adds kept blocks. A worker that holds the turn checks again after releasing it, so
  // no block is missed.
  if (!turns_[expert].taken.exchange(true)) {
    AddKeptAndRelease(expert);
  }
}

// Adds the next kept blocks to y in order, then releases the turn. Called by the worker that holds the turn.
void BlockOrder::AddKeptAndRelease(uint32_t expert) {
  const ExpertJob& job = jobs_[expert];
  Turn& turn = turns_[expert];
  const uint32_t rows = static_cast<uint32_t>(job.call->rows.size());
  const std::atomic<bool>* kept = &kept_[job.first_tile];
  do {
    uint32_t next = turn.next_block;
    for (; next < job.blocks && kept[next].load(); ++next) {
      for (uint32_t row = 0; row < rows; ++row) {
        Add(job, next, row, Kept(job, next, row));
      }
    }
    turn.next_block = next;
    turn.taken.store(false);
    if (next == job.blocks || !kept[next].load()) {
      return;
    }
  } while (!turn.taken.exchange(true));
}

}  // namespace sluice::cpu
