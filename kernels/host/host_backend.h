// The CPU backend: the kernels of one instruction set over a thread pool, with scratch memory sized once.
// Operations run when they are enqueued, in the files host_*.cc.
//
// Thread safety: as Backend; the owner thread is worker 0. Inside an operation tiles write disjoint memory.
#ifndef SLUICE_KERNELS_HOST_HOST_BACKEND_H_
#define SLUICE_KERNELS_HOST_HOST_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/cpu_backend.h"
#include "kernels/host/host_isa.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/simd/row_fetch.h"
#include "kernels/host/thread_pool.h"

namespace sluice {

class HostBackend : public CpuBackend {
 public:
  static absl::StatusOr<std::unique_ptr<HostBackend>> Create(const BackendLimits& limits, uint32_t threads,
                                                             const host::KernelTable& kernels,
                                                             const host::MemoryTuning& tuning);

  void BeginStep() override { pool_.BeginStep(); }
  void EndStep() override { pool_.EndStep(); }
  absl::Status SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) override;
  BackendCounters Counters() const override;
  std::string Describe() const override;

  ThreadPool& pool() { return pool_; }

 protected:
  void Run(const EmbedCall& call) override;
  void Run(const NormCall& call) override;
  void Run(const MatMulCall& call) override;
  void Run(const RopeKvCall& call) override;
  void Run(const LatentKvCall& call) override;
  void Run(const AttentionCall& call) override;
  void Run(const HeadMatMulCall& call) override;
  void Run(const GatedDeltaCall& call) override;
  void Run(const SigmoidGateCall& call) override;
  void Run(const ScaleRowsCall& call) override;
  void Run(const RouterCall& call) override;
  void Run(const LeadCall& call) override;
  void Run(const MoeCall& call) override;
  void Run(const CombineCall& call) override;
  void Run(const TopLogitsCall& call) override;

 private:
  // Up to this many tokens an expert's weights are the bottleneck, not the arithmetic.
  static constexpr uint32_t kFusedTokens = 4;
  static constexpr uint32_t kNoTile = UINT32_MAX;

  // One expert of a fused call, or of a two-phase call.
  struct ExpertState {
    const ExpertCall* call = nullptr;
    uint32_t blocks = 0;
    uint32_t first_tile = 0;
    uint64_t memory = 0;  // floats into partials_ (fused) or first row of coefficients and panels
    uint32_t first_flag = 0;
    // Where masks leave this share of the coefficients or more, all rows are read.
    float dense_above = 1;
    bool down_by_lists = false;  // two-phase: down rows are read by each token's mask
  };

  // Whose turn it is to be added to an expert's y; on a cache line of its own, because workers are at
  // different experts most of the time.
  struct alignas(64) ExpertOrder {
    std::atomic<bool> taken{false};  // by a worker that adds
    uint32_t next_block = 0;         // guarded by `taken`
  };

  // A block of an expert, as one worker computes it.
  struct MoeBlock {
    const MoeCall* call = nullptr;
    const ExpertState* state = nullptr;
    uint32_t first = 0;  // neuron
    uint32_t neurons = 0;
    uint32_t tokens = 0;
    bool packed = false;  // token panels begin at state->memory
    uint32_t worker = 0;
    bool fetched = false;               // its rows are fetched before they are read: WorkerScratch::ahead
    bool whole = false;                 // it does not wait: all of its rows are expected to be read
    bool in_halves = false;             // all rows are fetched and read in turn from both halves of the block
    const MoeBlock* waiting = nullptr;  // whose kept rows are read after this one's first parts
    uint64_t* keep = nullptr;           // [tokens]: masks
    uint32_t* kept = nullptr;   // [tokens]: where kept coefficients are counted; nullptr: call->active
    float* const* c = nullptr;  // [tokens][64]: coefficients
  };
  // A block of a fused expert whose masks are made and whose kept rows are still to be read.
  struct WaitingBlock {
    bool waits = false;
    uint32_t slot = 0;  // of WorkerScratch
    uint32_t expert = 0;
    uint32_t number = 0;  // of the block in its expert
    // Where in WorkerScratch::ahead its kept rows begin, how many lines they have, and how many of these are
    // read in another order: each part's, where tokens have lists of their own.
    uint32_t kept_begin = 0;
    uint32_t kept_lines = 0;
    uint32_t in_any_order = 0;
    MoeBlock block;
  };
  // What one worker needs for a tile.
  struct alignas(64) WorkerScratch {
    float* gemm = nullptr;            // GemmScratchFloats
    float* down = nullptr;            // DownScratchFloats
    uint32_t* quant_down = nullptr;   // QuantDownWords
    float* quant_gemm = nullptr;      // QuantGemmFloats
    float* span = nullptr;            // scores, and m, l, o of kSpanQueries queries twice: host_attention.cc
    float* queries = nullptr;         // panels of kSpanQueries queries
    float* router = nullptr;          // [4][experts]: host_router.cc
    float* heads = nullptr;           // [heads][head_dim]: a row of K or V
    float* delta = nullptr;           // [kMaxConvKernel + 2][3][head_dim]: host_delta.cc
    float* sums = nullptr;            // [kFusedTokens][x_stride_]: a block of an expert
    float* tile = nullptr;            // [3][max_tokens][64]: outputs of a tile of rows
    float** pointers = nullptr;       // [3][max_tokens]: rows of `tile`
    const float** inputs = nullptr;   // [max_tokens]: rows of x
    host::QuantRow* quant = nullptr;  // [max_tokens]
    float** outputs = nullptr;        // [max_tokens]
    uint64_t* keep = nullptr;         // [max_tokens]: masks of a block
    // Fused experts: masks [kFusedTokens] and rows [kFusedTokens][64] of coefficients of two blocks, the one
    // that is being computed and the one that waits; what is fetched meanwhile.
    uint64_t* slot_keep[2] = {};
    float* slot_rows[2][kFusedTokens] = {};
    WaitingBlock waiting;
    host::RowFetch ahead;
    uint32_t next_tile = kNoTile;         // after the one that is computed, if the run goes on
    uint32_t listed_tile = 0;             // up to this one, what is read of the tiles is in `ahead`
    uint32_t tile_begin[4] = {};          // where in `ahead` what is read of tile t begins, at [t % 4]
    bool tile_whole[4] = {};              // MoeBlock::whole of tile t, at [t % 4]
    float kept_share[kFusedTokens] = {};  // of the last masked blocks of so many tokens + 1, about eight
    // The two encodings that rows were last of: an expert's parts have one or two, and working a shape out
    // takes as long as a row of q2.
    EncodingDescriptor shape_encodings[2];
    host::RowShape shapes[2];
    uint32_t* kept = nullptr;  // [experts + 8][kFusedTokens]: coefficients of a call that were kept here
  };

  // Activations rounded to int16 for one group size.
  struct QuantForm {
    int16_t* codes = nullptr;  // [max_tokens][code_stride]
    uint8_t* bytes = nullptr;  // [max_tokens][4 * code_stride], groups of 64 and 128
    float* scales = nullptr;   // [max_tokens][group_stride]
    float* sums = nullptr;
    bool wanted = false;
  };
  // Tokens whose inputs of one head a worker rounds at a time.
  static constexpr uint32_t kHeadTokens = 16;
  static constexpr uint32_t kQuantForms = 8;  // groups of 16, 32, ..., 128

  // One block of queries of one sequence and KV head, over all its spans or (partial) over one.
  struct AttentionTask {
    const SequenceRows* sequence = nullptr;
    uint32_t kv_head = 0;
    uint32_t first_query = 0;  // query = row * heads per KV head + head
    uint32_t queries = 0;
    uint32_t first_span = 0;
    uint32_t spans = 0;  // in this task
    uint32_t block = 0;  // partial: which block's partial results and countdown
    uint32_t block_first_span = 0;
    uint32_t block_spans = 0;  // 0: not partial
    uint64_t partial = 0;      // floats into partials_ where the block begins
  };

  // Which rows of a block are read: all; those that any token keeps, for all tokens; each token's own.
  enum class Reading : uint8_t { kAll, kUnion, kTokens };
  // Rows of a block that are kept, in order.
  struct KeptRows {
    uint32_t index[kNeuronBlock];  // in the block
    const uint8_t* rows[kNeuronBlock + host::kMostRowsAhead];
    uint32_t count = 0;
    uint32_t listed = 0;  // with the first rows of the part that comes next
  };

  HostBackend(const BackendLimits& limits, uint32_t threads, const host::KernelTable& kernels,
              const host::MemoryTuning& tuning);
  absl::Status AllocateScratch();
  // Of one worker: rows of up to `cols` values.
  absl::Status AllocateWorker(uint32_t cols, WorkerScratch* w);
  // Zeroed memory for `count` values, owned by the backend.
  template <class T>
  absl::Status Reserve(uint64_t count, const char* what, T** out);

  // Runs tiles in parallel if `work` (multiply-adds, or values touched times some) is worth a fork-join.
  void RunTiles(uint32_t tiles, uint64_t work, ThreadPool::TileFunction function) {
    RunTiles(tiles, work, function, [](uint32_t) {});
  }
  // With ThreadPool::Run()'s `finish`.
  void RunTiles(uint32_t tiles, uint64_t work, ThreadPool::TileFunction function,
                ThreadPool::FinishFunction finish);

  // Rows of x rounded for the group sizes that are `wanted`.
  void QuantizeRows(const float* const* x, uint32_t tokens, uint32_t cols);
  host::QuantRow QuantizedRow(uint32_t group, uint32_t token) const;
  QuantForm& Form(uint32_t group) { return forms_[group / 16 - 1]; }
  // How rows of an encoding lie, for the worker. Good until it asks for another one.
  const host::RowShape& ShapeFor(const EncodingDescriptor& e, uint32_t cols, uint32_t worker);
  const uint8_t* RowOrZero(const CpuWeights& weights, uint32_t row) const {
    const uint8_t* place = weights.Row(row);
    return place != nullptr ? place : zero_row_;
  }

  // host_rows.cc: the operations on row lists. A list names rows of one encoding anywhere in memory, so rows
  // may be gathered at no cost.
  struct RowList {
    EncodingDescriptor encoding;
    uint32_t cols = 0;
    const uint8_t* const* rows = nullptr;
    uint32_t count = 0;
    // Of rows that do not follow each other in memory: how many are listed. Those beyond `count` come next;
    // they are only prefetched. 0: the rows are one stream.
    uint32_t listed = 0;
    // The rows were fetched before, so they are not prefetched: WorkerScratch::ahead goes on, so many lines
    // with every row. 0: they were not.
    uint32_t fetch_lines = 0;
    bool at_once = false;  // float rows are read several at once: those of a mask, which lie here and there
    bool two_streams = false;  // host::RowPrefetch::two_streams, of quantized rows
    bool in_halves = false;    // host::QuantDownCall::in_halves
  };
  // y[i][r] = dot(x_rows_[tokens[i]], row r). The operation has set x_rows_ and, if the encoding is
  // quantized, rounded them for its group (QuantizeRows).
  void DotList(const RowList& list, absl::Span<const uint32_t> tokens, uint32_t worker, float* const* y);
  // The same with the worker's own x rows: scratch.quant[i] if the encoding is quantized, else
  // scratch.inputs[i].
  void DotInputs(const RowList& list, uint32_t tokens, uint32_t worker, float* const* y);
  // The kernel's call for that. REQUIRES a quantized encoding.
  host::QuantDotCall QuantDotOf(const RowList& list, uint32_t tokens, uint32_t worker, float* const* y);
  // y[i] (+)= the block sum of at most 64 neurons, whose down rows are the list and whose coefficients are
  // c[i][j], for all columns. With `add` onto y, else y is overwritten.
  void DownList(const RowList& list, const float* const* c, uint32_t tokens, bool add, uint32_t worker,
                float* const* y);

  // host_matmul.cc
  void NormRow(const CpuNorm& norm, const float* x, uint32_t cols, float* y) const;
  void PrepareMatMulRows(const MatMulCall& call, bool pack);
  // Some rows of one of a MatMul's parts.
  struct RowTile {
    const MatMulCallPart* part = nullptr;
    uint32_t row = 0;
    uint32_t rows = 0;
    uint32_t next_rows = 0;  // of the part's next tile
    bool halves = false;     // its two halves are read in turn
  };
  RowList ListTile(const MatMulCall& call, const RowTile& tile, const uint8_t** w) const;
  void MatMulTile(const MatMulCall& call, const RowTile& tile, bool packed, uint32_t worker);

  // host_kv_write.cc
  void TurnHeads(const RopeKvCall& call, const CpuNorm& norm, uint32_t heads, const float* cos_sin,
                 float* row) const;
  void StoreHead(const CpuKv& kv, uint8_t* page, uint32_t head, uint32_t token, const float* values) const;

  // host_head_matmul.cc
  void HeadTile(const HeadMatMulCall& call, uint32_t head, uint32_t first, uint32_t tokens, uint32_t worker);

  // host_delta.cc
  struct DeltaTile;
  void DeltaHead(const GatedDeltaCall& call, uint32_t sequence, uint32_t head, uint32_t worker);
  void DeltaToken(const GatedDeltaCall& call, const DeltaTile& tile, uint32_t row);

  // host_attention.cc
  void PlanAttention(const AttentionCall& call);
  void AttentionBlock(const AttentionCall& call, const AttentionTask& task, uint32_t worker);
  void ComputeSpan(const AttentionCall& call, const AttentionTask& task, uint32_t span, uint32_t worker,
                   float* results, uint32_t* first_query, uint32_t* end_query);
  void FinishQueries(const AttentionCall& call, const AttentionTask& task);
  void WriteQuery(const AttentionCall& call, const AttentionTask& task, uint32_t i, float* m, float* l,
                  float* o);

  // host_moe.cc
  void PrepareExpertRows(const MoeCall& call);
  static uint64_t WorkOf(const MoeCall& call, const ExpertCall& expert);
  uint32_t ExpertOfTile(uint32_t tile) const;
  void RunTwoPhase(const MoeCall& call);
  void PackExpertRows(const MoeCall& call, uint64_t rows);
  void CoefficientTile(const MoeCall& call, uint32_t tile, uint32_t worker);
  uint32_t PlanDownTiles();
  void DownTile(const MoeCall& call, const ExpertState& state, uint32_t part, uint32_t worker);
  // What a tile of the second phase computes.
  struct DownPart {
    uint32_t first = 0;  // token of the expert
    uint32_t tokens = 0;
    uint32_t column = 0;
    uint32_t columns = 0;
  };
  static DownPart PartOf(const ExpertCall& expert, bool by_lists, uint32_t part);
  void DownColumns(const RowList& list, const DownPart& p, const float* const* c, uint32_t worker,
                   float* const* y);
  float DenseAbove(const ExpertCall& expert) const;

  // host_moe_fused.cc
  void RunFused(const MoeCall& call);
  void FusedTile(const MoeCall& call, uint32_t tile, uint32_t worker);
  void FinishTile(const WaitingBlock& waiting);
  void FinishWaiting(uint32_t worker);
  bool ReadsInHalves(const ExpertCall& expert, bool whole) const;
  bool IsWhole(const ExpertState& state, uint32_t worker) const;
  void ReadTile(uint32_t tile, uint32_t worker);
  void FetchTile(const MoeCall& call, uint32_t tile, uint32_t worker);
  void FetchThrough(const MoeCall& call, uint32_t tile, uint32_t worker);
  void FetchKept(WaitingBlock* waiting);
  void SumKeptCounts(const MoeCall& call);
  void FollowTile(const MoeCall& call, uint32_t tile, uint32_t worker);

  // host_leads.cc
  void LeadTile(const LeadCall& call, const LeadCallPart& expert, uint32_t block, uint32_t worker);

  // host_moe_order.cc
  bool TakeTurn(uint32_t expert, uint32_t block);
  void EndTurn(const MoeCall& call, uint32_t expert);
  bool StartToken(const MoeBlock& b, uint32_t number, float* y) const;
  void AddBlock(const MoeCall& call, const ExpertState& state, uint32_t block, uint32_t i, const float* sum);
  void FinishBlock(const MoeCall& call, uint32_t expert, uint32_t block, const float* sums);
  void Drain(const MoeCall& call, uint32_t expert);
  void AddKeptAndLetGo(const MoeCall& call, uint32_t expert);

  // host_moe_block.cc
  MoeBlock BlockOf(const MoeCall& call, const ExpertState& state, uint32_t block, bool packed,
                   uint32_t worker) const;
  static bool LeadDecides(const ExpertCall& expert);
  static Reading HowToRead(const MoeBlock& b, uint32_t passes);
  static uint64_t AnyKept(const MoeBlock& b);
  static uint32_t KeptInAll(const MoeBlock& b);
  static uint64_t PresentNeurons(const MoeBlock& b);
  static uint32_t FirstKept(const MoeBlock& b, const uint8_t** rows);
  uint32_t NextLeads(const MoeBlock& b, const uint8_t** rows) const;
  void ListKept(const CpuWeights& weights, const CpuWeights* next, uint32_t first, uint64_t mask,
                KeptRows* out) const;
  uint32_t FetchLines(const MoeBlock& b, const CpuWeights& weights, uint32_t fetched, uint32_t rows);
  void DotKept(const MoeBlock& b, const CpuWeights& weights, const CpuWeights* next, float* const* y);
  void DotForAll(const MoeBlock& b, const RowList& list, float* const* y);
  void MakeFactors(const MoeBlock& b, bool up, float* const* y) const;
  void FirstParts(const MoeBlock& b);
  void SecondPart(const MoeBlock& b);
  uint32_t BlockCoefficients(const MoeBlock& b);
  void BlockSums(const MoeBlock& b, bool add, float* const* sums);
  void SumKept(const MoeBlock& b, uint64_t mask, uint32_t begin, uint32_t end, bool add, float* const* sums);

  const host::KernelTable& kernels_;
  const host::MemoryTuning tuning_;
  uint32_t call_distance_ = 0;  // bytes that rows of whole blocks are fetched ahead, of a call
  ThreadPool pool_;
  std::atomic<uint64_t> serial_ops_{0};

  std::vector<MappedArray> memory_;
  std::vector<WorkerScratch> workers_;
  std::vector<QuantForm> head_forms_;  // [workers], kHeadTokens rows each
  const uint8_t* zero_row_ = nullptr;  // stands for an absent row in any encoding
  float* normed_ = nullptr;            // [max_tokens][x_stride_]
  uint64_t x_stride_ = 0;
  const float** x_rows_ = nullptr;  // [max_tokens]
  uint32_t* all_tokens_ = nullptr;  // 0, 1, ... max_tokens - 1
  float* packed_ = nullptr;         // panels of all rows of a call (MoE: of all slots)
  QuantForm forms_[kQuantForms];
  uint64_t code_stride_ = 0;
  uint64_t group_stride_ = 0;
  float* partials_ = nullptr;
  uint64_t partial_floats_ = 0;
  float* coefficients_ = nullptr;  // [rows of packed_][expert_width rounded up to 64]
  uint64_t coefficient_stride_ = 0;
  std::vector<AttentionTask> tasks_;
  std::unique_ptr<std::atomic<uint32_t>[]> countdown_;  // of attention blocks that are split
  uint32_t max_blocks_ = 0;
  std::vector<ExpertState> experts_;
  std::unique_ptr<ExpertOrder[]> orders_;            // [experts]
  std::unique_ptr<std::atomic<bool>[]> block_done_;  // of all experts' blocks
  uint32_t max_flags_ = 0;
  std::vector<SparseSwitchEntry> sparse_switches_;
  uint32_t* block_kept_ = nullptr;  // coefficients kept in each block, all experts' blocks
};

}  // namespace sluice

#endif  // SLUICE_KERNELS_HOST_HOST_BACKEND_H_
