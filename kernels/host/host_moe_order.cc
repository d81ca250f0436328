// Block sums of a fused expert into y in the order of ARITHMETIC.md 3, whichever worker made them first.
#include <cstring>

#include "kernels/host/host_backend.h"

namespace sluice {

// y of an expert's token i: adds a block's sum, the first one starts it.
void HostBackend::AddBlock(const MoeCall& call, const ExpertState& state, uint32_t block, uint32_t i,
                           const float* sum) {
  float* y = call.y.Row(state.call->slots[i]);
  if (block == 0 && state.call->neuron_begin == 0) {
    if (state.call->down_bias != nullptr) {
      kernels_.add(sum, state.call->down_bias, 1.0f, nullptr, call.hidden, y);
    } else {
      std::memcpy(y, sum, call.hidden * sizeof(float));  // 0 + a closed sum is the sum
    }
  } else {
    kernels_.accumulate(sum, call.hidden, y);
  }
}

// Whether it is the block's turn to be added to y. If so nobody else adds before EndTurn().
bool HostBackend::TakeTurn(uint32_t expert, uint32_t block) {
  ExpertOrder& order = orders_[expert];
  if (order.taken.exchange(true)) {
    return false;
  }
  if (order.next_block == block) {
    return true;
  }
  order.taken.store(false);
  return false;
}

void HostBackend::EndTurn(const MoeCall& call, uint32_t expert) {
  orders_[expert].next_block += 1;
  AddKeptAndLetGo(call, expert);
}

// y of a token before block `number` is added to it: a bias starts it. Whether it holds anything.
bool HostBackend::StartToken(const MoeBlock& b, uint32_t number, float* y) const {
  const ExpertCall& expert = *b.state->call;
  if (number > 0 || expert.neuron_begin > 0) {
    return true;
  }
  for (uint32_t h = 0; expert.down_bias != nullptr && h < b.call->hidden; ++h) {
    y[h] = expert.down_bias[h] + 0.0f;  // a bias of -0 is +0 after the first block
  }
  return expert.down_bias != nullptr;
}

// Takes a block's sums [token][x_stride_]: adds them to y if all blocks before it are in, else keeps them.
void HostBackend::FinishBlock(const MoeCall& call, uint32_t expert, uint32_t block, const float* sums) {
  const ExpertState& state = experts_[expert];
  const uint32_t tokens = static_cast<uint32_t>(state.call->rows.size());
  if (TakeTurn(expert, block)) {
    for (uint32_t i = 0; i < tokens; ++i) {
      AddBlock(call, state, block, i, sums + i * x_stride_);
    }
    return EndTurn(call, expert);
  }
  for (uint32_t i = 0; i < tokens; ++i) {
    std::memcpy(partials_ + state.memory + (uint64_t{block} * tokens + i) * call.hidden, sums + i * x_stride_,
                call.hidden * sizeof(float));
  }
  block_done_[state.first_flag + block].store(true);
  Drain(call, expert);
}

// Adds to y, in order, the kept blocks whose turn it is. One worker at a time; one that comes while another
// is at it leaves: the other looks again after it has let go, so no block is left behind.
void HostBackend::Drain(const MoeCall& call, uint32_t expert) {
  if (!orders_[expert].taken.exchange(true)) {
    AddKeptAndLetGo(call, expert);
  }
}

// The same by the worker whose turn it is.
void HostBackend::AddKeptAndLetGo(const MoeCall& call, uint32_t expert) {
  const ExpertState& state = experts_[expert];
  ExpertOrder& order = orders_[expert];
  const uint32_t tokens = static_cast<uint32_t>(state.call->rows.size());
  const std::atomic<bool>* done = &block_done_[state.first_flag];
  do {
    uint32_t next = order.next_block;
    for (; next < state.blocks && done[next].load(); ++next) {
      for (uint32_t i = 0; i < tokens; ++i) {
        AddBlock(call, state, next, i,
                 partials_ + state.memory + (uint64_t{next} * tokens + i) * call.hidden);
      }
    }
    order.next_block = next;
    order.taken.store(false);
    if (next == state.blocks || !done[next].load()) {
      return;
    }
  } while (!order.taken.exchange(true));
}

}  // namespace sluice
