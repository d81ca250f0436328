// An operation that outlives its call: its arguments, with copies of the host data that they point to. Keep()
// reuses the memory, so that an operation no larger than an earlier one allocates nothing.
//
// Thread safety: thread-compatible; may be handed from thread to thread.
#pragma once

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "kernels/ops.h"

namespace sluice {

class OwnedOperation {
 public:
  OwnedOperation() = default;
  explicit OwnedOperation(const Operation& operation) { Keep(operation); }
  OwnedOperation(const OwnedOperation&) = delete;
  OwnedOperation& operator=(const OwnedOperation&) = delete;

  // Forgets the earlier operation.
  void Keep(const Operation& operation);
  // Returns the kept operation, valid until the next Keep() or the destructor. REQUIRES: one is kept.
  Operation get() const;
  const char* name() const;

 private:
#define SLUICE_KEPT_ARGS(Name) , Name##Args
  using Args = std::variant<std::monostate SLUICE_OPERATIONS(SLUICE_KEPT_ARGS)>;
#undef SLUICE_KEPT_ARGS

  std::byte* Room(size_t bytes);
  template <class T>
  absl::Span<T> Copy(absl::Span<const T> values);
  template <class T>
  absl::Span<const T> KeepList(absl::Span<const T> values) {
    return Copy(values);
  }
  absl::Span<const SequenceRows> KeepSequences(absl::Span<const SequenceRows> sequences);
  absl::Span<const ExpertWork> KeepExperts(absl::Span<const ExpertWork> experts);
  absl::Span<const LeadWork> KeepLeads(absl::Span<const LeadWork> leads);

  template <class RecurrentArgs>
  void KeepStates(RecurrentArgs& args) {
    args.sequences = KeepSequences(args.sequences);
    args.from = KeepList(args.from);
    args.to = KeepList(args.to);
  }

  template <class T>
  void KeepLists(T& /*args*/) {}  // operations without lists
  void KeepLists(EmbedArgs& args) { args.ids = KeepList(args.ids); }
  void KeepLists(MatMulArgs& args);
  void KeepLists(RopeKvWriteArgs& args) { args.sequences = KeepSequences(args.sequences); }
  void KeepLists(LatentKvWriteArgs& args) { args.sequences = KeepSequences(args.sequences); }
  void KeepLists(IndexSelectArgs& args) { args.sequences = KeepSequences(args.sequences); }
  void KeepLists(AttentionArgs& args) { args.sequences = KeepSequences(args.sequences); }
  void KeepLists(RopeHeadsArgs& args) { args.sequences = KeepSequences(args.sequences); }
  void KeepLists(CompressArgs& args) { KeepStates(args); }
  void KeepLists(CompressedAttentionArgs& args) { args.sequences = KeepSequences(args.sequences); }
  void KeepLists(GatedDeltaArgs& args) { KeepStates(args); }
  void KeepLists(MambaArgs& args) { KeepStates(args); }
  void KeepLists(ShortConvArgs& args) { KeepStates(args); }
  void KeepLists(SelectiveScanArgs& args) { KeepStates(args); }
  void KeepLists(ExpertLeadsArgs& args) { args.experts = KeepLeads(args.experts); }
  void KeepLists(MoeExpertsArgs& args) { args.experts = KeepExperts(args.experts); }
  void KeepLists(RoutedExpertsArgs& args) { args.experts = KeepExperts(args.experts); }
  void KeepLists(RoutedLeadsArgs& args) { args.experts = KeepLeads(args.experts); }

  // Memory for lists. Each block is twice as large as the previous one; the last is in use.
  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };
  Args args_;
  std::vector<Block> blocks_;
  size_t used_ = 0;  // bytes used in the last block
};

}  // namespace sluice
