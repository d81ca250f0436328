#include "kernels/cuda/cuda_device.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/compress.h"
#include "kernels/cuda/device/experts.h"
#include "pack/row_layout.h"

namespace sluice::cuda {
namespace {

constexpr uint64_t kWorkspaceAlignment = 256;
constexpr uint32_t kMaxHeadRows = 8;  // of one token's heads whose activations are prepared at once

uint64_t Up(uint64_t bytes, uint64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

constexpr uint32_t kTokensOfExperts = 8;     // whose experts are computed by one launch
constexpr uint64_t kOutputBytes = 32 << 20;  // of the workspace for coefficients of down by outputs
constexpr uint64_t kScoreBytes = 64 << 20;   // of the workspace for scores of an indexer, or those of a row

// A row prepared in every way that a call may want: its values, and rounded for two groups of 16 to 128.
uint64_t PreparedRowBytes(uint64_t cols) {
  return 4 * Up(cols, 4) + 2 * (Up(cols, kRoundedColumns) + 8 * (cols / 16 + 1) + 16);
}

// The most that an operation of these limits takes for one token, times the tokens; operations that would
// take more work through their tokens in several launches.
uint64_t WorkspaceBytes(const BackendLimits& l) {
  const uint64_t tokens = std::max(l.max_tokens, 1u);
  const uint64_t slots = tokens * (l.top_k + 1);
  const uint64_t matmul = tokens * PreparedRowBytes(std::max(l.max_cols, l.hidden));
  const uint64_t heads = kMaxHeadRows * PreparedRowBytes(l.max_cols) * std::max(l.heads, 1u);
  // Blocks of neurons of some tokens' experts with groups of 64, or of one with the shortest groups.
  const uint32_t blocks = BlocksOf(l.expert_width);
  const uint64_t some = std::min<uint64_t>(slots, kTokensOfExperts * (l.top_k + 1));
  // Coefficients of down by outputs: of as many pairs, or of more up to a bound.
  const uint64_t row = RoundedCoefficients(blocks) + RoundedStride(l.expert_width, kUnit);
  const uint64_t rows = row == 0 ? 0 : std::min(slots, std::max(some, kOutputBytes / row));  // 0: no experts
  const uint64_t experts =
      tokens * PreparedRowBytes(l.hidden) +
      std::max({rows * row, blocks * some * BlockBytes(GroupsOf(l.hidden, 64)),
                uint64_t{blocks} * BlockBytes(GroupsOf(l.hidden, kUnit)),
                slots * (BlockBytes(GroupsOf(l.hidden, 64)) + sizeof(ExpertPair) + sizeof(ExpertTile))});
  const uint64_t delta = tokens * 3 * uint64_t{l.heads} * l.head_dim * 4;
  const uint64_t spans = uint64_t{l.max_context} / kSpanPositions + 2;
  const uint64_t attention =
      std::min(l.max_tokens, l.max_sequences) * uint64_t{l.heads} * spans * (uint64_t{l.head_dim} + 2) * 4;
  // Scores of keys and, at most half as many, of blocks: 6 bytes a key.
  const uint64_t scores =
      l.index_heads == 0 ? 0 : uint64_t{l.chosen_lists} * 6 * (uint64_t{l.max_context} + kSpanPositions);
  const uint64_t index = std::max(scores, std::min(tokens * scores, kScoreBytes));
  return std::max({matmul, heads, experts, delta, attention, index}) + 16 * kWorkspaceAlignment;
}

// Pages of a call's sequences.
uint64_t PageBytes(const BackendLimits& l) {
  return uint64_t{l.max_sequences} * (4 * (uint64_t{l.max_context} / kPagePositions + 1) + 16);
}

// The call that has most tables; those of a decode step, whose layers have pages twice and every expert by
// its number. With the pages of a very long context fewer layers fit, and their steps are sent in pieces.
Tables::Sizes TableSizes(const BackendLimits& l) {
  constexpr uint64_t kMaxPages = 4 << 20;
  const uint64_t slots = uint64_t{l.max_tokens} * (l.top_k + 1);
  // With an index list and its rounding up for each of an expert's three parts.
  const uint64_t experts =
      (uint64_t{l.experts} + 8) * (sizeof(DeviceExpert) + 5 * 16 + 3 * 4 * uint64_t{l.expert_width}) +
      (sizeof(ExpertPair) + sizeof(ExpertTile)) * slots;
  const uint64_t pages = PageBytes(l) + std::max(uint64_t{l.max_tokens} * sizeof(RowPlace),
                                                 uint64_t{l.max_sequences} * sizeof(CompressSequence));
  // With a dense expert's table and its pairs, and lists of rows.
  const uint64_t row = 2 * sizeof(RowPlace) + sizeof(ExpertPair) + sizeof(ExpertTile) + 4 * sizeof(uint64_t);
  // Beside an indexer there are its keys, its choice and the entries, and heads that are rotated.
  const uint64_t operations = l.index_heads == 0 ? 2 : 8;
  const uint64_t layer = operations * PageBytes(l) +
                         l.max_sequences * (row + (operations - 2) * sizeof(CompressSequence)) +
                         sizeof(DeviceExpert) + 256;
  return {.call = std::max(experts, pages) + 1024,
          .kept = {std::min(l.layers * layer, kMaxPages),
                   uint64_t{l.layers} * (uint64_t{l.experts} + 8) * sizeof(DeviceExpert)}};
}

}  // namespace

Device::~Device() {
  if (stream != nullptr) {
    cudaStreamSynchronize(stream);
  }
  fast.reset();
  graph.reset();
  tables.reset();
  cudaFree(workspace);
  if (stream != nullptr) {
    cudaStreamDestroy(stream);
  }
}

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const BackendLimits& limits) {
  auto device = std::make_unique<Device>();
  device->limits = limits;
  int number = 0;
  RETURN_IF_ERROR(StatusOf(cudaGetDevice(&number), "the current device"));
  int shared = 0;
  RETURN_IF_ERROR(StatusOf(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, number),
                           "shared memory"));
  device->shared_bytes = static_cast<uint64_t>(shared);
  RETURN_IF_ERROR(StatusOf(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking), "a stream"));
  device->launcher = Launcher(device->stream);
  device->workspace_bytes = WorkspaceBytes(limits);
  void* place = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaMalloc(&place, device->workspace_bytes),
                           absl::StrCat("a workspace of ", device->workspace_bytes, " bytes")));
  device->workspace = static_cast<uint8_t*>(place);
  ASSIGN_OR_RETURN(device->tables, Tables::Create(TableSizes(limits), device->stream));
  device->graph = std::make_unique<StepGraph>(device->stream);
  return device;
}

void Device::KeepLaunches(bool keep) {
  launcher.KeepIn(keep ? &graph->kept() : nullptr);
  tables->KeepCalls(keep);
}

absl::Status Device::HandOver() {
  const absl::Status sent = tables->SendKept();
  const absl::Status launched = graph->HandOver();
  return sent.ok() ? launched : sent;
}

absl::StatusOr<uint8_t*> Workspace::Take(uint64_t bytes, const char* what) {
  const uint64_t rounded = Up(bytes, kWorkspaceAlignment);
  if (rounded > left()) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", bytes, " bytes of workspace, of ",
                                                     device_.workspace_bytes, " are left ", left()));
  }
  uint8_t* const place = device_.workspace + used_;
  used_ += rounded;
  return place;
}

namespace {

Numbers NumbersOf(const EncodingDescriptor& d) {
  switch (TraitsOf(d.encoding).meta) {
    case RowMeta::kExponent:
      return Numbers::kExponents;
    case RowMeta::kScale:
      return Numbers::kScales;
    case RowMeta::kScaleMin:
      return Numbers::kScalesMins;
    case RowMeta::kSuperScale:
      return Numbers::kSuperScales;
    case RowMeta::kSuperScaleMin:
      return Numbers::kSuperScalesMins;
    default:
      return d.meta_bits == 8 ? Numbers::kSupers : Numbers::kHalves;
  }
}

}  // namespace

DeviceMatrix MatrixOf(const CallWeights& weights) {
  const EncodingDescriptor& d = weights.encoding;
  DeviceMatrix m;
  m.base = weights.base;
  m.stride = weights.stride;
  m.rows = weights.rows;
  m.cols = weights.cols;
  m.encoding = CodesOf(d.encoding);
  m.numbers = NumbersOf(d);
  m.zero = TraitsOf(d.encoding).zero;
  m.group = d.group;
  m.super_group = d.super_group;
  if (IsQuantized(d.encoding)) {
    m.scales = static_cast<uint32_t>(ScaleOffset(d, weights.cols));
    m.zeros = static_cast<uint32_t>(ZeroOffset(d, weights.cols));
    m.supers = static_cast<uint32_t>(SuperGroupOffset(d, weights.cols));
    m.third_bits = static_cast<uint32_t>(HighPlaneOffset(d, weights.cols));
  }
  const uint64_t all = reinterpret_cast<uintptr_t>(weights.base) | (weights.rows > 1 ? weights.stride : 0);
  m.aligned = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
  return m;
}

DeviceNorm NormOf(const CallNorm& norm) {
  return {norm.weight != nullptr, norm.kind, norm.weight, norm.bias, norm.epsilon};
}

void RowsToPrepare::Note(const DeviceMatrix& m) {
  if (m.group == 0) {
    plain = true;
  } else {
    rounds[m.group / 16 - 1] = true;
  }
}

namespace {

// True if plain matrices may read the rows in place.
bool InPlace(const RowsToPrepare& rows) {
  return !rows.norm.on && rows.ids == nullptr && reinterpret_cast<uintptr_t>(rows.x) % 16 == 0 &&
         rows.stride % 4 == 0 && (rows.heads == 1 || rows.head_stride % 4 == 0);
}

}  // namespace

uint64_t PreparedBytes(const RowsToPrepare& rows) {
  uint64_t bytes = rows.plain && !InPlace(rows) ? 4 * Up(rows.cols, 4) : 0;
  for (uint32_t i = 0; i < 8; ++i) {
    bytes += rows.rounds[i] ? RoundedStride(rows.cols, 16 * (i + 1)) : 0;
  }
  return bytes * rows.heads;
}

bool RoundedByBlocks(const RowsToPrepare& rows) {
  return rows.tokens == 1 && rows.ids == nullptr && rows.cols <= kStagedColumns &&
         (!rows.plain || InPlace(rows));
}

absl::StatusOr<PreparedRows> Prepare(Device& device, const RowsToPrepare& rows, Workspace* workspace) {
  PreparedRows prepared = {rows.x, rows.stride, rows.head_stride};
  if (RoundedByBlocks(rows)) {
    return prepared;
  }
  PrepareLaunch launch;
  launch.x = rows.x;
  launch.x_stride = rows.stride;
  launch.x_head_stride = rows.head_stride;
  launch.heads = rows.heads;
  launch.ids = rows.ids;
  launch.rows = rows.tokens * rows.heads;
  launch.cols = rows.cols;
  launch.norm = rows.norm;
  if (rows.plain && !InPlace(rows)) {
    prepared.head_stride = Up(rows.cols, 4);
    prepared.stride = prepared.head_stride * rows.heads;
    ASSIGN_OR_RETURN(uint8_t* const y, workspace->Take(4 * prepared.stride * rows.tokens, "activations"));
    launch.y = reinterpret_cast<float*>(y);
    launch.y_stride = prepared.head_stride;
    prepared.x = launch.y;
  }
  bool pending = launch.y != nullptr;
  for (uint32_t i = 0; i < 8; ++i) {
    if (rows.rounds[i]) {
      launch.group = 16 * (i + 1);
      ASSIGN_OR_RETURN(launch.rounded, workspace->Take(launch.rows * RoundedStride(rows.cols, launch.group),
                                                       "rounded activations"));
      prepared.rounded[i] = launch.rounded;
      RETURN_IF_ERROR(StatusOf(EnqueuePrepare(launch, device.launcher), "preparing activations"));
      launch.y = nullptr;
      pending = false;
    }
  }
  if (pending) {
    launch.rounded = nullptr;
    RETURN_IF_ERROR(StatusOf(EnqueuePrepare(launch, device.launcher), "preparing activations"));
  }
  return prepared;
}

}  // namespace sluice::cuda
