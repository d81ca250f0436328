// The small language of the kernel tests: backends by name, matrices in every encoding, random values with
// fixed seeds, and results fetched as vectors.
//
// Thread safety: for single-threaded tests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace sluice {

// A backend to test: a device, an instruction set, a number of threads.
struct BackendCase {
  std::string name;  // "reference", "avx2_t1", "avx512_t3"
  bool reference = false;
  CpuIsa isa = CpuIsa::kBest;
  uint32_t threads = 1;
  bool delayed = false;  // wrapped, so that it computes later
  int capability = 0;    // compute capability of a GPU, 80 for 8.0; 0: none
  uint64_t seed = 0;     // seed of the fake CUDA library
  uint32_t every = 1;    // runs one in `every` of a body's cases, since interpreted kernels are slow
};

// Counts a body's cases; the cases that a backend leaves out depend on the seed.
class CaseCounter {
 public:
  explicit CaseCounter(const BackendCase& which) : which_(which) {}
  bool LeavesOut() { return count_++ % which_.every != which_.seed % which_.every; }

 private:
  const BackendCase& which_;
  uint32_t count_ = 0;
};

// The backends of this binary's tests. host_backends.cc: the reference, and the host backend with every
// instruction set that this CPU has, on 1, 2 and 3 threads. tests/cuda_fake/tests/cuda_backends.cc: device
// cuda on the fake.
std::vector<BackendCase> AllBackends();
// AllBackends(), and the reference as a device that computes later.
std::vector<BackendCase> BackendsAndDelayed();
std::string CaseName(const testing::TestParamInfo<BackendCase>& info);
std::unique_ptr<Backend> MakeBackend(const BackendCase& which, const BackendLimits& limits);

// Limits large enough for every op test.
BackendLimits TestLimits();

// Every encoding, quantized ones with groups that fill whole blocks of codes and groups that do not, with f16
// scales and with 8-bit ones in super-groups, and block encodings.
std::vector<EncodingDescriptor> AllEncodings();
std::vector<Encoding> BlockEncodings();
// Only device host computes with them.
std::vector<Encoding> FileBlockEncodings();
// The encoding of down rows beside others of `d`: `d`, but q8 instead of block encodings, which cannot be
// summed.
EncodingDescriptor DownEncoding(const EncodingDescriptor& d);
std::string EncodingLabel(const EncodingDescriptor& d);

// A matrix in some encoding: its bytes, and what they decode to.
struct EncodedMatrix {
  EncodingDescriptor encoding;
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint64_t stride = 0;
  std::vector<uint8_t> bytes;
  std::vector<double> values;  // [rows, cols], exactly the decoded bytes
  double At(uint32_t r, uint32_t c) const { return values[uint64_t{r} * cols + c]; }
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  float Uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }
  float Normal(float sigma = 1.0f) { return std::normal_distribution<float>(0, sigma)(engine_); }
  uint32_t Below(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(engine_); }
  std::vector<float> Normals(size_t n, float sigma = 1.0f);
  // Random weights of about 1/sqrt(cols); stride = the row's bytes + padding.
  EncodedMatrix Matrix(const EncodingDescriptor& d, uint32_t rows, uint32_t cols, uint32_t padding = 0);

 private:
  std::mt19937_64 engine_;
};

// Bytes that end where an unreadable page begins.
class GuardedBytes {
 public:
  GuardedBytes(const void* data, uint64_t bytes);
  ~GuardedBytes();
  GuardedBytes(GuardedBytes&& other) noexcept;
  GuardedBytes& operator=(GuardedBytes&&) = delete;
  const std::byte* data() const { return data_; }

 private:
  void* mapping_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
};

// One backend with helpers to place and fetch data. Buffers live as long as the bench does.
class OpBench {
 public:
  explicit OpBench(const BackendCase& which, const BackendLimits& limits = TestLimits());
  Backend& backend() { return *backend_; }
  Queue& queue() { return backend_->queue(); }

  // Read-only input whose last byte lies before an unreadable page: reading beyond it ends the test. So the
  // address is only aligned as the size is.
  BufferRef Put(const void* data, uint64_t bytes);
  BufferRef PutFloats(const std::vector<float>& values);
  Rows PutRows(const std::vector<float>& values, uint64_t cols);
  // A list for a call, which ends before an unreadable page too.
  absl::Span<const int32_t> PutInts(const std::vector<int32_t>& values);
  WeightView PutMatrix(const EncodedMatrix& matrix);
  // A writable copy.
  BufferRef PutWritable(const std::vector<float>& values);
  // Memory for floats, filled with a value that no operation returns, so that gaps show.
  Rows NewRows(uint64_t count, uint64_t cols, uint64_t stride = 0);
  BufferRef NewWords(uint64_t count);

  std::vector<float> Floats(BufferRef ref, uint64_t count);
  std::vector<float> GetRows(const Rows& rows, uint64_t count, uint64_t cols);
  std::vector<int32_t> Ints(BufferRef ref, uint64_t count);

 private:
  std::vector<GuardedBytes> inputs_;
  std::unique_ptr<Backend> backend_;
};

// The arrays of data/family_goldens.txt, computed by another implementation (make_family_goldens.py).
class Goldens {
 public:
  Goldens();
  // Fails the test and returns an empty array if there is no such array.
  const std::vector<float>& Floats(const std::string& name) const;
  std::vector<int32_t> Ints(const std::string& name) const;

 private:
  std::map<std::string, std::vector<float>> arrays_;
};

inline constexpr float kUntouched = -12345.75f;

// Succeeds if all bits are equal.
testing::AssertionResult BitEqual(const std::vector<float>& a, const std::vector<float>& b);

// Unit roundoff of float32.
inline constexpr double kRoundoff = 0x1p-24;

}  // namespace sluice
