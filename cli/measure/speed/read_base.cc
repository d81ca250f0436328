#include "cli/measure/speed/read_base.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "common/status.h"
#include "kernels/host/read_bandwidth.h"

namespace sluice {
namespace {

constexpr uint64_t kMostBytes = uint64_t{4} << 30;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

absl::StatusOr<double> MeasureReadBase(uint64_t pack_bytes, uint64_t available_bytes, uint32_t threads) {
  const uint64_t wanted = std::min({pack_bytes, kMostBytes, available_bytes / 2});
  const uint64_t bytes = std::max(wanted / kHugePage, uint64_t{1}) * kHugePage;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoToStatus(errno, absl::StrCat("read bandwidth: mapping ", bytes, " bytes"));
  }
  const absl::Cleanup unmap = [memory, bytes] { munmap(memory, bytes); };
  madvise(memory, bytes, MADV_HUGEPAGE);  // only a wish: small pages give a lower base
  std::memset(memory, 1, bytes);          // pages that were never written all read the one zero page
  ReadBandwidthOptions options;
  options.threads = threads;
  const absl::Span<const std::byte> region(static_cast<const std::byte*>(memory), bytes);
  ASSIGN_OR_RETURN(const ReadBandwidth measured,
                   MeasureReadBandwidth(absl::MakeConstSpan(&region, 1), options));
  return measured.best;
}

}  // namespace sluice
