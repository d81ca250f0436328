// Control tasks beside the steps: their order, tasks without weights outliving the loss of weights, the end.
#include "inferd/engine/task_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace sluice::inferd {
namespace {

// The engine's side: runs tasks once woken.
class Waiting {
 public:
  void Wake() { came_.fetch_add(1); }
  void Await(int count) const {
    while (came_.load() < count) {
      std::this_thread::yield();
    }
  }

 private:
  std::atomic<int> came_{0};
};

absl::Status NoStep(const EngineWork&) { return absl::InternalError("no step was to be run"); }

TEST(TaskQueueTest, RunsWaitingTasksInOrder) {
  Waiting waiting;
  TaskQueue queue([&] { waiting.Wake(); });
  std::string order;
  std::vector<absl::Status> ended(2);
  std::thread first([&] {
    ended[0] = queue.RunCall([&] {
      order += "call ";
      return absl::NotFoundError("of the call");
    });
  });
  waiting.Await(1);
  std::thread second(
      [&] { ended[1] = queue.RunStep([](const ModelParts&, uint64_t) { return absl::OkStatus(); }); });
  waiting.Await(2);
  const auto run_step = [&](const EngineWork&) {
    order += "step ";
    return absl::DataLossError("of the step");
  };
  EXPECT_TRUE(queue.RunNext(run_step));
  EXPECT_EQ(order, "call ");
  EXPECT_TRUE(queue.RunNext(run_step));
  EXPECT_FALSE(queue.RunNext(run_step));
  first.join();
  second.join();
  EXPECT_EQ(order, "call step ");
  EXPECT_EQ(ended[0], absl::NotFoundError("of the call"));
  EXPECT_EQ(ended[1], absl::DataLossError("of the step"));
}

TEST(TaskQueueTest, CallsOutliveTheLossOfTheWeights) {
  Waiting waiting;
  TaskQueue queue([&] { waiting.Wake(); });
  std::vector<absl::Status> ended(2);
  std::thread step(
      [&] { ended[0] = queue.RunStep([](const ModelParts&, uint64_t) { return absl::OkStatus(); }); });
  std::thread call([&] { ended[1] = queue.RunCall([] { return absl::OkStatus(); }); });
  waiting.Await(2);
  queue.FailSteps(absl::UnavailableError("lost"));
  step.join();
  EXPECT_EQ(ended[0], absl::UnavailableError("lost"));
  EXPECT_TRUE(queue.RunNext(NoStep));
  EXPECT_FALSE(queue.RunNext(NoStep));
  call.join();
  EXPECT_TRUE(ended[1].ok());
}

TEST(TaskQueueTest, EndsAllOnceClosed) {
  Waiting waiting;
  TaskQueue queue([&] { waiting.Wake(); });
  absl::Status ended;
  std::thread call([&] { ended = queue.RunCall([] { return absl::OkStatus(); }); });
  waiting.Await(1);
  queue.Close(absl::UnavailableError("the end"));
  call.join();
  EXPECT_EQ(ended, absl::UnavailableError("the end"));
  EXPECT_EQ(queue.RunStep([](const ModelParts&, uint64_t) { return absl::OkStatus(); }),
            absl::UnavailableError("the end"));
  EXPECT_FALSE(queue.RunNext(NoStep));
}

}  // namespace
}  // namespace sluice::inferd
