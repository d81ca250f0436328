// RowSource: rows of tables that stay with weightd, such as those that hashed n-grams name. The tables are
// far larger than memory; a token reads a few rows of each.
//
// A step asks for the rows of all its tokens and layers when it begins: weightd reads the extents that hold
// them, and keeps what its DRAM tier has room for, as it does with experts. Each row is copied into memory of
// the device when its extent is there; an extent is leased for the copy only. A layer waits for its own rows
// alone.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/model_config.h"
#include "common/model/ngram_hash.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/step_batch.h"
#include "inferd/model/weight_client.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class RowSource final : public ExtentListener {
 public:
  struct Parts {  // all outlive the source
    WeightClient* client = nullptr;
    FetchQueue* fetches = nullptr;
    Backend* backend = nullptr;
    // Handles the completions that have arrived, those of experts too (FetchQueue::Poll).
    std::function<void()> poll;
  };

  // Monotonic counters.
  struct Counts {
    uint64_t rows = 0;     // rows of tokens
    uint64_t extents = 0;  // distinct extents of a step's rows
    uint64_t hits = 0;     // of these: in weightd's DRAM when the step began
  };

  // Null if no layer of `config` has n-grams. DATA_LOSS: the pack's tables are not those of `config`.
  static absl::StatusOr<std::unique_ptr<RowSource>> Create(const ModelConfig& config, uint32_t max_tokens,
                                                           absl::Duration stall_limit, const Parts& parts);
  ~RowSource() override;

  // Device bytes that Create() allocates.
  static uint64_t DeviceBytes(const ModelConfig& config, uint32_t max_tokens);

  // Forgets the step before, finds the rows of the batch's tokens in every table, copies those that are
  // resident and requests the others. UNAVAILABLE: the connection is lost. The batch lives until the next
  // Begin().
  absl::Status Begin(StepBatch* batch);

  // Waits for the rows of a layer's table, and returns the tokens' values [tokens, NgramWidth]: a token's
  // rows one behind the other. Sequences whose rows are damaged are marked in the batch. UNAVAILABLE: the
  // connection is lost; RESOURCE_EXHAUSTED: nothing came for the stall limit. REQUIRES: the layer has
  // n-grams.
  absl::StatusOr<WeightView> Await(uint32_t layer);

  const Counts& counts() const { return counts_; }

  void OnExtent(uint32_t extent, const FetchCompletion& completion) override;
  void OnLost() override { groups_.clear(); }

 private:
  struct Table {
    uint32_t layer = 0;
    NgramConfig ngrams;
    NgramHash hash;
    uint32_t first_extent = 0;
    uint32_t each = 0;    // rows of an extent
    uint32_t stride = 0;  // bytes from row to row
    uint32_t bytes = 0;   // of a row
    EncodingDescriptor encoding;
    BufferRef values;           // [max_tokens, NgramWidth]
    std::byte* host = nullptr;  // its place in this process, during a step
    uint32_t open = 0;          // groups that are not done
  };
  // A row that a token reads: row `row` of the extent goes to place `place` of the table's values.
  struct Want {
    uint32_t extent = 0;
    uint32_t row = 0;
    uint32_t place = 0;
  };
  enum class State : uint8_t { kAbsent, kRequested, kDone };
  // The wants of one extent.
  struct Group {
    uint32_t extent = 0;
    uint32_t table = 0;
    uint32_t first = 0;  // of wants_
    uint32_t count = 0;
    State state = State::kAbsent;
  };

  RowSource(uint32_t max_tokens, absl::Duration stall_limit, const Parts& parts);
  absl::Status AddTable(const ModelConfig& config, uint32_t layer);
  absl::Status FindWants(uint32_t table, const StepBatch& batch);
  void GroupWants(uint32_t table, size_t first);
  // True if the group's rows are copied now.
  bool TryCopy(Group* group);
  void Finish(Group* group);
  void Damage(Group* group, uint32_t extent);
  absl::Status Request(uint32_t table);
  Group* Find(uint32_t extent);

  const Parts parts_;
  const uint32_t max_tokens_;
  const absl::Duration stall_limit_;
  StallLimit stall_;
  std::vector<Table> tables_;   // by layer
  std::vector<Want> wants_;     // by table, then extent
  std::vector<Group> groups_;   // by extent, ascending; a table's are neighbours
  std::vector<uint64_t> rows_;  // of one token
  StepBatch* batch_ = nullptr;
  absl::Time retry_at_ = absl::InfinitePast();
  absl::Status error_;
  Counts counts_;
};

}  // namespace sluice::inferd
