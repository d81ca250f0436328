// Fiber: a function with a stack of its own that runs when it is resumed and yields the thread by itself.
//
// A killed fiber unwinds: its next resumption throws FiberKilled at the point where it had yielded, as a
// killed process loses its stack but not the memory that it shares.
//
// Thread safety: all fibers belong to the one thread that resumes them.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace sluice {

struct FiberKilled {};

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  // Unwinds a fiber that is not done.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the fiber until it pauses or is done. REQUIRES: not done, called from outside of it.
  void Resume();
  // Unwinds it now. REQUIRES: called from outside of it.
  void Kill();
  // Yields the thread from within the fiber.
  void Pause();

  bool done() const { return done_; }

 private:
  static void Enter(unsigned high, unsigned low);
  void Run();
  void SwitchIn();
  void SwitchOut();

  const std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t context_;
  ucontext_t caller_;
  bool started_ = false;
  bool killed_ = false;
  bool done_ = false;
  // State that AddressSanitizer needs for a switch of stacks.
  void* fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_bottom_ = nullptr;
  size_t caller_size_ = 0;
};

}  // namespace sluice
