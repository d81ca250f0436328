// Estimated bytes and multiplications of operations, and their part of the model.
#include <gtest/gtest.h>

#include <vector>

#include "inferd/forward/part_profiler.h"

namespace sluice::inferd {
namespace {

class CountingQueue final : public Queue {
 public:
  int enqueued = 0;
  int graphs = 0;  // number of open graphs
  absl::Status Enqueue(const Operation&) override {
    ++enqueued;
    return absl::OkStatus();
  }
  absl::Status Upload(const void*, uint64_t, BufferRef) override { return absl::OkStatus(); }
  absl::Status Download(BufferRef, uint64_t, void*) override { return absl::OkStatus(); }
  bool RunsAtCall() const override { return true; }
  absl::Status BeginGraph() override {
    ++graphs;
    return absl::OkStatus();
  }
  absl::Status EndGraph() override {
    --graphs;
    return absl::OkStatus();
  }
  Event Record() override { return {7}; }
  bool IsDone(Event event) override { return event.value == 7; }
  absl::Status Wait(Event) override { return absl::OkStatus(); }
  absl::StatusOr<double> Seconds(Event, Event) override { return 2.0; }
};

WeightView View(uint32_t rows, uint32_t cols, uint64_t stride) {
  WeightView view;
  view.base = {BufferId{1}, 0};
  view.rows = rows;
  view.cols = cols;
  view.stride = stride;
  return view;
}

TEST(PartProfilerTest, ProductsCountForTheNamedPart) {
  CountingQueue device;
  PartProfiler queue(&device);
  const MatMulPart parts[] = {{View(10, 64, 40), {}, {}}, {View(2, 64, 40), {}, {}}};
  MatMulArgs args;
  args.tokens = 3;
  args.cols = 64;
  args.parts = parts;
  ASSERT_TRUE(queue.MatMul(args).ok());
  queue.SetProducts(StepPart::kRouter);
  const uint32_t rows[] = {1};
  args.row_ids = rows;
  ASSERT_TRUE(queue.MatMul(args).ok());
  EXPECT_EQ(device.enqueued, 2);
  const PartWork& attention = queue.works()[static_cast<size_t>(StepPart::kAttention)];
  EXPECT_EQ(attention.bytes, 12u * 40);
  EXPECT_EQ(attention.products, 3u * 12 * 64);
  EXPECT_EQ(queue.works()[static_cast<size_t>(StepPart::kRouter)].products, 1u * 12 * 64);
  EXPECT_EQ(queue.Record().value, 7u);
  EXPECT_TRUE(queue.IsDone({7}));
  ASSERT_TRUE(queue.BeginGraph().ok());
  EXPECT_EQ(device.graphs, 1);
  ASSERT_TRUE(queue.EndGraph().ok());
  EXPECT_EQ(device.graphs, 0);
}

TEST(PartProfilerTest, ExpertsAreReadOnceAndMultipliedPerRow) {
  const uint32_t rows[] = {0, 4, 5};
  std::vector<ExpertWork> work(2);
  work[0].up = work[0].gate = work[0].down = View(32, 64, 48);
  work[0].rows = rows;
  work[1] = work[0];
  work[1].gate = {};  // a plain FFN
  work[1].neuron_begin = 8;
  work[1].neuron_end = 16;
  MoeExpertsArgs args;
  args.experts = work;
  const PartWork done = WorkOf(&args);
  EXPECT_EQ(done.bytes, 3u * 32 * 48 + 2u * 8 * 48);
  EXPECT_EQ(done.products, 3u * (3u * 32 * 64 + 2u * 8 * 64));
}

TEST(PartProfilerTest, AttentionReadsVisiblePositions) {
  AttentionArgs args;
  args.heads = 4;
  args.kv.head_dim = 16;
  args.kv.kv_heads = 2;
  args.kv.k = {BufferId{1}, 0};
  args.kv.v = {BufferId{2}, 0};
  args.kv.page_stride = 320;  // 10 bytes a position
  const SequenceRows texts[] = {{0, 1, 99, {}}};
  args.sequences = texts;
  EXPECT_EQ(WorkOf(&args).bytes, 100u * 10 * 2);
  EXPECT_EQ(WorkOf(&args).products, 100u * 4 * 32);
  args.sliding_window = 20;
  EXPECT_EQ(WorkOf(&args).bytes, 21u * 10 * 2);
  EXPECT_EQ(WorkOf(&args).products, 20u * 4 * 32);
}

}  // namespace
}  // namespace sluice::inferd
