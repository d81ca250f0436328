#include "tests/simulation/fiber.h"

#include <cstdint>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace sluice {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

void StartSwitch([[maybe_unused]] void** save, [[maybe_unused]] const void* bottom,
                 [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(save, bottom, size);
#endif
}

void FinishSwitch([[maybe_unused]] void* saved, [[maybe_unused]] const void** bottom,
                  [[maybe_unused]] size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(saved, bottom, size);
#endif
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(new std::byte[kStackBytes]) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_.get();
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  // makecontext passes ints only.
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
}

Fiber::~Fiber() { Kill(); }

void Fiber::Enter(unsigned high, unsigned low) {
  reinterpret_cast<Fiber*>(static_cast<uintptr_t>(high) << 32 | low)->Run();
}

void Fiber::Run() {
  FinishSwitch(nullptr, &caller_bottom_, &caller_size_);
  try {
    body_();
  } catch (const FiberKilled&) {
  }
  done_ = true;
  StartSwitch(nullptr, caller_bottom_, caller_size_);
  swapcontext(&context_, &caller_);
}

void Fiber::SwitchIn() {
  StartSwitch(&caller_fake_stack_, stack_.get(), kStackBytes);
  swapcontext(&caller_, &context_);
  FinishSwitch(caller_fake_stack_, nullptr, nullptr);
}

void Fiber::Resume() {
  started_ = true;
  SwitchIn();
}

void Fiber::Kill() {
  killed_ = true;
  if (!started_) {
    done_ = true;
  }
  if (!done_) {
    SwitchIn();
  }
}

void Fiber::Pause() {
  StartSwitch(&fake_stack_, caller_bottom_, caller_size_);
  swapcontext(&context_, &caller_);
  FinishSwitch(fake_stack_, &caller_bottom_, &caller_size_);
  if (killed_) {
    throw FiberKilled();
  }
}

}  // namespace sluice
