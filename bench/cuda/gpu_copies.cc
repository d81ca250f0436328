#include "bench/cuda/gpu_copies.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice::bench {
namespace {

constexpr uint64_t kWindow = 4 << 20;  // in flight, as on a link of weightd
constexpr char kChildWord[] = "--copy-child";

}  // namespace

CopyLoop::CopyLoop(const CudaModuleApi& cuda, int fd, const SlabHandle& handle, uint64_t chunk_bytes)
    : copier_(NewCopier(cuda)),
      slab_(Get(copier_->Open(UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)), handle))),
      segment_(std::make_shared<const SharedMemory>(
          Get(CreateSharedMemory("gpu_bench", handle.bytes, PeerAccess::kReadOnly)))) {
  std::memset(segment_->map.data(), 1, handle.bytes);  // populates its pages
  copier_->AddSource({segment_->map.data(), handle.bytes}, nullptr);
  PlanOptions options;
  options.chunk_bytes = chunk_bytes;
  plan_ = MakeRangePlan(segment_->map.data(), 0, static_cast<uint32_t>(handle.bytes), options);
}

CopyLoop::~CopyLoop() { copier_->RemoveSource(segment_->map.data()); }

double CopyLoop::Run(double seconds) {
  const double begin = Now();
  uint64_t bytes = 0;
  uint64_t flying = 0;
  while (Now() < begin + seconds || bytes == 0) {
    for (const PlanChunk& chunk : plan_.chunks) {
      for (; flying >= std::max<uint64_t>(2, kWindow / chunk.bytes); flying -= Reap()) {
      }
      Check(copier_->Begin(++tag_, plan_, chunk, slab_.get()));
      ++flying;
      bytes += chunk.bytes;
    }
  }
  for (; flying > 0; flying -= Reap()) {
  }
  return static_cast<double>(bytes) / (Now() - begin);
}

uint64_t CopyLoop::Reap() {
  const std::vector<CopyDone> done = copier_->Completed(1'000'000);
  for (const CopyDone& one : done) {
    Check(one.error);
  }
  return done.size();
}

OtherProcess::OtherProcess(const SharedBuffer& shared) {
  int to[2];
  int from[2];
  if (pipe(to) != 0 || pipe(from) != 0) {
    Check(absl::InternalError("pipe"));
  }
  const int fd = dup(shared.fd);  // without close-on-exec, for the child
  const std::string words[] = {
      absl::StrCat(fd), absl::StrCat(shared.bytes),
      absl::BytesToHexString(
          absl::string_view(reinterpret_cast<const char*>(shared.device.data()), shared.device.size()))};
  child_ = fork();
  if (child_ == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    close(to[1]);
    close(from[0]);
    execl("/proc/self/exe", "gpu_bench", kChildWord, words[0].c_str(), words[1].c_str(), words[2].c_str(),
          nullptr);
    _exit(EXIT_FAILURE);
  }
  close(fd);
  close(to[0]);
  close(from[1]);
  out_ = fdopen(to[1], "w");
  in_ = fdopen(from[0], "r");
  char line[64];
  if (std::fgets(line, sizeof(line), in_) == nullptr) {
    Check(absl::InternalError("the other process has failed; its message stands above"));
  }
}

OtherProcess::~OtherProcess() {
  std::fclose(out_);
  std::fclose(in_);
  waitpid(child_, nullptr, 0);
}

void OtherProcess::Begin(double seconds) {
  std::fprintf(out_, "%g\n", seconds);
  std::fflush(out_);
}

double OtherProcess::End() {
  double rate = 0;
  if (std::fscanf(in_, "%lf", &rate) != 1) {
    Check(absl::InternalError("the other process has died"));
  }
  return rate;
}

bool IsCopyChild(int argc, char** argv) { return argc == 5 && std::strcmp(argv[1], kChildWord) == 0; }

int CopyChild(char** argv) {
  int fd = 0;
  SlabHandle handle;
  handle.kind = HandleKind::kCudaFd;
  const std::string uuid = absl::HexStringToBytes(argv[4]);
  if (!absl::SimpleAtoi(argv[2], &fd) || !absl::SimpleAtoi(argv[3], &handle.bytes) ||
      uuid.size() != handle.device.size()) {
    return EXIT_FAILURE;
  }
  std::memcpy(handle.device.data(), uuid.data(), uuid.size());
  CopyLoop loop(*Get(LoadCudaModule()), fd, handle, 1 << 20);
  loop.Run(0.2);  // its memory is locked by then
  double seconds = 0;
  std::printf("ready\n");
  std::fflush(stdout);
  while (std::scanf("%lf", &seconds) == 1 && seconds > 0) {
    std::printf("%g\n", loop.Run(seconds));
    std::fflush(stdout);
  }
  return EXIT_SUCCESS;
}

}  // namespace sluice::bench
