// Pinned host memory that copies use: what the host must leave alone until it knows that they are done.
//
// "The call may return before the copy is complete" (Runtime API, cudaMemcpyAsync). So the bytes that a copy
// brings stay away, and poison is in their place, until the host has learnt that the copy is done, however
// early it ran: a host that does not wait reads poison in every seed. And bytes that a copy takes must be the
// same then as when it was submitted.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/cuda_fake/interp/region.h"
#include "tests/cuda_fake/report.h"

namespace sluice::cuda_fake {

class HostUses : public HostWatch {
 public:
  // A copy from [host, host + bytes) is submitted.
  void Takes(uint32_t operation, const uint8_t* host, uint64_t bytes);
  // A copy has run that brings `bytes` to `host`.
  void Brings(uint32_t operation, uint8_t* host, std::vector<uint8_t> bytes);
  // The device reads or writes these bytes itself, in order behind the copies: they are there for it.
  void BeforeDevice(const uint8_t* host, uint64_t bytes, bool writes) override;
  // `known(operation)`: whether the host knows it to be done.
  void HostHasLearnt(const std::function<bool(uint32_t)>& known,
                     const std::function<std::string(uint32_t)>& name, ReportSink* reports);
  // The device has failed.
  void Forget();

 private:
  struct Use {
    uint32_t operation = 0;
    uint8_t* host = nullptr;
    uint64_t bytes = 0;
    bool takes = false;
    size_t hash = 0;               // of what it takes
    std::vector<uint8_t> brought;  // what it brings
    bool Overlaps(const uint8_t* other, uint64_t count) const {
      return other < host + bytes && host < other + count;
    }
  };
  std::vector<Use> uses_;
};

}  // namespace sluice::cuda_fake
