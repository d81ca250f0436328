// Tests that any neuron can be cut out of any expert and used alone: in every encoding and layout, by a list
// of the present neurons or by a mask, read by lists or all at once, the result has the bits of the whole
// expert with the other coefficients 0.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "gtest/gtest.h"
#include "pack/row_layout.h"
#include "tests/kernels/expert_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

class NeuronTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, NeuronTest, testing::ValuesIn(AllBackends()), CaseName);

// The parts that lie in one stream, interleaved neuron by neuron.
using Layout = std::vector<std::vector<Part>>;
const Layout kLayouts[] = {{{Part::kUp}, {Part::kGate}, {Part::kDown}},
                           {{Part::kUp}, {Part::kGate, Part::kDown}},
                           {{Part::kGate}, {Part::kUp, Part::kDown}}};

const EncodedMatrix& MatrixOf(const Expert& e, Part part) {
  return part == Part::kUp ? e.up : part == Part::kGate ? e.gate : e.down;
}

// Stores the neurons of `stored`, in that order, as a pack of this layout does.
ExpertWork PutNeurons(OpBench& bench, const Expert& e, const Layout& layout,
                      const std::vector<uint32_t>& stored) {
  ExpertWork work;
  std::vector<int32_t> positions(e.up.rows, -1);
  for (size_t i = 0; i < stored.size(); ++i) {
    positions[stored[i]] = static_cast<int32_t>(i);
  }
  const absl::Span<const int32_t> list = bench.PutInts(positions);
  for (const std::vector<Part>& stream : layout) {
    std::vector<uint64_t> offsets;
    uint64_t record = 0;
    for (const Part part : stream) {
      offsets.push_back(record);
      record += AlignUp(RowBytes(MatrixOf(e, part).encoding, e.up.cols), 16);
    }
    const uint64_t stride = RoundStride(record);
    std::vector<uint8_t> bytes(stride * stored.size());
    for (size_t i = 0; i < stored.size(); ++i) {
      for (size_t p = 0; p < stream.size(); ++p) {
        const EncodedMatrix& m = MatrixOf(e, stream[p]);
        std::memcpy(bytes.data() + i * stride + offsets[p], m.bytes.data() + stored[i] * m.stride,
                    RowBytes(m.encoding, m.cols));
      }
    }
    const BufferRef base = bench.Put(bytes.data(), bytes.size());
    for (size_t p = 0; p < stream.size(); ++p) {
      const EncodedMatrix& m = MatrixOf(e, stream[p]);
      WeightView& view = stream[p] == Part::kUp ? work.up : stream[p] == Part::kGate ? work.gate : work.down;
      view.encoding = m.encoding;
      view.base = base + offsets[p];
      view.stride = stride;
      view.rows = m.rows;
      view.cols = m.cols;
      view.positions = list;
    }
  }
  return work;
}

// The expert with up rows of zero, so coefficient 0, for all neurons but these.
Expert OnlyThese(const Expert& e, const std::vector<uint32_t>& neurons) {
  Expert out = e;
  for (uint32_t j = 0; j < e.up.rows; ++j) {
    if (std::find(neurons.begin(), neurons.end(), j) == neurons.end()) {
      std::fill_n(out.up.bytes.begin() + static_cast<int64_t>(j * e.up.stride),
                  RowBytes(e.up.encoding, e.up.cols), uint8_t{0});
    }
  }
  return out;
}

std::vector<float> RunWork(OpBench& bench, const Case& c, ExpertWork work) {
  work.rows = c.rows[0];
  work.slots = c.slots[0];
  work.sparsity = c.order;
  work.threshold = c.threshold;
  MoeExpertsArgs args;
  args.x = bench.PutRows(c.x, c.hidden);
  args.tokens = c.tokens;
  args.hidden = c.hidden;
  args.y = bench.NewRows(c.slot_count, c.hidden);
  args.slots = c.slot_count;
  args.experts = {&work, 1};
  const absl::Status status = bench.queue().MoeExperts(args);
  EXPECT_TRUE(status.ok()) << status;
  return bench.GetRows(args.y, c.slot_count, c.hidden);
}

TEST_P(NeuronTest, CutNeuronsHaveTheBitsOfTheWholeExpert) {
  CaseCounter cases(GetParam());
  Random random(1);
  const std::vector<EncodingDescriptor> encodings = AllEncodings();
  for (size_t i = 0; i < encodings.size(); ++i) {
    for (const Layout& layout : kLayouts) {
      if (cases.LeavesOut()) {
        continue;
      }
      // Parts of one encoding, and every part with another one's.
      const Parts parts = {encodings[i],
                           layout.size() == 2
                               ? encodings[random.Below(static_cast<uint32_t>(encodings.size()))]
                               : encodings[i],
                           encodings[i]};
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      Case c;
      c.tokens = 1 + random.Below(6);
      c.hidden = 40 + random.Below(120);
      c.order = static_cast<SparsityOrder>(random.Below(4));
      c.threshold = 0.6f;
      c.experts = {MakeExpert(random, parts, 1 + random.Below(200), c.hidden, false)};
      c.x = random.Normals(uint64_t{c.tokens} * c.hidden);
      AssignAll(&c);
      std::vector<uint32_t> stored(c.experts[0].up.rows);
      std::iota(stored.begin(), stored.end(), 0u);
      for (size_t j = stored.size() - 1; j > 0; --j) {
        std::swap(stored[j], stored[random.Below(static_cast<uint32_t>(j))]);
      }
      stored.resize(1 + random.Below(static_cast<uint32_t>(stored.size())));
      SCOPED_TRACE(testing::Message()
                   << EncodingLabel(parts[0]) << " " << EncodingLabel(parts[1]) << " streams "
                   << layout.size() << " order " << static_cast<int>(c.order) << " tokens " << c.tokens
                   << ", " << stored.size() << " neurons");
      const std::vector<float> y = RunWork(bench, c, PutNeurons(bench, c.experts[0], layout, stored));
      ASSERT_TRUE(BitEqual(y, RunWork(oracle, c, PutExpert(oracle, OnlyThese(c.experts[0], stored)))));
    }
  }
}

// The lead's values made beforehand, and the mask by which other parts would be fetched.
TEST_P(NeuronTest, PrecomputedLeadValuesGiveTheSameBits) {
  CaseCounter cases(GetParam());
  Random random(3);
  for (const EncodingDescriptor& d : AllEncodings()) {
    for (const SparsityOrder order : {SparsityOrder::kUp, SparsityOrder::kGate}) {
      if (cases.LeavesOut()) {
        continue;
      }
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      Case c;
      c.tokens = 1 + random.Below(7);
      c.hidden = 48 + random.Below(100);
      c.order = order;
      c.threshold = 0.4f;
      c.experts = {MakeExpert(random, {d, d, d}, 1 + random.Below(150), c.hidden, random.Below(2) == 0)};
      c.x = random.Normals(uint64_t{c.tokens} * c.hidden);
      AssignAll(&c);
      SCOPED_TRACE(testing::Message() << EncodingLabel(d) << " order " << static_cast<int>(order));
      const uint32_t width = c.experts[0].up.rows;
      ExpertWork work = PutExpert(bench, c.experts[0]);
      LeadWork lead;
      lead.lead = order == SparsityOrder::kUp ? work.up : work.gate;
      lead.bias = order == SparsityOrder::kUp ? work.up_bias : work.gate_bias;
      lead.rows = c.rows[0];
      lead.threshold = c.threshold;
      lead.values = bench.NewRows(c.tokens, width);
      const uint32_t words = (width + 63) / 64;
      lead.active = bench.NewRows(1, 2 * words).base;
      ExpertLeadsArgs args;
      args.x = bench.PutRows(c.x, c.hidden);
      args.tokens = c.tokens;
      args.hidden = c.hidden;
      args.order = order;
      args.experts = {&lead, 1};
      ASSERT_TRUE(bench.queue().ExpertLeads(args).ok()) << bench.queue().ExpertLeads(args);
      const std::vector<float> values = bench.GetRows(lead.values, c.tokens, width);
      std::vector<uint64_t> active(words);
      ASSERT_TRUE(bench.queue().Download(lead.active, words * 8, active.data()).ok());
      ASSERT_TRUE(bench.queue().Wait(bench.queue().Record()).ok());
      std::vector<int32_t> positions(width, -1);
      for (uint32_t j = 0; j < width; ++j) {
        bool counts = false;
        for (uint32_t t = 0; t < c.tokens; ++t) {
          counts = counts || !(std::fabs(values[uint64_t{t} * width + j]) < c.threshold);
        }
        ASSERT_EQ((active[j / 64] >> j % 64 & 1) != 0, counts) << "neuron " << j;
        positions[j] = counts ? static_cast<int32_t>(j) : -1;
      }
      // Only neurons that count are present, and the lead is not read: its rows are another part's.
      work.lead_values = lead.values;
      work.down.positions = bench.PutInts(positions);
      if (order == SparsityOrder::kUp) {
        work.up = work.gate;
        work.up.positions = {};
        work.gate.positions = work.down.positions;
      } else {
        work.gate = work.up;
        work.gate.positions = {};
        work.up.positions = work.down.positions;
      }
      ASSERT_TRUE(BitEqual(RunWork(bench, c, work), RunWork(oracle, c, PutExpert(oracle, c.experts[0]))));
    }
  }
}

TEST_P(NeuronTest, LeadsThatMakeNoSenseAreRefusedWithTheNumbers) {
  Random random(4);
  OpBench bench(GetParam());
  const EncodingDescriptor d = MakeDescriptor(Encoding::kBf16);
  const ExpertWork work = PutExpert(bench, MakeExpert(random, {d, d, d}, 70, 48, false));
  const std::vector<uint32_t> rows = {0, 1};
  LeadWork lead;
  lead.lead = work.up;
  lead.rows = rows;
  lead.values = bench.NewRows(2, 70);
  ExpertLeadsArgs args;
  args.x = bench.NewRows(2, 48);
  args.tokens = 2;
  args.hidden = 48;
  args.experts = {&lead, 1};
  ASSERT_TRUE(bench.queue().ExpertLeads(args).ok());
  const auto refused = [&] { return absl::IsInvalidArgument(bench.queue().ExpertLeads(args)); };
  args.order = SparsityOrder::kProduct;
  EXPECT_TRUE(refused());
  args.order = SparsityOrder::kGate;
  args.tokens = 1;  // row 1 is none of them
  EXPECT_TRUE(refused());
  args.tokens = 2;
  lead.threshold = -1;
  EXPECT_TRUE(refused());
  lead.threshold = 0;
  lead.lead.cols = 40;
  EXPECT_TRUE(refused());
}

TEST_P(NeuronTest, MaskedByListsOrDenselyTheBitsAreTheSame) {
  CaseCounter cases(GetParam());
  Random random(2);
  const EncodingDescriptor kinds[] = {MakeDescriptor(Encoding::kBf16), MakeDescriptor(Encoding::kF16),
                                      MakeDescriptor(Encoding::kQ8), MakeDescriptor(Encoding::kQ2, 16)};
  for (const EncodingDescriptor& d : kinds) {
    for (const SparsityOrder order : kOrders) {
      for (const uint32_t tokens : {1u, 4u, 5u, 20u}) {
        if (cases.LeavesOut()) {
          continue;
        }
        Case c;
        c.tokens = tokens;
        c.hidden = tokens == 5 ? 520 : 80;  // 520: two tiles of columns
        c.order = order;
        c.threshold = 0.5f;
        c.experts = {MakeExpert(random, {d, d, d}, 70, c.hidden, true)};
        c.x = random.Normals(uint64_t{tokens} * c.hidden);
        AssignAll(&c);
        SCOPED_TRACE(testing::Message()
                     << EncodingLabel(d) << " order " << static_cast<int>(order) << " tokens " << tokens);
        OpBench oracle(kReference);
        const Result expected = RunCase(oracle, c);
        for (const float dense_above : {0.0f, 0.5f, 1.0f}) {
          OpBench bench(GetParam());
          SparseSwitchEntry entry{order, d, d, d, {}};
          std::fill_n(entry.at.dense_above, SparseSwitch::kBatches, dense_above);
          ASSERT_TRUE(bench.backend().SetSparseSwitches({&entry, 1}).ok());
          const Result result = RunCase(bench, c);
          ASSERT_TRUE(BitEqual(result.y, expected.y)) << dense_above;
          ASSERT_EQ(result.active, expected.active);
        }
      }
    }
  }
}

// The share kept by the last block decides how the next is fetched and read, even where the guess is wrong.
TEST_P(NeuronTest, MasksThatChangeFromCallToCallGiveTheSameBits) {
  CaseCounter cases(GetParam());
  Random random(6);
  for (const Encoding encoding : {Encoding::kBf16, Encoding::kQ8, Encoding::kQ4, Encoding::kQ2}) {
    const EncodingDescriptor d = MakeDescriptor(encoding);
    for (const SparsityOrder order : kOrders) {
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      SparseSwitchEntry entry{order, d, d, d, {}};
      std::fill_n(entry.at.dense_above, SparseSwitch::kBatches, 0.5f);
      ASSERT_TRUE(bench.backend().SetSparseSwitches({&entry, 1}).ok());
      for (const uint32_t tokens : {1u, 3u}) {
        Case c;
        c.tokens = tokens;
        c.hidden = 192;
        c.order = order;
        c.experts = {MakeExpert(random, {d, d, d}, 300, c.hidden, false),
                     MakeExpert(random, {d, d, d}, 161, c.hidden, true)};
        c.x = random.Normals(uint64_t{tokens} * c.hidden);
        AssignAll(&c);
        for (const float threshold : {0.0f, 0.6f, 0.01f, 1e30f, 0.0f, 0.2f}) {
          if (cases.LeavesOut()) {
            continue;
          }
          c.threshold = threshold;
          SCOPED_TRACE(testing::Message() << EncodingLabel(d) << " order " << static_cast<int>(order)
                                          << " tokens " << tokens << " threshold " << threshold);
          const Result expected = RunCase(oracle, c);
          const Result result = RunCase(bench, c);
          ASSERT_TRUE(BitEqual(result.y, expected.y));
          ASSERT_EQ(result.active, expected.active);
        }
      }
    }
  }
}

TEST_P(NeuronTest, ThresholdsThatKeepAllOrNoneAreExact) {
  CaseCounter cases(GetParam());
  Random random(3);
  for (const EncodingDescriptor& d : {MakeDescriptor(Encoding::kBf16), MakeDescriptor(Encoding::kQ8)}) {
    for (const SparsityOrder order : kOrders) {
      for (const uint32_t tokens : {2u, 17u}) {
        if (cases.LeavesOut()) {
          continue;
        }
        OpBench bench(GetParam());
        Case c;
        c.tokens = tokens;
        c.hidden = 96;
        c.experts = {MakeExpert(random, {d, d, d}, 90, c.hidden, true)};
        c.x = random.Normals(uint64_t{tokens} * c.hidden);
        AssignAll(&c);
        const Result dense = RunCase(bench, c);
        c.order = order;
        ASSERT_TRUE(BitEqual(RunCase(bench, c).y, dense.y));
        c.threshold = 1e30f;
        const Result none = RunCase(bench, c);
        for (uint32_t i = 0; i < none.y.size(); ++i) {
          ASSERT_EQ(none.y[i], c.experts[0].down_bias[i % c.hidden]);
        }
        ASSERT_EQ(none.active, std::vector<int32_t>(tokens, 0));
      }
    }
  }
}

}  // namespace
}  // namespace sluice
