// A preloaded library that sets a process' wall clock on and back while it runs, without touching the
// machine's.
//
// SLUICE_CLOCK_JUMP names a file of at least 8 bytes; the seconds in it, an int64_t that may change at any
// time, are added to CLOCK_REALTIME. The other clocks stay as they are. Futex timeouts by the wall clock,
// which the kernel compares with its own, are moved back by as much, as a machine whose clock was really set
// would have them.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

const std::atomic<int64_t>* MapSeconds() {
  const char* const path = getenv("SLUICE_CLOCK_JUMP");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void* const mapped = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    perror("SLUICE_CLOCK_JUMP");
    abort();
  }
  close(file);
  return static_cast<const std::atomic<int64_t>*>(mapped);
}

int64_t JumpSeconds() {
  static const std::atomic<int64_t>* const seconds = MapSeconds();
  return seconds->load(std::memory_order_relaxed);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  static auto* const next = Next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = next(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) {
    now->tv_sec += JumpSeconds();
  }
  return result;
}

int gettimeofday(timeval* now, void*) {
  timespec precise;
  const int result = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return result;
}

time_t time(time_t* out) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) {
    *out = now.tv_sec;
  }
  return now.tv_sec;
}

long syscall(long number, ...) {
  static auto* const next = Next<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) {
    argument = va_arg(list, long);
  }
  va_end(list);
  timespec until;
  if (number == SYS_futex && (arguments[1] & FUTEX_CLOCK_REALTIME) != 0 && arguments[3] != 0) {
    until = *reinterpret_cast<const timespec*>(arguments[3]);
    until.tv_sec = until.tv_sec < JumpSeconds() ? 0 : until.tv_sec - JumpSeconds();
    arguments[3] = reinterpret_cast<long>(&until);
  }
  return next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

}  // extern "C"
