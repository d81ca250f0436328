// Rows of tables that stay with weightd: right rows in any surrounding, damage, and lost connections.
#include "inferd/model/row_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_io.h"
#include "common/model/dense_names.h"
#include "kernels/reference/reference_backend.h"
#include "pack/pack.h"
#include "tests/support/engine_testing.h"
#include "tests/support/fakes/fake_weight_client.h"
#include "tests/support/temp_dir.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kMaxTokens = 32;

class RowSourceTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(PackFolder("tests/data/tiny/qwen4_exp", pack_, "bf16").ok()); }

  void Start(const FakeWeightOptions& options, absl::Duration stall_limit = absl::Seconds(60)) {
    auto client = FakeWeightClient::Open(pack_, options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    BackendLimits limits;
    limits.max_tokens = kMaxTokens;
    auto backend = CreateReferenceBackend(limits);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    fetches_ = std::make_unique<FetchQueue>(client_.get(), backend_.get(), &clock_);
    auto source = RowSource::Create(client_->pack().config(), kMaxTokens, stall_limit,
                                    {client_.get(), fetches_.get(), backend_.get(), [this] {
                                       fetches_->Poll([](const FetchKey&, const FetchCompletion&) {});
                                     }});
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
    ASSERT_NE(source_, nullptr);
  }

  // The values of one token of a layer: the rows of its table as the pack's file has them.
  std::string RowsInFile(uint32_t layer, const std::vector<int32_t>& back) {
    const Pack& pack = client_->pack();
    const DenseTensor& table = *pack.FindDense(dense::LayerName(layer, dense::kNgramRows));
    const NgramConfig& ngrams = pack.config().layers[layer].ngrams;
    std::vector<uint64_t> rows(NgramHeads(ngrams));
    NgramHash(ngrams, pack.config().vocab).FindRows(back, absl::MakeSpan(rows));
    const std::string file = *ReadFile(pack.file_path(PackFile::kRows), 1 << 24);
    std::string values;
    for (const uint64_t row : rows) {
      const uint32_t each = RowsPerExtent(table.stride);
      const ExtentEntry& extent = pack.extents()[table.extent + row / each];
      values += file.substr(extent.offset + row % each * table.stride, 2 * table.cols);
    }
    return values;
  }

  std::string Values(const WeightView& view, uint32_t token) {
    const std::byte* bytes = backend_->HostRead(view.base, view.rows * view.stride);
    return {reinterpret_cast<const char*>(bytes) + token * view.stride, view.stride};
  }

  // Checks a step of two sequences: one that begins, one that continues.
  void ExpectRows(uint64_t step) {
    const int32_t base = static_cast<int32_t>(step * 7 % 80);
    const std::vector<int32_t> first = {base, 2, base + 3, base + 4};
    const std::vector<int32_t> before = {base + 1, base + 2};
    const std::vector<int32_t> second = {base + 5, base + 6};
    batch_.Clear(step);
    batch_.Add(first, {});
    batch_.Add(second, {.first_position = 9, .before = before});
    ASSERT_TRUE(source_->Begin(&batch_).ok());
    for (const uint32_t layer : {0u, 2u}) {
      const absl::StatusOr<WeightView> view = source_->Await(layer);
      ASSERT_TRUE(view.ok()) << view.status();
      EXPECT_EQ(view->rows, 6u);
      EXPECT_EQ(view->cols, NgramWidth(client_->pack().config().layers[layer].ngrams));
      EXPECT_EQ(Values(*view, 0), RowsInFile(layer, {base})) << step;
      EXPECT_EQ(Values(*view, 3), RowsInFile(layer, {base + 4, base + 3, 2})) << step;
      EXPECT_EQ(Values(*view, 4), RowsInFile(layer, {base + 5, base + 2, base + 1})) << step;
      EXPECT_EQ(Values(*view, 5), RowsInFile(layer, {base + 6, base + 5, base + 2})) << step;
    }
  }

  TempDir dir_;
  std::string pack_ = dir_.File("pack");
  MonotonicClock clock_;
  std::unique_ptr<FakeWeightClient> client_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<FetchQueue> fetches_;
  std::unique_ptr<RowSource> source_;
  StepBatch batch_{kMaxTokens, 4};
};

TEST_F(RowSourceTest, RowsAreThoseOfTheFile) {
  Start({});
  EXPECT_EQ(client_->pack().row_extent_count(), 4u) << "two tables of two extents";
  for (uint64_t step = 1; step < 12; ++step) ExpectRows(step);
  EXPECT_EQ(source_->counts().rows, 11u * 6 * 4);
  EXPECT_GT(source_->counts().hits, 0u);
}

TEST_F(RowSourceTest, EvictionsRefusalsAndFullRingsChangeNothing) {
  FakeWeightOptions options;
  options.ring_entries = 1;
  options.max_delay_polls = 3;
  options.no_room_chance = 0.2;
  options.evict_chance = 0.5;
  options.dram_budget = 70 << 10;
  Start(options);
  for (uint64_t step = 1; step < 30; ++step) ExpectRows(step);
  EXPECT_EQ(client_->violation(), "");
  EXPECT_EQ(client_->counters().held_leases, 0u);
}

TEST_F(RowSourceTest, DamagedRowsFailTheirSequencesAlone) {
  Start({});
  const std::string path = client_->pack().file_path(PackFile::kRows);
  std::string file = *ReadFile(path, 1 << 24);
  for (char& byte : file) byte = static_cast<char>(byte ^ 1);
  ASSERT_TRUE(WriteFileDurably(path, file).ok());
  Start({});
  batch_.Clear(1);
  batch_.Add({5, 6}, {});
  batch_.Add({7}, {});
  ASSERT_TRUE(source_->Begin(&batch_).ok());
  EXPECT_TRUE(source_->Await(0).ok());
  EXPECT_TRUE(batch_.all_lost());
  EXPECT_GE(batch_.failed_extent(0), client_->pack().dense_extent_count());
}

TEST_F(RowSourceTest, LostConnectionEndsTheWait) {
  FakeWeightOptions options;
  options.max_delay_polls = 5;
  Start(options);
  batch_.Clear(1);
  batch_.Add({5, 6}, {});
  ASSERT_TRUE(source_->Begin(&batch_).ok());
  client_->Disconnect();
  EXPECT_EQ(source_->Await(0).status().code(), absl::StatusCode::kUnavailable);
  fetches_->Forget();
  ASSERT_TRUE(client_->Reconnect(absl::InfiniteFuture()).ok());
  ExpectRows(2);
}

TEST_F(RowSourceTest, SilentWeightdEndsTheWaitByTheStallLimit) {
  Start({}, absl::Milliseconds(20));
  client_->Freeze(true);
  batch_.Clear(1);
  batch_.Add({5, 6}, {});
  ASSERT_TRUE(source_->Begin(&batch_).ok());
  EXPECT_EQ(source_->Await(0).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RowSourceTest, UnknownTokensBeforeAreAnError) {
  Start({});
  batch_.Clear(1);
  batch_.Add({5}, {.first_position = 3});
  EXPECT_EQ(source_->Begin(&batch_).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace sluice::inferd
