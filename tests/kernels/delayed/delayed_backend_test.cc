// Tests that a device that computes later computes the same, and reports accesses that are too early.
#include "tests/support/delayed/delayed_backend.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// Nothing runs before the host waits for it.
class DelayedBackendTest : public testing::Test {
 protected:
  static std::unique_ptr<DelayedBackend> Make(const DelayOptions& options) {
    return std::make_unique<DelayedBackend>(*CreateReferenceBackend(TestLimits()), TestLimits(), options);
  }

  Rows NewRow(BufferKind kind, float value) {
    const BufferRef ref{*device_->Allocate(8 * sizeof(float), kind), 0};
    const std::vector<float> values(8, value);
    EXPECT_TRUE(device_->Upload(values.data(), 8 * sizeof(float), ref).ok());
    EXPECT_TRUE(Finish().ok());
    return {ref, 8};
  }
  // y = x / |x|: the rows of one value become rows of ones.
  absl::Status Norm(const Rows& x, const Rows& y) { return device_->Norm({x, 1, 8, {weight_.base}, y}); }
  absl::Status Finish() { return device_->Wait(device_->Record()); }
  float At(const Rows& rows) {
    const std::byte* place = device_->HostRead(rows.base, sizeof(float));
    return place == nullptr ? -1 : *reinterpret_cast<const float*>(place);
  }
  void ExpectReported(const std::string& what) {
    const absl::Status status = Finish();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_EQ(Finish(), status) << "it sticks";
  }

  std::unique_ptr<DelayedBackend> device_ = Make({.hold = true});
  Rows weight_ = NewRow(BufferKind::kTables, 1.0f);
};

TEST_F(DelayedBackendTest, ResultsAreThereOnceTheEventIsKnownToBeDone) {
  const Rows x = NewRow(BufferKind::kActivations, 3);
  const Rows y = NewRow(BufferKind::kStaging, 7);
  EXPECT_EQ(At(y), 7.0f);
  ASSERT_TRUE(Norm(x, y).ok());
  const Event event = device_->Record();
  EXPECT_FALSE(device_->IsDone(event));
  ASSERT_TRUE(device_->Wait(event).ok());
  EXPECT_TRUE(device_->IsDone(event));
  EXPECT_NEAR(At(y), 1.0f, 1e-3f);
  EXPECT_GE(*device_->Seconds({event.value - 1}, event), 0);
}

TEST_F(DelayedBackendTest, WaitsAreCountedWhereTheHostDidNotKnow) {
  const Rows x = NewRow(BufferKind::kActivations, 3);
  const uint64_t before = device_->Counters().waits;
  ASSERT_TRUE(Norm(x, x).ok());
  const Event first = device_->Record();
  const Event second = device_->Record();
  ASSERT_TRUE(device_->Wait(second).ok());
  EXPECT_EQ(device_->Counters().waits, before + 1);
  ASSERT_TRUE(device_->Wait(first).ok());
  ASSERT_TRUE(device_->Wait(second).ok());
  EXPECT_EQ(device_->Counters().waits, before + 1);
}

TEST_F(DelayedBackendTest, DeviceMemoryHasNoHostAddress) {
  const Rows x = NewRow(BufferKind::kActivations, 3);
  EXPECT_EQ(device_->HostRead(x.base, 4), nullptr);
  EXPECT_EQ(device_->HostWrite(x.base, 4), nullptr);
  const SharedBuffer shared = *device_->AllocateShared(100);
  EXPECT_EQ(device_->HostRead({shared.buffer, 0}, 4), nullptr);
  EXPECT_EQ(device_->HostRead(NewRow(BufferKind::kStaging, 1).base, 33), nullptr) << "beyond the buffer";
}

TEST_F(DelayedBackendTest, DownloadsAreFilledWhenTheyAreKnownToBeDone) {
  const Rows x = NewRow(BufferKind::kActivations, 3);
  float value = 3;
  ASSERT_TRUE(device_->Download(x.base, sizeof(value), &value).ok());
  EXPECT_NE(value, 3.0f) << "poisoned";
  ASSERT_TRUE(Finish().ok());
  EXPECT_EQ(value, 3.0f);
}

TEST_F(DelayedBackendTest, BufferFreedTooEarlyIsAnError) {
  const Rows x = NewRow(BufferKind::kActivations, 3);
  const Rows y = NewRow(BufferKind::kActivations, 3);
  ASSERT_TRUE(Norm(x, y).ok());
  EXPECT_THAT(std::string(device_->Free(x.base.buffer).message()), HasSubstr("Norm: buffer"));
  ExpectReported("Norm: buffer");
  EXPECT_TRUE(absl::IsNotFound(device_->Free(x.base.buffer)));
}

TEST_F(DelayedBackendTest, StagingReadTooEarlyIsAnError) {
  const Rows x = NewRow(BufferKind::kActivations, 3);
  const Rows y = NewRow(BufferKind::kStaging, 3);
  const std::byte* kept = device_->HostRead(y.base, sizeof(float));
  ASSERT_TRUE(Norm(x, y).ok());
  EXPECT_NE(*reinterpret_cast<const float*>(kept), 3.0f) << "poisoned";
  EXPECT_EQ(device_->HostRead(y.base, sizeof(float)), nullptr);
  ExpectReported("Norm: the host reads");
}

TEST_F(DelayedBackendTest, StagingOverwrittenTooEarlyIsAnError) {
  const Rows x = NewRow(BufferKind::kStaging, 3);
  const Rows y = NewRow(BufferKind::kActivations, 3);
  std::byte* kept = device_->HostWrite(x.base, sizeof(float));
  ASSERT_TRUE(Norm(x, y).ok());
  *kept ^= std::byte{1};
  ExpectReported("Norm: the host changed staging memory");
}

TEST_F(DelayedBackendTest, AskingToWriteStagingThatIsStillReadIsAnError) {
  const Rows x = NewRow(BufferKind::kStaging, 3);
  ASSERT_TRUE(Norm(x, NewRow(BufferKind::kActivations, 3)).ok());
  EXPECT_EQ(device_->HostWrite(x.base, sizeof(float)), nullptr);
  ExpectReported("Norm: the host writes");
}

TEST_F(DelayedBackendTest, WeightsOverwrittenTooEarlyAreAnError) {
  std::vector<float> memory(8, 2.0f);
  const BufferId weights =
      *device_->Import({reinterpret_cast<const std::byte*>(memory.data()), 8 * sizeof(float)});
  const Rows x = NewRow(BufferKind::kActivations, 3);
  ASSERT_TRUE(device_->Norm({x, 1, 8, {{weights, 0}}, x}).ok());
  memory[3] = 5;
  ExpectReported("Norm: 32 bytes of weights were overwritten before it ran");
}

TEST_F(DelayedBackendTest, WhatTheHostWroteGoesToTheDeviceAndComesBack) {
  const Rows x = NewRow(BufferKind::kStaging, 3);
  const Rows y = NewRow(BufferKind::kStaging, 0);
  float* values = reinterpret_cast<float*>(device_->HostWrite(x.base, 8 * sizeof(float)));
  std::fill_n(values, 8, -4.0f);
  ASSERT_TRUE(Norm(x, y).ok());
  ASSERT_TRUE(Norm(y, x).ok());  // the first operation reads x's bytes, then the second one writes them
  ASSERT_TRUE(Finish().ok());
  EXPECT_NEAR(At(y), -1.0f, 1e-3f);
  EXPECT_NEAR(At(x), -1.0f, 1e-3f);
}

TEST_F(DelayedBackendTest, ImpossibleArgumentsAreRefusedAtTheCall) {
  const Rows x = NewRow(BufferKind::kActivations, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(device_->Norm({x, 0, 8, {weight_.base}, x})));
  EXPECT_TRUE(absl::IsOutOfRange(device_->Norm({x, 2, 8, {weight_.base}, x})));
  EXPECT_TRUE(Finish().ok());
}

}  // namespace
}  // namespace sluice
