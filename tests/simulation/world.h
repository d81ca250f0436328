// The simulated world: lives of weightd, inferd processes, kills, and the invariants that are checked after
// every event.
//
// Thread safety: one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/sim_client.h"

namespace sluice {

enum class PlantedBug {
  kNone,
  kEvictWithoutLook,  // an eviction sees no client's pins
  kForgottenWake,     // a finished read does not wake the pump
  kLateWrite,         // a reader writes after its report
  kForgottenEvent,    // a client lends a slot that its device still reads
  kLostPull           // a client counts a copy whose session ended
};

struct WorldOptions {
  uint64_t seed = 1;
  uint64_t events = 100'000;
  int clients = 4;
  PlantedBug bug = PlantedBug::kNone;
};

struct WorldResult {
  std::string failure;  // empty: every invariant held
  uint64_t events = 0;
  uint64_t digest = 0;
  int64_t virtual_nanos = 0;
  SimCounters counters;
};

class World {
 public:
  explicit World(const WorldOptions& options);
  ~World();

  WorldResult Run();

 private:
  struct DeadProcess {
    uint64_t epoch = 0;
    uint64_t session = 0;
    uint64_t at_event = 0;  // time at which weightd learns of its exit
  };

  void StartServer();
  void KillServer();
  void StartClient(size_t index);
  void KillClient(size_t index);
  void Each();
  void Chaos();
  // A bit of a resident extent flips.
  void Rot();
  void CheckWrite(const std::byte* dest, uint64_t bytes);
  void CheckWakes();
  void CheckDeadlines();
  void TellExits();
  void BringBack();
  // Called when all tasks wait: runs the next future event now.
  bool OnIdle();
  void CheckAccounts();
  // Makes every client finish and close; then nothing may be left.
  void BeginQuiet();
  void CheckQuiet();
  void PointOut(const volatile void* word);
  void PlantStep(ProtocolPoint point, const volatile void* word, bool before_switch);

  const WorldOptions options_;
  Scheduler scheduler_;
  SimShared shared_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  std::vector<uint64_t> respawn_at_;  // by client: the event that starts its next life
  std::vector<DeadProcess> dead_;
  uint64_t next_fill_ = 0;
  uint64_t epochs_ = 0;
  uint64_t restart_at_ = 0;
  int64_t quiet_since_nanos_ = 0;
  uint64_t next_quiet_ = 0;
  size_t base_fds_ = 0;
  uint64_t budget_ = 0;
  // kEvictWithoutLook
  bool evicting_ = false;
  std::atomic<uint32_t>* hidden_ = nullptr;
  uint32_t hidden_pins_ = 0;
};

WorldResult RunWorld(const WorldOptions& options);

}  // namespace sluice
