// Compressed entries on every backend: Compress, the choice among entries, RopeHeads and CompressedAttention,
// of one sequence in chunks.
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
constexpr uint32_t kPositions = 330;
constexpr uint32_t kTurned = 8;  // the last values of a head

struct Shape {
  uint32_t rate;
  bool overlap;
  uint32_t heads, head_dim, window;
  uint32_t index_heads, index_dim, best;  // index_heads 0: all entries are seen
  KvType type;
  bool mean = false;  // no gates, and index heads without weights
};
const Shape kShapes[] = {
    {4, true, 18, 32, 8, 5, 16, 7, KvType::kF32},      {8, false, 4, 40, 20, 0, 0, 0, KvType::kF16},
    {64, false, 3, 16, 300, 0, 0, 0, KvType::kQ8},     {1, true, 2, 24, 1, 3, 20, 270, KvType::kQ8},
    {4, true, 4, 16, 8, 0, 0, 0, KvType::kF16},        {0, false, 5, 32, 9, 0, 0, 0, KvType::kF32},
    {4, false, 4, 16, 8, 6, 16, 5, KvType::kF32, true}};

BackendLimits WholeText() {
  BackendLimits limits = TestLimits();
  limits.max_tokens = kPositions;
  limits.heads = 18;
  return limits;
}

struct Inputs {
  std::vector<float> q, k, values, gates, bias, norm;
  std::vector<float> index_q, index_values, index_gates, index_bias, weights, sinks;
};

uint32_t WidthOf(const Shape& s, uint32_t dim) { return dim * (s.overlap ? 2 : 1); }

Inputs MakeInputs(const Shape& s) {
  Random random(60);
  const auto rows = [&](uint64_t cols, float sigma) { return random.Normals(kPositions * cols, sigma); };
  Inputs inputs;
  inputs.q = rows(s.heads * s.head_dim, 2);
  inputs.k = rows(s.head_dim, 2);
  inputs.values = rows(WidthOf(s, s.head_dim), 1);
  inputs.gates = rows(WidthOf(s, s.head_dim), 2);
  inputs.bias = random.Normals(uint64_t{s.rate} * WidthOf(s, s.head_dim));
  inputs.norm = random.Normals(s.head_dim);
  inputs.index_q = rows(s.index_heads * s.index_dim, 1);
  inputs.index_values = rows(WidthOf(s, s.index_dim), 1);
  inputs.index_gates = rows(WidthOf(s, s.index_dim), 2);
  inputs.index_bias = random.Normals(uint64_t{s.rate} * WidthOf(s, s.index_dim));
  inputs.weights = rows(s.index_heads, 1);
  inputs.sinks = random.Normals(s.heads);
  return inputs;
}

struct Results {
  std::vector<int32_t> lists;  // [positions, best + 1]; -1 where all are seen
  std::vector<float> out;      // [positions, heads * head_dim]
};

class CompressedSequence {
 public:
  CompressedSequence(const BackendCase& which, const Shape& shape, const Inputs& inputs)
      : bench_(which, WholeText()),
        s_(shape),
        inputs_(inputs),
        pages_((kPositions + kPageTokens - 1) / kPageTokens) {
    std::iota(pages_.rbegin(), pages_.rend(), 1u);
    kv_.type = s_.type;
    kv_.page_stride = KvPageBytes(s_.type, 1, s_.head_dim);
    kv_.pages = static_cast<uint32_t>(pages_.size()) + 1;
    kv_.kv_heads = 1;
    kv_.head_dim = s_.head_dim;
    kv_.k = kv_.v = Memory(kv_.pages * kv_.page_stride);
    entries_ = Entries(s_.head_dim);
    keys_ = Entries(s_.index_dim);
    RopeConfig rope;
    rope.dimensions = kTurned;
    const auto table = ComputeRopeTable(rope, kPositions);
    EXPECT_TRUE(table.ok()) << table.status();
    rope_table_ = bench_.PutFloats(*table);
    state_ = State(s_.head_dim);
    index_state_ = State(s_.index_dim);
  }

  // Chunks of these sizes in turn.
  Results Run(const std::vector<uint32_t>& chunks) {
    Results results;
    uint32_t first = 0;
    for (size_t i = 0; first < kPositions; ++i) {
      const uint32_t rows = std::min(chunks[i % chunks.size()], kPositions - first);
      Step(first, rows, &results);
      first += rows;
    }
    return results;
  }

 private:
  BufferRef Memory(uint64_t bytes) {
    return bench_.PutWritable(std::vector<float>(bytes / 4, std::nanf("")));
  }
  EntryView Entries(uint32_t dim) {
    if (s_.rate == 0 || dim == 0) return {};
    EntryView view;
    view.type = s_.type;
    view.page_stride = EntryPageBytes(s_.type, dim, s_.rate);
    view.pages = kv_.pages;
    view.head_dim = dim;
    view.rate = s_.rate;
    view.base = Memory(view.pages * view.page_stride);
    return view;
  }
  DeltaStateView State(uint32_t dim) {
    const uint64_t floats = uint64_t{s_.rate} * (s_.overlap ? 2 : 1) * (s_.mean ? 1 : 2) * WidthOf(s_, dim);
    const uint64_t stride = (floats * 4 + 63) / 64 * 64;
    return floats == 0 ? DeltaStateView{} : DeltaStateView{Memory(2 * stride), stride, 2};
  }
  Rows Put(const std::vector<float>& from, uint64_t cols, uint32_t first, uint32_t rows) {
    return {bench_.PutWritable({from.begin() + static_cast<int64_t>(first * cols),
                                from.begin() + static_cast<int64_t>((first + rows) * cols)}),
            cols};
  }

  void Compress(const SequenceRows& sequence, const std::vector<float>& values,
                const std::vector<float>& gates, const std::vector<float>& bias, const NormSpec& norm,
                const DeltaStateView& state, const EntryView& entries) {
    const uint32_t width = WidthOf(s_, entries.head_dim);
    const uint32_t from = turn_ % 2;
    const uint32_t to = 1 - from;
    CompressArgs args;
    args.values = Put(values, width, sequence.first_position, sequence.rows);
    if (!s_.mean) {
      args.gates = Put(gates, width, sequence.first_position, sequence.rows);
      args.bias = bench_.PutRows(bias, width);
    }
    args.tokens = sequence.rows;
    args.overlap = s_.overlap;
    args.norm = norm;
    args.rope_table = rope_table_;
    args.rope_positions = kPositions;
    args.rope_dims = kTurned;
    args.rope_offset = entries.head_dim - kTurned;
    args.rope_interleaved = true;
    args.sequences = {&sequence, 1};
    args.from = {&from, 1};
    args.to = {&to, 1};
    args.state = state;
    args.entries = entries;
    // A step may be repeated, since the state before it stays.
    for (int i = 0; i < 2; ++i) {
      const absl::Status status = bench_.queue().Compress(args);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  RopeHeadsArgs Turn(const Rows& x, const SequenceRows& sequence, uint32_t heads, uint32_t dim, bool back) {
    RopeHeadsArgs args;
    args.x = x;
    args.tokens = sequence.rows;
    args.heads = heads;
    args.head_dim = dim;
    args.rope_table = rope_table_;
    args.rope_positions = kPositions;
    args.rope_dims = kTurned;
    args.rope_offset = dim - kTurned;
    args.rope_interleaved = true;
    args.back = back;
    args.sequences = {&sequence, 1};
    return args;
  }

  ChosenBlocks Choose(const SequenceRows& sequence, Results* results) {
    Compress(sequence, inputs_.index_values, inputs_.index_gates, inputs_.index_bias, {}, index_state_,
             keys_);
    const uint64_t count = uint64_t{sequence.rows} * (s_.best + 1);
    const std::vector<int32_t> none(count, -1);
    const BufferRef lists = bench_.NewWords(count);
    EXPECT_TRUE(bench_.queue().Upload(none.data(), count * 4, lists).ok());
    IndexSelectArgs select;
    select.q =
        Put(inputs_.index_q, uint64_t{s_.index_heads} * s_.index_dim, sequence.first_position, sequence.rows);
    EXPECT_TRUE(bench_.queue().RopeHeads(Turn(select.q, sequence, s_.index_heads, s_.index_dim, false)).ok());
    if (!s_.mean) {
      select.weights = Put(inputs_.weights, s_.index_heads, sequence.first_position, sequence.rows);
    }
    select.summed = s_.mean;
    select.tokens = sequence.rows;
    select.heads = s_.index_heads;
    select.scale = 0.3f;
    select.sequences = {&sequence, 1};
    select.entries = keys_;
    select.chosen = {lists, 1, s_.best + 1, s_.rate, true};
    const absl::Status status = bench_.queue().IndexSelect(select);
    EXPECT_TRUE(status.ok()) << status;
    const std::vector<int32_t> chosen = bench_.Ints(lists, count);
    results->lists.insert(results->lists.end(), chosen.begin(), chosen.end());
    return select.chosen;
  }

  void Step(uint32_t first, uint32_t rows, Results* results) {
    const SequenceRows sequence{0, rows, first, pages_};
    const uint64_t cols = uint64_t{s_.heads} * s_.head_dim;
    RopeKvWriteArgs write;
    write.q = Put(inputs_.q, cols, first, rows);
    write.k = Put(inputs_.k, s_.head_dim, first, rows);
    write.tokens = rows;
    write.heads = s_.heads;
    write.qk_norm = QkNorm::kWeightedKey;
    write.q_norm.epsilon = 1e-5f;
    write.k_norm = {bench_.PutFloats(inputs_.norm), 1e-5f};
    write.rope_table = rope_table_;
    write.rope_positions = kPositions;
    write.rope_dims = kTurned;
    write.rope_offset = s_.head_dim - kTurned;
    write.rope_interleaved = true;
    write.sequences = {&sequence, 1};
    write.kv = kv_;
    absl::Status status = bench_.queue().RopeKvWrite(write);
    ASSERT_TRUE(status.ok()) << status;
    CompressedAttentionArgs args;
    if (s_.rate > 0) {
      Compress(sequence, inputs_.values, inputs_.gates, inputs_.bias, write.k_norm, state_, entries_);
    }
    if (s_.index_heads > 0) args.chosen = Choose(sequence, results);
    ++turn_;
    args.q = write.q;
    args.tokens = rows;
    args.heads = s_.heads;
    args.scale = 0.2f;
    args.sliding_window = s_.window;
    args.sinks = bench_.PutFloats(inputs_.sinks);
    args.sequences = {&sequence, 1};
    args.kv = kv_;
    args.entries = entries_;
    args.out = bench_.NewRows(rows, cols);
    status = bench_.queue().CompressedAttention(args);
    ASSERT_TRUE(status.ok()) << status;
    status = bench_.queue().RopeHeads(Turn(args.out, sequence, s_.heads, s_.head_dim, true));
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<float> out = bench_.GetRows(args.out, rows, cols);
    results->out.insert(results->out.end(), out.begin(), out.end());
  }

  OpBench bench_;
  const Shape s_;
  const Inputs& inputs_;
  std::vector<uint32_t> pages_;
  KvView kv_;
  EntryView entries_, keys_;
  DeltaStateView state_, index_state_;
  BufferRef rope_table_;
  uint32_t turn_ = 0;
};

class CompressTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, CompressTest, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(CompressTest, AnyChunkingEqualsTheReferenceBitForBit) {
  CaseCounter cases(GetParam());
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    const Inputs inputs = MakeInputs(kShapes[i]);
    Results expected;
    for (const std::vector<uint32_t>& chunks : {std::vector<uint32_t>{1}, {3, 70, 1, 5}, {kPositions}}) {
      if (cases.LeavesOut()) {
        continue;
      }
      if (expected.out.empty()) {
        expected = CompressedSequence(kReference, kShapes[i], inputs).Run({kPositions});
      }
      SCOPED_TRACE(testing::Message() << "shape " << i << " in chunks of " << chunks[0] << ", ..");
      const Results got = CompressedSequence(GetParam(), kShapes[i], inputs).Run(chunks);
      EXPECT_EQ(got.lists, expected.lists);
      EXPECT_EQ(got.out, expected.out);
    }
  }
}

// The last values of a row, pair by pair, by the angle of a position.
void TurnLast(double position, std::vector<double>* x) {
  for (uint32_t i = 0; i < kTurned / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / kTurned);
    double& a = (*x)[x->size() - kTurned + 2 * i];
    double& b = (*x)[x->size() - kTurned + 2 * i + 1];
    const double turned = a * std::cos(angle) - b * std::sin(angle);
    b = b * std::cos(angle) + a * std::sin(angle);
    a = turned;
  }
}

std::vector<double> NormOf(std::vector<double> x, const float* weight) {
  const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = x[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5) *
           (weight == nullptr ? 1 : weight[i]);
  }
  return x;
}

// Entry `e` in double, of the rows of one sequence.
std::vector<double> EntryOf(const Shape& s, const Inputs& inputs, uint32_t e) {
  const uint32_t width = WidthOf(s, s.head_dim);
  std::vector<double> entry(s.head_dim);
  for (uint32_t c = 0; c < s.head_dim; ++c) {
    double sum = 0;
    double weights = 0;
    for (uint32_t before = s.overlap && e > 0 ? 1 : 0;; before = 0) {
      for (uint32_t r = 0; r < s.rate; ++r) {
        const uint64_t p = uint64_t{e - before} * s.rate + r;
        const uint32_t column = before > 0 ? c : width - s.head_dim + c;
        const double gate = double{inputs.gates[p * width + column]} + inputs.bias[r * width + column];
        const double weight = s.mean ? 1 : std::exp(gate);
        weights += weight;
        sum += weight * inputs.values[p * width + column];
      }
      if (before == 0) break;
    }
    entry[c] = sum / weights;
  }
  entry = NormOf(entry, inputs.norm.data());
  TurnLast(e * s.rate, &entry);
  return entry;
}

TEST(CompressReferenceTest, AgreesWithTheFormula) {
  for (const Shape& s : {kShapes[0], kShapes[4], kShapes[6]}) {
    const Inputs inputs = MakeInputs(s);
    const Results results = CompressedSequence(kReference, s, inputs).Run({kPositions});
    for (uint32_t position = 0; position < kPositions; position += 29) {
      std::vector<std::vector<double>> keys;
      for (uint32_t p = position + 1 > s.window ? position + 1 - s.window : 0; p <= position; ++p) {
        const float* k = inputs.k.data() + uint64_t{p} * s.head_dim;
        keys.push_back(NormOf({k, k + s.head_dim}, inputs.norm.data()));
        TurnLast(p, &keys.back());
      }
      const uint32_t all = (position + 1) / s.rate;
      const bool chosen = s.index_heads > 0 && all > s.best;
      for (uint32_t i = 0; i < (chosen ? s.best : all); ++i) {
        keys.push_back(EntryOf(s, inputs, chosen ? results.lists[position * (s.best + 1) + i] : i));
      }
      const float* of_row = inputs.q.data() + uint64_t{position} * s.heads * s.head_dim;
      std::vector<double> q = NormOf({of_row, of_row + s.head_dim}, nullptr);
      TurnLast(position, &q);
      double sum = std::exp(double{inputs.sinks[0]});
      std::vector<double> out(s.head_dim);
      for (const std::vector<double>& key : keys) {
        const double e = std::exp(0.2 * std::inner_product(q.begin(), q.end(), key.begin(), 0.0));
        sum += e;
        for (uint32_t c = 0; c < s.head_dim; ++c) out[c] += e * key[c];
      }
      for (double& value : out) value /= sum;
      TurnLast(-static_cast<double>(position), &out);
      const double tolerance = s.type == KvType::kF32 ? 1e-4 : 4e-3;
      for (uint32_t c = 0; c < s.head_dim; ++c) {
        EXPECT_NEAR(results.out[uint64_t{position} * s.heads * s.head_dim + c], out[c], tolerance)
            << position << ", value " << c;
      }
    }
  }
}

TEST_P(CompressTest, ContradictionsAreRefused) {
  OpBench bench(GetParam());
  const std::vector<uint32_t> pages = {0};
  const SequenceRows sequence{0, 1, 0, pages};
  const uint32_t from = 0;
  const uint32_t to = 1;
  CompressArgs args;
  args.values = bench.NewRows(1, 16);
  args.gates = bench.NewRows(1, 16);
  args.bias = bench.NewRows(8, 16);
  args.tokens = 1;
  args.sequences = {&sequence, 1};
  args.from = {&from, 1};
  args.to = {&to, 1};
  args.state = {bench.NewWords(2 * 8 * 32), 8 * 32 * 4, 2};
  args.entries.type = KvType::kF32;
  args.entries.pages = 1;
  args.entries.head_dim = 16;
  args.entries.rate = 5;
  args.entries.page_stride = EntryPageBytes(KvType::kF32, 16, 8);
  args.entries.base = bench.NewWords(args.entries.page_stride / 4);
  EXPECT_EQ(bench.queue().Compress(args).code(), absl::StatusCode::kInvalidArgument) << "rate";
  args.entries.rate = 8;
  args.entries.page_stride -= 4;
  EXPECT_EQ(bench.queue().Compress(args).code(), absl::StatusCode::kInvalidArgument) << "pages";
  args.entries.page_stride += 4;
  args.state.slot_stride = 64;
  EXPECT_EQ(bench.queue().Compress(args).code(), absl::StatusCode::kInvalidArgument) << "state";
  args.state.slot_stride = 8 * 32 * 4;
  EXPECT_TRUE(bench.queue().Compress(args).ok());
  args.bias = {};
  EXPECT_EQ(bench.queue().Compress(args).code(), absl::StatusCode::kInvalidArgument) << "bias";
  args.gates = {};
  EXPECT_TRUE(bench.queue().Compress(args).ok());
}

// Scores of the heads, none below 0, summed: the choice of the rows behind the first ones.
TEST(CompressReferenceTest, SummedHeadsCountOnceEach) {
  const Shape& s = kShapes[6];
  const Inputs inputs = MakeInputs(s);
  const Results results = CompressedSequence(kReference, s, inputs).Run({kPositions});
  std::vector<std::vector<double>> keys(kPositions / s.rate, std::vector<double>(s.index_dim));
  for (uint32_t e = 0; e < keys.size(); ++e) {
    for (uint32_t i = 0; i < s.rate * s.index_dim; ++i) {
      keys[e][i % s.index_dim] += double{inputs.index_values[e * s.rate * s.index_dim + i]} / s.rate;
    }
    TurnLast(e * s.rate, &keys[e]);
  }
  for (uint32_t position = s.rate * (s.best + 1); position < kPositions; position += 13) {
    std::vector<std::pair<double, int32_t>> scores;
    for (uint32_t e = 0; e < (position + 1) / s.rate; ++e) {
      double score = 0;
      for (uint32_t h = 0; h < s.index_heads; ++h) {
        const float* of_head = inputs.index_q.data() + (uint64_t{position} * s.index_heads + h) * s.index_dim;
        std::vector<double> q(of_head, of_head + s.index_dim);
        TurnLast(position, &q);
        score += std::max(0.0, std::inner_product(q.begin(), q.end(), keys[e].begin(), 0.0));
      }
      scores.push_back({-score, static_cast<int32_t>(e)});
    }
    std::sort(scores.begin(), scores.end());
    std::vector<int32_t> best;
    for (uint32_t i = 0; i < s.best; ++i) best.push_back(scores[i].second);
    std::sort(best.begin(), best.end());
    const auto list = results.lists.begin() + int64_t{position} * (s.best + 1);
    EXPECT_EQ(std::vector<int32_t>(list, list + s.best), best) << position;
  }
}

}  // namespace
}  // namespace sluice
