#include "inferd/grpc/stream_pump.h"

#include <memory>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

class CountingCall : public PumpedCall {
 public:
  explicit CountingCall(const ServingContext& context) : PumpedCall(context, {}, {}) { SetUnsent(7); }
  void Pump() override {
    const MutexLock lock(&mutex_);
    ++pumps_;
    changed_.SignalAll();
  }
  void CheckStall(absl::Time) override {
    const MutexLock lock(&mutex_);
    ++checks_;
    changed_.SignalAll();
  }
  void WaitForPumps(int count) {
    const MutexLock lock(&mutex_);
    while (pumps_ < count) {
      changed_.Wait(&mutex_);
    }
  }
  void WaitForChecks(int count) {
    const MutexLock lock(&mutex_);
    while (checks_ < count) {
      changed_.Wait(&mutex_);
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int pumps_ ABSL_GUARDED_BY(mutex_) = 0;
  int checks_ ABSL_GUARDED_BY(mutex_) = 0;
};

class StreamPumpTest : public testing::Test {
 protected:
  StreamPumpTest() { context_.calls = &calls_; }

  LiveCalls calls_;
  ServingContext context_;
};

TEST_F(StreamPumpTest, ScheduledCallIsPumpedAfterEverySchedule) {
  StreamPump pump;
  auto call = std::make_shared<CountingCall>(context_);
  for (int i = 1; i <= 100; ++i) {
    pump.Schedule(call);
    call->WaitForPumps(i);
  }
}

TEST_F(StreamPumpTest, EveryCallOfManyThreadsIsPumped) {
  StreamPump pump;
  std::vector<std::shared_ptr<CountingCall>> calls;
  for (int i = 0; i < 64; ++i) {
    calls.push_back(std::make_shared<CountingCall>(context_));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const auto& call : calls) {
        pump.Schedule(call);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& call : calls) {
    call->WaitForPumps(1);
  }
}

TEST_F(StreamPumpTest, AddedCallsAreKeptAliveAndCounted) {
  StreamPump pump;
  auto call = std::make_shared<CountingCall>(context_);
  std::weak_ptr<CountingCall> weak = call;
  PumpedCall* key = call.get();
  pump.Add(std::move(call));
  EXPECT_FALSE(weak.expired());
  EXPECT_EQ(1u, calls_.calls());
  EXPECT_EQ(7u, calls_.unsent_bytes());
  pump.Remove(key);
  EXPECT_EQ(0u, calls_.calls());
  EXPECT_EQ(0u, calls_.unsent_bytes());
  EXPECT_TRUE(calls_.AwaitIdle(absl::ZeroDuration()));
}

TEST_F(StreamPumpTest, UnscheduledCallIsStillCheckedForStalls) {
  StreamPump pump(absl::Milliseconds(1));
  auto call = std::make_shared<CountingCall>(context_);
  pump.Add(call);
  call->WaitForChecks(3);
  pump.Remove(call.get());
}

TEST_F(StreamPumpTest, CallsScheduledWhenThePumpEndsAreDropped) {
  auto call = std::make_shared<CountingCall>(context_);
  {
    StreamPump pump;
    for (int i = 0; i < 1000; ++i) {
      pump.Schedule(call);
    }
  }
  EXPECT_EQ(1, call.use_count());
}

}  // namespace
}  // namespace sluice::inferd
