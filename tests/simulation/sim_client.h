// One inferd process, as weightd sees it: inferd's own WeightSession under a driver that leases, reads,
// fetches, prefetches, cancels, sleeps, naps and misbehaves by seed, and checks the results.
//
// Thread safety: one thread, the scheduler's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "inferd/session/weight_session.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_slab.h"

namespace sluice {

struct SimCounters {
  uint64_t leases = 0;
  uint64_t lease_misses = 0;
  uint64_t submitted = 0;
  uint64_t completed = 0;
  uint64_t no_room = 0;
  uint64_t data_loss = 0;
  uint64_t cancelled = 0;
  uint64_t transfers = 0;
  uint64_t dense = 0;          // of these: extents that stay
  uint64_t pulls = 0;          // experts copied by the client itself
  uint64_t pulls_in_vain = 0;  // pulls whose session ended meanwhile
  uint64_t refused = 0;
  uint64_t sessions = 0;
  uint64_t lost_sessions = 0;
  uint64_t client_kills = 0;
  uint64_t server_kills = 0;
  uint64_t quiet_points = 0;
  uint64_t rotten = 0;
  uint64_t stopped = 0;  // sessions ended as stalled
};

// The part of the world's state that a client may see.
struct SimShared {
  Scheduler* scheduler = nullptr;
  std::unique_ptr<SimServer> server;  // null between two lives
  std::vector<SimPack::Shape> packs;
  struct Tempting {
    uint32_t extent = 0;
    uint64_t until = 0;  // event
  };
  std::vector<Tempting> tempting;                          // by pack: the extent that is about to be evicted
  std::set<uint64_t> rotten;                               // fills whose bytes have changed in memory
  std::set<std::pair<uint32_t, uint32_t>> rotten_extents;  // pack and extent of these
  bool stopping = false;                                   // clients finish, close and wait
  bool faults = true;
  // Planted bugs of the client's own rules.
  bool forget_events = false;     // a slot is filled while the device reads it
  bool count_lost_pulls = false;  // copied bytes count though the session ended meanwhile
  SimCounters counters;
};

class SimClient final : public inferd::SegmentObserver {
 public:
  struct Held {
    uint32_t extent = 0;
    inferd::ExtentLease lease;
    uint64_t fill = 0;
  };

  SimClient(SimShared* shared, int number, uint32_t pack);
  // The process is gone, wherever it was.
  ~SimClient() override;

  absl::Status OnSegmentMapped(uint32_t segment, const std::byte*, uint64_t) override {
    mapped_.insert(segment);
    return absl::OkStatus();
  }
  void OnSegmentUnmapped(uint32_t segment) override;

  // State for the world's checks.
  const std::vector<Held>& held() const { return held_; }
  // True if it has given no sign for long enough that weightd may have ended its session, and did: its leases
  // no longer hold anything.
  bool ended_as_stalled() const;
  uint64_t epoch() const { return epoch_; }  // the life in which the leases were granted
  bool finished() const { return session_ == nullptr && paused_; }
  // Describes a side that sleeps though it has work and no wake will come; empty if there is none. REQUIRES:
  // weightd sleeps.
  std::string LostWake();
  // Time when the first of its requests is overdue; INT64_MAX if none can be.
  int64_t Overdue() const;
  // Sessions that weightd still has of this process.
  const std::vector<uint64_t>& joined() const { return joined_; }
  // Segments that it has mapped in a session that weightd has not ended.
  const std::set<uint32_t>& mapped() const { return mapped_; }
  bool connected() const { return session_ != nullptr && session_->lost().ok() && !session_->PeerGone(); }
  uint32_t pack() const { return pack_; }
  bool has_dense() const { return dense_ != nullptr; }

 private:
  struct Pending {
    std::vector<uint32_t> extents;
    int64_t deadline = 0;
    uint32_t progress = kNoProgress;
    uint32_t landed = 0;
    bool fill = false;
  };

  void Run();
  void Act();
  bool Connect();
  // Posts a call and waits for it; false: that life of weightd has ended.
  bool Control(std::function<void(weightd::StoreCore*)> run);
  void OfferSlabs();
  bool Lost();
  void DropSession(bool close);
  void Quiesce();

  void Compute();
  bool TakeLease(uint32_t extent);
  void Verify(const Held& held);
  void ReleaseOne(size_t index);
  void ReleaseAll();
  void ReleaseSome();

  SubmissionEntry Entry(Opcode opcode, RequestClass request_class);
  bool Submit(SubmissionEntry entry, std::vector<uint32_t> extents,
              const std::vector<uint32_t>& neurons = {});
  bool SubmitTransfer(RequestClass request_class);
  bool SubmitDense();
  bool LeaseExpert(uint32_t layer, uint32_t expert);
  void Pull();
  // Fails with a slab's verdict; no failure if it is empty.
  void Expect(const std::string& wrong);
  bool SubmitFill(RequestClass request_class);
  void SubmitOdd();
  void ChangeMind();
  void Scribble();
  bool Misbehave();
  void Knock();
  void AwaitLoss();
  bool ReapOne(bool lease);
  void CheckProgress(uint64_t id, Pending* pending);
  void AwaitAll();
  void Nap(int64_t nanos);

  Scheduler& scheduler() { return *shared_->scheduler; }
  void Fail(const std::string& why);
  uint64_t Below(uint64_t bound) { return shared_->scheduler->Below(bound); }
  bool Chance(uint64_t one_in) { return shared_->scheduler->Chance(one_in); }

  SimShared* const shared_;
  const std::string name_;
  const uint32_t pack_;
  const SimPack source_;
  std::vector<uint64_t> extent_bytes_;
  UniqueFd wake_;
  UniqueFd side_copy_;  // for cutting the connection
  std::unique_ptr<inferd::WeightSession> session_;
  std::unique_ptr<SimSlab> slab_;   // of this session; weightd has it as number 0
  std::unique_ptr<SimSlab> dense_;  // of this process; number 1 in each session that has a slab_
  uint64_t epoch_ = 0;
  std::vector<Held> held_;
  std::vector<uint64_t> joined_;
  std::set<uint32_t> mapped_;
  std::map<uint64_t, Pending> pending_;
  uint64_t next_id_ = 1;
  uint64_t step_ = 1;
  uint64_t stamp_ = 0;
  std::pair<uint32_t, uint32_t> guess_ = {0, 0};  // layer and expert of the last prefetch
  bool in_submit_ = false;
  bool in_sleep_ = false;
  bool napping_ = false;
  int64_t stalled_since_ = -1;  // -1: not stalled
  bool paused_ = false;
  Scheduler::Task* task_ = nullptr;
};

}  // namespace sluice
