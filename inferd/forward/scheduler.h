// The scheduler selects the rows of the next step: continuous batching, chunked prefill, fairness,
// preemption. Pure: no clock, no I/O, no device; time is an argument.
//
// Rules, in this order:
//  - Every running sequence that lacks only its last row (decode) gets it in every step, so prefill never
//    starves decode. At most SetPrefillRows() further rows are prefill, so a step stays short; they go to the
//    sequence of the highest priority, then of the client served least, then the oldest.
//  - A waiting request starts when a slot is free and the pages of its known tokens, and those still to come
//    of the running ones' known tokens, are free. Larger priority first; then the client with the fewest
//    running sequences, then the one served least, then the oldest. The first in that order is never
//    overtaken because it is large. If it does not fit, running sequences of lower priority are preempted,
//    the youngest of the lowest first.
//  - A starting sequence gets the pages of its prefix that a PrefixSource has cached; only the rest is
//    computed.
//  - Pages of generated tokens are allocated when needed, not reserved for max_tokens: most answers end
//    early, and reserving would halve the batch. When pages run out the youngest sequence of the lowest
//    priority is preempted: it releases all its pages and waits again, its known tokens to be recomputed or
//    found in the prefix cache. Exact arithmetic makes the recomputed state the same. The oldest of the
//    highest priority is never chosen while another runs, and the cache holds at least one whole context, so
//    there is always progress.
//  - A step without prompt rows may verify drafts (speculation): a decoding sequence gets a row for each.
//  They
//    use free pages only; nothing is preempted or delayed for them.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "inferd/model/kv_cache.h"

namespace sluice::inferd {

using SequenceId = uint64_t;
inline constexpr uint32_t kNoSlot = 0xffffffffu;

struct SchedulerOptions {
  uint32_t parallel = 4;         // maximum running sequences; KvPages has as many slots
  uint32_t prefill_chunk = 512;  // maximum prefill rows per step, >= 1
};

// Source of cached prefixes for starting sequences. Implemented by PrefixCache (prefix_cache.h).
class PrefixSource {
 public:
  struct Start {
    uint32_t computed = 0;  // positions that the slot holds
    // A prefill step ends at or before this position, so that other sequences can start there; 0: anywhere.
    uint32_t stop = 0;
  };
  virtual ~PrefixSource() = default;
  // Number of the sequence's pages that others hold now and it would share.
  virtual uint32_t SharedPages(SequenceId id) = 0;
  // Starts the sequence in an empty slot; may give it pages.
  virtual Start Begin(SequenceId id, uint32_t slot) = 0;
  // Called before the slot's pages are released; `computed` of the sequence's positions are computed.
  virtual void Leave(SequenceId id, uint32_t slot, uint32_t computed) = 0;
};

struct ScheduledRows;

// Source of drafts: tokens that probably follow a sequence's known ones. Implemented by Speculation
// (inferd/engine/speculation.h).
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Begins a step of these decoding sequences. A step that was not committed is begun again.
  virtual void BeginStep(absl::Span<const ScheduledRows> sequences) = 0;
  // Returns at most `most` drafts for the next step; valid until the next call for the same sequence.
  virtual absl::Span<const int32_t> DraftsFor(SequenceId id, uint32_t most) = 0;
};

// A request as the scheduler sees it.
struct ScheduleRequest {
  SequenceId id = 0;
  std::string client;
  int32_t priority = 0;                          // larger runs earlier
  absl::Time deadline = absl::InfiniteFuture();  // applies while waiting and running
  absl::Time start_by = absl::InfiniteFuture();  // applies until it has run once
  uint32_t length = 0;                           // tokens known, >= 1
  uint32_t row_limit = 0;                        // maximum rows per step; 0: prefill_chunk
};

// Rows of one sequence in a step: positions [first_position, first_position + rows), the last ones those of
// the drafts.
struct ScheduledRows {
  SequenceId id = 0;
  uint32_t slot = 0;
  uint32_t first_position = 0;
  uint32_t rows = 0;
  uint32_t redone = 0;       // of these: first rows that an earlier step computed too, see Scheduler::Redo()
  bool reaches_end = false;  // the last row but those of drafts is that of the last known token
  absl::Span<const int32_t> drafts;  // tokens that may follow; lives until the next plan

  // Number of known tokens after the rows but those of drafts.
  uint32_t known() const { return first_position + rows - static_cast<uint32_t>(drafts.size()); }
};

struct StepPlan {
  std::vector<ScheduledRows> sequences;
  uint32_t rows = 0;
  uint32_t prefill_rows = 0;
  uint32_t draft_rows = 0;
  std::vector<SequenceId> admitted;   // sequences that left the queue for this step
  std::vector<SequenceId> preempted;  // sequences that returned to it
};

class Scheduler {
 public:
  // `pages`, `prefixes` (null: no prefix reuse) and `drafts` (null: no speculation) outlive the scheduler.
  // Only the scheduler, and `prefixes` when called by it, may grow or release slots of `pages`.
  Scheduler(const SchedulerOptions& options, KvPages* pages, PrefixSource* prefixes = nullptr,
            DraftSource* drafts = nullptr);
  ~Scheduler();

  // Sets the maximum prefill rows of the following steps, 1..prefill_chunk; initially prefill_chunk.
  void SetPrefillRows(uint32_t rows) { prefill_rows_ = rows; }

  // Puts a request into the queue. REQUIRES: an id not in use.
  void Add(const ScheduleRequest& request);

  // Removes a sequence, waiting or running; its slot and pages are free at once. Unknown ids are ignored.
  void Remove(SequenceId id);

  // Returns the sequences whose deadline is not after `now`; they stay until Remove().
  const std::vector<SequenceId>& Expired(absl::Time now);
  // Returns the sequences past `start_by` that have never run; they stay until Remove().
  const std::vector<SequenceId>& Overdue(absl::Time now);
  // The earliest time at which either list grows; InfiniteFuture if none.
  absl::Time NextDeadline() const;

  // A blocked sequence gets no rows. It keeps its pages, but after kPatience blocked plans it is preempted
  // for waiting requests: a consumer that reads nothing must not delay others.
  void SetBlocked(SequenceId id, bool blocked);
  static constexpr uint32_t kPatience = 256;

  // Plans the next step. Valid until the next call. A plan that was not committed is made again.
  const StepPlan& Plan();

  // Notes that the first `rows` planned rows of `id` are in the cache; rows of wrong drafts are not.
  void Commit(SequenceId id, uint32_t rows);
  // Notes that `id` has `tokens` more known tokens.
  void Append(SequenceId id, uint32_t tokens = 1);
  // Notes, after Append(), that no row of the step was committed: the next decode step computes them with the
  // last token's. For recurrent states, which cannot be cut behind the last right draft.
  void Redo(SequenceId id);
  // Discards the cached positions of `id`, which runs: releases its pages, and computes it anew in its slot.
  void Restart(SequenceId id);

  // Preempts every running sequence, to be recomputed, and calls `change`, which may change the number of
  // pages.
  void WithoutPages(absl::FunctionRef<void()> change);

  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.size()); }

 private:
  struct Client {
    std::string name;
    uint64_t served = 0;  // number of rows
    uint32_t running = 0;
    uint32_t live = 0;  // number of waiting and running sequences
  };
  struct Entry {
    ScheduleRequest request;
    Client* client = nullptr;
    uint64_t arrival = 0;
    uint32_t slot = kNoSlot;
    uint32_t computed = 0;  // positions in the cache
    uint32_t stop = 0;      // PrefixSource::Start::stop
    uint32_t redo = 0;      // known tokens before the last that the next decode step computes
    bool has_run = false;   // true after the first admission
    bool blocked = false;
    uint32_t blocked_plans = 0;  // number of consecutive blocked plans
    bool planned = false;        // has rows in the plan being made
    uint32_t missing() const { return request.length - computed; }
  };

  static bool Older(const Entry& a, const Entry& b);
  Client* ClientNamed(const std::string& name);
  void PlanDecode();
  void PlanPrefill();
  void PlanDrafts();
  void AdmitWaiting();
  void PreemptBlocked();
  void PreemptForPriority();
  bool Fits(const Entry& entry) const;
  bool WouldFit(const Entry& entry);
  uint32_t PagesToStart(const Entry& entry) const;
  void StartIn(Entry* entry, uint32_t slot);
  Entry* NextPrefill();
  Entry* NextWaiting();
  void PlanRows(Entry* entry, uint32_t rows);
  bool MakeRoom(Entry* entry, uint32_t end);
  uint32_t FreePagesWithout(absl::FunctionRef<bool(const Entry&)> leaves);
  void Preempt(Entry* entry);
  void StopRunning(Entry* entry);
  uint32_t PeakPages(uint32_t positions) const;
  uint32_t PagesCommitted(int64_t priority) const;

  const SchedulerOptions options_;
  uint32_t prefill_rows_;
  KvPages* const pages_;
  PrefixSource* const prefixes_;
  DraftSource* const drafts_;
  absl::flat_hash_map<SequenceId, std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> running_;  // older and more important first
  std::vector<Entry*> waiting_;  // unordered
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<uint32_t> free_slots_;
  std::vector<SequenceId> expired_;
  std::vector<SequenceId> overdue_;
  std::vector<uint32_t>
      leaving_holders_;  // by page: number of holders that could be preempted; all 0 between calls
  StepPlan plan_;
  uint32_t chunk_left_ = 0;
  uint64_t arrivals_ = 0;
};

// The number of prompt rows in a step. A prefill step reads every expert that is not in memory once, whatever
// its number of rows: with few rows it waits for the disk, and every chunk of the prompt repeats the reading.
// So rows grow while reading takes longer than computing, up to the point where both take the same time; more
// rows would only delay the next tokens of other sequences.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class ChunkPace {
 public:
  // Rows are multiples of this, except `least` and `most`.
  static constexpr uint32_t kQuantum = 64;

  // `least` is used while nothing is read, `most` is the maximum; 1 <= least <= most.
  ChunkPace(uint32_t least, uint32_t most) : min_rows_(least), max_rows_(most), rows_(least) {}

  // Number of prompt rows of the next step.
  uint32_t rows() const { return rows_; }

  // Notes a step of `prompt_rows` that lasted `seconds`, of which it waited `waited` for experts, and read
  // `bytes`. Steps with fewer than half of the allowed rows are ignored as noise.
  void Note(uint32_t prompt_rows, double seconds, double waited, uint64_t bytes) {
    if (2 * prompt_rows < rows_ || seconds <= waited || seconds <= 0) {
      return;
    }
    // This is the disk's rate if the step only waited for it, and a lower bound otherwise.
    rate_ = std::max(rate_ * kFade, static_cast<double>(bytes) / seconds);
    const double reading = rate_ > 0 ? std::max(waited, static_cast<double>(bytes) / rate_) : 0;
    const double computing = seconds - waited;
    const double balanced = prompt_rows * std::min(reading / computing, static_cast<double>(max_rows_));
    // At most doubled at a time: one step's times may be outliers.
    const double next = std::min(balanced, 2.0 * rows_);
    const auto rounded = static_cast<uint32_t>(next / kQuantum + 0.5) * kQuantum;
    rows_ = std::clamp(rounded, min_rows_, max_rows_);
  }

 private:
  // Decay per step of a rate that is not reached again.
  static constexpr double kFade = 0.98;

  const uint32_t min_rows_;
  const uint32_t max_rows_;
  uint32_t rows_;
  double rate_ = 0;  // bytes per second
};

// Definition of a scan: a step with so many prompt rows that they use nearly every expert of every layer.
// Past use then predicts nothing, and the order of the layers predicts everything.
//
// Thread safety: pure.

// A step that uses at least this share of a layer's experts is a scan.
inline constexpr double kScannedShare = 0.75;

// Minimum number of prompt rows of a scan, assuming evenly chosen experts: n rows of k experts each use a
// share of 1 - (1 - k / E)^n of E. 0: the model has no routed experts.
inline uint32_t ScanRows(const ModelConfig& config) {
  double rows = 0;
  for (const LayerConfig& layer : config.layers) {
    if (layer.moe.experts == 0) continue;
    const double unused = 1 - static_cast<double>(layer.moe.top_k) / layer.moe.experts;
    rows = std::max(rows, unused <= 0 ? 1 : std::ceil(std::log(1 - kScannedShare) / std::log(unused)));
  }
  return static_cast<uint32_t>(rows);
}

}  // namespace sluice::inferd
