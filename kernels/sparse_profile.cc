#include "kernels/sparse_profile.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "common/base/runtime_dir.h"
#include "common/base/status.h"
#include "kernels/scalar_math.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// Kept shares of coefficients to try, largest first.
constexpr float kShares[] = {0.95f, 0.8f, 0.65f, 0.5f, 0.4f, 0.3f, 0.2f, 0.1f, 0.05f};
constexpr int kShareCount = static_cast<int>(std::size(kShares));
// Maximum ratio of sparse to dense time at which sparse execution is chosen, so that noise does not decide.
constexpr double kMaxTimeRatio = 0.96;
constexpr int kPairs = 7;
// Pairs of the final, longer measurement at the share where the search ends.
constexpr int kFinalPairs = 15;
// Sparse execution is chosen up to this many times a measured share: never far from one, and never beyond the
// next.
constexpr float kNear = 1.02f;
// Maximum multiply-adds of one timed run, as far as whole blocks of neurons allow.
constexpr uint64_t kRunWork = 60'000'000;
constexpr uint64_t kLeastBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxBytes = uint64_t{512} << 20;

// Number of rows that are repeated to fill the working set; a prime, so that parts and experts differ.
constexpr uint32_t kPatternRows = 251;

// Writes a row in a block encoding: every group's scale is 1 times d.
void WriteBlockRow(const EncodingDescriptor& d, uint32_t cols, float sigma, std::mt19937& random,
                   uint8_t* row) {
  const uint32_t length = ValuesPerBlock(d.encoding);
  const float levels = IsIq4(d.encoding) ? 255 : static_cast<float>((1u << BitsOf(d.encoding)) - 1);
  std::vector<CodeBlock> blocks((cols + length - 1) / length);
  for (CodeBlock& block : blocks) {
    for (uint8_t& code : block.codes) {
      // Wherever a file block has its scale, these bytes are a small number.
      code = IsFileBlock(d.encoding) ? static_cast<uint8_t>(0x10 | (random() & 7))
                                     : static_cast<uint8_t>(random() & ((1u << BitsOf(d.encoding)) - 1));
    }
    std::memset(block.scales, 1, sizeof block.scales);
    std::memset(block.mins, 1, sizeof block.mins);
    block.d = FloatToF16(3.46f * sigma / levels);
    block.dmin = FloatToF16(1.73f * sigma);
  }
  EncodeBlockRow(d, blocks, cols, reinterpret_cast<std::byte*>(row));
}

// Writes a row of about normal weights with a deviation of 1 / sqrt(cols).
void WriteRow(const EncodingDescriptor& d, uint32_t cols, std::mt19937& random, uint8_t* row) {
  const float sigma = 1.0f / std::sqrt(static_cast<float>(cols));
  const auto put = [](uint8_t* place, uint16_t value) { std::memcpy(place, &value, sizeof value); };
  if (!IsQuantized(d.encoding)) {
    std::normal_distribution<float> normal(0, sigma);
    for (uint32_t k = 0; k < cols; ++k) {
      const float value = normal(random);
      if (d.encoding == Encoding::kF32) {
        std::memcpy(row + uint64_t{k} * 4, &value, sizeof value);
      } else {
        put(row + uint64_t{k} * 2, d.encoding == Encoding::kBf16 ? FloatToBf16(value) : FloatToF16(value));
      }
    }
    return;
  }
  if (IsBlockEncoding(d.encoding)) {
    return WriteBlockRow(d, cols, sigma, random, row);
  }
  for (uint64_t i = 0; i < CodeBytes(d, cols); ++i) {
    row[i] = static_cast<uint8_t>(random());
  }
  const float levels = static_cast<float>((1u << BitsOf(d.encoding)) - 1);
  const uint16_t scale = FloatToF16(3.46f * sigma / levels);
  const uint16_t zero = FloatToF16(levels / 2);
  if (d.encoding == Encoding::kMxfp4) {
    // Values of E2M1 have a deviation of about 3.
    std::memset(row + ScaleOffset(d, cols), 127 + static_cast<int>(std::lround(std::log2(sigma / 3))),
                GroupsPerRow(d, cols));
    return;
  }
  for (uint64_t g = 0; g < GroupsPerRow(d, cols); ++g) {
    if (d.meta_bits == 16) {
      put(row + ScaleOffset(d, cols) + 2 * g, scale);
      put(row + ZeroOffset(d, cols) + 2 * g, zero);
    } else {  // code 1 of a super-group whose zeros are 0
      row[ScaleOffset(d, cols) + g] = 1;
      row[ZeroOffset(d, cols) + g] = 1;
    }
  }
  for (uint64_t s = 0; s < SuperGroupsPerRow(d, cols); ++s) {
    uint8_t* place = row + SuperGroupOffset(d, cols) + 8 * s;
    put(place, scale);
    put(place + 2, 0);
    put(place + 4, zero);
    put(place + 6, 0);
  }
}

// Experts of random weights, and both ways of running them.
class Trial {
 public:
  Trial(Backend& backend, const SparseProfileSpec& spec) : backend_(backend), spec_(spec) {}
  ~Trial() {
    for (const BufferId buffer : buffers_) {
      if (const absl::Status status = backend_.Free(buffer); !status.ok()) {
        break;  // the destructor releases the buffers made so far
      }
    }
  }

  absl::Status Prepare();
  absl::StatusOr<float> ThresholdFor(float share);
  // Median of sparse time over dense time.
  absl::StatusOr<double> Ratio(uint32_t tokens, float threshold, int pairs);

 private:
  absl::StatusOr<BufferRef> Allocate(uint64_t bytes, BufferKind kind);
  absl::Status MakeExperts();
  absl::Status RunLayer(uint32_t layer, uint32_t tokens, uint32_t neurons, float threshold);
  absl::Status Force(bool dense);

  Backend& backend_;
  const SparseProfileSpec& spec_;
  std::vector<BufferId> buffers_;
  uint32_t width_ = 0;
  uint32_t layers_ = 0;
  uint64_t part_bytes_[3] = {};  // of an expert: up, gate, down
  uint64_t expert_bytes_ = 0;
  BufferRef experts_;
  BufferRef x_, y_, active_;
  std::vector<uint32_t> rows_, slots_;
  std::vector<ExpertWork> work_;
  uint32_t next_layer_ = 0;
};

absl::StatusOr<BufferRef> Trial::Allocate(uint64_t bytes, BufferKind kind) {
  ASSIGN_OR_RETURN(const BufferId buffer, backend_.Allocate(bytes, kind));
  buffers_.push_back(buffer);
  return BufferRef{buffer, 0};
}

// Makes all layers' experts. An expert's parts lie side by side, as in a pack: the order of addresses in
// which rows are read decides the memory bandwidth.
absl::Status Trial::MakeExperts() {
  const uint64_t experts = uint64_t{layers_} * spec_.experts;
  ASSIGN_OR_RETURN(experts_, Allocate(experts * expert_bytes_, BufferKind::kTables));
  std::byte* place = backend_.HostWrite(experts_, experts * expert_bytes_);
  if (place == nullptr) {
    return absl::UnimplementedError("a profile of masks needs memory that the host sees");
  }
  std::mt19937 random(1);
  int i = 0;
  for (const EncodingDescriptor& d : {spec_.up, spec_.gate, spec_.down}) {
    const uint64_t stride = RoundStride(RowBytes(d, spec_.hidden));
    std::vector<uint8_t> pattern(kPatternRows * stride);
    for (uint32_t r = 0; r < kPatternRows; ++r) {
      WriteRow(d, spec_.hidden, random, pattern.data() + r * stride);
    }
    for (uint64_t r = 0; r < experts * width_; ++r) {
      std::memcpy(place + r / width_ * expert_bytes_ + r % width_ * stride,
                  pattern.data() + r % kPatternRows * stride, stride);
    }
    place += part_bytes_[i++];
  }
  return absl::OkStatus();
}

absl::Status Trial::Prepare() {
  uint64_t neuron_bytes = 0;
  for (const EncodingDescriptor& d : {spec_.up, spec_.gate, spec_.down}) {
    if (!IsValidDescriptor(d)) {
      return absl::InvalidArgumentError("a profile of masks: an encoding is not one of the format");
    }
    neuron_bytes += RoundStride(RowBytes(d, spec_.hidden));
  }
  const uint64_t cache = static_cast<uint64_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)));
  const uint64_t bytes = spec_.bytes != 0 ? spec_.bytes : std::clamp(4 * cache, kLeastBytes, kMaxBytes);
  // At least four layers, narrow ones if need be: a block of neurons costs the same in a wide expert.
  const uint64_t wide = bytes / 4 / (spec_.experts * neuron_bytes) / 64 * 64;
  width_ = static_cast<uint32_t>(std::min<uint64_t>(spec_.width, std::max<uint64_t>(64, wide)));
  layers_ = static_cast<uint32_t>(bytes / (spec_.experts * neuron_bytes * width_) + 1);
  int i = 0;
  for (const EncodingDescriptor& d : {spec_.up, spec_.gate, spec_.down}) {
    part_bytes_[i] = width_ * RoundStride(RowBytes(d, spec_.hidden));
    expert_bytes_ += part_bytes_[i++];
  }
  RETURN_IF_ERROR(MakeExperts());
  const uint64_t slots = uint64_t{spec_.max_tokens} * spec_.experts;
  ASSIGN_OR_RETURN(x_, Allocate(uint64_t{spec_.max_tokens} * spec_.hidden * 4, BufferKind::kActivations));
  ASSIGN_OR_RETURN(y_, Allocate(slots * spec_.hidden * 4, BufferKind::kActivations));
  ASSIGN_OR_RETURN(active_, Allocate(slots * 4, BufferKind::kStaging));
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1.5f);
  float* x = reinterpret_cast<float*>(backend_.HostWrite(x_, uint64_t{spec_.max_tokens} * spec_.hidden * 4));
  std::generate_n(x, uint64_t{spec_.max_tokens} * spec_.hidden, [&] { return normal(random); });
  rows_.resize(spec_.max_tokens);
  std::iota(rows_.begin(), rows_.end(), 0u);
  slots_.resize(slots);
  std::iota(slots_.begin(), slots_.end(), 0u);
  work_.resize(spec_.experts);
  return absl::OkStatus();
}

absl::Status Trial::RunLayer(uint32_t layer, uint32_t tokens, uint32_t neurons, float threshold) {
  const EncodingDescriptor* encodings[] = {&spec_.up, &spec_.gate, &spec_.down};
  for (uint32_t e = 0; e < spec_.experts; ++e) {
    WeightView* views[] = {&work_[e].up, &work_[e].gate, &work_[e].down};
    uint64_t offset = (uint64_t{layer} * spec_.experts + e) * expert_bytes_;
    for (int i = 0; i < 3; ++i) {
      const uint64_t stride = RoundStride(RowBytes(*encodings[i], spec_.hidden));
      views[i]->encoding = *encodings[i];
      views[i]->base = experts_ + offset;
      offset += part_bytes_[i];
      views[i]->stride = stride;
      views[i]->rows = width_;
      views[i]->cols = spec_.hidden;
    }
    work_[e].rows = absl::MakeConstSpan(rows_).subspan(0, tokens);
    work_[e].slots = absl::MakeConstSpan(slots_).subspan(uint64_t{e} * tokens, tokens);
    work_[e].neuron_end = neurons;
    work_[e].sparsity = spec_.order;
    work_[e].threshold = threshold;
  }
  MoeExpertsArgs args;
  args.x = {x_, spec_.hidden};
  args.tokens = tokens;
  args.hidden = spec_.hidden;
  args.activation = spec_.activation;
  args.experts = work_;
  args.y = {y_, spec_.hidden};
  args.slots = tokens * spec_.experts;
  args.active = active_;
  RETURN_IF_ERROR(backend_.queue().MoeExperts(args));
  return backend_.queue().Wait(backend_.queue().Record());
}

absl::Status Trial::Force(bool dense) {
  SparseSwitchEntry entry{spec_.order, spec_.up, spec_.gate, spec_.down, {}};
  std::fill_n(entry.at.dense_above, SparseSwitch::kBatches, dense ? 0.0f : 1.0f);
  return backend_.SetSparseSwitches({&entry, 1});
}

absl::StatusOr<float> Trial::ThresholdFor(float share) {
  float low = 0;
  float high = 64;
  for (int i = 0; i < 16; ++i) {
    const float middle = (low + high) / 2;
    RETURN_IF_ERROR(RunLayer(0, 1, width_, middle));
    const std::byte* place = backend_.HostRead(active_, spec_.experts * 4);
    if (place == nullptr) {
      return absl::UnimplementedError("a profile of masks needs memory that the host sees");
    }
    const uint32_t* active = reinterpret_cast<const uint32_t*>(place);
    const uint64_t kept = std::accumulate(active, active + spec_.experts, uint64_t{0});
    const bool many = static_cast<float>(kept) > share * static_cast<float>(width_ * spec_.experts);
    (many ? low : high) = middle;
  }
  return high;
}

absl::StatusOr<double> Trial::Ratio(uint32_t tokens, float threshold, int pairs) {
  const uint64_t neuron_work = uint64_t{3} * spec_.hidden * spec_.experts * tokens;
  uint32_t neurons = static_cast<uint32_t>(std::max<uint64_t>(kRunWork / neuron_work / 64 * 64, 128));
  neurons = neurons >= width_ ? 0 : neurons;
  std::vector<double> ratios;
  for (int pair = 0; pair <= pairs; ++pair) {
    double seconds[2];
    for (int i = 0; i < 2; ++i) {
      const int dense = (pair + i) % 2;
      RETURN_IF_ERROR(Force(dense == 1));
      const auto start = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(RunLayer(next_layer_++ % layers_, tokens, neurons, threshold));
      seconds[dense] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    if (pair > 0) {  // the first one warms up
      ratios.push_back(seconds[0] / seconds[1]);
    }
  }
  std::nth_element(ratios.begin(), ratios.begin() + pairs / 2, ratios.end());
  return ratios[static_cast<size_t>(pairs / 2)];
}

// The share from which dense execution is chosen: just above the largest share that was measured faster
// sparse, twice. Shares between that one and the next were not measured.
absl::StatusOr<float> BreakEven(Trial& trial, uint32_t tokens, const std::vector<float>& thresholds) {
  int slow = -1;           // the smallest share so far where dense is as good
  int fast = kShareCount;  // the largest where sparse is faster
  while (fast - slow > 1) {
    const int middle = (fast + slow) / 2;
    ASSIGN_OR_RETURN(const double ratio,
                     trial.Ratio(tokens, thresholds[static_cast<size_t>(middle)], kPairs));
    (ratio <= kMaxTimeRatio ? fast : slow) = middle;
  }
  for (; fast < kShareCount; ++fast) {
    ASSIGN_OR_RETURN(const double ratio,
                     trial.Ratio(tokens, thresholds[static_cast<size_t>(fast)], kFinalPairs));
    if (ratio <= kMaxTimeRatio) {
      return fast == 0 ? 1.0f : kShares[fast] * kNear;
    }
  }
  return 0.0f;
}

}  // namespace

absl::StatusOr<SparseSwitch> MeasureSparseSwitch(Backend& backend, const SparseProfileSpec& spec) {
  if (spec.order == SparsityOrder::kNone || spec.hidden == 0 || spec.width == 0 || spec.experts == 0 ||
      spec.max_tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a profile of masks over ", spec.experts, " experts of [",
                                                   spec.width, ", ", spec.hidden, "] with ", spec.max_tokens,
                                                   " tokens and order ", static_cast<int>(spec.order)));
  }
  Trial trial(backend, spec);
  RETURN_IF_ERROR(trial.Prepare());
  backend.BeginStep();
  const absl::Cleanup end = [&backend] {
    backend.EndStep();
    backend.SetSparseSwitches({}).IgnoreError();  // clearing never exceeds the limit
  };
  std::vector<float> thresholds;
  for (const float share : kShares) {
    ASSIGN_OR_RETURN(const float threshold, trial.ThresholdFor(share));
    thresholds.push_back(threshold);
  }
  SparseSwitch found;
  float before = 1;
  for (uint32_t i = 0; i < SparseSwitch::kBatches; ++i) {
    if ((1u << i) <= spec.max_tokens) {
      ASSIGN_OR_RETURN(const float share, BreakEven(trial, 1u << i, thresholds));
      // More tokens never make lists pay at a larger share; a measurement that says so is noise.
      before = std::min(before, share);
    }
    found.dense_above[i] = before;
  }
  return found;
}

// LoadOrMeasureSparseSwitch: the measurement's file. A few lines of text: the key, the shares, and a digest
// of both.

namespace {

// Raised when kernels change so much that old measurements mislead.
constexpr int kMeasurementVersion = 2;
constexpr uint64_t kMaxFileBytes = 16 << 10;

std::string CpuModel() {
  const absl::StatusOr<std::string> info = ReadFile("/proc/cpuinfo", 16 << 20);
  for (const absl::string_view line : absl::StrSplit(info.value_or(""), '\n')) {
    if (absl::string_view rest = line; absl::ConsumePrefix(&rest, "model name")) {
      const size_t colon = rest.find(": ");
      return std::string(colon == rest.npos ? rest : rest.substr(colon + 2));
    }
  }
  return "unknown";
}

std::string Words(const EncodingDescriptor& d) {
  return absl::StrCat(static_cast<int>(d.encoding), "/", d.group, "/", static_cast<int>(d.meta_bits), "/",
                      d.super_group);
}

// The key: everything that the times depend on.
std::string KeyOf(const Backend& backend, const SparseProfileSpec& s) {
  return absl::StrCat("sluice dense or sparse ", kMeasurementVersion, "\ncpu ", CpuModel(), "\n",
                      backend.Describe(), "\norder ", static_cast<int>(s.order), " up ", Words(s.up),
                      " gate ", Words(s.gate), " down ", Words(s.down), "\nactivation ",
                      static_cast<int>(s.activation.kind), " hidden ", s.hidden, " width ", s.width,
                      " experts ", s.experts, " tokens ", s.max_tokens, "\n");
}

std::string ContentOf(const std::string& key, const SparseSwitch& found) {
  std::string content = absl::StrCat(key, "dense above");
  for (const float share : found.dense_above) {
    char text[32];
    std::snprintf(text, sizeof text, " %.9g", static_cast<double>(share));
    content += text;
  }
  content += '\n';
  return absl::StrCat(content, DigestOf(std::string_view(content)).ToHex(), "\n");
}

// True if `content` is a complete file for this key.
bool Parse(const std::string& content, const std::string& key, SparseSwitch* found) {
  absl::string_view rest(content.data(), content.size());
  if (!absl::ConsumePrefix(&rest, key) || !absl::ConsumePrefix(&rest, "dense above ")) {
    return false;
  }
  const std::vector<absl::string_view> words = absl::StrSplit(rest.substr(0, rest.find('\n')), ' ');
  if (words.size() != SparseSwitch::kBatches) {
    return false;
  }
  for (uint32_t i = 0; i < SparseSwitch::kBatches; ++i) {
    float* share = &found->dense_above[i];
    if (!absl::SimpleAtof(words[i], share) || !(*share >= 0 && *share <= 1)) {
      return false;
    }
  }
  return ContentOf(key, *found) == content;
}

absl::Status MakeFolders(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    if (mkdir(prefix.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoToStatus(errno, absl::StrCat("create folder ", prefix));
    }
    if (slash == std::string::npos) {
      return absl::OkStatus();
    }
  }
}

absl::Status Store(const std::string& folder, const std::string& path, const std::string& content) {
  RETURN_IF_ERROR(MakeFolders(folder));
  const std::string fresh = path + ".new";
  RETURN_IF_ERROR(WriteFileDurably(fresh, content));
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("rename ", fresh, " to ", path));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SparseProfileFolder() {
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return absl::StrCat(cache, "/sluice");
  }
  const std::string home = environment("HOME");
  return home.empty() ? RuntimeDirPath() : absl::StrCat(home, "/.cache/sluice");
}

absl::StatusOr<SparseProfile> LoadOrMeasureSparseSwitch(Backend& backend, const SparseProfileSpec& spec,
                                                        const std::string& folder) {
  const std::string key = KeyOf(backend, spec);
  const std::string path =
      absl::StrCat(folder, "/sparse-", DigestOf(std::string_view(key)).ToHex().substr(0, 16), ".txt");
  SparseProfile profile;
  if (const absl::StatusOr<std::string> content = ReadFile(path, kMaxFileBytes);
      content.ok() && Parse(*content, key, &profile.found)) {
    return profile;
  }
  ASSIGN_OR_RETURN(profile.found, MeasureSparseSwitch(backend, spec));
  profile.measured = true;
  profile.stored = Store(folder, path, ContentOf(key, profile.found));
  return profile;
}

}  // namespace sluice
