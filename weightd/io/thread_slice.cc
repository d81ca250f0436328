#include "weightd/io/thread_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace sluice {
namespace {

// The least that the kernel grants.
constexpr uint64_t kSliceNanos = 100'000;

// struct sched_attr, version 0: libc has none, and the kernel's header collides with <sched.h>.
struct SchedAttr {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;
  uint64_t deadline;
  uint64_t period;
};
static_assert(sizeof(SchedAttr) == 48);

}  // namespace

void AskForShortSlices() {
  SchedAttr attr{};
  attr.size = sizeof(attr);
  // The thread's own policy and nice value, which a service manager may have set.
  if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) != 0 || attr.policy != SCHED_OTHER) {
    return;
  }
  attr.runtime = kSliceNanos;
  syscall(SYS_sched_setattr, 0, &attr, 0);
}

}  // namespace sluice
