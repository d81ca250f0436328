#include "tests/kernels/attention_testing.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops.h"
#include "kernels/rope_table.h"

namespace sluice {

AttentionInputs MakeInputs(const AttentionShape& c, uint32_t positions, uint64_t seed) {
  Random random(seed);
  AttentionInputs s;
  s.positions = positions;
  s.q = random.Normals(uint64_t{positions} * c.heads * c.head_dim, 2.0f);
  s.k = random.Normals(uint64_t{positions} * c.kv_heads * c.head_dim, 2.0f);
  s.v = c.value_is_key ? s.k : random.Normals(uint64_t{positions} * c.kv_heads * c.ValueDim());
  return s;
}

AttentionCache::AttentionCache(const BackendCase& which, const AttentionShape& config,
                               const std::vector<AttentionInputs>& sequences)
    : bench_(which),
      config_(config),
      sequences_(sequences),
      outputs_(sequences.size()),
      next_(sequences.size()) {
  uint32_t pages = 1;  // page 0 belongs to no sequence
  for (const AttentionInputs& s : sequences) {
    pages_.emplace_back();
    for (uint32_t p = 0; p < s.positions; p += kPageTokens) {
      pages_.back().push_back(pages++);
    }
    // Pages out of order, as from a pool.
    std::reverse(pages_.back().begin(), pages_.back().end());
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    outputs_[s].resize(sequences[s].positions * OutCols());
  }
  const uint64_t page_bytes = KvPageBytes(config.type, config.kv_heads, config.head_dim);
  kv_.type = config.type;
  kv_.page_stride = page_bytes;
  kv_.pages = pages;
  kv_.kv_heads = config.kv_heads;
  kv_.head_dim = config.head_dim;
  kv_.value_dim = config.value_dim;
  const uint64_t v_bytes = KvPageBytes(config.type, config.kv_heads, config.ValueDim());
  kv_.v_page_stride = config.value_dim == 0 ? 0 : v_bytes;
  // Old contents are NaN: a position that is not visible must not be read into the sums.
  const std::vector<float> nan(pages * page_bytes / 4, std::nanf(""));
  kv_.k = bench_.PutWritable(nan);
  kv_.v = bench_.PutWritable(std::vector<float>(pages * v_bytes / 4, std::nanf("")));
  RopeConfig rope;
  rope.dimensions = config.rope_dims;
  rope.kind = config.rope_dims == 0 ? RopeKind::kNone : RopeKind::kDefault;
  const auto table = ComputeRopeTable(rope, 1024);
  EXPECT_TRUE(table.ok()) << table.status();
  if (config.rope_dims > 0) {
    rope_table_ = bench_.PutFloats(*table);
  }
  if (config.HasWeights()) {
    q_norm_ = bench_.PutFloats(config.NormWeights(config.heads));
    k_norm_ = bench_.PutFloats(config.NormWeights(config.kv_heads));
  }
  if (config.sinks) {
    sinks_ = bench_.PutFloats(config.Sinks());
  }
}

void AttentionCache::Step(const std::vector<uint32_t>& order, const std::vector<uint32_t>& rows) {
  std::vector<SequenceRows> batch;
  std::vector<float> q, k, v;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t s = order[i];
    SequenceRows entry;
    entry.first_row = static_cast<uint32_t>(q.size() / QCols());
    entry.rows = rows[i];
    entry.first_position = next_[s];
    entry.pages = pages_[s];
    batch.push_back(entry);
    Append(sequences_[s].q, QCols(), next_[s], rows[i], &q);
    Append(sequences_[s].k, KvCols(), next_[s], rows[i], &k);
    Append(sequences_[s].v, VCols(), next_[s], rows[i], &v);
  }
  const uint32_t tokens = static_cast<uint32_t>(q.size() / QCols());
  const Rows q_rows{bench_.PutWritable(q), QCols()};
  RopeKvWriteArgs write;
  write.q = q_rows;
  write.k = bench_.PutRows(k, KvCols());
  write.v = config_.value_is_key ? write.k : bench_.PutRows(v, VCols());
  write.tokens = tokens;
  write.heads = config_.heads;
  write.qk_norm = config_.qk_norm;
  write.q_norm = {q_norm_, 1e-6f};
  write.k_norm = {k_norm_, 1e-6f};
  write.clip = config_.clip;
  write.temperature_scale = config_.temperature_scale;
  write.temperature_floor = config_.temperature_floor;
  write.temperature_offset = config_.temperature_offset;
  write.value_norm = config_.value_norm;
  write.rope_table = rope_table_;
  write.rope_positions = 1024;
  write.rope_dims = config_.rope_dims;
  write.rope_interleaved = config_.interleaved;
  write.sequences = batch;
  write.kv = kv_;
  const absl::Status written = bench_.queue().RopeKvWrite(write);
  ASSERT_TRUE(written.ok()) << written;
  AttentionArgs args;
  args.q = q_rows;
  args.tokens = tokens;
  args.heads = config_.heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  args.sliding_window = config_.window;
  args.chunk = config_.chunk;
  args.sinks = sinks_;
  args.sequences = batch;
  args.kv = kv_;
  args.out = bench_.NewRows(tokens, OutCols());
  const absl::Status status = bench_.queue().Attention(args);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> out = bench_.GetRows(args.out, tokens, OutCols());
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t s = order[i];
    std::copy_n(out.begin() + static_cast<int64_t>(uint64_t{batch[i].first_row} * OutCols()),
                rows[i] * OutCols(),
                outputs_[s].begin() + static_cast<int64_t>(uint64_t{next_[s]} * OutCols()));
    next_[s] += rows[i];
  }
}

void AttentionCache::RunAlone(uint32_t s, uint32_t chunk) {
  while (next_[s] < sequences_[s].positions) {
    Step({s}, {std::min(chunk, sequences_[s].positions - next_[s])});
  }
}

}  // namespace sluice
