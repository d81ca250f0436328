#include "inferd/forward/part_profiler.h"

#include <algorithm>
#include <variant>

namespace sluice::inferd {
namespace {

void AddRows(const WeightView& weights, uint64_t rows, uint64_t tokens, PartWork* work) {
  work->bytes += rows * weights.stride;
  work->products += tokens * rows * weights.cols;
}

void AddExpert(const ExpertWork& expert, uint64_t tokens, bool read, PartWork* work) {
  const uint64_t end = expert.neuron_end == 0 ? expert.up.rows : expert.neuron_end;
  const uint64_t rows = end - expert.neuron_begin;
  for (const WeightView* part : {&expert.up, &expert.gate, &expert.down}) {
    if (!part->base) continue;
    const uint64_t part_rows = rows * part->rows / expert.up.rows;  // down's may be outputs
    work->bytes += read ? part_rows * part->stride : 0;
    work->products += tokens * part_rows * part->cols;
  }
}

struct Counter {
  PartWork work;

  void operator()(const MatMulArgs* args) {
    const uint64_t tokens = args->row_ids.empty() ? args->tokens : args->row_ids.size();
    for (const MatMulPart& part : args->parts) AddRows(part.weights, part.weights.rows, tokens, &work);
  }
  void operator()(const HeadMatMulArgs* args) {
    AddRows(args->weights, args->weights.rows, args->tokens, &work);
  }
  void operator()(const MoeExpertsArgs* args) {
    for (const ExpertWork& expert : args->experts) AddExpert(expert, expert.rows.size(), true, &work);
  }
  void operator()(const ExpertLeadsArgs* args) {
    for (const LeadWork& lead : args->experts) {
      AddRows(lead.lead, lead.lead.rows, lead.rows.size(), &work);
    }
  }
  // Counts the K and V visible to each sequence's rows; every row multiplies with all it sees, but a
  // sequence's K and V are read once.
  void operator()(const AttentionArgs* args) {
    const KvView& kv = args->kv;
    const uint64_t v_page = kv.v_page_stride == 0 ? kv.page_stride : kv.v_page_stride;
    const uint64_t page = kv.page_stride + (kv.v && kv.v != kv.k ? v_page : 0);
    const uint64_t value_dim = args->kv.value_dim == 0 ? args->kv.head_dim : args->kv.value_dim;
    for (const SequenceRows& text : args->sequences) {
      const uint64_t end = uint64_t{text.first_position} + text.rows;
      const uint64_t chosen = uint64_t{args->chosen.top} * args->chosen.block;
      const uint64_t window = args->chosen.blocks        ? std::min(chosen, end)
                              : args->sliding_window > 0 ? args->sliding_window
                                                         : end;
      work.bytes += std::min<uint64_t>(end, window + text.rows) * page / kPageTokens;
      // Half of the square over the sequence's own rows is masked.
      const uint64_t each =
          std::min<uint64_t>(window, uint64_t{text.first_position} + (uint64_t{text.rows} + 1) / 2);
      work.products += text.rows * each * args->heads * (args->kv.head_dim + value_dim);
    }
  }
  // Every row multiplies with all index keys before it.
  void operator()(const IndexSelectArgs* args) {
    const EntryView& entries = args->entries;
    for (const SequenceRows& text : args->sequences) {
      const uint64_t end = uint64_t{text.first_position} + text.rows;
      work.bytes += end * (args->keys.page_stride + entries.page_stride) / kPageTokens;
      work.products += text.rows * args->heads *
                       (entries.rate > 0 ? end / entries.rate * entries.head_dim : end * args->keys.head_dim);
    }
  }
  // Every row multiplies with its window and with its entries, chosen or all.
  void operator()(const CompressedAttentionArgs* args) {
    const EntryView& entries = args->entries;
    for (const SequenceRows& text : args->sequences) {
      const uint64_t end = uint64_t{text.first_position} + text.rows;
      const uint64_t window = std::min<uint64_t>(end, uint64_t{args->sliding_window} + text.rows);
      const uint64_t all = entries.rate > 0 ? end / entries.rate : 0;
      const uint64_t seen = args->chosen.blocks ? std::min<uint64_t>(all, args->chosen.top) : all;
      work.bytes += (window * args->kv.page_stride + end * entries.page_stride) / kPageTokens;
      work.products += text.rows * args->heads * args->kv.head_dim * 2 *
                       (std::min<uint64_t>(end, args->sliding_window) + seen);
    }
  }
  // Other operations read almost no weights.
  template <class Args>
  void operator()(const Args* /*args*/) {}
};

struct PartOf {
  StepPart products;

  StepPart operator()(const MatMulArgs*) const { return products; }
  StepPart operator()(const HeadMatMulArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const OutputGateArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const RopeKvWriteArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const LatentKvWriteArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const IndexSelectArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const AttentionArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const RopeHeadsArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const CompressArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const CompressedAttentionArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const GatedDeltaArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const MambaArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const ShortConvArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const SelectiveScanArgs*) const { return StepPart::kAttention; }
  StepPart operator()(const RouterArgs*) const { return StepPart::kRouter; }
  StepPart operator()(const ExpertLeadsArgs*) const { return StepPart::kExperts; }
  StepPart operator()(const MoeExpertsArgs*) const { return StepPart::kExperts; }
  StepPart operator()(const SoftCapArgs*) const { return StepPart::kHead; }
  StepPart operator()(const TopLogitsArgs*) const { return StepPart::kHead; }
  template <class Args>
  StepPart operator()(const Args* /*args*/) const {
    return StepPart::kOther;
  }
};

}  // namespace

PartWork WorkOf(const Operation& operation) {
  Counter counter;
  std::visit(counter, operation);
  return counter.work;
}

absl::Status PartProfiler::Enqueue(const Operation& operation) {
  const int64_t began = clock_.NowNanos();
  const absl::Status status = inner_queue().Enqueue(operation);
  const int64_t ended = clock_.NowNanos();
  const PartWork work = WorkOf(operation);
  PartWork& sum = works_[static_cast<size_t>(std::visit(PartOf{products_}, operation))];
  sum.seconds += static_cast<double>(ended - began) * 1e-9;
  sum.bytes += work.bytes;
  sum.products += work.products;
  return status;
}

}  // namespace sluice::inferd
