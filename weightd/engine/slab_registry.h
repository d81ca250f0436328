// Memory that clients offer as slabs: offered on the side socket or within the process, mapped by the
// transfer engine, given a link, and unmapped when the session ends.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/protocol/copier.h"
#include "common/protocol/link_model.h"
#include "common/protocol/side_channel.h"
#include "common/protocol/transfer_engine.h"
#include "weightd/engine/session.h"
#include "weightd/engine/side_sockets.h"

namespace sluice::weightd {

class SlabRegistry {
 public:
  // All borrowed; `engine` null: there are no slabs.
  SlabRegistry(TransferEngine* engine, SessionTable* sessions, SideSockets* side, StoreLog* log)
      : engine_(engine), sessions_(sessions), side_(side), log_(log) {}

  // Lets the session's transfers use `slab` as its number `number`. ALREADY_EXISTS, RESOURCE_EXHAUSTED,
  // NOT_FOUND (the session), UNIMPLEMENTED: no transfer engine.
  absl::Status Add(uint64_t session, uint32_t number, std::shared_ptr<Slab> slab, const LinkRate& rate);
  // Handles SLAB_OFFERED: answered when the memory is mapped, at once if it is refused. INVALID_ARGUMENT: it
  // is no such message, and the session must end.
  absl::Status OnOffered(Session* session, SidePacket packet);
  void OnMapped(SlabMapped mapped);
  // Unmaps all slabs of the session. REQUIRES: none of its transfers will be submitted.
  void Drop(Session* session);

 private:
  absl::Status Reserve(Session* session, uint32_t number) const;
  // Checks that the memory is neither a slab nor one of weightd's own regions.
  absl::Status CheckNew(const Slab& slab) const;
  // SLAB_MAPPED with the outcome; a refusal is logged.
  void Answer(Session* session, uint32_t number, const absl::Status& outcome);

  TransferEngine* const engine_;
  SessionTable* const sessions_;
  SideSockets* const side_;
  StoreLog* const log_;
};

}  // namespace sluice::weightd
