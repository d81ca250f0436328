// One life of weightd: the real core and pump turns as a task, a task for control calls, the disk.
//
// Thread safety: one thread, the scheduler's.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/protocol/transfer_engine.h"
#include "tests/simulation/sim_pack.h"
#include "tests/simulation/sim_reader.h"
#include "tests/support/fakes/late_copier.h"
#include "weightd/engine/side_sockets.h"
#include "weightd/engine/store_core.h"

namespace sluice {

class SimServer {
 public:
  struct Options {
    uint64_t epoch = 1;
    uint64_t budget = 0;
    weightd::TierPolicy policy;
    uint64_t scrub_rate = 0;  // bytes a second; 0: none
    std::vector<SimPack::Shape> packs;
    SimDisk disk;
    bool forget_wakes = false;  // a planted bug: a report does not wake the pump
    bool write_late = false;    // a planted bug: see SimReader
  };
  // A call of the control plane; runs under the core's lock in a task of this life, and not at all if the
  // life ends before.
  struct Call {
    std::function<void(weightd::StoreCore*)> run;
    std::function<bool()> ready;  // empty: at once
    bool done = false;
  };

  SimServer(Scheduler* scheduler, Options options, uint64_t* next_fill, SimReader::Hooks hooks);
  // kill -9.
  ~SimServer();

  void Post(std::shared_ptr<Call> call) { calls_.push_back(std::move(call)); }
  // A client's process has exited; the pump learns of it at a time of the kernel's choice.
  void ProcessExited(uint64_t session) { exits_.push_back(session); }

  // True only between turns: nobody uses the core.
  bool locked() const { return locked_; }
  // True if the pump sleeps, and nothing that it polls is ready: only a wake by others can help.
  bool SleepsSoundly();

  weightd::StoreCore& core() { return *core_; }
  const SimReader& reader() const { return *reader_; }
  // True if nothing is read, copied or scrubbed.
  bool idle() const {
    return !scrubbing_ && reader_->idle() && transfers_->stats().transfers_waiting == 0 &&
           !transfers_->HasEvents();
  }
  uint64_t epoch() const { return options_.epoch; }
  // The last fill of an extent that was reported as good, by extent id; 0 before the first.
  uint64_t LastFill(weightd::ExtentId extent_id) const {
    return extent_id < last_fill_.size() ? last_fill_[extent_id].fill : 0;
  }
  size_t calls_waiting() const { return calls_.size(); }

 private:
  void RunPump();
  void RunControl();
  void RunCopier();
  void RunScrub();
  void Ring();
  bool HasEvents();

  Scheduler* const scheduler_;
  const Options options_;
  weightd::Poller poller_;
  UniqueFd bell_;
  std::vector<weightd::PollEvent> events_;
  struct LastFillOf {
    uint64_t fill = 0;
    uint64_t begun = 0;  // the last read that had begun at its report
  };
  std::vector<LastFillOf> last_fill_;  // by extent
  std::unique_ptr<SimReader> reader_;
  weightd::ReadInbox inbox_;
  std::shared_ptr<LateCopier> late_copier_;  // of slabs on a device
  std::unique_ptr<TransferEngine> transfers_;
  std::unique_ptr<weightd::StoreCore> core_;
  std::deque<std::shared_ptr<Call>> calls_;
  std::deque<uint64_t> exits_;
  Scheduler::Task* pump_ = nullptr;
  Scheduler::Task* control_ = nullptr;
  Scheduler::Task* copier_ = nullptr;
  Scheduler::Task* scrub_ = nullptr;
  bool locked_ = false;
  bool asleep_ = false;
  bool scrubbing_ = false;  // a chunk is out
};

}  // namespace sluice
