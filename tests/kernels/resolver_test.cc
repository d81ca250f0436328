// Tests that arguments are checked and resolved for a device whose memory the host cannot access.
#include "kernels/resolver.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/calls.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// Buffer 1 lies in a device at an address that the host does not map, read-only; buffer 2 is host memory too.
class DeviceAddresses final : public Addresses {
 public:
  static constexpr uintptr_t kDevice = 0x7f0000000000;
  static constexpr uint64_t kBytes = 4096;

  const std::byte* Read(BufferRef ref, uint64_t bytes) const override {
    if (ref.offset + bytes > kBytes) {
      return nullptr;
    }
    return reinterpret_cast<const std::byte*>(kDevice * ref.buffer + ref.offset);
  }
  std::byte* Write(BufferRef ref, uint64_t bytes) const override {
    return ref.buffer == 1 ? nullptr : const_cast<std::byte*>(Read(ref, bytes));
  }
  absl::Status Explain(BufferRef, uint64_t, bool writing, const char* what) const override {
    return writing ? absl::FailedPreconditionError(what) : absl::OutOfRangeError(what);
  }
};

class ResolverTest : public testing::Test {
 protected:
  Resolver For(const char* op) { return Resolver(memory_, limits_, scratch_, op); }

  DeviceAddresses memory_;
  const BackendLimits limits_ = {.max_tokens = 4,
                                 .max_cols = 64,
                                 .hidden = 16,
                                 .heads = 1,
                                 .head_dim = 16,
                                 .experts = 2,
                                 .top_k = 1,
                                 .expert_width = 64,
                                 .vocab = 16};
  CallScratch scratch_{limits_};
};

TEST_F(ResolverTest, PlacesBecomeTheDevicesAddresses) {
  const Rows x{{1, 64}, 16};
  const Rows y{{2, 128}, 16};
  const auto call = Resolve(For("Norm"), NormArgs{x, 4, 16, {{1, 0}}, y});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(call->x.Row(1)), DeviceAddresses::kDevice + 64 + 16 * 4);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(call->y.Row(0)), 2 * DeviceAddresses::kDevice + 128);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(call->norm.weight), DeviceAddresses::kDevice);
}

TEST_F(ResolverTest, DeviceErrorsNameTheOperation) {
  const Rows here{{2, 0}, 16};
  const Rows read_only{{1, 0}, 16};
  EXPECT_EQ(Resolve(For("Norm"), NormArgs{here, 4, 16, {{1, 0}}, read_only}).status(),
            absl::FailedPreconditionError("Norm: y"));
  const Rows beyond{{1, DeviceAddresses::kBytes - 4}, 16};
  EXPECT_EQ(Resolve(For("Norm"), NormArgs{beyond, 4, 16, {{1, 0}}, here}).status(),
            absl::OutOfRangeError("Norm: x"));
}

TEST_F(ResolverTest, IndexListsSayHowFarAMatrixReaches) {
  const std::vector<int32_t> list = {3, -1, 0, 2};
  WeightView part{MakeDescriptor(Encoding::kBf16), {1, 0}, 32, 4, 16, list};
  CallWeights out;
  ASSERT_TRUE(For("MoeExperts").Weights(part, /*indexed=*/true, "up", &out).ok());
  EXPECT_EQ(out.positions, list.data());
  // Row 3 is the last one: it must fit, though the matrix has but four rows.
  part.stride = DeviceAddresses::kBytes / 3;
  part.stride -= part.stride % 2;
  EXPECT_EQ(For("MoeExperts").Weights(part, true, "up", &out), absl::OutOfRangeError("MoeExperts: up"));
  part.positions = absl::MakeConstSpan(list).first(3);
  EXPECT_EQ(For("MoeExperts").Weights(part, true, "up", &out),
            absl::InvalidArgumentError("MoeExperts: up: an index list of 3 for 4 rows"));
}

}  // namespace
}  // namespace sluice
