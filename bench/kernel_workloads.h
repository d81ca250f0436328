// Workloads of kernel_bench: passes over a mapping of weights, and the read bandwidth as their baseline.
//
// Thread safety: for one thread, which is worker 0 of the inner pools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "pack/row_layout.h"

namespace sluice::bench {

struct KernelBenchOptions {
  uint64_t size = uint64_t{1} << 30;          // of the mapping
  uint64_t pass_bytes = uint64_t{256} << 20;  // approximate bytes of one pass
  uint32_t threads = 0;                       // 0: the CPUs in the affinity mask
};

struct KernelShape {
  const char* name;
  uint32_t hidden;
  uint32_t width;
  uint32_t top_k;
};
inline constexpr KernelShape kKernelShapes[] = {{"mixtral", 4096, 14336, 2}, {"qwen3", 2048, 768, 8}};

// bf16 first, as prefill is compared with it. Suffix "s": 8-bit scales and zeros in super-groups.
struct KernelEncoding {
  const char* name;
  EncodingDescriptor descriptor;
};
inline constexpr KernelEncoding kKernelEncodings[] = {
    {"bf16", MakeDescriptor(Encoding::kBf16)},   {"q8", MakeDescriptor(Encoding::kQ8)},
    {"q4", MakeDescriptor(Encoding::kQ4)},       {"q3", MakeDescriptor(Encoding::kQ3)},
    {"q2", MakeDescriptor(Encoding::kQ2)},       {"q2g16", MakeDescriptor(Encoding::kQ2, 16)},
    {"mxfp4", MakeDescriptor(Encoding::kMxfp4)}, {"q4s", {Encoding::kQ4, 8, 64, 64}},
    {"q2g16s", {Encoding::kQ2, 8, 16, 256}},     {"q4_0", MakeDescriptor(blocks::kQ4_0)},
    {"q8_0", MakeDescriptor(blocks::kQ8_0)},     {"q5_0", MakeDescriptor(blocks::kQ5_0)},
    {"q4_k", MakeDescriptor(blocks::kQ4_K)},     {"q5_k", MakeDescriptor(blocks::kQ5_K)},
    {"q6_k", MakeDescriptor(blocks::kQ6_K)},     {"iq4_nl", MakeDescriptor(blocks::kIq4Nl)}};

struct Pass {
  double bytes = 0;  // whole cache lines
  double seconds = 0;
};

struct KernelWorkload {
  std::string shape;
  std::string encoding;
  std::string kind;
  std::function<Pass()> pass;
  std::function<double()> cached;  // bytes per second of one thread in the cache; may be empty
};

// Prints the error and ends the program.
void Check(const absl::Status& status);

// Returns the cycles per second, measured by a chain of multiplications.
double MeasureClock();

class KernelBench {
 public:
  KernelBench(const KernelBenchOptions& options, const std::byte* weights, CpuIsa isa);

  std::string Describe() const { return backend_->Describe(); }
  uint32_t threads() const { return pool_->threads(); }
  // `kind`: rows, down or expert.
  KernelWorkload Workload(const KernelShape& shape, const KernelEncoding& encoding, const std::string& kind);
  // Returns the bytes per second that the threads read; each call uses the next part of the mapping.
  double Base();
  // Returns multiply-adds per second, the best of some rounds.
  double PrefillMatMul(const KernelEncoding& encoding, uint32_t rounds);
  double PrefillExperts(const KernelEncoding& encoding, uint32_t rounds);
  void PrintForkJoin();

 private:
  BufferRef Activations(uint64_t floats);
  WeightView View(const EncodingDescriptor& d, uint64_t offset, uint32_t rows, uint32_t cols) const;
  // Returns the beginning of the next pass over `bytes`.
  uint64_t NextPlace(uint64_t bytes);
  Pass RowsPass(const EncodingDescriptor& d, uint32_t cols);
  Pass DownPass(const EncodingDescriptor& d, uint32_t cols);
  Pass ExpertPass(const KernelShape& shape, const EncodingDescriptor& d, const std::vector<uint64_t>& order,
                  uint64_t* next);
  double CachedSpeed(const EncodingDescriptor& d, uint32_t cols, bool down);
  // Adds one block of at most 64 rows from `place` on, by worker `worker`. With quantized rows, `fetch`
  // continues meanwhile.
  void DownBlock(const EncodingDescriptor& d, uint32_t cols, const uint8_t* place, uint32_t worker,
                 cpu::RowFetch* fetch);
  void RunExperts(const uint64_t* order, uint32_t experts, uint32_t tokens, const EncodingDescriptor& d,
                  uint32_t hidden, uint32_t width);

  const KernelBenchOptions options_;
  const std::byte* const weights_;
  const CpuIsa isa_;
  const cpu::MemoryTuning tuning_ = cpu::TuningOfThisCpu();  // kept, as querying takes longer than a block
  const cpu::KernelTable* table_ = nullptr;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ThreadPool> pool_;  // for work that no operation covers
  BufferId imported_ = kNoBuffer;
  BufferRef x_, y_;
  uint64_t place_ = 0;
  std::vector<float> coefficients_;
  std::vector<std::vector<float>> sums_;        // by worker
  std::vector<std::vector<uint32_t>> scratch_;  // by worker
};

}  // namespace sluice::bench
