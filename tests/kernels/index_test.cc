// Sparse attention on every backend: index keys written without V, IndexSelect, and Attention over the chosen
// blocks.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "kernels/rope_table.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};
constexpr uint32_t kPositions = 560;  // over two span borders

struct Shape {
  uint32_t index_heads, index_dim;
  bool weighted;
  uint32_t top, block, local;
  uint32_t heads, kv_heads, head_dim;
  KvType type;
  bool sinks = false;
  uint32_t Lists() const { return weighted ? 1 : index_heads; }
};
// One list for all heads; more, as many and fewer lists than KV heads; more heads than a pass of the kernel.
const Shape kShapes[] = {
    {8, 16, true, 8, 1, 0, 4, 1, 36, KvType::kF32},   {5, 40, true, 300, 1, 0, 6, 3, 64, KvType::kF16, true},
    {66, 34, true, 33, 1, 2, 3, 1, 128, KvType::kQ8}, {2, 16, false, 3, 4, 1, 4, 2, 16, KvType::kF32},
    {4, 32, false, 5, 20, 2, 8, 2, 34, KvType::kQ8},  {2, 64, false, 4, 128, 1, 8, 4, 64, KvType::kF16}};

BackendLimits IndexLimits() {
  BackendLimits limits = TestLimits();
  limits.heads = 66;
  return limits;
}

struct Inputs {
  std::vector<float> index_q, index_k, weights, q, k, v;
};

Inputs MakeInputs(const Shape& s, uint64_t seed) {
  Random random(seed);
  Inputs inputs;
  inputs.index_q = random.Normals(uint64_t{kPositions} * s.index_heads * s.index_dim);
  inputs.index_k = random.Normals(uint64_t{kPositions} * s.index_dim, 2.0f);
  inputs.weights = random.Normals(uint64_t{kPositions} * s.index_heads);
  inputs.q = random.Normals(uint64_t{kPositions} * s.heads * s.head_dim, 2.0f);
  inputs.k = random.Normals(uint64_t{kPositions} * s.kv_heads * s.head_dim, 2.0f);
  inputs.v = random.Normals(uint64_t{kPositions} * s.kv_heads * s.head_dim);
  return inputs;
}

// One sequence in chunks. Lists of positions that see all are -1.
struct Results {
  std::vector<int32_t> lists;  // [positions, lists, top]
  std::vector<float> out;      // [positions, heads, head_dim]
};

class SparseSequence {
 public:
  SparseSequence(const BackendCase& which, const Shape& shape, const Inputs& inputs)
      : bench_(which, IndexLimits()), s_(shape), inputs_(inputs), pages_((kPositions + 31) / kPageTokens) {
    std::iota(pages_.rbegin(), pages_.rend(), 1u);
    keys_ = Cache(1, s_.index_dim);
    keys_.v = keys_.k;
    kv_ = Cache(s_.kv_heads, s_.head_dim);
    kv_.v = Memory(kv_);
    RopeConfig rope;
    rope.dimensions = 12;
    const auto table = ComputeRopeTable(rope, kPositions);
    EXPECT_TRUE(table.ok()) << table.status();
    rope_table_ = bench_.PutFloats(*table);
    if (s_.sinks) {
      sinks_ = bench_.PutFloats(Random(78).Normals(s_.heads, 2.0f));
    }
  }

  Results Run(uint32_t chunk) {
    Results results;
    for (uint32_t first = 0; first < kPositions; first += chunk) {
      Step(first, std::min(chunk, kPositions - first), &results);
    }
    return results;
  }

 private:
  BufferRef Memory(const KvView& view) {
    return bench_.PutWritable(std::vector<float>(view.pages * view.page_stride / 4, std::nanf("")));
  }
  KvView Cache(uint32_t kv_heads, uint32_t head_dim) {
    KvView view;
    view.type = s_.type;
    view.page_stride = KvPageBytes(s_.type, kv_heads, head_dim);
    view.pages = static_cast<uint32_t>(pages_.size()) + 1;
    view.kv_heads = kv_heads;
    view.head_dim = head_dim;
    view.k = Memory(view);
    return view;
  }
  Rows Put(const std::vector<float>& from, uint64_t cols, uint32_t first, uint32_t rows) {
    return {bench_.PutWritable({from.begin() + static_cast<int64_t>(first * cols),
                                from.begin() + static_cast<int64_t>((first + rows) * cols)}),
            cols};
  }

  void Write(const SequenceRows& sequence, const Rows& q, const Rows& k, const Rows& v, uint32_t heads,
             const KvView& kv) {
    RopeKvWriteArgs write;
    write.q = q;
    write.k = k;
    write.v = v;
    write.tokens = sequence.rows;
    write.heads = heads;
    write.rope_table = rope_table_;
    write.rope_positions = kPositions;
    write.rope_dims = 12;
    write.sequences = {&sequence, 1};
    write.kv = kv;
    const absl::Status status = bench_.queue().RopeKvWrite(write);
    ASSERT_TRUE(status.ok()) << status;
  }

  void Step(uint32_t first, uint32_t rows, Results* results) {
    const SequenceRows sequence{0, rows, first, pages_};
    const Rows index_q = Put(inputs_.index_q, uint64_t{s_.index_heads} * s_.index_dim, first, rows);
    Write(sequence, index_q, Put(inputs_.index_k, s_.index_dim, first, rows), {}, s_.index_heads, keys_);
    const Rows q = Put(inputs_.q, uint64_t{s_.heads} * s_.head_dim, first, rows);
    const uint64_t kv_cols = uint64_t{s_.kv_heads} * s_.head_dim;
    Write(sequence, q, Put(inputs_.k, kv_cols, first, rows), Put(inputs_.v, kv_cols, first, rows), s_.heads,
          kv_);
    const uint64_t entries = uint64_t{rows} * s_.Lists() * s_.top;
    const std::vector<int32_t> none(entries, -1);
    const BufferRef lists = bench_.NewWords(entries);
    ASSERT_TRUE(bench_.queue().Upload(none.data(), entries * 4, lists).ok());
    IndexSelectArgs select;
    select.q = index_q;
    select.weights = s_.weighted ? Put(inputs_.weights, s_.index_heads, first, rows) : Rows{};
    select.tokens = rows;
    select.heads = s_.index_heads;
    select.scale = s_.weighted ? 0.3f : 1.0f;
    select.local = s_.local;
    select.sequences = {&sequence, 1};
    select.keys = keys_;
    select.chosen = {lists, s_.Lists(), s_.top, s_.block};
    const absl::Status selected = bench_.queue().IndexSelect(select);
    ASSERT_TRUE(selected.ok()) << selected;
    AttentionArgs args;
    args.q = q;
    args.tokens = rows;
    args.heads = s_.heads;
    args.scale = 0.2f;
    args.sinks = sinks_;
    args.chosen = select.chosen;
    args.sequences = {&sequence, 1};
    args.kv = kv_;
    args.out = bench_.NewRows(rows, uint64_t{s_.heads} * s_.head_dim);
    const absl::Status status = bench_.queue().Attention(args);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<int32_t> chosen = bench_.Ints(lists, entries);
    results->lists.insert(results->lists.end(), chosen.begin(), chosen.end());
    const std::vector<float> out = bench_.GetRows(args.out, rows, uint64_t{s_.heads} * s_.head_dim);
    results->out.insert(results->out.end(), out.begin(), out.end());
  }

  OpBench bench_;
  const Shape s_;
  const Inputs& inputs_;
  std::vector<uint32_t> pages_;
  KvView keys_, kv_;
  BufferRef rope_table_, sinks_;
};

class IndexTest : public testing::TestWithParam<BackendCase> {
 protected:
  static void SetUpTestSuite() {
    for (const Shape& shape : kShapes) {
      inputs_.push_back(MakeInputs(shape, 20));
      expected_.push_back(SparseSequence(kReference, shape, inputs_.back()).Run(96));
    }
  }
  static void TearDownTestSuite() {
    inputs_.clear();
    expected_.clear();
  }
  static std::vector<Inputs> inputs_;
  static std::vector<Results> expected_;
};
std::vector<Inputs> IndexTest::inputs_;
std::vector<Results> IndexTest::expected_;
INSTANTIATE_TEST_SUITE_P(Backends, IndexTest, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(IndexTest, AnyChunkingEqualsTheReferenceBitForBit) {
  CaseCounter cases(GetParam());
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    for (const uint32_t chunk : {1u, 33u, 96u}) {
      if ((GetParam().reference && chunk != 33) || cases.LeavesOut()) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << "shape " << i << " in chunks of " << chunk);
      const Results got = SparseSequence(GetParam(), kShapes[i], inputs_[i]).Run(chunk);
      EXPECT_EQ(got.lists, expected_[i].lists);
      EXPECT_EQ(got.out, expected_[i].out);
    }
  }
}

// A head's first 12 values rotated by halves.
std::vector<double> Rotated(const float* x, uint32_t dim, uint32_t position) {
  std::vector<double> out(x, x + dim);
  for (uint32_t i = 0; i < 6; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / 12);
    out[i] = x[i] * std::cos(angle) - x[i + 6] * std::sin(angle);
    out[i + 6] = x[i + 6] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return out;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The scores of the blocks for a list in double; those always chosen are infinite.
std::vector<double> BlockScores(const Shape& s, const Inputs& inputs, uint32_t position, uint32_t list) {
  std::vector<double> scores(position / s.block + 1, -INFINITY);
  for (uint32_t p = 0; p <= position; ++p) {
    const auto key = Rotated(inputs.index_k.data() + uint64_t{p} * s.index_dim, s.index_dim, p);
    double score = 0;
    for (uint32_t h = 0; h < s.index_heads; ++h) {
      const float* q = inputs.index_q.data() + (uint64_t{position} * s.index_heads + h) * s.index_dim;
      const double dot = s.weighted || h == list ? Dot(Rotated(q, s.index_dim, position), key) : 0;
      score += s.weighted ? inputs.weights[uint64_t{position} * s.index_heads + h] * std::max(0.3 * dot, 0.0)
                          : dot;
    }
    scores[p / s.block] = std::max(scores[p / s.block], score);
  }
  std::fill(scores.end() - s.local, scores.end(), INFINITY);
  return scores;
}

TEST(IndexReferenceTest, ChosenBlocksHaveTheLargestScores) {
  for (const Shape& s : {kShapes[0], kShapes[3]}) {
    const Inputs inputs = MakeInputs(s, 21);
    const Results results = SparseSequence(kReference, s, inputs).Run(80);
    for (uint32_t position = 0; position < kPositions; position += 13) {
      for (uint32_t list = 0; list < s.Lists(); ++list) {
        const auto begin = results.lists.begin() + (uint64_t{position} * s.Lists() + list) * s.top;
        const std::vector<int32_t> chosen(begin, begin + s.top);
        if (position / s.block < s.top) {
          EXPECT_EQ(chosen, std::vector<int32_t>(s.top, -1));
          continue;
        }
        EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
        const std::vector<double> scores = BlockScores(s, inputs, position, list);
        std::vector<double> best = scores;
        std::sort(best.begin(), best.end(), std::greater<>());
        for (const int32_t block : chosen) {
          EXPECT_GE(scores[block], best[s.top - 1] - 1e-3) << position << ", block " << block;
        }
      }
    }
  }
}

// One list for positions with the same key: the first ones win, whatever the scores' sign.
TEST_P(IndexTest, EqualScoresGoToTheLowerPosition) {
  const Shape shape = {2, 16, true, 8, 1, 1, 2, 1, 16, KvType::kF32};
  Inputs inputs = MakeInputs(shape, 22);
  std::fill(inputs.index_k.begin(), inputs.index_k.end(), 0.0f);
  const Results results = SparseSequence(GetParam(), shape, inputs).Run(96);
  for (uint32_t position = 8; position < kPositions; ++position) {
    const auto begin = results.lists.begin() + position * 8;
    EXPECT_EQ(std::vector<int32_t>(begin, begin + 8),
              (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, static_cast<int32_t>(position)}));
  }
}

TEST_P(IndexTest, ContradictionsAreRefused) {
  OpBench bench(GetParam(), IndexLimits());
  const std::vector<uint32_t> pages = {0};
  const SequenceRows sequence{0, 1, 0, pages};
  KvView keys;
  keys.type = KvType::kF32;
  keys.page_stride = KvPageBytes(KvType::kF32, 1, 16);
  keys.pages = 1;
  keys.kv_heads = 1;
  keys.head_dim = 16;
  keys.k = keys.v = bench.PutWritable(std::vector<float>(32 * 16));
  IndexSelectArgs select;
  select.q = bench.NewRows(1, 32);
  select.tokens = 1;
  select.heads = 2;
  select.sequences = {&sequence, 1};
  select.keys = keys;
  select.chosen = {bench.NewWords(64), 1, 4, 8};
  EXPECT_EQ(bench.queue().IndexSelect(select).code(), absl::StatusCode::kInvalidArgument) << "lists";
  select.chosen.lists = 2;
  EXPECT_EQ(bench.queue().IndexSelect(select).code(), absl::StatusCode::kInvalidArgument) << "local";
  select.local = 5;
  EXPECT_EQ(bench.queue().IndexSelect(select).code(), absl::StatusCode::kInvalidArgument) << "local";
  select.local = 1;
  EXPECT_TRUE(bench.queue().IndexSelect(select).ok());
  AttentionArgs args;
  args.q = bench.NewRows(1, 48);
  args.tokens = 1;
  args.heads = 3;
  args.scale = 1;
  args.sequences = {&sequence, 1};
  args.kv = keys;
  args.out = bench.NewRows(1, 48);
  args.chosen = select.chosen;
  EXPECT_EQ(bench.queue().Attention(args).code(), absl::StatusCode::kInvalidArgument) << "heads";
  args.chosen.lists = 3;
  args.sliding_window = 4;
  EXPECT_EQ(bench.queue().Attention(args).code(), absl::StatusCode::kInvalidArgument) << "window";
}

}  // namespace
}  // namespace sluice
