// Checks the code's assumptions about the CUDA driver of this machine: sharing between processes, locked
// memory, the state after an error, latencies, launches, and copies beside kernels. Links CUDA's runtime
// alone, so that it also runs where nothing of Sluice does; deploy/gpu/bundle.sh compiles it.
//
// usage: gpu_probe                    prints one line per question: "name: answer"
#include <cuda.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vector>
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#endif
static double Now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static const char* Name(cudaError_t e) { return cudaGetErrorName(e); }
static const char* Name(CUresult r) {
  const char* s = "?";
  cuGetErrorName(r, &s);
  return s;
}
#define TELL(...) (printf(__VA_ARGS__), printf("\n"), fflush(stdout))
constexpr size_t kMiB = 1 << 20;

__global__ void Nothing() {}
__global__ void Spin(long long cycles) {
  for (const long long end = clock64() + cycles; clock64() < end;) {
  }
}
// Follows a chain of dependent loads, for the latency of one.
__global__ void Chase(const unsigned* p, unsigned n, long long* out) {
  unsigned at = 0;
  const long long begin = clock64();
  for (unsigned i = 0; i < n; ++i) at = *(const volatile unsigned*)(p + at);
  out[0] = clock64() - begin;
  out[1] = at;
}
__global__ void Ask(const unsigned* p, unsigned* sum) {
  unsigned v = p[blockIdx.x % 8];
  if (v == 77) *sum = v;
}  // as experts ask for ids
__global__ void Read(const uint4* p, size_t n, unsigned* sum) {
  unsigned s = 0;
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    uint4 v = p[i];
    s ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (s == 12345) *sum = s;
}
static float Milliseconds(cudaStream_t st, int rounds, void (*run)(cudaStream_t, void*), void* arg) {
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  run(st, arg);
  cudaStreamSynchronize(st);
  cudaEventRecord(a, st);
  for (int i = 0; i < rounds; ++i) run(st, arg);
  cudaEventRecord(b, st);
  cudaEventSynchronize(b);
  float ms = 0;
  cudaEventElapsedTime(&ms, a, b);
  return ms / rounds;
}
static CUmemAllocationProp Properties() {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return p;
}
static CUdeviceptr Import(int fd, size_t bytes, const char* who) {
  CUmemGenericAllocationHandle h = 0;
  CUdeviceptr at = 0;
  const CUmemAllocationProp p = Properties();
  const CUresult i =
      cuMemImportFromShareableHandle(&h, (void*)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUresult r = cuMemAddressReserve(&at, bytes, 0, 0, 0), m = cuMemMap(at, bytes, 0, h, 0);
  CUmemAccessDesc d = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUresult s = cuMemSetAccess(at, bytes, &d, 1);
  TELL("%s: import %s, reserve %s, map %s, access %s", who, Name(i), Name(r), Name(m), Name(s));
  return s == CUDA_SUCCESS ? at : 0;
}
// Copies 1 MiB chunks, four in flight, for `seconds`; returns GB/s.
static double Copies(void* to, const char* from, size_t bytes, size_t chunk, double seconds) {
  cudaStream_t st;
  cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking);
  std::vector<cudaEvent_t> ev(4);
  for (auto& e : ev) cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  const double begin = Now();
  double done = 0;
  size_t at = 0;
  int i = 0;
  while (Now() < begin + seconds) {
    cudaEventSynchronize(ev[i % 4]);
    cudaMemcpyAsync((char*)to + at, from + at, chunk, cudaMemcpyHostToDevice, st);
    cudaEventRecord(ev[i++ % 4], st);
    at = (at + 2 * chunk) <= bytes ? at + chunk : 0;
    done += chunk;
  }
  const cudaError_t e = cudaStreamSynchronize(st);
  if (e != cudaSuccess) TELL("copies: %s", Name(e));
  return done / (Now() - begin) * 1e-9;
}
// Child (`probe child FD BYTES IPCHEX`): imports both, copies a pattern, then copies while told to.
static int Child(char** argv) {
  const int fd = atoi(argv[2]);
  const size_t bytes = strtoull(argv[3], nullptr, 10);
  double t = Now();
  cudaFree(nullptr);
  TELL("child context: %.2f s", Now() - t);
  cudaIpcMemHandle_t ipc;
  for (size_t i = 0; i < sizeof ipc; ++i) {
    unsigned v;
    sscanf(argv[4] + 2 * i, "%2x", &v);
    ((unsigned char*)&ipc)[i] = v;
  }
  void* opened = nullptr;
  const cudaError_t o = cudaIpcOpenMemHandle(&opened, ipc, cudaIpcMemLazyEnablePeerAccess);
  CUdeviceptr base = 0;
  size_t size = 0;
  const CUresult g = opened ? cuMemGetAddressRange(&base, &size, (CUdeviceptr)opened) : CUDA_ERROR_UNKNOWN;
  TELL("legacy IPC: open %s, cuMemGetAddressRange %s, %zu bytes (stated %zu) at offset %lld", Name(o),
       Name(g), size, bytes, (long long)((CUdeviceptr)opened - base));
  const CUdeviceptr slab = Import(fd, bytes, "vmm in another process");
  close(fd);
  char* host = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memset(host, 0x5a, bytes);
  cudaHostRegister(host, bytes, cudaHostRegisterPortable);
  if (slab) TELL("vmm copy: %s", Name(cudaMemcpy((void*)slab, host, bytes, cudaMemcpyHostToDevice)));
  if (opened) TELL("ipc copy: %s", Name(cudaMemcpy(opened, host, bytes, cudaMemcpyHostToDevice)));
  TELL("ready");
  double seconds;
  while (slab && scanf("%lf", &seconds) == 1 && seconds > 0)
    TELL("rate %.2f", Copies((void*)slab, host, bytes, kMiB, seconds));
  return 0;
}
static void HostMemory() {
  const size_t b = 256 * kMiB;
  const auto ask = [&](const char* what, void* p, size_t n, unsigned f) {
    const double t = Now();
    const cudaError_t e = cudaHostRegister(p, n, f);
    const double took = Now() - t;
    cudaGetLastError();
    const cudaError_t u = e == cudaSuccess ? cudaHostUnregister(p) : e;
    TELL("host register, %s: %s in %.1f ms (%.1f GB/s), unregister %s", what, Name(e), took * 1e3,
         n / took * 1e-9, Name(u));
  };
  char* anon = (char*)mmap(nullptr, b, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(anon, 1, b);
  ask("anonymous", anon, b, cudaHostRegisterPortable);
  ask("1003 bytes, unaligned, mapped", anon + 77, 1003, cudaHostRegisterMapped);
  const int fd = memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (ftruncate(fd, b) != 0) TELL("ftruncate: %s", strerror(errno));
  char* rw = (char*)mmap(nullptr, b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  TELL("seals: %s", fcntl(fd, F_ADD_SEALS, 1 | 2 | 4 | F_SEAL_FUTURE_WRITE) == 0 ? "ok" : strerror(errno));
  ask("sealed memfd, pages not touched", rw, b, cudaHostRegisterPortable);
  ask("sealed memfd, again", rw, b, cudaHostRegisterPortable);
  char* ro = (char*)mmap(nullptr, b, PROT_READ, MAP_SHARED, fd, 0);
  ask("its read-only view", ro, b, cudaHostRegisterPortable);
  ask("its read-only view, cudaHostRegisterReadOnly", ro, b,
      cudaHostRegisterPortable | cudaHostRegisterReadOnly);
}
// Returns memory for results that nobody reads.
static unsigned* Sum() {
  static unsigned* sum = nullptr;
  if (sum == nullptr) cudaMalloc(&sum, 4);
  return sum;
}
static void Device() {
  double t = Now();
  const CUresult in = cuInit(0);
  TELL("cuInit: %s, %.2f s", Name(in), Now() - t);
  t = Now();
  TELL("context: %s, %.2f s", Name(cudaFree(nullptr)), Now() - t);
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, 0);
  size_t fr = 0, to = 0;
  cudaMemGetInfo(&fr, &to);
  int dv = 0;
  cuDriverGetVersion(&dv);
  TELL("%s, driver %d, %zu of %zu MiB free, L2 %d MiB, opt-in shared %zu", p.name, dv, fr / kMiB, to / kMiB,
       p.l2CacheSize >> 20, p.sharedMemPerBlockOptin);
  for (const auto& a :
       {std::pair<const char*, CUdevice_attribute>{
            "posix descriptors", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
        {"read-only host register", CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED},
        {"pageable access", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
        {"host page tables", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES},
        {"copy engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT}}) {
    int v = -1;
    cuDeviceGetAttribute(&v, a.second, 0);
    TELL("attribute, %s: %d", a.first, v);
  }
}
static void LastError(cudaStream_t st) {
  cudaEvent_t ev;
  cudaEventCreate(&ev);
  Spin<<<1, 1, 0, st>>>(100000000);
  cudaEventRecord(ev, st);
  const cudaError_t q = cudaEventQuery(ev);
  TELL("event query of running work: %s, last error behind it: %s", Name(q), Name(cudaGetLastError()));
  cudaStreamSynchronize(st);
}
static void Naps() {
  double t = Now();
  for (int i = 0; i < 200; ++i) {
    timespec z{0, 10000};
    nanosleep(&z, nullptr);
  }
  const double nap = (Now() - t) / 200;
  prctl(PR_SET_TIMERSLACK, 1);
  t = Now();
  for (int i = 0; i < 200; ++i) {
    timespec z{0, 10000};
    nanosleep(&z, nullptr);
  }
  TELL("nanosleep of 10 us takes %.1f us, with a timer slack of 1 ns %.1f us", nap * 1e6,
       (Now() - t) / 200 * 1e6);
}
static void Latencies(cudaStream_t st) {
  unsigned *host, *dev;
  long long* out;
  cudaHostAlloc(&host, kMiB, cudaHostAllocMapped);
  memset(host, 0, kMiB);
  cudaMalloc(&dev, 64 * kMiB);
  cudaHostAlloc(&out, 16, cudaHostAllocMapped);
  std::vector<unsigned> chain(16 * kMiB);
  for (size_t i = 0; i < chain.size(); ++i) chain[i] = (i + 4099 * 32) % chain.size();
  cudaMemcpy(dev, chain.data(), 64 * kMiB, cudaMemcpyHostToDevice);
  for (size_t i = 0; i < kMiB / 4; ++i) host[i] = (i + 64) % (kMiB / 4);
  int khz = 0;
  cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0);
  const auto chase = [&](const char* what, const unsigned* p) {
    for (int i = 0; i < 2; ++i) {
      Chase<<<1, 1, 0, st>>>(p, 2000, out);
      cudaStreamSynchronize(st);
      TELL("a load from %s: %lld cycles (%.0f ns at the top clock)", what, out[0] / 2000,
           out[0] / 2000 / (khz * 1e-6));
    }
  };
  chase("device memory", dev);
  chase("pinned host memory", host);
  struct A {
    unsigned *p, *s;
  } ask{host, Sum()};
  const auto run_ask = [](cudaStream_t s, void* a) { Ask<<<256, 192, 0, s>>>(((A*)a)->p, ((A*)a)->s); };
  TELL("256 blocks of 192 that read one word: of pinned host memory %.2f us",
       1e3 * Milliseconds(st, 200, run_ask, &ask));
  ask.p = dev;
  TELL("256 blocks of 192 that read one word: of device memory %.2f us",
       1e3 * Milliseconds(st, 200, run_ask, &ask));
}
static void Launches(cudaStream_t st) {
  TELL("a launch in a stream: %.2f us",
       1e3 * Milliseconds(
                 st, 2000, [](cudaStream_t s, void*) { Nothing<<<1, 32, 0, s>>>(); }, nullptr));
  cudaGraph_t gr;
  cudaGraphExec_t ex;
  cudaStreamBeginCapture(st, cudaStreamCaptureModeRelaxed);
  for (int i = 0; i < 528; ++i) Nothing<<<128, 256, 0, st>>>();
  cudaStreamEndCapture(st, &gr);
  double t = Now();
  cudaGraphInstantiate(&ex, gr, 0);
  TELL("instantiating 528 nodes: %.2f ms", (Now() - t) * 1e3);
  TELL("a node of a chain of 528: %.2f us",
       1e3 / 528 *
           Milliseconds(
               st, 20, [](cudaStream_t s, void* e) { cudaGraphLaunch((cudaGraphExec_t)e, s); }, ex));
  cudaGraphExecUpdateResultInfo info;
  t = Now();
  const cudaError_t up = cudaGraphExecUpdate(ex, gr, &info);
  TELL("updating it: %s, %.2f ms", Name(up), (Now() - t) * 1e3);
}
// Measures the milliseconds of reading 4 GiB.
constexpr size_t kReadBytes = 4096 * kMiB;
static float ReadMilliseconds(cudaStream_t st) {
  static uint4* big = nullptr;
  if (big == nullptr) {
    cudaMalloc(&big, kReadBytes);
    cudaMemset(big, 1, kReadBytes);
  }
  const auto run = [](cudaStream_t s, void* p) {
    Read<<<132 * 8, 512, 0, s>>>((uint4*)p, kReadBytes / 16, Sum());
  };
  return Milliseconds(st, 5, run, big);
}

constexpr size_t kSlabBytes = 256 * kMiB;
struct Slab {
  CUdeviceptr address = 0;
  int fd = -1;
  void* whole = nullptr;  // a second allocation, by cudaMalloc
  char hex[2 * sizeof(cudaIpcMemHandle_t) + 1] = "";
};
static Slab MakeSlab() {
  const CUmemAllocationProp pr = Properties();
  size_t granule = 0;
  cuMemGetAllocationGranularity(&granule, &pr, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  CUmemGenericAllocationHandle h = 0;
  const CUresult cr = cuMemCreate(&h, kSlabBytes, &pr, 0);
  Slab made;
  CUdeviceptr& slab = made.address;
  cuMemAddressReserve(&slab, kSlabBytes, 0, 0, 0);
  cuMemMap(slab, kSlabBytes, 0, h, 0);
  CUmemAccessDesc d = {pr.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUresult ac = cuMemSetAccess(slab, kSlabBytes, &d, 1);
  int& fd = made.fd;
  const CUresult xp = cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  char link[64] = "", path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (readlink(path, link, sizeof link - 1) < 0) link[0] = 0;
  TELL("vmm: granule %zu, create %s, access %s, export %s, descriptor %d is %s, close-on-exec %d", granule,
       Name(cr), Name(ac), Name(xp), fd, link, fcntl(fd, F_GETFD));
  if (Import(fd, kSlabBytes, "vmm in the same process") == 0) TELL("gpu_bench's copies need that");
  void*& whole = made.whole;
  cudaMalloc(&whole, kSlabBytes);
  cudaIpcMemHandle_t ipc;
  TELL("legacy IPC: handle %s", Name(cudaIpcGetMemHandle(&ipc, whole)));
  for (size_t i = 0; i < sizeof ipc; ++i) snprintf(made.hex + 2 * i, 3, "%02x", ((unsigned char*)&ipc)[i]);
  return made;
}
static void CopySizes(const Slab& slab) {
  for (const size_t chunk : {64ul << 10, 256ul << 10, kMiB, 4 * kMiB, 16 * kMiB}) {
    static char* pinned = nullptr;
    if (!pinned) {
      cudaHostAlloc((void**)&pinned, kSlabBytes, 0);
      memset(pinned, 1, kSlabBytes);
    }
    TELL("copies of %zu KiB, four on their way: %.1f GB/s", chunk >> 10,
         Copies((void*)slab.address, pinned, kSlabBytes, chunk, 0.3));
  }
}

// The child process, connected by pipes.
struct Other {
  pid_t pid = 0;
  FILE* tell = nullptr;
  FILE* hear = nullptr;
  char line[512];
};
static void Begin(const Slab& slab, Other* other) {
  int down[2], upw[2];
  if (pipe(down) != 0 || pipe(upw) != 0) return;
  const int pass = dup(slab.fd);
  char a2[16], a3[24];
  snprintf(a2, sizeof a2, "%d", pass);
  snprintf(a3, sizeof a3, "%zu", kSlabBytes);
  cudaMemset((void*)slab.address, 0, kSlabBytes);
  cudaDeviceSynchronize();
  other->pid = fork();
  if (other->pid == 0) {
    dup2(down[0], 0);
    dup2(upw[1], 1);
    close(down[1]);
    close(upw[0]);
    execl("/proc/self/exe", "probe", "child", a2, a3, slab.hex, nullptr);
    _exit(1);
  }
  close(down[0]);
  close(upw[1]);
  other->tell = fdopen(down[1], "w");
  other->hear = fdopen(upw[0], "r");
}
// Reads the child's output until it is ready; false if it never is.
static bool AwaitReady(Other* other) {
  while (fgets(other->line, sizeof other->line, other->hear)) {
    if (strncmp(other->line, "ready", 5) == 0) return true;
    fputs(other->line, stdout);
  }
  return false;
}
static void Ask(Other* other, double seconds) {
  fprintf(other->tell, "%g\n", seconds);
  fflush(other->tell);
}
static double Rate(Other* other) {
  double rate = 0;
  if (fgets(other->line, sizeof other->line, other->hear)) sscanf(other->line, "rate %lf", &rate);
  return rate;
}
static void Overlap(cudaStream_t st, Other* other) {
  const float alone = ReadMilliseconds(st);
  Ask(other, 0.5);
  const double copied = Rate(other);
  Ask(other, 1.5);
  double all = 0;
  int rounds = 0;
  for (const double end = Now() + 1.2; Now() < end; ++rounds) all += ReadMilliseconds(st);
  const double beside = Rate(other);
  TELL(
      "another process' copies: alone %.1f GB/s, beside kernels %.1f; kernels beside them at %.0f %% of "
      "alone",
      copied, beside, 100 * alone * rounds / all);
}
static void Arrived(const char* what, const void* memory) {
  unsigned char last = 0;
  cudaMemcpy(&last, (const char*)memory + kSlabBytes - 1, 1, cudaMemcpyDeviceToHost);
  TELL("what the child copied is there: %s %s", what, last == 0x5a ? "yes" : "NO");
}
static void Sharing(cudaStream_t st) {
  const Slab slab = MakeSlab();
  CopySizes(slab);
  Other other;
  Begin(slab, &other);
  if (other.tell == nullptr) return;
  const bool ready = AwaitReady(&other);
  Arrived("vmm", (void*)slab.address);
  Arrived("ipc", slab.whole);
  if (ready) Overlap(st, &other);
  fclose(other.tell);
  waitpid(other.pid, nullptr, 0);
}

int main(int argc, char** argv) {
  if (argc == 5 && strcmp(argv[1], "child") == 0) return Child(argv);
  Device();
  cudaStream_t st;
  cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking);
  LastError(st);
  Naps();
  HostMemory();
  Latencies(st);
  Launches(st);
  TELL("reading 4 GiB: %.0f GB/s", kReadBytes / ReadMilliseconds(st) * 1e-6);
  Sharing(st);
  return 0;
}
