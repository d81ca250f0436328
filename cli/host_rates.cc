#include "cli/host_rates.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/base/machine_facts.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/protocol/shared_memory.h"
#include "inferd/model/model_shapes.h"
#include "kernels/backend.h"
#include "pack/row_layout.h"
#include "weightd/store/pread_reader.h"
#include "weightd/store/prefaulter.h"
#include "weightd/store/uring_reader.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kRegion = 512ull << 20;  // larger than any cache
constexpr uint64_t kLeastRegion = 32ull << 20;
// Weights that stay in the caches of one CPU.
constexpr uint64_t kCachedBytes = 256ull << 10;
constexpr uint64_t kCachedRegion = 8ull << 20;
// Number of times that a measured product uses the same weights, so that every thread has work and the time
// to wake the threads does not count. Experts that are computed together share weights likewise.
constexpr uint64_t kCachedParts = 8;
constexpr uint64_t kResults = 4ull << 20;  // floats
constexpr double kCachedSeconds = 0.12;
constexpr int kRounds = 3;
constexpr double kStepsSeconds = 0.5;
// Number of layers of a measured step; more would only repeat them.
constexpr size_t kStepLayers = 4;
// Number of products that read a layer's attention weights, approximately.
constexpr uint64_t kDenseCalls = 4;
constexpr uint32_t kSmallRows = 16;
constexpr uint32_t kWidthStep = 64;  // neurons
// Number of small operations of a layer besides the measured products: norms, rope, cache, attention, router
// and sum.
constexpr int kSmallOperations = 8;
constexpr uint64_t kPage = 4096;

class Kernels {
 public:
  Kernels(const ModelConfig& config, const StoredSizes& sizes) : config_(config), sizes_(sizes) {}
  absl::StatusOr<ProductRates> MeasureCached(uint32_t threads, uint32_t tokens, uint32_t rows_each) {
    cached_ = true;
    tokens_ = tokens;
    rows_each_ = rows_each;
    RETURN_IF_ERROR(Open(threads));
    ProductRates rates;
    // The bytes count each weight once, but it is multiplied for every token.
    ASSIGN_OR_RETURN(rates.dense, Best([&] { return Product(sizes_.dense_encoding, kCachedBytes); }));
    rates.dense *= ProductsPerByte(sizes_.dense_encoding) * tokens;
    rates.experts = rates.dense;
    if (sizes_.routed_read > 0) {
      ASSIGN_OR_RETURN(rates.experts, Best([&] { return Experts(); }));
      const uint64_t parts = std::popcount(StoredParts(sizes_.expert_format));
      rates.experts *= static_cast<double>(parts * ExpertHidden(config_)) * Mixture().expert_width /
                       static_cast<double>(ExpertBytes(Mixture().expert_width)) * rows_each;
    }
    return rates;
  }

  // Measures whole steps, as the engine runs them: an operation measured alone finds the caches and the
  // memory queues in a state that no step has.
  absl::StatusOr<KernelRates> Measure(uint32_t threads) {
    RETURN_IF_ERROR(Open(threads));
    RETURN_IF_ERROR(Step());  // wakes the threads
    dense_ = experts_ = small_ = {};
    const absl::Time end = SteadyNow() + absl::Seconds(kStepsSeconds);
    while (SteadyNow() < end) RETURN_IF_ERROR(Step());
    KernelRates rates;
    rates.dense = static_cast<double>(dense_.bytes) / dense_.seconds;
    rates.experts = experts_.bytes > 0 ? static_cast<double>(experts_.bytes) / experts_.seconds : rates.dense;
    rates.layer_seconds = kSmallOperations * small_.seconds / static_cast<double>(small_.calls);
    return rates;
  }

 private:
  absl::Status Open(uint32_t threads) {
    ASSIGN_OR_RETURN(const MemoryFacts memory, ReadMemoryFacts());
    bytes_ = std::min(kRegion, UsableMemory(memory) / 4 / kPage * kPage);
    if (cached_ && bytes_ >= kLeastRegion) {
      bytes_ = kCachedRegion;
    } else if (bytes_ < kLeastRegion) {
      return absl::ResourceExhaustedError(absl::StrCat("measuring this host takes ", 4 * kLeastRegion,
                                                       " bytes of free memory, ", UsableMemory(memory),
                                                       " are there"));
    }
    // Memory like that of weightd's segments, with the pages that the kernel gives those.
    ASSIGN_OR_RETURN(region_, CreateSharedMemory("sluice-plan", bytes_, PeerAccess::kReadOnly));
    weightd::Populate(region_.map.data(), bytes_);
    std::memset(region_.map.data(), 0x2c, bytes_);  // small scales in every encoding
    BackendLimits limits;
    limits.max_tokens = tokens_;
    limits.max_sequences = 1;
    limits.hidden = limits.max_cols = std::max(config_.hidden, ExpertHidden(config_));
    limits.heads = 1;
    limits.head_dim = 64;
    limits.max_context = 1;
    limits.experts = std::max(1u, inferd::MaxExperts(config_));
    limits.top_k = std::max(1u, inferd::LargestTopK(config_));
    limits.expert_width = std::max(1u, inferd::WidestExpert(config_));
    limits.vocab = config_.vocab;
    ASSIGN_OR_RETURN(backend_, CreateCpuBackend(limits, threads));
    ASSIGN_OR_RETURN(weights_, backend_->Import({region_.map.data(), bytes_}));
    const uint64_t inputs = uint64_t{tokens_} * limits.hidden;
    ASSIGN_OR_RETURN(x_, backend_->Allocate(inputs * sizeof(float), BufferKind::kActivations));
    const uint64_t results = std::max<uint64_t>(limits.top_k * inputs, kResults);
    ASSIGN_OR_RETURN(y_, backend_->Allocate(results * sizeof(float), BufferKind::kActivations));
    float* x = reinterpret_cast<float*>(backend_->HostWrite({x_, 0}, inputs * sizeof(float)));
    for (uint64_t i = 0; i < inputs; ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
    expert_rows_.resize(rows_each_);
    std::iota(expert_rows_.begin(), expert_rows_.end(), 0);
    return absl::OkStatus();
  }

  // Returns the bytes per second of the fastest round of `call`, which returns the bytes it read.
  absl::StatusOr<double> Best(const std::function<absl::StatusOr<uint64_t>()>& call) {
    double best = 0;
    for (int round = 0; round < kRounds; ++round) {
      uint64_t bytes = 0;
      backend_->BeginStep();
      const absl::Cleanup end = [this] { backend_->EndStep(); };
      const absl::Time start = SteadyNow();
      double seconds = 0;
      while (seconds < kCachedSeconds / kRounds) {
        ASSIGN_OR_RETURN(const uint64_t read, call());
        bytes += read;
        seconds = absl::ToDoubleSeconds(SteadyNow() - start);
      }
      best = std::max(best, static_cast<double>(bytes) / seconds);
    }
    return best;
  }

  // Bytes, seconds and number of calls of one kind of operation.
  struct Spent {
    uint64_t bytes = 0;
    double seconds = 0;
    uint64_t calls = 0;
  };

  absl::Status Time(Spent* part, const std::function<absl::StatusOr<uint64_t>()>& call) {
    const absl::Time start = SteadyNow();
    ASSIGN_OR_RETURN(const uint64_t bytes, call());
    part->seconds += absl::ToDoubleSeconds(SteadyNow() - start);
    part->bytes += bytes;
    ++part->calls;
    return absl::OkStatus();
  }

  // Runs some layers and the head.
  absl::Status Step() {
    const EncodingDescriptor& dense = sizes_.dense_encoding;
    const EncodingDescriptor plain{.encoding = Encoding::kBf16};
    const uint64_t layers = std::max<size_t>(1, config_.layers.size());
    const uint64_t product = (sizes_.dense_read - sizes_.head_read) / layers / kDenseCalls;
    const uint64_t small = kSmallRows * RoundStride(RowBytes(plain, config_.hidden));
    backend_->BeginStep();
    const absl::Cleanup end = [this] { backend_->EndStep(); };
    for (uint64_t layer = 0; layer < std::min(layers, kStepLayers); ++layer) {
      for (uint64_t i = 0; i < kDenseCalls; ++i) {
        RETURN_IF_ERROR(Time(&dense_, [&] { return Product(dense, product); }));
        RETURN_IF_ERROR(Time(&small_, [&] { return Product(plain, small); }));
      }
      if (sizes_.routed_read > 0) RETURN_IF_ERROR(Time(&experts_, [&] { return Experts(); }));
    }
    return Time(&dense_, [&] { return Product(dense, sizes_.head_read); });
  }

  double ProductsPerByte(const EncodingDescriptor& encoding) const {
    return static_cast<double>(config_.hidden) /
           static_cast<double>(RoundStride(RowBytes(encoding, config_.hidden)));
  }

  // Returns a random place in the region, as routers choose experts at random.
  uint64_t Place(uint64_t bytes) {
    return cached_ || bytes >= bytes_ ? 0 : random_() % (bytes_ - bytes) / kPage * kPage;
  }

  WeightView View(const EncodingDescriptor& encoding, uint32_t rows, uint32_t cols, uint64_t place,
                  uint64_t stride) const {
    WeightView view;
    view.encoding = encoding;
    view.base = {weights_, place};
    view.stride = stride;
    view.rows = rows;
    view.cols = cols;
    return view;
  }

  absl::StatusOr<uint64_t> Product(const EncodingDescriptor& encoding, uint64_t bytes) {
    const uint64_t stride = RoundStride(RowBytes(encoding, config_.hidden));
    const uint64_t most = std::min<uint64_t>(bytes_ / 2 / stride, kResults / kCachedParts / tokens_);
    uint32_t rows = static_cast<uint32_t>(std::clamp<uint64_t>(bytes / stride, kSmallRows, most));
    if (cached_ && rows > kWidthStep)
      rows = rows / kWidthStep * kWidthStep;  // whole tiles, as nearly all are
    MatMulPart parts[kCachedParts];
    const uint64_t count = cached_ ? kCachedParts : 1;
    for (uint64_t i = 0; i < count; ++i) {
      parts[i].weights = View(encoding, rows, config_.hidden, Place(rows * stride), stride);
      parts[i].y = {{y_, i * rows * tokens_ * sizeof(float)}, rows};
    }
    MatMulArgs args;
    args.x = {{x_, 0}, config_.hidden};
    args.tokens = tokens_;
    args.cols = config_.hidden;
    args.parts = {parts, count};
    RETURN_IF_ERROR(backend_->queue().MatMul(args));
    return count * rows * stride;
  }

  const MoeConfig& Mixture() const {
    return std::find_if(config_.layers.begin(), config_.layers.end(),
                        [](const LayerConfig& l) { return l.moe.experts > 0; })
        ->moe;
  }

  // Returns the bytes of an expert of `width` neurons.
  uint64_t ExpertBytes(uint32_t width) const {
    const ExpertPlan plan = PlanExpert(sizes_.expert_format, width, ExpertHidden(config_));
    uint64_t bytes = 0;
    for (uint32_t stream = 0; stream < plan.streams; ++stream)
      bytes += uint64_t{plan.stream_rows[stream]} * plan.stream_stride[stream];
    return bytes;
  }

  // Returns a part of the expert that begins at `place`, in the layout of a pack.
  WeightView PartView(Part part, uint32_t width, uint64_t place) const {
    const ExpertPlan plan = PlanExpert(sizes_.expert_format, width, ExpertHidden(config_));
    const PartLocation& within = plan.parts[static_cast<size_t>(part)];
    for (uint32_t stream = 0; stream < within.stream; ++stream)
      place += uint64_t{plan.stream_rows[stream]} * plan.stream_stride[stream];
    return View(sizes_.expert_format.parts[static_cast<size_t>(part)], within.rows, within.cols,
                place + within.base, within.stride);
  }

  // Computes one layer's experts of a token; returns their bytes.
  absl::StatusOr<uint64_t> Experts() {
    const MoeConfig& moe = Mixture();
    const uint64_t fitting =
        kCachedBytes * moe.expert_width / ExpertBytes(moe.expert_width) / kWidthStep * kWidthStep;
    const uint32_t width =
        cached_ ? std::min(moe.expert_width, std::max(kWidthStep, static_cast<uint32_t>(fitting)))
                : moe.expert_width;
    const uint64_t bytes = ExpertBytes(width);
    const uint32_t experts =
        cached_ ? moe.top_k
                : static_cast<uint32_t>(std::clamp<uint64_t>(bytes_ / (bytes + 64), 1, moe.top_k));
    if (bytes > bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("an expert of ", bytes, " bytes in ", bytes_));
    }
    std::vector<uint32_t> slots(uint64_t{experts} * rows_each_);
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<ExpertWork> work(experts);
    for (uint32_t e = 0; e < experts; ++e) {
      const uint64_t place = Place(bytes);
      work[e].up = PartView(Part::kUp, width, place);
      if (sizes_.expert_format.gates) work[e].gate = PartView(Part::kGate, width, place);
      work[e].down = PartView(Part::kDown, width, place);
      work[e].rows = expert_rows_;
      work[e].slots = absl::MakeConstSpan(slots).subspan(uint64_t{e} * rows_each_, rows_each_);
    }
    MoeExpertsArgs args;
    args.x = {{x_, 0}, ExpertHidden(config_)};
    args.tokens = cached_ ? rows_each_ : tokens_;  // rounded to top_k experts each, as in a step
    args.hidden = ExpertHidden(config_);
    args.experts = work;
    args.down_by_outputs = IsByOutputs(sizes_.expert_format.layout);
    args.y = {{y_, 0}, ExpertHidden(config_)};
    args.slots = static_cast<uint32_t>(slots.size());
    RETURN_IF_ERROR(backend_->queue().MoeExperts(args));
    return experts * bytes;
  }

  const ModelConfig& config_;
  const StoredSizes& sizes_;
  bool cached_ = false;  // reads the same few weights again and again
  uint32_t tokens_ = 1;
  uint32_t rows_each_ = 1;             // rows of each expert
  std::vector<uint32_t> expert_rows_;  // 0, 1, 2, ...
  SharedMemory region_;
  uint64_t bytes_ = 0;
  std::mt19937_64 random_{1};
  Spent dense_;
  Spent experts_;
  Spent small_;
  std::unique_ptr<Backend> backend_;
  BufferId weights_ = kNoBuffer;
  BufferId x_ = kNoBuffer;
  BufferId y_ = kNoBuffer;
};

}  // namespace

absl::StatusOr<KernelRates> MeasureKernels(const ModelConfig& config, const StoredSizes& sizes,
                                           uint32_t threads) {
  return Kernels(config, sizes).Measure(threads);
}

absl::StatusOr<ProductRates> MeasureProducts(const ModelConfig& config, const StoredSizes& sizes,
                                             uint32_t threads, uint32_t tokens, uint32_t rows_each) {
  return Kernels(config, sizes).MeasureCached(threads, tokens, rows_each);
}

// Measures the disk's rate with weightd's own reader and request pattern.

namespace {

constexpr uint64_t kDiskBlock = 4096;
constexpr uint64_t kScratchBytes = 256ull << 20;
constexpr uint64_t kLeastBytes = 2ull << 20;
// Larger extents are read in pieces anyway.
constexpr uint64_t kLargestRequest = 16ull << 20;
// Memory of the buffers, which are used in turn: a virtual disk copies faster into a few that stay in the
// cache.
constexpr uint64_t kBufferBytes = 64ull << 20;
constexpr absl::Duration kMeasure = absl::Milliseconds(600);

std::unique_ptr<weightd::BlockReader> MakeReader(const Clock* clock, bool direct) {
  const weightd::FileOpener opener = [direct](const std::string& path) {
    return weightd::OpenReadFile(path, direct);
  };
  absl::StatusOr<std::unique_ptr<weightd::ReadRing>> ring =
      weightd::MakeReadRing(weightd::UringReader::kDepth);
  if (ring.ok()) {
    weightd::UringReader::Options options;
    options.opener = opener;
    options.ring = *std::move(ring);
    options.clock = clock;
    return std::make_unique<weightd::UringReader>(std::move(options));
  }
  weightd::PreadReader::Options options;
  options.opener = opener;
  options.clock = clock;
  return std::make_unique<weightd::PreadReader>(std::move(options));
}

// Keeps a fixed number of requests in flight until the time is up.
class RandomReads {
 public:
  RandomReads(uint64_t file_bytes, uint64_t length)
      : file_bytes_(file_bytes), length_(length), reader_(MakeReader(&clock_, /*direct=*/true)) {}
  ~RandomReads() {
    reader_.reset();
    if (buffers_ != nullptr) munmap(buffers_, count_ * length_);
  }
  RandomReads(const RandomReads&) = delete;
  RandomReads& operator=(const RandomReads&) = delete;

  absl::StatusOr<double> Measure(const std::string& path) {
    count_ = std::max<uint64_t>(2, kBufferBytes / length_);
    void* buffers =
        mmap(nullptr, count_ * length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffers == MAP_FAILED)
      return ErrnoToStatus(errno, absl::StrCat("mapping ", count_ * length_, " bytes"));
    buffers_ = static_cast<std::byte*>(buffers);
    madvise(buffers_, count_ * length_, MADV_HUGEPAGE);
    std::fill(buffers_, buffers_ + count_ * length_, std::byte{1});
    reader_->SetSink([this](weightd::ReadResult result) {
      const MutexLock lock(&mutex_);
      if (!result.status.ok()) status_ = result.status;
      bytes_ += result.bytes_read;
      free_.push_back(result.tag);
      ended_.Signal();
    });
    ASSIGN_OR_RETURN(file_, reader_->Register(path));
    const absl::Time start = SteadyNow();
    for (uint64_t tag = 0; tag < count_; ++tag) Submit(tag);
    while (SteadyNow() < start + kMeasure) {
      ASSIGN_OR_RETURN(const uint64_t tag, Ended());
      Submit(tag);
    }
    for (uint64_t left = count_; left > 0; --left) RETURN_IF_ERROR(Ended().status());
    const MutexLock lock(&mutex_);
    return static_cast<double>(bytes_) / absl::ToDoubleSeconds(SteadyNow() - start);
  }

 private:
  void Submit(uint64_t tag) {
    weightd::ReadJob job;
    job.tag = tag;
    job.file = file_;
    job.offset = random_() % ((file_bytes_ - length_) / kDiskBlock + 1) * kDiskBlock;
    job.dest = buffers_ + tag * length_;
    job.length = length_;
    // A hash over the chunk costs as much as weightd's check of it.
    job.check = [](uint64_t at, std::span<const std::byte> bytes) {
      return ChunkChecksum(0, at, bytes) == 0 ? absl::DataLossError("a checksum of zero") : absl::OkStatus();
    };
    job.sole = true;
    job.past_cache = true;
    reader_->Submit(std::move(job));
  }

  absl::StatusOr<uint64_t> Ended() {
    const MutexLock lock(&mutex_);
    while (free_.empty()) ended_.Wait(&mutex_);
    RETURN_IF_ERROR(status_);
    const uint64_t tag = free_.front();
    free_.pop_front();
    return tag;
  }

  const uint64_t file_bytes_;
  const uint64_t length_;
  const MonotonicClock clock_;
  std::mt19937_64 random_{1};
  uint64_t count_ = 0;
  std::byte* buffers_ = nullptr;
  int file_ = 0;
  Mutex mutex_;
  CondVar ended_;
  std::deque<uint64_t> free_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<weightd::BlockReader> reader_;  // last: its threads use the members above
};

}  // namespace

absl::StatusOr<double> MeasureDisk(const std::string& path, uint64_t read_bytes) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoToStatus(errno, path);
  const uint64_t bytes = static_cast<uint64_t>(info.st_size);
  if (bytes < kLeastBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes, " bytes are too few to measure a disk by"));
  }
  const uint64_t most = std::min(kLargestRequest, bytes / 2);
  const uint64_t length = std::clamp(read_bytes, kDiskBlock, most) / kDiskBlock * kDiskBlock;
  return RandomReads(bytes, length).Measure(path);
}

absl::StatusOr<double> MeasureFolder(const std::string& folder, uint64_t read_bytes) {
  std::string path = absl::StrCat(folder, "/.sluice-plan-XXXXXX");
  const UniqueFd fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) return ErrnoToStatus(errno, absl::StrCat("making a file in ", folder));
  const absl::Cleanup remove = [&path] { unlink(path.c_str()); };
  std::vector<uint64_t> noise((4 << 20) / sizeof(uint64_t));
  std::mt19937_64 random(1);
  for (uint64_t at = 0; at < kScratchBytes; at += 4 << 20) {
    for (uint64_t& word : noise) word = random();
    if (pwrite(fd.get(), noise.data(), 4 << 20, static_cast<off_t>(at)) != 4 << 20) {
      return ErrnoToStatus(errno == 0 ? ENOSPC : errno,
                           absl::StrCat("writing ", kScratchBytes, " bytes in ", folder));
    }
  }
  if (fdatasync(fd.get()) != 0) return ErrnoToStatus(errno, path);
  return MeasureDisk(path, read_bytes);
}

}  // namespace sluice::cli
