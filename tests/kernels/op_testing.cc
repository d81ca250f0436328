#include "tests/kernels/op_testing.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/pack/row_layout.h"
#include "kernels/common/half.h"
#include "kernels/common/resolve.h"

namespace sluice {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace

std::vector<BackendCase> AllBackends() {
  std::vector<BackendCase> cases = {{"reference", true, HostIsa::kBest, 1}};
  for (const uint32_t threads : {1u, 2u, 3u}) {
    // Under a sanitizer one thread count for each instruction set says as much, in a third of the time.
    if (HostIsaSupported(HostIsa::kAvx2) && (!kSanitized || threads == 3)) {
      cases.push_back({"avx2_t" + std::to_string(threads), false, HostIsa::kAvx2, threads});
    }
    if (HostIsaSupported(HostIsa::kAvx512) && (!kSanitized || threads == 2)) {
      cases.push_back({"avx512_t" + std::to_string(threads), false, HostIsa::kAvx512, threads});
    }
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<BackendCase>& info) { return info.param.name; }

std::unique_ptr<Backend> MakeBackend(const BackendCase& which, const BackendLimits& limits) {
  auto backend =
      which.reference ? CreateReferenceBackend(limits) : CreateHostBackend(limits, which.threads, which.isa);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

BackendLimits TestLimits() {
  BackendLimits limits;
  limits.max_tokens = 96;
  limits.max_sequences = 16;
  limits.max_cols = 1100;
  limits.hidden = 640;
  limits.heads = 16;
  limits.head_dim = 128;
  limits.max_context = 2048;
  limits.experts = 64;
  limits.top_k = 8;
  limits.expert_width = 400;
  limits.vocab = 5000;
  return limits;
}

std::vector<EncodingDescriptor> AllEncodings() {
  return {MakeDescriptor(Encoding::kBf16),   MakeDescriptor(Encoding::kF16),
          MakeDescriptor(Encoding::kF32),    MakeDescriptor(Encoding::kQ8, 16),
          MakeDescriptor(Encoding::kQ8, 64), MakeDescriptor(Encoding::kQ8, 128)};
}

std::string EncodingLabel(const EncodingDescriptor& d) {
  return std::string(EncodingWord(d.encoding)) + (d.group != 0 ? "_g" + std::to_string(d.group) : "");
}

std::vector<float> Random::Normals(size_t n, float sigma) {
  std::vector<float> values(n);
  for (float& value : values) {
    value = Normal(sigma);
  }
  return values;
}

namespace {

void PutU16(uint8_t* place, uint16_t value) { std::memcpy(place, &value, sizeof value); }

// Encodes one plain row; returns nothing in `values` but what the bytes say.
void EncodePlain(Random& random, EncodedMatrix* m, uint32_t r, float sigma) {
  uint8_t* row = m->bytes.data() + r * m->stride;
  for (uint32_t c = 0; c < m->cols; ++c) {
    const float value = random.Normal(sigma);
    double& out = m->values[uint64_t{r} * m->cols + c];
    if (m->encoding.encoding == Encoding::kBf16) {
      PutU16(row + 2 * c, FloatToBf16(value));
      out = Bf16ToFloat(FloatToBf16(value));
    } else if (m->encoding.encoding == Encoding::kF16) {
      PutU16(row + 2 * c, FloatToF16(value));
      out = F16ToFloat(FloatToF16(value));
    } else {
      std::memcpy(row + 4 * c, &value, sizeof value);
      out = value;
    }
  }
}

void EncodeQuantized(Random& random, EncodedMatrix* m, uint32_t r, float sigma) {
  const EncodingDescriptor& d = m->encoding;
  uint8_t* row = m->bytes.data() + r * m->stride;
  const uint32_t bits = BitsOf(d.encoding);
  const float levels = static_cast<float>((1u << bits) - 1);
  for (uint32_t g = 0; g < GroupsPerRow(d, m->cols); ++g) {
    const uint16_t scale = FloatToF16(6 * sigma / levels * random.Uniform(0.5f, 1.0f));
    const uint16_t zero = FloatToF16(levels / 2 + random.Uniform(-8.0f, 8.0f));
    PutU16(row + ScaleOffset(d, m->cols) + 2 * g, scale);
    PutU16(row + ZeroOffset(d, m->cols) + 2 * g, zero);
    for (uint32_t c = g * d.group; c < std::min(m->cols, (g + 1) * d.group); ++c) {
      const uint32_t code = random.Below(1u << bits);
      const CodePlace place = PlaceOfCode(bits, c);
      PutU16(row + place.byte_offset,
             static_cast<uint16_t>(LoadU16(row + place.byte_offset) | (code << place.shift)));
      m->values[uint64_t{r} * m->cols + c] =
          (static_cast<double>(code) - F16ToFloat(zero)) * static_cast<double>(F16ToFloat(scale));
    }
  }
}

}  // namespace

EncodedMatrix Random::Matrix(const EncodingDescriptor& d, uint32_t rows, uint32_t cols, uint32_t padding) {
  EncodedMatrix m;
  m.encoding = d;
  m.rows = rows;
  m.cols = cols;
  m.stride = RowBytes(d, cols) + padding;
  m.bytes.assign(m.stride * (rows - 1) + RowBytes(d, cols), 0);
  m.values.resize(uint64_t{rows} * cols);
  const float sigma = 1.0f / std::sqrt(static_cast<float>(cols));
  for (uint32_t r = 0; r < rows; ++r) {
    if (IsQuantized(d.encoding)) {
      EncodeQuantized(*this, &m, r, sigma);
    } else {
      EncodePlain(*this, &m, r, sigma);
    }
  }
  return m;
}

OpBench::OpBench(const BackendCase& which, const BackendLimits& limits)
    : backend_(MakeBackend(which, limits)) {}

GuardedBytes::GuardedBytes(const void* data, uint64_t bytes) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t readable = AlignUp(bytes, page);
  mapped_bytes_ = readable + page;
  mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(mapping_, MAP_FAILED);
  data_ = static_cast<std::byte*>(mapping_) + (readable - bytes);
  std::memcpy(data_, data, bytes);
  EXPECT_EQ(mprotect(static_cast<std::byte*>(mapping_) + readable, page, PROT_NONE), 0);
}

GuardedBytes::~GuardedBytes() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapped_bytes_);
  }
}

GuardedBytes::GuardedBytes(GuardedBytes&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      data_(other.data_) {}

BufferRef OpBench::Put(const void* data, uint64_t bytes) {
  inputs_.emplace_back(data, bytes);
  ImportSpec spec;
  spec.base = inputs_.back().data();
  spec.bytes = bytes;
  auto buffer = backend_->Import(spec);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return {buffer.value_or(kNoBuffer), 0};
}

BufferRef OpBench::PutFloats(const std::vector<float>& values) {
  return Put(values.data(), values.size() * 4);
}

Rows OpBench::PutRows(const std::vector<float>& values, uint64_t cols) { return {PutFloats(values), cols}; }

BufferRef OpBench::PutInts(const std::vector<int32_t>& values) {
  return Put(values.data(), values.size() * 4);
}

WeightView OpBench::PutMatrix(const EncodedMatrix& m) {
  WeightView view;
  view.encoding = m.encoding;
  view.base = Put(m.bytes.data(), m.bytes.size());
  view.stride = m.stride;
  view.rows = m.rows;
  view.cols = m.cols;
  return view;
}

BufferRef OpBench::PutWritable(const std::vector<float>& values) {
  auto buffer = backend_->Allocate(values.size() * 4, BufferKind::kActivations);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  const BufferRef ref{buffer.value_or(kNoBuffer), 0};
  EXPECT_TRUE(queue().Upload(values.data(), values.size() * 4, ref).ok());
  return ref;
}

Rows OpBench::NewRows(uint64_t count, uint64_t cols, uint64_t stride) {
  stride = stride == 0 ? cols : stride;
  return {PutWritable(std::vector<float>(count * stride, kUntouched)), stride};
}

BufferRef OpBench::NewWords(uint64_t count) { return PutWritable(std::vector<float>(count, kUntouched)); }

std::vector<float> OpBench::Floats(BufferRef ref, uint64_t count) {
  std::vector<float> out(count);
  EXPECT_TRUE(queue().Download(ref, count * 4, out.data()).ok());
  return out;
}

std::vector<float> OpBench::GetRows(const Rows& rows, uint64_t count, uint64_t cols) {
  std::vector<float> out(count * cols);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(queue().Download(rows.base + i * rows.stride * 4, cols * 4, out.data() + i * cols).ok());
  }
  return out;
}

std::vector<int32_t> OpBench::Ints(BufferRef ref, uint64_t count) {
  std::vector<int32_t> out(count);
  EXPECT_TRUE(queue().Download(ref, count * 4, out.data()).ok());
  return out;
}

testing::AssertionResult BitEqual(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) {
    return testing::AssertionFailure() << a.size() << " values against " << b.size();
  }
  size_t different = 0;
  size_t first = 0;
  for (size_t i = a.size(); i-- > 0;) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      ++different;
      first = i;
    }
  }
  if (different == 0) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << different << " of " << a.size() << " values differ, the first at "
                                     << first << ": " << std::hexfloat << a[first] << " and " << b[first];
}

}  // namespace sluice
