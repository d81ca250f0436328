// Tests that a backend on its own thread computes beside its owner, in order, and returns errors from waits.
#include "kernels/threaded_backend.h"

#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

// Its operations wait while the gate is closed.
class GatedBackend final : public ReferenceBackend {
 public:
  GatedBackend() : ReferenceBackend(TestLimits()) {}
  void Close() {
    MutexLock lock(&mutex_);
    open_ = false;
  }
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.SignalAll();
  }
  absl::Status Enqueue(const Operation& operation) override {
    {
      MutexLock lock(&mutex_);
      while (!open_) {
        changed_.Wait(&mutex_);
      }
    }
    return ReferenceBackend::Enqueue(operation);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
};

class ThreadedBackendTest : public testing::Test {
 protected:
  ThreadedBackendTest() {
    auto gated = std::make_unique<GatedBackend>();
    gate_ = gated.get();
    backend_ = std::make_unique<ThreadedBackend>(std::move(gated));
    ones_ = NewRow(1);
  }
  Rows NewRow(float value) {
    const BufferRef ref{*backend_->Allocate(8 * sizeof(float), BufferKind::kActivations), 0};
    const std::vector<float> values(8, value);
    EXPECT_TRUE(backend_->Upload(values.data(), 8 * sizeof(float), ref).ok());
    EXPECT_TRUE(backend_->Wait(backend_->Record()).ok());
    return {ref, 8};
  }
  // x = x + y.
  absl::Status Add(const Rows& x, const Rows& y) { return backend_->Combine({y, {}, 1, 1, 8, x, x}); }
  float At(const Rows& rows) {
    return *reinterpret_cast<const float*>(backend_->HostRead(rows.base, sizeof(float)));
  }

  GatedBackend* gate_ = nullptr;
  std::unique_ptr<ThreadedBackend> backend_;
  Rows ones_;
};

TEST_F(ThreadedBackendTest, TheOwnerGoesOnWhileItComputes) {
  const Rows x = NewRow(3);
  gate_->Close();
  ASSERT_TRUE(Add(x, ones_).ok());
  const Event event = backend_->Record();
  EXPECT_FALSE(backend_->IsDone(event));
  EXPECT_EQ(backend_->Seconds({event.value - 1}, event).status().code(),
            absl::StatusCode::kFailedPrecondition);
  gate_->Open();
  ASSERT_TRUE(backend_->Wait(event).ok());
  EXPECT_TRUE(backend_->IsDone(event));
  EXPECT_EQ(At(x), 4.0f);
  EXPECT_GT(*backend_->Seconds({event.value - 1}, event), 0);
  EXPECT_EQ(*backend_->Seconds(event, event), 0);
}

TEST_F(ThreadedBackendTest, MoreThanTheQueueHoldsRunsInOrder) {
  const Rows x = NewRow(0);
  const Rows y = NewRow(1);
  float back[8] = {};
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(Add(x, y).ok());
    ASSERT_TRUE(backend_->Download(x.base, sizeof(back), back).ok());
    const float value = static_cast<float>(i % 7);
    const std::vector<float> values(8, value);
    ASSERT_TRUE(backend_->Upload(values.data(), sizeof(back), y.base).ok());
  }
  ASSERT_TRUE(backend_->Wait(backend_->Record()).ok());
  float sum = 1;
  for (int i = 0; i < 499; ++i) {
    sum += static_cast<float>(i % 7);
  }
  EXPECT_EQ(At(x), sum);
  EXPECT_EQ(back[7], sum);
}

TEST_F(ThreadedBackendTest, TheFirstErrorIsSaidByEveryWait) {
  ASSERT_TRUE(backend_->Norm({}).ok()) << "it is not looked at before it runs";
  ASSERT_TRUE(Add(ones_, ones_).ok());
  const absl::Status status = backend_->Wait(backend_->Record());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("Norm"));
  EXPECT_EQ(backend_->Wait(backend_->Record()), status);
  EXPECT_EQ(backend_->Wait({backend_->Record().value + 1}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ThreadedBackendTest, MemoryIsImportedAndFreedWhileItComputes) {
  const Rows x = NewRow(0);
  std::vector<float> values(8, 2);
  for (int i = 0; i < 50; ++i) {
    const auto memory = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), 32);
    ASSERT_TRUE(Add(x, ones_).ok());
    const BufferId imported = *backend_->Import(memory);
    ASSERT_TRUE(Add(x, {{imported, 0}, 8}).ok());
    ASSERT_TRUE(backend_->Wait(backend_->Record()).ok());
    ASSERT_TRUE(backend_->Free(imported).ok());
  }
  EXPECT_EQ(At(x), 150.0f);
}

TEST_F(ThreadedBackendTest, WhatIsStillQueuedDoesNotKeepItFromEnding) {
  gate_->Close();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Add(ones_, ones_).ok());
  }
  gate_->Open();
  backend_.reset();
}

}  // namespace
}  // namespace sluice
