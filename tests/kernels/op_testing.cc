#include "tests/kernels/op_testing.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "kernels/scalar_math.h"
#include "pack/pack_format.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"

namespace sluice {
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
  limits.index_heads = 66;
  limits.chosen_lists = 4;
  return limits;
}

std::vector<EncodingDescriptor> AllEncodings() {
  std::vector<EncodingDescriptor> all = {MakeDescriptor(Encoding::kBf16), MakeDescriptor(Encoding::kF16),
                                         MakeDescriptor(Encoding::kF32), MakeDescriptor(Encoding::kMxfp4)};
  const std::vector<std::pair<Encoding, std::vector<uint16_t>>> quantized = {
      {Encoding::kQ8, {16, 48, 64, 128}},
      {Encoding::kQ4, {16, 32, 64, 80, 128}},
      {Encoding::kQ3, {16, 64, 112, 128}},
      {Encoding::kQ2, {16, 32, 64, 96, 128}}};
  for (const auto& [encoding, groups] : quantized) {
    for (const uint16_t group : groups) {
      all.push_back(MakeDescriptor(encoding, group));
    }
  }
  all.push_back({Encoding::kQ8, 8, 64, 3});
  all.push_back({Encoding::kQ4, 8, 64, 16});
  all.push_back({Encoding::kQ3, 8, 32, 5});
  all.push_back({Encoding::kQ2, 8, 16, 8});
  // Each layout of codes and each kind of groups' numbers.
  for (const Encoding encoding : {blocks::kQ5_1, blocks::kQ8_0, blocks::kQ2_K, blocks::kQ3_K, blocks::kQ4_K,
                                  blocks::kQ6_K, blocks::kIq4Nl}) {
    all.push_back(MakeDescriptor(encoding));
  }
  return all;
}

std::vector<Encoding> BlockEncodings() { return {std::begin(kBlockEncodings), std::end(kBlockEncodings)}; }
std::vector<Encoding> FileBlockEncodings() {
  return {std::begin(kFileBlockEncodings), std::end(kFileBlockEncodings)};
}

EncodingDescriptor DownEncoding(const EncodingDescriptor& d) {
  return IsBlockEncoding(d.encoding) ? MakeDescriptor(Encoding::kQ8) : d;
}

std::string EncodingLabel(const EncodingDescriptor& d) {
  return std::string(EncodingName(d.encoding)) + (d.group != 0 ? "_g" + std::to_string(d.group) : "") +
         (d.super_group != 0 ? "_s" + std::to_string(d.super_group) : "");
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

// Encodes one plain row; `values` holds exactly the decoded bytes.
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

void OrCode(uint8_t* plane, uint32_t bits, uint32_t column, uint32_t code) {
  const CodeLocation place = LocateCode(bits, column);
  uint16_t word = 0;
  std::memcpy(&word, plane + place.byte_offset, 2);
  PutU16(plane + place.byte_offset, static_cast<uint16_t>(word | (code << place.shift)));
}

// Writes scale and zero of a group in the encoding, and returns their values.
struct GroupMeta {
  double scale = 0;
  double zero = 0;
};
GroupMeta PutMeta(Random& random, const EncodingDescriptor& d, uint8_t* row, uint32_t cols, uint32_t g,
                  float scale, float zero) {
  if (d.encoding == Encoding::kMxfp4) {
    const int exponent = std::clamp(static_cast<int>(std::lround(std::log2(scale))) + 127, 1, 254);
    row[ScaleOffset(d, cols) + g] = static_cast<uint8_t>(exponent);
    return {std::ldexp(1.0, exponent - 128), 0};
  }
  if (d.meta_bits == 16) {
    PutU16(row + ScaleOffset(d, cols) + 2 * g, FloatToF16(scale));
    PutU16(row + ZeroOffset(d, cols) + 2 * g, FloatToF16(zero));
    return {F16ToFloat(FloatToF16(scale)), F16ToFloat(FloatToF16(zero))};
  }
  uint8_t* quadruple = row + SuperGroupOffset(d, cols) + 8 * (g / d.super_group);
  if (g % d.super_group == 0) {
    PutU16(quadruple, FloatToF16(scale / 200));
    PutU16(quadruple + 2, FloatToF16(random.Uniform(-9.0f, 3.0f)));
    PutU16(quadruple + 4, FloatToF16(0.07f));
    PutU16(quadruple + 6, FloatToF16(100 - zero / 0.07f));
  }
  const uint8_t scale_code = static_cast<uint8_t>(100 + random.Below(156));
  const uint8_t zero_code = static_cast<uint8_t>(random.Below(200));
  row[ScaleOffset(d, cols) + g] = scale_code;
  row[ZeroOffset(d, cols) + g] = zero_code;
  // In float32, as FORMAT.md says.
  const auto value = [quadruple](uint8_t code, int first) {
    return (static_cast<float>(code) - F16ToFloat(LoadU16(quadruple + first + 2))) *
           F16ToFloat(LoadU16(quadruple + first));
  };
  return {value(scale_code, 0), value(zero_code, 4)};
}

// Blocks of any codes and numbers, of about the deviation `sigma`.
void EncodeBlocks(Random& random, EncodedMatrix* m, uint32_t r, float sigma) {
  const EncodingDescriptor& d = m->encoding;
  const RowTraits traits = TraitsOf(d.encoding);
  const uint32_t length = ValuesPerBlock(d.encoding);
  const float levels = IsIq4(d.encoding) ? 255 : static_cast<float>((1u << BitsOf(d.encoding)) - 1);
  const bool super = traits.super_group != 0;
  const float sign = random.Below(8) == 0 ? -1.0f : 1.0f;  // scales may be negative
  std::vector<CodeBlock> blocks((m->cols + length - 1) / length);
  for (CodeBlock& block : blocks) {
    block = {};
    for (uint8_t& code : block.codes) {
      code = static_cast<uint8_t>(random.Below(1u << BitsOf(d.encoding)));
    }
    for (uint32_t g = 0; g < std::size(block.scales); ++g) {
      block.scales[g] = static_cast<uint8_t>(random.Below(48));
      block.mins[g] = static_cast<uint8_t>(random.Below(48));
    }
    if (traits.meta == RowMeta::kSuperScale) {
      block.scales[1] = static_cast<uint8_t>(-48);
    }
    const float unit = 6 * sigma / levels * random.Uniform(0.5f, 1.0f) / (super ? 32 : 1);
    block.d = FloatToF16(sign * unit);
    block.dmin = FloatToF16(sign * unit * levels / 2);
  }
  EncodeBlockRow(d, blocks, m->cols, reinterpret_cast<std::byte*>(m->bytes.data()) + r * m->stride);
  for (uint32_t c = 0; c < m->cols; ++c) {
    const CodeBlock& block = blocks[c / length];
    const uint32_t g = c % length / traits.group;
    const double scale =
        F16ToFloat(block.d) * (traits.meta == RowMeta::kSuperScale ? static_cast<int8_t>(block.scales[g])
                               : super                             ? block.scales[g]
                                                                   : 1.0);
    const double code = IsIq4(d.encoding) ? kIq4Codes[block.codes[c % length]] : block.codes[c % length];
    m->values[uint64_t{r} * m->cols + c] =
        HasMins(traits.meta) ? scale * code - double{F16ToFloat(block.dmin)} * (super ? block.mins[g] : 1)
                             : scale * (code - traits.zero);
  }
}

// Where a type's blocks have their f16 number, and how many times it typical values are.
struct FileBlockScale {
  Encoding encoding;
  uint32_t place;
  float times;
};
constexpr FileBlockScale kFileBlockScales[] = {
    {blocks::kIq2Xxs, 0, 50}, {blocks::kIq2Xs, 0, 50}, {blocks::kIq2S, 0, 50},  {blocks::kIq3Xxs, 0, 120},
    {blocks::kIq3S, 0, 128},  {blocks::kIq1S, 0, 8},   {blocks::kTq1_0, 52, 1}, {blocks::kTq2_0, 64, 1},
    {blocks::kQ1_0, 0, 1},    {blocks::kQ2_0, 0, 1}};

// Writes a scale into a block of random bytes, so that its values are finite and of about `sigma`.
void PutFileBlockScale(Random& random, Encoding encoding, float sigma, uint8_t* block) {
  const float sign = random.Below(8) == 0 ? -1.0f : 1.0f;
  for (const FileBlockScale& scale : kFileBlockScales) {
    if (scale.encoding == encoding) PutU16(block + scale.place, FloatToF16(sign * sigma / scale.times));
  }
  if (encoding == blocks::kNvfp4) {
    for (int i = 0; i < 4; ++i) block[i] = static_cast<uint8_t>(0x30 + random.Below(16));
  }
  if (encoding == blocks::kIq1M) {
    const uint16_t d = FloatToF16(sign * sigma / 8);
    for (int i = 0; i < 4; ++i) {
      uint8_t* const high = block + 48 + 2 * i + 1;
      *high = static_cast<uint8_t>((*high & 15) | (d >> 4 * i & 15) << 4);
    }
  }
}

// File blocks of any bits. gguf_blocks_test compares their values with another decoder's.
void EncodeFileBlocks(Random& random, EncodedMatrix* m, uint32_t r, float sigma) {
  const Encoding encoding = m->encoding.encoding;
  const uint32_t length = ValuesPerBlock(encoding);
  std::vector<CodeBlock> blocks((m->cols + length - 1) / length);
  const float factor = HasRowFactor(encoding) ? sigma / 3 : 1;
  std::vector<float> values(length);
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (uint8_t& byte : blocks[b].codes) byte = static_cast<uint8_t>(random.Below(256));
    PutFileBlockScale(random, encoding, sigma, blocks[b].codes);
    blocks[b].factor = factor;
    DecodeCodeBlock(encoding, blocks[b], values.data());
    for (uint32_t i = 0; i < length && b * length + i < m->cols; ++i) {
      m->values[uint64_t{r} * m->cols + b * length + i] = values[i];
    }
  }
  EncodeBlockRow(m->encoding, blocks, m->cols, reinterpret_cast<std::byte*>(m->bytes.data()) + r * m->stride);
}

void EncodeQuantized(Random& random, EncodedMatrix* m, uint32_t r, float sigma) {
  constexpr double kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const EncodingDescriptor& d = m->encoding;
  uint8_t* row = m->bytes.data() + r * m->stride;
  const uint32_t bits = BitsOf(d.encoding);
  const float levels = static_cast<float>((1u << bits) - 1);
  for (uint32_t g = 0; g < GroupsPerRow(d, m->cols); ++g) {
    const GroupMeta meta =
        PutMeta(random, d, row, m->cols, g, 6 * sigma / levels * random.Uniform(0.5f, 1.0f),
                levels / 2 + random.Uniform(-8.0f, 8.0f));
    for (uint32_t c = g * d.group; c < std::min(m->cols, (g + 1) * d.group); ++c) {
      const uint32_t code = random.Below(1u << bits);
      if (d.encoding == Encoding::kQ3) {
        OrCode(row, 2, c, code & 3);
        OrCode(row + PlaneBytes(2, m->cols), 1, c, code >> 2);
      } else {
        OrCode(row, bits, c, code);
      }
      const double value = d.encoding == Encoding::kMxfp4 ? kTwiceE2m1[code] : static_cast<double>(code);
      m->values[uint64_t{r} * m->cols + c] = (value - meta.zero) * meta.scale;
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
    if (IsFileBlock(d.encoding)) {
      EncodeFileBlocks(*this, &m, r, sigma);
    } else if (IsBlockEncoding(d.encoding)) {
      EncodeBlocks(*this, &m, r, sigma);
    } else if (IsQuantized(d.encoding)) {
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
  auto buffer = backend_->Import({inputs_.back().data(), bytes});
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return {buffer.value_or(kNoBuffer), 0};
}

BufferRef OpBench::PutFloats(const std::vector<float>& values) {
  return Put(values.data(), values.size() * 4);
}

Rows OpBench::PutRows(const std::vector<float>& values, uint64_t cols) { return {PutFloats(values), cols}; }

absl::Span<const int32_t> OpBench::PutInts(const std::vector<int32_t>& values) {
  inputs_.emplace_back(values.data(), values.size() * 4);
  return {reinterpret_cast<const int32_t*>(inputs_.back().data()), values.size()};
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
  EXPECT_TRUE(queue().Wait(queue().Record()).ok());
  return out;
}

std::vector<float> OpBench::GetRows(const Rows& rows, uint64_t count, uint64_t cols) {
  std::vector<float> out(count * cols);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(queue().Download(rows.base + i * rows.stride * 4, cols * 4, out.data() + i * cols).ok());
  }
  EXPECT_TRUE(queue().Wait(queue().Record()).ok());
  return out;
}

std::vector<int32_t> OpBench::Ints(BufferRef ref, uint64_t count) {
  std::vector<int32_t> out(count);
  EXPECT_TRUE(queue().Download(ref, count * 4, out.data()).ok());
  EXPECT_TRUE(queue().Wait(queue().Record()).ok());
  return out;
}

Goldens::Goldens() {
  std::ifstream file("tests/kernels/data/family_goldens.txt");
  std::string name;
  for (size_t count = 0; file >> name >> count;) {
    std::vector<float>& values = arrays_[name];
    values.resize(count);
    for (float& value : values) {
      file >> value;
    }
  }
}

const std::vector<float>& Goldens::Floats(const std::string& name) const {
  static const std::vector<float> kNone;
  const auto found = arrays_.find(name);
  EXPECT_NE(found, arrays_.end()) << "no golden " << name;
  return found == arrays_.end() ? kNone : found->second;
}

std::vector<int32_t> Goldens::Ints(const std::string& name) const {
  const std::vector<float>& values = Floats(name);
  return std::vector<int32_t>(values.begin(), values.end());
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
