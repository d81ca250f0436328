// A StoreCore whose transfers a test can delay: clients with slabs, and their requests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/protocol/copier.h"
#include "common/protocol/transfer_engine.h"
#include "tests/weightd/engine/core_fixture.h"

namespace sluice::weightd {

inline constexpr uint64_t kRowBytes = 256;
inline constexpr uint32_t kWidth = kPart / kRowBytes;
inline constexpr uint32_t kSlabNumber = 5;

class TransferSessionTest : public CoreTest {
 protected:
  TransferSessionTest() { transfers_ = &engine_; }

  struct Peer {
    uint64_t session = 0;
    std::unique_ptr<LocalClient> client;
    SharedMemory memory;
  };
  Peer Join(const LinkRate& rate = {}) {
    Peer peer;
    peer.session = OpenSession();
    peer.client = std::make_unique<LocalClient>(Client(peer.session));
    peer.memory = *CreateSharedMemory("slab", 8 * kExpert, PeerAccess::kReadWrite);
    std::memset(peer.memory.map.data(), 0, peer.memory.map.bytes());
    auto slab = HostSlab::Map(peer.memory.fd.get(), peer.memory.map.bytes());
    EXPECT_TRUE(slab.ok()) << slab.status();
    slabs_.push_back(*slab);
    EXPECT_TRUE(core_->AddSlab(peer.session, kSlabNumber, *std::move(slab), rate).ok());
    return peer;
  }
  static SubmissionEntry Transfer(uint64_t id, uint32_t layer, uint32_t expert, uint64_t at = 0,
                                  RequestClass request_class = RequestClass::kDemand) {
    SubmissionEntry entry = LocalClient::FillExpert(id, layer, expert);
    entry.opcode = Opcode::kTransfer;
    entry.request_class = request_class;
    entry.slab = kSlabNumber;
    for (uint64_t part = 0; part < kPartCount; ++part) {
      entry.base[part] = at + part * kPart;
      entry.stride[part] = kRowBytes;
    }
    return entry;
  }
  static SubmissionEntry Prefetch(uint64_t id, uint64_t step, uint32_t layer, uint32_t expert, uint64_t at) {
    SubmissionEntry entry = Transfer(id, layer, expert, at, RequestClass::kPrefetch);
    entry.step = step;
    return entry;
  }
  static SubmissionEntry Cancel(uint64_t id, uint64_t target) {
    SubmissionEntry entry = LocalClient::Plain(id, Opcode::kCancel);
    entry.target = target;
    return entry;
  }
  // Rounds of the core and the engine until neither moves; the modelled links stand still with the clock.
  void Settle() {
    do {
      Pump();
      while (engine_.Step()) {
      }
    } while (engine_.HasEvents());
    Pump();
  }
  void Arrivals() {
    Settle();
    while (engine_.NextArrival() != 0) {
      clock_.Advance(std::max<int64_t>(0, engine_.NextArrival() - clock_.NowNanos()));
      Settle();
    }
  }
  void Read() {
    reader_.CompleteAll();
    Settle();
  }
  bool Holds(const Peer& peer, uint32_t layer, uint32_t expert, uint64_t at = 0) const {
    bool right = true;
    for (uint32_t part = 0; part < kPartCount; ++part) {
      right = right && source_->BytesAreRight(source_->FirstExpertExtent(layer, expert) + part,
                                              {peer.memory.map.data() + at + part * kPart, kPart});
    }
    return right;
  }

  TransferEngine engine_{{.threads = 0}, &clock_, [] {}};
  std::vector<std::weak_ptr<Slab>> slabs_;
};

}  // namespace sluice::weightd
