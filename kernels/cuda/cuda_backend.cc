#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <variant>

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_status.h"

namespace sluice {
namespace {

using cuda::StatusOf;

constexpr int kOldestMajor = 7;
constexpr int kOldestMinor = 5;

class CudaBackend final : public Backend, public Queue {
 public:
  CudaBackend(std::unique_ptr<cuda::Device> device, std::string name, HandleKind shared)
      : device_(std::move(device)), name_(std::move(name)), memory_(shared), scratch_(device_->limits) {
    scratch_.keeps_numbered = true;
    CountProducts();
  }
  ~CudaBackend() override;

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override {
    return memory_.Allocate(bytes, kind, device_->stream);
  }
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override {
    return memory_.AllocateShared(bytes, device_->stream);
  }
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override {
    return memory_.Import(memory);
  }
  absl::Status Free(BufferId buffer) override;
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override { return memory_.HostRead(ref, bytes); }
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override { return memory_.HostWrite(ref, bytes); }
  Queue& queue() override { return *this; }
  void BeginStep() override {}
  void EndStep() override {}
  BackendCounters Counters() const override;
  std::string Describe() const override { return name_; }

  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override;
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override;
  absl::Status Enqueue(const Operation& operation) override;
  bool RunsAtCall() const override { return false; }
  absl::Status BeginGraph() override;
  absl::Status EndGraph() override;
  Event Record() override;
  bool IsDone(Event event) override;
  absl::Status Wait(Event event) override;
  absl::StatusOr<double> Seconds(Event from, Event to) override;

 private:
  // A point in the queue, by its value modulo kPoints; its events are made when they are first wanted. Points
  // that were handed over together are done together: the last one's event stands for all.
  struct Point {
    cudaEvent_t end = nullptr;
    uint64_t with = 0;            // the point whose `end` says that this one is done
    cudaEvent_t begin = nullptr;  // before the first operation since the point before
    bool begun = false;
  };
  static constexpr uint64_t kPoints = kTimedEvents + 1;  // the timed ones, and the next
  Point& PointAt(uint64_t value) { return points_[value % kPoints]; }
  // Records `event`, made first if there is none. Where that fails the device has failed, as Wait() will say.
  void RecordInto(cudaEvent_t* event) {
    if (*event != nullptr || cudaEventCreate(event) == cudaSuccess) {
      cudaEventRecord(*event, device_->stream);
    }
  }
  // The last point that is done when this one is; REQUIRES: handed over.
  uint64_t LastWith(uint64_t value) { return PointAt(value).with; }
  cudaEvent_t EndOf(uint64_t value) { return PointAt(LastWith(value)).end; }
  // Enqueues what is kept, and the points in it. An error is also Wait()'s from here on.
  absl::Status HandOver();
  // Makes the place of the next point free, which may wait for the one that had it long ago.
  void FreeNext();
  // Begins the time of the point's operations, unless it has begun.
  void Begin(uint64_t value);
  // The first error is what Wait() returns.
  void NoteError(const absl::Status& status) {
    if (error_.ok()) {
      error_ = status;
    }
  }
  // Everything up to this point has run: counts the time of its operations.
  void LearnDone(uint64_t value);
  // True if a library computes a part of the call: its work cannot be kept.
  bool WantsLibrary(const MatMulCall& call) const {
    return device_->fast != nullptr && call.tokens >= cuda::kLeastFastRows &&
           std::any_of(call.parts, call.parts + call.part_count,
                       [&](const MatMulCallPart& part) { return device_->fast->Takes(part.weights); });
  }
  template <typename Call>
  bool WantsLibrary(const Call&) const {
    return false;
  }
  void CountProducts() {
    if (device_->fast != nullptr) {
      library_products_.store(device_->fast->calls(), std::memory_order_relaxed);
    }
  }
  absl::Status Synchronize() {
    RETURN_IF_ERROR(HandOver());
    return StatusOf(cudaStreamSynchronize(device_->stream), "waiting for the GPU");
  }

  std::unique_ptr<cuda::Device> device_;
  const std::string name_;
  cuda::Memory memory_;
  CallScratch scratch_;
  // Written by the owner thread alone.
  std::atomic<double> kernel_seconds_{0};
  std::atomic<uint64_t> waits_{0};
  std::atomic<uint64_t> kernels_{0};
  std::atomic<uint64_t> graph_launches_{0};
  std::atomic<uint64_t> graphs_made_{0};
  std::atomic<uint64_t> graphs_updated_{0};
  std::atomic<uint64_t> library_products_{0};
  std::array<Point, kPoints> points_;
  uint64_t recorded_ = 0;
  uint64_t handed_over_ = 0;  // points; those behind it are kept
  bool keeps_ = false;        // between BeginGraph() and EndGraph()
  uint64_t done_ = 0;
  absl::Status error_;  // the first of enqueued work
};

// Kept launches have no owner any more.
CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(device_->stream);
  for (const Point& point : points_) {
    for (const cudaEvent_t event : {point.end, point.begin}) {
      if (event != nullptr) {
        cudaEventDestroy(event);
      }
    }
  }
}

BackendCounters CudaBackend::Counters() const {
  BackendCounters counters;
  counters.kernel_seconds = kernel_seconds_.load(std::memory_order_relaxed);
  counters.waits = waits_.load(std::memory_order_relaxed);
  counters.kernels = kernels_.load(std::memory_order_relaxed);
  counters.graph_launches = graph_launches_.load(std::memory_order_relaxed);
  counters.graphs_made = graphs_made_.load(std::memory_order_relaxed);
  counters.graphs_updated = graphs_updated_.load(std::memory_order_relaxed);
  counters.library_products = library_products_.load(std::memory_order_relaxed);
  return counters;
}

absl::Status CudaBackend::Free(BufferId buffer) {
  RETURN_IF_ERROR(Synchronize());
  scratch_.numbered.clear();
  device_->numbered.clear();
  device_->tables->Forget();
  return memory_.Free(buffer);
}

absl::Status CudaBackend::Upload(const void* source, uint64_t bytes, BufferRef destination) {
  std::byte* const place = memory_.Write(destination, bytes);
  if (place == nullptr) {
    return memory_.Explain(destination, bytes, true, "upload");
  }
  if (bytes == 0) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(HandOver());
  if (memory_.HostWrite(destination, bytes) != nullptr) {
    RETURN_IF_ERROR(Synchronize());  // a copy within host memory does not wait for the stream
  }
  RETURN_IF_ERROR(
      StatusOf(cudaMemcpyAsync(place, source, bytes, cudaMemcpyDefault, device_->stream), "upload"));
  // The copy has taken pageable memory when the call returns; pinned memory it has not.
  return memory_.IsPinned(source, bytes) ? Synchronize() : absl::OkStatus();
}

absl::Status CudaBackend::Download(BufferRef source, uint64_t bytes, void* destination) {
  const std::byte* const place = memory_.Read(source, bytes);
  if (place == nullptr) {
    return memory_.Explain(source, bytes, false, "download");
  }
  if (bytes == 0) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(HandOver());
  if (memory_.HostRead(source, bytes) != nullptr) {
    RETURN_IF_ERROR(Synchronize());
  }
  return StatusOf(cudaMemcpyAsync(destination, place, bytes, cudaMemcpyDefault, device_->stream), "download");
}

absl::Status CudaBackend::Enqueue(const Operation& operation) {
  return std::visit(
      [&](const auto* args) -> absl::Status {
        const Resolver resolver(memory_, device_->limits, scratch_, NameOf(*args), /*file_blocks=*/false);
        const auto call = Resolve(resolver, *args);
        if (!call.ok()) {
          return call.status();
        }
        FreeNext();
        if (keeps_ && WantsLibrary(*call)) {
          RETURN_IF_ERROR(EndGraph());  // the rest of the step is launched as it comes
        }
        if (!keeps_) {
          Begin(recorded_ + 1);
        } else if (!device_->tables->HasRoom()) {
          RETURN_IF_ERROR(HandOver());
        }
        const absl::Status status = cuda::Run(*device_, *call);
        kernels_.store(device_->launcher.launched(), std::memory_order_relaxed);
        CountProducts();
        return status;
      },
      operation);
}

absl::Status CudaBackend::BeginGraph() {
  if (!keeps_) {
    device_->KeepLaunches(keeps_ = true);
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::EndGraph() {
  if (!keeps_) {
    return absl::OkStatus();
  }
  const absl::Status status = HandOver();
  device_->KeepLaunches(keeps_ = false);
  return status;
}

// Their time is that of the first point among them, or of the next one: what comes before is timed already.
absl::Status CudaBackend::HandOver() {
  if (device_->graph->empty()) {
    return device_->tables->SendKept();  // of calls that came to nothing
  }
  Begin(handed_over_ + 1);
  const absl::Status status = device_->HandOver();
  if (handed_over_ < recorded_) {
    while (handed_over_ < recorded_) {
      PointAt(++handed_over_).with = recorded_;
    }
    RecordInto(&PointAt(recorded_).end);
  }
  const cuda::StepGraph::Counters& counters = device_->graph->counters();
  graph_launches_.store(counters.launches, std::memory_order_relaxed);
  graphs_made_.store(counters.made, std::memory_order_relaxed);
  graphs_updated_.store(counters.updated, std::memory_order_relaxed);
  NoteError(status);
  return status;
}

void CudaBackend::Begin(uint64_t value) {
  if (Point& point = PointAt(value); !point.begun) {
    RecordInto(&point.begin);
    point.begun = true;
  }
}

void CudaBackend::FreeNext() {
  if (recorded_ + 1 > kPoints && done_ < recorded_ + 1 - kPoints) {
    const uint64_t old = recorded_ + 1 - kPoints;
    if (old > handed_over_) {
      HandOver().IgnoreError();  // Wait() says it
    }
    cudaEventSynchronize(EndOf(old));
    LearnDone(LastWith(old));
  }
}

void CudaBackend::LearnDone(uint64_t value) {
  for (; done_ < value; ++done_) {
    Point& point = PointAt(done_ + 1);
    float milliseconds = 0;
    if (std::exchange(point.begun, false) &&
        cudaEventElapsedTime(&milliseconds, point.begin, EndOf(done_ + 1)) == cudaSuccess) {
      kernel_seconds_.store(kernel_seconds_.load(std::memory_order_relaxed) + double{milliseconds} * 1e-3,
                            std::memory_order_relaxed);
    }
  }
}

Event CudaBackend::Record() {
  FreeNext();
  Point& point = PointAt(++recorded_);
  if (device_->graph->empty()) {
    point.with = handed_over_ = recorded_;
    RecordInto(&point.end);
  }
  return {recorded_};
}

bool CudaBackend::IsDone(Event event) {
  if (event.value <= done_) {
    return true;
  }
  if (event.value > recorded_) {
    return false;
  }
  if (event.value > handed_over_) {
    HandOver().IgnoreError();  // Wait() says it
  }
  if (cudaEventQuery(EndOf(event.value)) != cudaSuccess) {
    return false;
  }
  LearnDone(LastWith(event.value));  // and all before it: there is one stream
  return true;
}

absl::Status CudaBackend::Wait(Event event) {
  if (event.value > recorded_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a wait for point ", event.value, " of ", recorded_, ": it was never recorded"));
  }
  if (event.value > done_) {
    waits_.fetch_add(1, std::memory_order_relaxed);
    if (event.value > handed_over_) {
      HandOver().IgnoreError();  // said below
    }
    const absl::Status waited = StatusOf(cudaEventSynchronize(EndOf(event.value)), "waiting for the GPU");
    if (waited.ok()) {
      LearnDone(LastWith(event.value));
    }
    NoteError(waited);
  }
  return error_;
}

absl::StatusOr<double> CudaBackend::Seconds(Event from, Event to) {
  if (from.value == 0 || from.value > to.value || to.value > recorded_ ||
      from.value + kTimedEvents <= recorded_) {
    return absl::OutOfRangeError(absl::StrCat("no times of the points ", from.value, " and ", to.value,
                                              ": known are the last ", kTimedEvents, " of ", recorded_));
  }
  if (!IsDone(to)) {
    return absl::FailedPreconditionError(absl::StrCat("point ", to.value, " is not done"));
  }
  float milliseconds = 0;
  RETURN_IF_ERROR(StatusOf(cudaEventElapsedTime(&milliseconds, EndOf(from.value), EndOf(to.value)),
                           "the time between two points"));
  return double{milliseconds} * 1e-3;
}

// Sets up the products of `limits.prefill_math`. Returns what Describe() says of them.
absl::StatusOr<std::string> SetUpProducts(const BackendLimits& limits, cuda::Device* device) {
  if (limits.prefill_math == PrefillMath::kExact) {
    return std::string("prefill math exact");
  }
  auto fast = cuda::FastProducts::Create(limits.dense_shapes, limits.max_tokens, device->stream);
  if (fast.ok()) {
    device->fast = *std::move(fast);
    return absl::StrCat("prefill math fast (", device->fast->Describe(), ")");
  }
  if (limits.prefill_math == PrefillMath::kFast) {
    return Annotate(fast.status(), "prefill math fast");
  }
  return absl::StrCat("prefill math exact (auto: ", fast.status().message(), ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendLimits& limits) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device cuda: no GPU (", found == cudaSuccess ? "the driver has none" : cudaGetErrorString(found),
        "); nvidia-smi -L lists what the driver sees"));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(StatusOf(cudaGetDeviceProperties(&properties, 0), "properties of the GPU"));
  if (std::pair(properties.major, properties.minor) < std::pair(kOldestMajor, kOldestMinor)) {
    return absl::FailedPreconditionError(absl::StrCat("device cuda: ", properties.name,
                                                      " is of compute capability ", properties.major, ".",
                                                      properties.minor, ", 7.5 is the oldest"));
  }
  RETURN_IF_ERROR(StatusOf(cudaSetDevice(0), properties.name));
  auto device = cuda::CreateDevice(limits);
  if (!device.ok()) {
    return Annotate(device.status(), "device cuda");
  }
  const absl::StatusOr<HandleKind> shared = cuda::SharedKindOf(0, limits.shared_handle);
  if (!shared.ok()) {
    return Annotate(shared.status(), "device cuda");
  }
  const absl::StatusOr<std::string> products = SetUpProducts(limits, device->get());
  if (!products.ok()) {
    return Annotate(products.status(), "device cuda");
  }
  return std::make_unique<CudaBackend>(
      *std::move(device),
      absl::StrCat("device cuda, ", properties.name, ", compute capability ", properties.major, ".",
                   properties.minor, ", ", properties.totalGlobalMem >> 20, " MiB, slabs shared by ",
                   NameOf(*shared), ", ", *products),
      *shared);
}

}  // namespace sluice
