// TestSlab: a slab as inferd makes one, with targets for experts of a pack and checks of their rows.
//
// Thread safety: thread-compatible.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "common/protocol/shared_memory.h"
#include "inferd/model/weight_client.h"
#include "pack/row_layout.h"
#include "tests/support/test_pack.h"

namespace sluice {

class TestSlab {
 public:
  explicit TestSlab(uint64_t bytes) {
    auto memory = CreateSharedMemory("slab", bytes, PeerAccess::kReadWrite);
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    std::memset(memory_.map.data(), 0xaa, memory_.map.bytes());
  }

  inferd::SlabOffer Offer(double gbps = 0, double latency_us = 0) const {
    inferd::SlabOffer offer;
    offer.fd = memory_.fd.get();
    offer.bytes = memory_.map.bytes();
    offer.link_gbps = gbps;
    offer.link_latency_us = latency_us;
    return offer;
  }
  int fd() const { return memory_.fd.get(); }
  std::byte* data() const { return memory_.map.data(); }
  uint64_t bytes() const { return memory_.map.bytes(); }

  // Parts of an expert one behind another from `at`, their rows `gap` bytes apart.
  static inferd::TransferTarget Target(const Pack& pack, uint32_t slab, uint32_t layer, uint32_t expert,
                                       PartSet parts, uint64_t at, uint64_t gap = 0) {
    inferd::TransferTarget target;
    target.slab = slab;
    for (Part part : {Part::kUp, Part::kGate, Part::kDown}) {
      if ((parts & PartBit(part)) != 0) {
        const PartView view = pack.part(layer, expert, part);
        const auto p = static_cast<size_t>(part);
        target.base[p] = at;
        target.stride[p] = RowBytes(view.encoding, view.cols) + gap;
        at += target.stride[p] * view.rows;
      }
    }
    return target;
  }

  // True if rows [first, first + rows) of the target hold the pack's rows.
  bool Holds(const TestPack& pack, uint32_t layer, uint32_t expert, PartSet parts,
             const inferd::TransferTarget& target, uint32_t first = 0, uint32_t rows = ~0u) const {
    for (Part part : {Part::kUp, Part::kGate, Part::kDown}) {
      if ((parts & PartBit(part)) == 0) {
        continue;
      }
      const PartView view = pack.pack().part(layer, expert, part);
      const auto p = static_cast<size_t>(part);
      const auto all = static_cast<uint32_t>(target.neurons.empty() ? view.rows : target.neurons.size());
      for (uint32_t i = first; i < all && i - first < rows; ++i) {
        const uint64_t neuron = target.neurons.empty() ? i : target.neurons[i];
        if (std::memcmp(data() + target.base[p] + i * target.stride[p],
                        pack.extent(view.extent).data() + view.base + neuron * view.stride,
                        RowBytes(view.encoding, view.cols)) != 0) {
          return false;
        }
      }
    }
    return true;
  }
  // Bytes that nobody has written since the slab was made.
  uint64_t UntouchedBytes() const {
    uint64_t untouched = 0;
    for (uint64_t i = 0; i < bytes(); ++i) {
      untouched += data()[i] == std::byte{0xaa} ? 1 : 0;
    }
    return untouched;
  }

 private:
  SharedMemory memory_;
};

}  // namespace sluice
