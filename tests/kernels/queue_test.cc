// Tests rules of every operation and backend: errors name the operation, and events tell which work has run.
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

class QueueTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, QueueTest, testing::ValuesIn(BackendsAndDelayed()), CaseName);

TEST_P(QueueTest, EveryOperationRefusesNoArgumentsByItsName) {
  OpBench bench(GetParam());
  int operations = 0;
  const auto refused = [&](const absl::Status& status, const std::string& name) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), name + ": ")) << status;
    ++operations;
  };
#define SLUICE_REFUSES(Name) refused(bench.queue().Name({}), #Name);
  SLUICE_OPERATIONS(SLUICE_REFUSES)
#undef SLUICE_REFUSES
  EXPECT_EQ(operations, std::variant_size_v<Operation>);
}

TEST_P(QueueTest, EventIsDoneWithTheWorkBeforeIt) {
  OpBench bench(GetParam());
  Queue& queue = bench.queue();
  EXPECT_TRUE(queue.IsDone({}));
  const BufferRef weight = bench.PutFloats(std::vector<float>(8, 2.0f));
  const Rows x{bench.PutWritable(std::vector<float>(8, 1.0f)), 8};
  const Event before = queue.Record();
  ASSERT_TRUE(queue.Norm({x, 1, 8, {weight}, x}).ok());
  const Event after = queue.Record();
  EXPECT_GT(after.value, before.value);
  ASSERT_TRUE(queue.Wait(after).ok());
  EXPECT_TRUE(queue.IsDone(after));
  EXPECT_TRUE(queue.IsDone(before));
  EXPECT_FALSE(queue.IsDone({after.value + 1}));
  EXPECT_GT(bench.Floats(x.base, 1)[0], 1.5f);  // work before the event has run
}

}  // namespace
}  // namespace sluice
