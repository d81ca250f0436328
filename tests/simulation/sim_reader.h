// A disk and its I/O engine: the real queue of reads, workers that are tasks, bytes that arrive piece by
// piece while others run, and faults by seed.
//
// Thread safety: one thread, the scheduler's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/scheduler.h"
#include "weightd/store/block_reader.h"
#include "weightd/store/read_queue.h"

namespace sluice {

struct SimDisk {
  // Each of these faults strikes one read in this many; 0: never.
  uint64_t io_error = 60;
  uint64_t end_of_file = 120;
  uint64_t bit_flip = 60;
  uint64_t misdirected = 90;
  uint64_t slow = 80;
  int64_t latency_nanos = 80'000;
  int64_t slow_nanos = 900'000'000;
  int workers = 2;
};

class SimReader final : public weightd::BlockReader {
 public:
  // `check_write(dest, bytes)` is called before bytes are written, `bytes` at most a page. `next_fill`
  // numbers the reads of all lives.
  struct Hooks {
    std::function<void(const std::byte* dest, uint64_t bytes)> check_write;
    std::function<void(uint64_t tag, uint64_t fill)> filled;
    std::function<void(const std::string& why)> fail;
  };
  SimReader(Scheduler* scheduler, const SimDisk& disk, uint64_t* next_fill, Hooks hooks);
  ~SimReader() override;

  absl::StatusOr<int> Register(const std::string&) override { return 0; }
  void SetSink(std::function<void(weightd::ReadResult)> sink) override { sink_ = std::move(sink); }
  void Submit(weightd::ReadJob job) override;
  void Promote(uint64_t tag) override;
  void Cancel(uint64_t tag) override;
  std::string Describe() const override { return "simulated"; }

  bool idle() const { return jobs_.empty() && reporting_ == 0; }
  // A planted bug: a piece of a job is written after its report.
  bool write_late = false;

 private:
  struct Job {
    uint64_t fill = 0;
    uint64_t length = 0;
    uint64_t handed = 0;  // to workers
    bool demand = false;
    bool over = false;  // cancelled or failed: nothing more is started
  };
  void Work();
  void DoChunk(const weightd::ReadChunk& chunk);
  // Writes the disk's bytes at `offset` of `file`; with `flip` some of them are wrong.
  void Arrive(const weightd::ReadChunk& chunk, uint64_t offset, uint64_t length, bool flip);
  void Write(std::byte* dest, uint32_t file, uint64_t offset, uint64_t length, uint64_t fill);
  void Report(const weightd::QueuedRead& read);
  void OnTaken(const weightd::ReadChunk& chunk);

  Scheduler* const scheduler_;
  const SimDisk disk_;
  uint64_t* const next_fill_;
  const Hooks hooks_;
  weightd::ReadQueue queue_;
  std::map<uint64_t, Job> jobs_;
  uint64_t prefetch_in_flight_ = 0;
  int reporting_ = 0;  // reports on their way to the sink
  std::vector<Scheduler::Task*> workers_;
  std::function<void(weightd::ReadResult)> sink_;
};

}  // namespace sluice
