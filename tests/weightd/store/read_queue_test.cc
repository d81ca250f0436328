#include "weightd/store/read_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::weightd {
namespace {

constexpr uint64_t kChunk = 256 * 1024;

ReadJob Job(uint64_t tag, uint64_t length, RequestClass request_class = RequestClass::kDemand) {
  ReadJob job;
  job.tag = tag;
  job.length = length;
  job.request_class = request_class;
  return job;
}

std::shared_ptr<QueuedRead> End(ReadQueue& queue, const ReadChunk& chunk, ReadOutcome outcome,
                                absl::Status status, uint64_t bytes) {
  queue.Landed(chunk, 0);
  return queue.Finish(chunk, outcome, std::move(status), bytes, 0);
}

TEST(ReadQueueTest, SplitsJobsIntoChunksAndReportsTheLast) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  queue.Add(Job(1, 2 * kChunk + 4096));
  auto a = queue.Next();
  auto b = queue.Next();
  auto c = queue.Next();
  ASSERT_TRUE(a && b && c);
  EXPECT_FALSE(queue.Next());
  EXPECT_EQ(a->offset, 0u);
  EXPECT_EQ(b->offset, kChunk);
  EXPECT_EQ(c->offset, 2 * kChunk);
  EXPECT_EQ(c->length, 4096u);
  EXPECT_EQ(queue.in_flight_bytes(), 2 * kChunk + 4096);
  EXPECT_EQ(End(queue, *b, ReadOutcome::kOk, absl::OkStatus(), kChunk), nullptr);
  EXPECT_EQ(End(queue, *c, ReadOutcome::kOk, absl::OkStatus(), 4096), nullptr);
  auto over = End(queue, *a, ReadOutcome::kOk, absl::OkStatus(), kChunk);
  ASSERT_NE(over, nullptr);
  EXPECT_EQ(over->bytes_read, 2 * kChunk + 4096);
  EXPECT_TRUE(queue.idle());
  EXPECT_EQ(queue.in_flight_bytes(), 0u);
}

TEST(ReadQueueTest, JobsOfAClassAreServedInOrder) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  for (const uint64_t tag : {3, 1, 2}) {
    queue.Add(Job(tag, 2 * kChunk));
  }
  std::vector<uint64_t> order;
  while (const std::optional<ReadChunk> chunk = queue.Next()) {
    order.push_back(chunk->read->job.tag);
    EXPECT_EQ(chunk->offset, order.size() % 2 == 1 ? 0 : kChunk);
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{3, 3, 1, 1, 2, 2}));
}

TEST(ReadQueueTest, DemandOvertakesPrefetchBetweenItsChunks) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  queue.Add(Job(1, 4 * kChunk, RequestClass::kPrefetch));
  ASSERT_EQ(queue.Next()->read->job.tag, 1u);
  queue.Add(Job(2, kChunk));
  auto demand = queue.Next();
  ASSERT_TRUE(demand);
  EXPECT_EQ(demand->read->job.tag, 2u);
  EXPECT_FALSE(queue.Next()) << "no prefetch takes the disk from it";
  queue.Landed(*demand, 0);
  EXPECT_EQ(queue.Next()->read->job.tag, 1u);
}

TEST(ReadQueueTest, ProgressIsOwnOrThatOfReadsAhead) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk, .in_flight_bytes = kChunk});
  queue.Add(Job(1, 2 * kChunk));
  queue.Add(Job(2, kChunk));
  const auto first = queue.Next();
  first->read->started_nanos = 10;
  EXPECT_EQ(queue.ProgressNanos(1), 10);
  EXPECT_EQ(queue.ProgressNanos(2), 0);
  queue.Landed(*first, 20);
  ASSERT_EQ(queue.Next()->read->job.tag, 1u);
  EXPECT_EQ(queue.ProgressNanos(1), 20);
  EXPECT_EQ(queue.ProgressNanos(2), 20) << "it waits for the first";
  EXPECT_EQ(queue.ProgressNanos(3), 0) << "unknown";
}

TEST(ReadQueueTest, AbandonedDemandHoldsNoPrefetchBack) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  queue.Add(Job(1, kChunk));
  queue.Add(Job(2, kChunk, RequestClass::kPrefetch));
  ASSERT_TRUE(queue.Next());
  ASSERT_FALSE(queue.Next());
  queue.Abandon(1);
  EXPECT_EQ(queue.Next()->read->job.tag, 2u);
}

TEST(ReadQueueTest, NoPrefetchStartsWhileADemandWaits) {
  ReadLimits limits{.chunk_bytes = kChunk};
  limits.in_flight_bytes = kChunk;
  ReadQueue queue(limits);
  queue.Add(Job(1, 2 * kChunk));
  queue.Add(Job(2, 4096, RequestClass::kPrefetch));
  auto first = queue.Next();
  ASSERT_TRUE(first);
  EXPECT_FALSE(queue.Next()) << "4096 bytes would fit, but a demand waits";
  EXPECT_EQ(End(queue, *first, ReadOutcome::kOk, absl::OkStatus(), kChunk), nullptr);
  EXPECT_EQ(queue.Next()->read->job.tag, 1u);
}

TEST(ReadQueueTest, LandedChunkMakesRoomBeforeItsCheck) {
  ReadLimits limits{.chunk_bytes = kChunk};
  limits.in_flight_bytes = kChunk;
  ReadQueue queue(limits);
  queue.Add(Job(1, 2 * kChunk));
  auto first = queue.Next();
  ASSERT_TRUE(first);
  EXPECT_TRUE(queue.full());
  queue.Landed(*first, 0);
  EXPECT_FALSE(queue.full());
  auto second = queue.Next();
  ASSERT_TRUE(second);
  EXPECT_EQ(End(queue, *second, ReadOutcome::kOk, absl::OkStatus(), kChunk), nullptr);
  EXPECT_NE(queue.Finish(*first, ReadOutcome::kOk, absl::OkStatus(), kChunk, 0), nullptr);
}

TEST(ReadQueueTest, UrgentAndAbandonedReadsIgnoreTheLimits) {
  ReadLimits limits{.chunk_bytes = kChunk, .in_flight_bytes = kChunk};
  ReadQueue queue(limits);
  queue.Add(Job(1, 2 * kChunk));
  auto stuck = queue.Next();
  ReadJob again = Job(2, kChunk);
  again.urgent = true;
  queue.Add(std::move(again));
  auto second = queue.Next();
  ASSERT_TRUE(stuck && second);
  EXPECT_EQ(second->read->job.tag, 2u);
  EXPECT_TRUE(queue.full());
  EXPECT_FALSE(queue.Next());
  EXPECT_EQ(queue.Abandon(1), 1u);
  EXPECT_EQ(queue.in_flight_bytes(), 0u);
  auto rest = queue.Next();
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->read->job.tag, 1u) << "only what ran is written off";
  EXPECT_EQ(End(queue, *stuck, ReadOutcome::kOk, absl::OkStatus(), kChunk), nullptr);
  EXPECT_EQ(queue.in_flight_bytes(), kChunk);
  EXPECT_NE(End(queue, *second, ReadOutcome::kOk, absl::OkStatus(), kChunk), nullptr);
  EXPECT_NE(End(queue, *rest, ReadOutcome::kOk, absl::OkStatus(), kChunk), nullptr);
  EXPECT_EQ(queue.in_flight_bytes(), 0u);
  EXPECT_EQ(queue.Abandon(1), 0u);
}

TEST(ReadQueueTest, PrefetchKeepsAtMostTwoMiBInFlight) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  queue.Add(Job(1, 64 * kChunk, RequestClass::kPrefetch));
  uint64_t started = 0;
  while (queue.Next()) {
    ++started;
  }
  EXPECT_EQ(started * kChunk, 2u * 1024 * 1024);
}

TEST(ReadQueueTest, PrefetchOfASoleSessionKeepsFour) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  ReadJob job = Job(1, 64 * kChunk, RequestClass::kPrefetch);
  job.sole = true;
  queue.Add(std::move(job));
  uint64_t started = 0;
  while (queue.Next()) {
    ++started;
  }
  EXPECT_EQ(started * kChunk, 4u * 1024 * 1024);
}

TEST(ReadQueueTest, OneChunkRunsHoweverSmallTheBounds) {
  ReadLimits limits{.chunk_bytes = kChunk};
  limits.in_flight_bytes = 1;
  limits.prefetch_bytes = 1;
  ReadQueue queue(limits);
  queue.Add(Job(1, 2 * kChunk, RequestClass::kPrefetch));
  EXPECT_TRUE(queue.Next());
  EXPECT_FALSE(queue.Next());
}

TEST(ReadQueueTest, PromotedPrefetchRunsAsDemand) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  queue.Add(Job(1, kChunk, RequestClass::kPrefetch));
  queue.Add(Job(2, 2 * kChunk, RequestClass::kPrefetch));
  queue.Promote(2);
  auto first = queue.Next();
  EXPECT_EQ(first->read->job.tag, 2u);
  EXPECT_EQ(first->started_as, RequestClass::kDemand);
  queue.Promote(2);
  queue.Promote(99);
}

TEST(ReadQueueTest, CancelledJobIsReportedOnceWhenNothingOfItRuns) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  queue.Add(Job(1, kChunk));
  auto unstarted = queue.Cancel(1);
  ASSERT_NE(unstarted, nullptr);
  EXPECT_EQ(unstarted->outcome, ReadOutcome::kCancelled);
  EXPECT_FALSE(queue.Next());
  EXPECT_EQ(queue.Cancel(1), nullptr);

  queue.Add(Job(2, 3 * kChunk));
  auto running = queue.Next();
  EXPECT_EQ(queue.Cancel(2), nullptr);
  EXPECT_FALSE(queue.Next());
  auto over = End(queue, *running, ReadOutcome::kOk, absl::OkStatus(), kChunk);
  ASSERT_NE(over, nullptr);
  EXPECT_EQ(over->outcome, ReadOutcome::kCancelled);

  queue.Add(Job(3, kChunk));
  auto whole = queue.Next();
  EXPECT_EQ(queue.Cancel(3), nullptr) << "all of it was started: it ends as it ends";
  EXPECT_EQ(End(queue, *whole, ReadOutcome::kOk, absl::OkStatus(), kChunk)->outcome, ReadOutcome::kOk);
}

TEST(ReadQueueTest, FirstFailureIsKeptAndStopsTheJob) {
  ReadQueue queue(ReadLimits{.chunk_bytes = kChunk});
  queue.Add(Job(1, 4 * kChunk));
  auto a = queue.Next();
  auto b = queue.Next();
  EXPECT_EQ(End(queue, *a, ReadOutcome::kIoError, absl::DataLossError("first"), 0), nullptr);
  EXPECT_FALSE(queue.Next());
  auto over = End(queue, *b, ReadOutcome::kCorrupt, absl::DataLossError("second"), kChunk);
  ASSERT_NE(over, nullptr);
  EXPECT_EQ(over->outcome, ReadOutcome::kIoError);
  EXPECT_EQ(over->status.message(), "first");
}

}  // namespace
}  // namespace sluice::weightd
