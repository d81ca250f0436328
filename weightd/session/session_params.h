// Parameters of a new session, and the resources that it gets.
//
// Thread safety: plain values. A LocalSession's regions are shared with weightd.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/ring/rings.h"
#include "common/ring/session_abi.h"

namespace sluice::weightd {

// Parameters from OpenSession's caller.
struct SessionParams {
  AbiSignature abi;
  std::vector<uint32_t> packs;  // weightd's pack numbers; their order is the session's pack index
  // Compute threads: the session's reserved minimum is 2 x the largest expert of its packs x this.
  uint32_t compute_threads = 1;
  // Maximum number of bytes that the session may fill: beyond it, its own coldest extents are evicted first.
  // 0: the store's session_quota. Extents filled by other sessions are not charged.
  uint64_t quota_bytes = 0;
  ControlLayout layout;  // sizes of rings, index arena and progress array
  // For logs and Stats only.
  std::string client_name;
};

struct SessionPack {
  uint32_t pack = 0;  // weightd's number
  uint32_t extent_count = 0;
};

// An open session. Descriptors are the store's and stay open until the session ends; a client in another
// process gets copies by AttachSideSocket, one in this process may map them at once.
struct SessionHandle {
  uint64_t session = 0;
  uint64_t boot_epoch = 0;
  std::vector<SessionPack> packs;
  std::vector<int> fds;  // in the order of WelcomeFds
  uint64_t control_bytes = 0;
  uint64_t reserved_bytes = 0;  // the reserved minimum
};

// A session's regions as weightd itself has them mapped: for clients in this process (tests, benchmarks).
// Borrowed; valid until the session ends.
struct LocalSession {
  struct PackRegions {
    const ResidencyEntry* residency = nullptr;
    PinEntry* pins = nullptr;
    uint32_t extent_count = 0;
  };
  ControlView control;
  std::vector<PackRegions> packs;  // in the session's order
  int server_bell = -1;
  int client_bell = -1;
};

}  // namespace sluice::weightd
